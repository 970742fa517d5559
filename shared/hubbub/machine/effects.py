"""Effects: the I/O that a machine asks its shell to do.

An `Effect` is done before the event that caused it counts as handled: what must be on disk or at the broker
before a message is acknowledged is an effect. A `Persist` is done first, before the event itself is stored. It may
refuse, and then the event has not happened. All others follow from a stored event, are retried until they succeed,
and are done again after a crash; so every effect may be done twice. A `Job` is long (training, adding vectors): it
is started, runs in a thread, and comes back as an event of its own. Effects and jobs never carry vectors; these
stay in the shell and are referred to by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, Role, RunId


@dataclass(frozen=True, slots=True)
class Key:
    """Identity of a machine in its service: its kind, and the run, round and phase that it serves."""

    kind: str
    run: RunId
    round: int = 0
    phase: str = ""

    def __str__(self) -> str:
        parts = [self.kind, self.run[:12], *([f"round {self.round}"] if self.round else []), self.phase]
        return " ".join(part for part in parts if part)


class Sendable(Protocol):
    """Body of a message, as far as a machine needs to know it."""

    kind: ClassVar[str]


class Effect:
    """Action that is done, in order, before the event that caused it counts as handled."""

    __slots__ = ()


class Persist(Effect):
    """Write to disk that the event relies on; done before the event is stored, and may refuse it."""

    __slots__ = ()


class Job(Effect):
    """Long action: it is started in order, runs beside the machine and comes back as an event."""

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
    """Write to this party's audit log; run, round and phase are the machine's unless the fields override them.

    After a crash it may be written twice.
    """

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CountRefusal(Effect):
    """Count, log and record a refusal for which there is no delivery to reject."""

    reason: RejectReason
    kind: str
    sender: PartyId
    explanation: str


@dataclass(frozen=True, slots=True)
class TellOwner(Effect):
    """Write a sentence to this party's own log; after a crash it may be written twice."""

    sentence: str


@dataclass(frozen=True, slots=True)
class RememberRun(Effect):
    """Record the run's tombstone, so that this party never begins or joins it again."""


@dataclass(frozen=True, slots=True)
class AcceptKeys(Effect):
    """Keep everybody's run keys."""

    publics: Mapping[PartyId, bytes]


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
    """Event that a failed job or effect comes back as.

    Other parties see the code; the sentence is for this party's own log.
    """

    why: str
    code: Code = Code.INTERNAL
