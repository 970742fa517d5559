"""What a head and a worker say to each other: typed words, each a line of its type's name and JSON.

No secret is in a word, and no payload but seeds, which are sealed. Payloads lie on the disk that both share, and a
worker reads the keys of a run from the party's folder itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hubbub.errors import HubbubError, LocalError, PeerError, RejectReason, StorageFailed, TransportError
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.runtime.edge import Refusal
from hubbub.runtime.tally import Sending
from hubbub.store.shapes import Shapes
from hubbub.transport.base import Verdict
from hubbub_aggregator.events import ChunkBroken, ChunkChecked, SumSent
from hubbub_aggregator.phases.accumulation import Accumulation, ShareSet

# The head to a worker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """A run that words will be about, and everybody's public keys in it."""

    run: RunId
    manifest: Manifest
    publics: Mapping[PartyId, bytes]


@dataclass(frozen=True, slots=True)
class Dismissal:
    """A run is over: forget its keys."""

    run: RunId


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of the delivery that a word of this number was about."""

    number: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Check:
    """Open a spooled chunk and look at every value."""

    number: int
    key: Key
    client: PartyId
    share_set: ShareSet
    index: int


@dataclass(frozen=True, slots=True)
class Release:
    """Add the chunks of these slots and send them: it is journalled."""

    number: int
    key: Key
    data: Accumulation
    slots: tuple[int, ...]


# A worker to the head -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message that the edge admitted: its frame without the payload, which is staged under this name."""

    number: int
    frame: bytes
    size: int
    """Of the whole frame."""
    staged: str
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Declined:
    """A message that the edge did not admit."""

    number: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a check."""

    number: int
    event: ChunkChecked | ChunkBroken


@dataclass(frozen=True, slots=True)
class Released:
    """The chunks of these slots are out."""

    number: int
    event: SumSent


class Trouble(Enum):
    """Why something could not be done, as far as it matters for what is done about it."""

    OUTAGE = "outage"
    PEER = "peer"
    LOCAL = "local"
    BUG = "bug"


@dataclass(frozen=True, slots=True)
class Unable:
    """Something could not be done."""

    number: int
    trouble: Trouble
    text: str
    reason: RejectReason | None = None


@dataclass(frozen=True, slots=True)
class Faring:
    """How the worker fares, said again and again: what keeps it from receiving, and what it has sent since."""

    problems: tuple[str, ...] = ()
    sendings: tuple[Sending, ...] = ()


Word = Briefing | Dismissal | Answer | Check | Release | Arrived | Declined | Checked | Released | Unable | Faring
_SHAPES = Shapes(
    (Briefing, Dismissal, Answer, Check, Release, Arrived, Declined, Checked, Released, Unable, Faring)
)


def write_word(word: Word) -> bytes:
    """Write a word as a line."""
    return f"{_SHAPES.name_of(word)} {_SHAPES.dump(word)}\n".encode()


def read_word(line: bytes) -> Word:
    """Read a word from its line."""
    name, _, text = line.decode().partition(" ")
    word: Word = _SHAPES.load(name, text)
    return word


class WorkerFailed(Exception):
    """A bug kept a worker from doing something; the text is its traceback, for our own log."""


def admit_trouble(number: int, error: Exception, traceback: str) -> Unable:
    """Say what kept us from doing something."""
    match error:
        case TransportError() | StorageFailed():
            return Unable(number, Trouble.OUTAGE, str(error))
        case PeerError(reason=reason):
            return Unable(number, Trouble.PEER, str(error), reason)
        case HubbubError():
            return Unable(number, Trouble.LOCAL, str(error))
    return Unable(number, Trouble.BUG, traceback)


def trouble_of(word: Unable) -> Exception:
    """What a worker met there, to be raised here, as far as it matters."""
    if word.trouble is Trouble.OUTAGE:
        return TransportError(word.text)
    if word.trouble is Trouble.PEER and word.reason is not None:
        return PeerError(word.reason, word.text)
    if word.trouble is Trouble.LOCAL:
        return LocalError(word.text)
    return WorkerFailed(word.text)
