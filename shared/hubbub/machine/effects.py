"""What a machine asks its shell to do.

An `Effect` is done before the event that caused it counts as handled: what must be on disk or at the broker
before a message is acknowledged is an effect. A `Persist` is done first of all, before the event itself is kept:
it may refuse, and then the event has not happened. All others follow from an event that is kept, are tried until
they succeed, and are done again after a crash; so every effect may be done twice. A `Job` is long (training,
adding vectors): it is started, runs in a thread, and comes back as an event of its own. Vectors never travel in
either; they stay in the shell and are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from hubbub.errors import Code, RejectReason
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


class Persist(Effect):
    """Puts something on disk that the event relies on; done before the event is kept, and may refuse it."""

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
class Record(Effect):
    """Write to this party's audit log; run, round and phase are those of the machine unless the fields say other.

    After a crash it may be written twice.
    """

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CountRefusal(Effect):
    """Count, log and record that something was refused for which there is no delivery to reject."""

    reason: RejectReason
    kind: str
    sender: PartyId
    explanation: str


@dataclass(frozen=True, slots=True)
class TellOwner(Effect):
    """Write a sentence to this party's own log; after a crash it may be written twice."""

    sentence: str


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
    """The event that a job, or an effect, comes back as when it could not be done.

    Others are told the code, and this party's own log has the sentence.
    """

    why: str
    code: Code = Code.INTERNAL
