"""The policy of an aggregator's operator: which runs it serves, whatever a coordinator asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from hubbub.errors import Code, Objection
from hubbub.messages.manifest import MINIMUM, Manifest
from hubbub.policy import ANY, NO_LIMIT, Limit, PartyPolicy, object_above
from hubbub.strategies.registry import STRATEGIES
from hubbub.trust.roster import Roster


class AggregatorPolicy(PartyPolicy):
    """Limits that the operator of an aggregator sets; a manifest within all of them is joined."""

    party: ClassVar[str] = "aggregator"

    strategies: tuple[str, ...] = (
        "no-union",
        "sec-union",
        "partial-sec-union",
        "shared-mask",
        "secure-fedavg",
        "sum",
        "sparse-sum",
    )
    """Strategies that this aggregator allows. These show it no sum and nothing of a single client. Every other
    strategy shows a server something, and is allowed only if it is listed here."""
    max_runs: Limit = 1000
    """The most runs that this aggregator ever joins."""
    approve_tasks: tuple[str, ...] = (ANY,)
    """Tasks whose manifests need no approval of their own if they keep all other limits; "*" is any task. With [],
    every run must be approved by its id."""
    max_parameters: Limit = 100_000_000
    """The largest model, in parameters. This aggregator's disk holds the shares of all clients in a phase."""
    max_cohort: Limit = 100
    """The most clients that a run may have."""

    @classmethod
    def for_demo(cls, roster_sha256: str) -> Self:
        """Return a policy for throw-away data: every strategy, any size, two clients."""
        return cls(
            strategies=tuple(STRATEGIES),
            min_clients=MINIMUM,
            roster_sha256=roster_sha256,
            max_runs=NO_LIMIT,
            max_rounds=NO_LIMIT,
            max_void_rounds=NO_LIMIT,
            max_parameters=NO_LIMIT,
            max_cohort=NO_LIMIT,
        )

    def _object_to_size(self, manifest: Manifest, roster: Roster) -> Iterator[Objection]:
        yield from super()._object_to_size(manifest, roster)
        yield from object_above(
            Code.POLICY_SIZE, "parameters", manifest.parameters, "max_parameters", self.max_parameters
        )
        yield from object_above(Code.POLICY_SIZE, "clients", len(manifest.cohort), "max_cohort", self.max_cohort)
