"""Limits that the policies of trainers and aggregators share, and the policy file's reader.

A party joins a run only if its own policy has no objection to the manifest, whatever the coordinator asks.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from hubbub.errors import Code, ConfigurationError, Objection
from hubbub.ids import RUN_ID_PATTERN, RunId
from hubbub.messages.manifest import MINIMUM, Digest, Manifest, Name, describe
from hubbub.runtime.message_checks import find_disagreements
from hubbub.strategies.registry import STRATEGIES, find_strategy
from hubbub.trust.roster import Roster

Run = Annotated[RunId, StringConstraints(pattern=RUN_ID_PATTERN)]
Limit = Annotated[int, Field(ge=1)]

ANY = "*"
"""In `approve_tasks`: any task."""
SHOWN_DIGITS = 12
"""Digits of a digest in a sentence; digests are compared in full."""
NO_LIMIT = 2**53
"""Every count in a manifest is below this."""


def read_list(value: object) -> object:
    """Convert a TOML list of names to a tuple; raise `ValueError` for a lone name, an easy slip."""
    if isinstance(value, str):
        raise ValueError('this is a list: write ["…"], with brackets')  # noqa: TRY004  (Pydantic's way.)
    return tuple(value) if isinstance(value, list) else value


class PartyPolicy(BaseModel):
    """Limits that every policy has.

    The docstring of a field is also the comment above it in a new policy file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    party: ClassVar[str]
    """Name of the service that obeys the policy, for sentences."""

    roster_sha256: Digest
    """The digest of the one roster to believe. Compare it with the other parties over a second channel, for
    example by phone."""
    coordinators: tuple[Name, ...] = ()
    """Coordinators that may propose a run; empty for any in the roster."""
    strategies: tuple[str, ...] = ("no-union", "sec-union", "partial-sec-union")
    """Strategies by which updates may be aggregated."""
    min_clients: Annotated[int, Field(ge=MINIMUM)] = 3
    """The smallest min_clients that a manifest may have: the organisations in every sum, at least 2."""
    min_servers: Annotated[int, Field(ge=MINIMUM)] = 2
    """The fewest organisations that may run the aggregators; several of one organisation count once."""
    max_rounds: Limit = 200
    """The most rounds that a manifest may have."""
    max_void_rounds: Annotated[int, Field(ge=0)] = 10
    """The largest max_void_rounds that a manifest may have: rounds that may fail, beside those that do not."""
    max_runs: Limit = 20
    """The most runs that this party ever joins."""
    approved: tuple[Run, ...] = ()
    """Run ids of manifests that were read and approved; `hubbub policy approve` adds to them."""
    approve_tasks: tuple[str, ...] = ()
    """Tasks whose manifests need no approval of their own if they keep all other limits; "*" is any task."""

    @field_validator("strategies", "approved", "approve_tasks", "coordinators", mode="before")
    @classmethod
    def _lists_are_lists(cls, value: object) -> object:
        return read_list(value)

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
    def read(cls, path: Path) -> Self:
        """Read a policy file, or raise `ConfigurationError` with one line on what is wrong."""
        try:
            fields = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"the policy {path} cannot be read: {error.strerror}; `hubbub policy init` writes one"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the policy {path} is not TOML: {error}") from None
        cls._check_names(path, fields)
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ConfigurationError(f"the policy {path} is wrong: {describe(error)}") from None

    @classmethod
    def _check_names(cls, path: Path, fields: dict[str, object]) -> None:
        """Raise `ConfigurationError` for an unknown name: a misspelt limit would be no limit."""
        known = list(cls.model_fields)
        for name in fields:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
                raise ConfigurationError(
                    f"the policy {path} is wrong: there is no {name!r} in the {cls.party}'s policy; {hint}"
                )

    def with_approval_of(self, run: RunId) -> Self:
        """Return the policy with one more approved manifest."""
        return self if run in self.approved else self.model_copy(update={"approved": (*self.approved, run)})

    def approves(self, manifest: Manifest) -> bool:
        """Say whether the manifest is approved, by its run id or by its task."""
        by_task = manifest.task in self.approve_tasks or ANY in self.approve_tasks
        return by_task or manifest.run_id in self.approved

    def objections(self, manifest: Manifest, *, roster: Roster, runs_before: int) -> tuple[Objection, ...]:
        """List the reasons not to join, each with what could be done about it; empty if there are none.

        `runs_before` counts the runs that this party ever joined.
        """
        return (
            *self._object_to_roster(roster),
            *self._object_to_parties(manifest, roster),
            *self._object_to_strategy(manifest),
            *self._object_to_size(manifest, roster),
            *self._object_to_approval(manifest),
            *self._object_to_amount(manifest, runs_before),
        )

    def _object_to_roster(self, roster: Roster) -> Iterator[Objection]:
        if roster.digest != self.roster_sha256:
            yield Objection(
                Code.POLICY_ROSTER,
                f"the roster here has the digest {_shorten(roster.digest)}, the policy pins "
                f"{_shorten(self.roster_sha256)}: fetch the pinned roster, or set roster_sha256 in the policy "
                "file once all parties agreed on this one",
            )

    def _object_to_parties(self, manifest: Manifest, roster: Roster) -> Iterator[Objection]:
        """Compare organisations with the roster's: min_clients counts them, so the manifest is not trusted."""
        for disagreement in find_disagreements(manifest, roster):
            yield Objection(Code.POLICY_ROSTER, f"{disagreement}: ask for a manifest that agrees with the roster")
        if self.coordinators and manifest.coordinator not in self.coordinators:
            yield Objection(
                Code.POLICY_COORDINATOR,
                f"the manifest's coordinator is {manifest.coordinator}, the policy allows "
                f"{', '.join(self.coordinators)}: edit coordinators in the policy file to allow it",
            )

    def _object_to_strategy(self, manifest: Manifest) -> Iterator[Objection]:
        if manifest.strategy not in self.strategies:
            yield Objection(
                Code.POLICY_STRATEGY,
                f"the manifest's strategy is {tell_strategy(manifest.strategy)}, the policy allows "
                f"{', '.join(self.strategies) or 'none'}: edit strategies in the policy file to allow it by name",
            )

    def _object_to_size(self, manifest: Manifest, roster: Roster) -> Iterator[Objection]:
        if manifest.min_clients < self.min_clients:
            yield Objection(
                Code.POLICY_MIN_CLIENTS,
                f"the manifest's min_clients is {manifest.min_clients}, the policy asks for at least "
                f"{self.min_clients} organisations in every sum: ask for a larger one, or edit min_clients in the "
                "policy file",
            )
        servers = len(manifest.aggregators)
        operators = sorted({known.organisation for name in manifest.aggregators if (known := roster.find(name))})
        if servers < self.min_servers:
            yield Objection(
                Code.POLICY_MIN_SERVERS,
                f"the manifest has {servers} aggregators, the policy asks for at least {self.min_servers}: ask "
                "for more of them, or edit min_servers in the policy file",
            )
        elif len(operators) < self.min_servers:
            yield Objection(
                Code.POLICY_MIN_SERVERS,
                f"the manifest's {servers} aggregators are run by {' and '.join(operators) or 'nobody known'}, "
                f"the policy asks for at least {self.min_servers} organisations, since aggregators in one hand "
                "are one: ask for aggregators of others, or edit min_servers in the policy file",
            )

    def _object_to_approval(self, manifest: Manifest) -> Iterator[Objection]:
        if not self.approves(manifest):
            yield Objection(
                Code.POLICY_APPROVAL,
                f"the manifest for task {manifest.task!r} with the run id {manifest.run_id} is not approved: "
                "read it and approve it with `hubbub policy approve`, or add its task to approve_tasks in the "
                "policy file",
            )

    def _object_to_amount(self, manifest: Manifest, runs_before: int) -> Iterator[Objection]:
        if runs_before >= self.max_runs:
            yield Objection(
                Code.POLICY_RUNS,
                f"this {self.party} has joined {runs_before} runs, the policy allows {self.max_runs} in all: edit "
                "max_runs in the policy file to allow another",
            )
        yield from object_above(Code.POLICY_ROUNDS, "rounds", manifest.rounds, "max_rounds", self.max_rounds)
        voids = manifest.max_void_rounds
        yield from object_above(
            Code.POLICY_VOID_ROUNDS, "max_void_rounds", voids, "max_void_rounds", self.max_void_rounds
        )


def object_above(code: Code, field: str, asked: float, limit: str, most: float) -> Iterator[Objection]:
    """Object to a number in a manifest that is above a limit of the policy."""
    if asked > most:
        yield Objection(
            code,
            f"the manifest has {field} = {asked}, the policy allows at most {most}: ask for less, or edit {limit} "
            "in the policy file",
        )


def tell_strategy(name: str) -> str:
    """Return a strategy's name, quoted because a manifest may hold any string, and what it reveals."""
    known = STRATEGIES.get(name)
    shows = known.reveals or "no server learns anything of one client" if known else "there is none such"
    return f"{name!r} ({shows})"


def _shorten(digest: str) -> str:
    return f"{digest[:SHOWN_DIGITS]}…"
