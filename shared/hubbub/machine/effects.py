"""What a machine asks its shell to do.

An `Effect` is done before the event that caused it counts as handled: what must be on disk or at the broker
before a message is acknowledged is an effect. A `Job` is long (training, adding vectors): it is started, runs
in a thread, and comes back as an event of its own. Vectors never travel in either; they stay in the shell and
are named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from hubbub.ids import PartyId, Role, RunId


@dataclass(frozen=True, slots=True)
class Key:
    """Which machine of a service: its kind, and the run, round and phase that it is about."""

    kind: str
    run: RunId
    round: int = 0
    phase: str = ""

    def __str__(self) -> str:
        parts = [self.kind, self.run[:12], *([f"round {self.round}"] if self.round else []), self.phase]
        return " ".join(part for part in parts if part)


class Sendable(Protocol):
    """A message's body, as far as a machine needs to know it."""

    kind: ClassVar[str]


class Effect:
    """Done, in order, before the event that caused it counts as handled."""

    __slots__ = ()


class Job(Effect):
    """Started in order, then runs beside the machine and comes back as an event."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Publish(Effect):
    """Send a message; run and round are those of the machine, and so is the phase unless one is given."""

    to: PartyId
    role: Role
    body: Sendable
    phase: str = ""


@dataclass(frozen=True, slots=True)
class SetTimer(Effect):
    """Feed `event` at time `at_s`; a timer of the same name is replaced."""

    name: str
    at_s: float
    event: type


@dataclass(frozen=True, slots=True)
class CancelTimer(Effect):
    """Forget a timer, if it is still set."""

    name: str


@dataclass(frozen=True, slots=True)
class Tell(Effect):
    """Feed an event to another machine of the same service."""

    to: Key
    event: object


@dataclass(frozen=True, slots=True)
class Failed:
    """The event that a job, or an effect, comes back as when it could not be done."""

    why: str
