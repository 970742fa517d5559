"""The data owner's policy: what this trainer takes part in, whatever a coordinator asks."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from hubbub.errors import ConfigurationError
from hubbub.ids import RUN_ID_PATTERN, RunId
from hubbub.messages.manifest import MINIMUM, Digest, Manifest, Name, describe
from hubbub.protocol.blocks import MAX_BLOCK
from hubbub.runtime.intake import find_disagreements
from hubbub.strategies.blocks import REVEALS
from hubbub.strategies.registry import STRATEGIES, find_strategy
from hubbub.trust.roster import Roster

Run = Annotated[RunId, StringConstraints(pattern=RUN_ID_PATTERN)]

ANY = "*"
"""In `approve_tasks`: whatever the task."""
SHOWN_DIGITS = 12
"""Of a digest in a sentence; digests are compared in full."""
NO_LIMIT = 2**53
"""Every count in a manifest is below this."""


class Policy(BaseModel):
    """Limits that the data owner sets; a manifest within all of them is joined.

    What is said of a field here is also the comment above it in a new policy file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    strategies: tuple[str, ...] = ("no-union", "sec-union", "partial-sec-union")
    """How updates may be aggregated. These three show no server anything of a single client, and clients signs
    alone. sum and sparse-sum show no server anything either, but clients the sums of your numbers as they are;
    every other strategy shows a server something. All these are allowed only if their names stand here."""
    max_block: Annotated[int, Field(ge=1)] = 1
    """The largest block of indices that sec-union may choose together. With 1 you give a sign only where you chose
    to. With more you give one for every index of every block that anybody chose, and where the signs of all
    members agree every client knows yours; it takes less traffic."""
    min_clients: Annotated[int, Field(ge=MINIMUM)] = 3
    """The smallest min_clients that a manifest may have: the organisations in every sum, at least 2."""
    min_servers: Annotated[int, Field(ge=MINIMUM)] = 2
    """The fewest organisations that may run the aggregators; several of one organisation count once."""
    roster_sha256: Digest
    """The digest of the one roster to believe. Compare it with the other parties, by telephone for one."""
    approved: tuple[Run, ...] = ()
    """Run ids of manifests that were read and approved; `hubbub policy approve` adds to them."""
    approve_tasks: tuple[str, ...] = ()
    """Tasks whose manifests need no approval of their own if they keep all other limits; "*" is any task."""
    coordinators: tuple[Name, ...] = ()
    """Coordinators that may propose a run; empty for any in the roster."""
    max_runs: Annotated[int, Field(ge=1)] = 20
    """How many runs this trainer ever joins: each tells a little more about the data."""
    max_successors: Annotated[int, Field(ge=1)] = 1
    """How many runs that go on from one and the same run this trainer joins: each trains on from one model."""
    max_rounds: Annotated[int, Field(ge=1)] = 200
    """The most rounds that a manifest may have."""
    max_rounds_of_sums: Annotated[int, Field(ge=1)] = 1
    """The same for sum and sparse-sum: your numbers stay the same, so that two sums, one with you among the
    members and one without, subtract to them. Allow more for a task whose numbers follow from the last sum."""
    max_void_rounds_per_model: Annotated[int, Field(ge=0)] = 1
    """Rounds from one and the same model that may end void after their union was released; with one more,
    the trainer leaves the run, since two unions tell something of a client that is in one of them only."""
    max_void_rounds_per_run: Annotated[int, Field(ge=0)] = 3
    """The same, counted over the whole run."""
    max_kappa: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 10.0
    """The largest kappa that a manifest may have: how many times further than in earlier rounds the members of a
    round may move the model. Corrupt clients among them can go to that bound."""
    max_first_factor_bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The largest first_factor_bound that a manifest may have: the same for the first round, in absolute terms."""
    demo_seed: bool = False
    """Whether secrets may come from a seed that everybody knows: for tests, never with real data."""

    @field_validator("strategies", "approved", "approve_tasks", "coordinators", mode="before")
    @classmethod
    def _lists_are_lists(cls, value: object) -> object:
        """TOML has lists; a lone name without brackets is an easy slip."""
        if isinstance(value, str):
            raise ValueError('this is a list: write ["…"], with brackets')  # noqa: TRY004  (Pydantic's way.)
        return tuple(value) if isinstance(value, list) else value

    @field_validator("strategies")
    @classmethod
    def _strategies_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            try:
                find_strategy(name)
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        return names

    @classmethod
    def for_demo(cls, roster_sha256: str) -> Self:
        """A policy for throw-away data: every strategy, any block, two clients, any task, the demo's seed."""
        return cls(
            strategies=tuple(STRATEGIES),
            max_block=MAX_BLOCK,
            min_clients=MINIMUM,
            roster_sha256=roster_sha256,
            approve_tasks=(ANY,),
            max_runs=NO_LIMIT,
            max_successors=NO_LIMIT,
            max_rounds=NO_LIMIT,
            max_rounds_of_sums=NO_LIMIT,
            max_kappa=NO_LIMIT,
            max_first_factor_bound=NO_LIMIT,
            demo_seed=True,
        )

    def with_approval_of(self, run: RunId) -> Self:
        """The same policy with one more approved manifest."""
        return self if run in self.approved else self.model_copy(update={"approved": (*self.approved, run)})

    def approves(self, manifest: Manifest) -> bool:
        """Whether the manifest is approved, by its run id or by its task."""
        by_task = manifest.task in self.approve_tasks or ANY in self.approve_tasks
        return by_task or manifest.run_id in self.approved

    def objections(
        self, manifest: Manifest, *, roster: Roster, runs_before: int, demo_seed: bool, successors_before: int = 0
    ) -> tuple[str, ...]:
        """Everything against taking part, each with what could be done about it; empty if nothing.

        `runs_before` counts the runs that this trainer ever joined, `successors_before` those of them that went
        on from the same run; `demo_seed` says that its secrets would come from the demo's seed.
        """
        return (
            *self._object_to_roster(roster),
            *self._object_to_parties(manifest, roster),
            *self._object_to_strategy(manifest),
            *self._object_to_size(manifest, roster),
            *self._object_to_approval(manifest),
            *self._object_to_amount(manifest, runs_before),
            *self._object_to_influence(manifest),
            *self._object_to_succession(manifest, successors_before),
            *self._object_to_seed(demo_seed=demo_seed),
        )

    def _object_to_roster(self, roster: Roster) -> Iterator[str]:
        if roster.digest != self.roster_sha256:
            yield (
                f"the roster here has the digest {_shorten(roster.digest)}, the policy pins "
                f"{_shorten(self.roster_sha256)}: fetch the pinned roster, or set roster_sha256 in the policy "
                "file once all parties agreed on this one"
            )

    def _object_to_parties(self, manifest: Manifest, roster: Roster) -> Iterator[str]:
        """Organisations are what min_clients counts, so the manifest's word for them is not taken."""
        for disagreement in find_disagreements(manifest, roster):
            yield f"{disagreement}: ask for a manifest that agrees with the roster"
        if self.coordinators and manifest.coordinator not in self.coordinators:
            yield (
                f"the manifest's coordinator is {manifest.coordinator}, the policy allows "
                f"{', '.join(self.coordinators)}: edit coordinators in the policy file to allow it"
            )

    def _object_to_strategy(self, manifest: Manifest) -> Iterator[str]:
        if manifest.strategy not in self.strategies:
            yield (
                f"the manifest's strategy is {tell_strategy(manifest.strategy)}, the policy allows "
                f"{', '.join(self.strategies) or 'none'}: edit strategies in the policy file to allow it by name"
            )
        if manifest.block > self.max_block:
            yield (
                f"the manifest chooses blocks of {manifest.block} indices, the policy allows {self.max_block}, "
                f"since with blocks every client speaks about all of V and {REVEALS}: ask for a smaller block, or "
                "edit max_block in the policy file"
            )

    def _object_to_size(self, manifest: Manifest, roster: Roster) -> Iterator[str]:
        if manifest.min_clients < self.min_clients:
            yield (
                f"the manifest's min_clients is {manifest.min_clients}, the policy asks for at least "
                f"{self.min_clients} organisations in every sum: ask for a larger one, or edit min_clients in the "
                "policy file"
            )
        servers = len(manifest.aggregators)
        operators = sorted({known.organisation for name in manifest.aggregators if (known := roster.find(name))})
        if servers < self.min_servers:
            yield (
                f"the manifest has {servers} aggregators, the policy asks for at least {self.min_servers}: ask "
                "for more of them, or edit min_servers in the policy file"
            )
        elif len(operators) < self.min_servers:
            yield (
                f"the manifest's {servers} aggregators are run by {' and '.join(operators) or 'nobody known'}, "
                f"the policy asks for at least {self.min_servers} organisations, since aggregators in one hand "
                "are one: ask for aggregators of others, or edit min_servers in the policy file"
            )

    def _object_to_approval(self, manifest: Manifest) -> Iterator[str]:
        if not self.approves(manifest):
            yield (
                f"the manifest for task {manifest.task!r} with the run id {manifest.run_id} is not approved: "
                "read it and approve it with `hubbub policy approve`, or add its task to approve_tasks in the "
                "policy file"
            )

    def _object_to_amount(self, manifest: Manifest, runs_before: int) -> Iterator[str]:
        if runs_before >= self.max_runs:
            yield (
                f"this trainer has joined {runs_before} runs, the policy allows {self.max_runs} in all: edit "
                "max_runs in the policy file to allow another"
            )
        if manifest.rounds > self.max_rounds:
            yield (
                f"the manifest has {manifest.rounds} rounds, the policy allows {self.max_rounds}: ask for fewer, "
                "or edit max_rounds in the policy file"
            )
        known = STRATEGIES.get(manifest.strategy)
        if known and known.repeats and manifest.rounds > self.max_rounds_of_sums:
            yield (
                f"the manifest has {manifest.rounds} rounds of {manifest.strategy}, the policy allows "
                f"{self.max_rounds_of_sums}, since sums of the same numbers over different members subtract to "
                "one client's: ask for fewer, or edit max_rounds_of_sums in the policy file"
            )

    def _object_to_influence(self, manifest: Manifest) -> Iterator[str]:
        if manifest.kappa > self.max_kappa:
            yield (
                f"the manifest's kappa is {manifest.kappa:g}, the policy allows {self.max_kappa:g}, since it "
                "bounds how far corrupt clients can move the model: ask for a smaller one, or edit max_kappa in "
                "the policy file"
            )
        if manifest.first_factor_bound > self.max_first_factor_bound:
            yield (
                f"the manifest's first_factor_bound is {manifest.first_factor_bound:g}, the policy allows "
                f"{self.max_first_factor_bound:g}, since it bounds how far corrupt clients can move the model in "
                "the first round: ask for a smaller one, or edit max_first_factor_bound in the policy file"
            )

    def _object_to_succession(self, manifest: Manifest, successors_before: int) -> Iterator[str]:
        if manifest.predecessor is None:
            return
        if manifest.predecessor.min_clients < self.min_clients:
            yield (
                f"the run that this one goes on from had a min_clients of {manifest.predecessor.min_clients}, so "
                f"that few organisations endorse its model; the policy asks for at least {self.min_clients}: edit "
                "min_clients in the policy file to allow it"
            )
        if successors_before >= self.max_successors:
            yield (
                f"this trainer has joined {successors_before} runs that go on from {manifest.predecessor.run}, "
                f"the policy allows {self.max_successors}: edit max_successors in the policy file to allow another"
            )

    def _object_to_seed(self, *, demo_seed: bool) -> Iterator[str]:
        if demo_seed and not self.demo_seed:
            yield (
                "this trainer is told to take its secrets from the demo's seed, which everybody knows, and the "
                "policy does not accept it: start the trainer without the seed"
            )


def tell_strategy(name: str) -> str:
    """A strategy's name and what it shows; a manifest may name one that does not exist, in any characters."""
    known = STRATEGIES.get(name)
    shows = known.reveals or "no server learns anything of one client" if known else "there is none such"
    return f"{name!r} ({shows})"


def _shorten(digest: str) -> str:
    return f"{digest[:SHOWN_DIGITS]}…"


def read_policy(path: Path) -> Policy:
    """Read a policy file, or say in one line what is wrong with it."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"the policy {path} cannot be read: {error.strerror}; `hubbub policy init` writes one"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the policy {path} is not TOML: {error}") from None
    _check_names(path, fields)
    try:
        return Policy.model_validate(fields)
    except ValidationError as error:
        raise ConfigurationError(f"the policy {path} is wrong: {describe(error)}") from None


def _check_names(path: Path, fields: dict[str, object]) -> None:
    """A misspelt limit is no limit: say so, and which one was probably meant."""
    known = list(Policy.model_fields)
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise ConfigurationError(f"the policy {path} is wrong: there is no {name!r} in a policy; {hint}")
