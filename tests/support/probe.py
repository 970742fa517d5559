"""A service with one small machine that does what a test tells it to, over the in-memory transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Failed, Job, Key
from hubbub.machine.table import STAY, Step, Table, To
from hubbub.messages.base import Message
from hubbub.messages.codec import encode
from hubbub.messages.envelope import Envelope
from hubbub.messages.runs import PartyFailed, RunEnded, RunJoined, RunRefused
from hubbub.runtime.post import Identity
from hubbub.runtime.runner import Fed, Live, Moment, Runner
from hubbub.runtime.telemetry import Counters
from hubbub.transport.base import Address, DeadLetter
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.subscription import RetryPause
from hubbub.transport.topology import REPORTS, dead_letter_queue, topology_for
from support.builders import COORDINATOR, make_envelope, make_manifest

MANIFEST = make_manifest()
KEY = Key("probe", MANIFEST.run_id, 1, "signs")
CLIENT = MANIFEST.clients[0]


class State(Enum):
    IDLE = auto()
    BUSY = auto()
    OVER = auto()


@dataclass(frozen=True)
class Data:
    steps: int = 0


@dataclass(frozen=True)
class Go:
    """Take these effects."""

    effects: tuple[Effect, ...] = ()
    then: State = State.BUSY


@dataclass(frozen=True)
class Done:
    """What a job comes back as."""

    result: str


@dataclass(frozen=True)
class Rang:
    """A timer's event."""

    at_s: float


@dataclass(frozen=True)
class Unlisted:
    """No row has it."""


@dataclass(frozen=True)
class Note(Effect):
    """An effect of the service's own."""

    text: str


@dataclass(frozen=True)
class Ponder(Job):
    text: str


def _go(data: Data, event: Go) -> Step[State, Data]:
    return Step(event.then, replace(data, steps=data.steps + 1), event.effects)


def _count(data: Data, event: object) -> Step[State, Data]:
    del event
    return Step(State.BUSY, replace(data, steps=data.steps + 1))


_ALL: tuple[State, ...] = tuple(State)
TABLE: Table[State, Data] = {
    State.IDLE: {Go: To(_go, *_ALL), Rang: To(_count, State.BUSY)},
    State.BUSY: {
        Go: To(_go, *_ALL),
        Done: To(_count, State.BUSY),
        Rang: To(_count, State.BUSY),
        Failed: STAY,
    },
    State.OVER: {},
}


@dataclass
class ManualClock:
    """Moves when told; a timer of the runner still waits on the loop, so tests set them for now."""

    time_s: float = 1_000.0

    def now_s(self) -> float:
        return self.time_s


@dataclass
class ProbeShell:
    """Records what it is asked to do; `events` says what a message of the probe becomes."""

    events: Callable[[Envelope], Sequence[Fed]] = lambda _: [(KEY, Go())]
    done: list[str] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    retired: list[Key] = field(default_factory=list)
    effect: Callable[[Note], None] = lambda _: None
    job: Callable[[Ponder], object] = lambda job: Done(job.text)
    gate: asyncio.Event | None = None
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[Fed]:
        del size, now_s
        return self.events(envelope)

    async def perform(self, key: Key, effect: Effect, payload: bytes) -> None:
        del key
        assert isinstance(effect, Note)
        self.entered.set()
        if self.gate:
            await self.gate.wait()
        self.effect(effect)
        self.done.append(effect.text)
        self.payloads.append(payload)

    async def work(self, key: Key, job: Job) -> object:
        del key
        assert isinstance(job, Ponder)
        self.entered.set()
        if self.gate:
            await self.gate.wait()
        self.done.append(f"job {job.text}")
        return self.job(job)

    def retire(self, key: Key, live: Live) -> None:
        del live
        self.retired.append(key)


@dataclass
class Probe:
    """A running coordinator with one machine, and a client's way to send to it."""

    runner: Runner
    shell: ProbeShell
    broker: MemoryBroker
    transport: MemoryTransport
    sender: MemoryTransport
    counters: Counters
    moments: asyncio.Queue[Moment]

    @property
    def live(self) -> Live:
        return self.runner.machines[KEY]

    async def send_bytes(self, frame: bytes) -> None:
        await self.sender.publish(Address(REPORTS, COORDINATOR), frame)

    async def send(
        self, body: Message | None = None, *, recipient: PartyId = COORDINATOR, payload: bytes = b""
    ) -> None:
        envelope = make_envelope(
            body or RunJoined(),
            sender=CLIENT,
            recipient=recipient,
            manifest=MANIFEST,
            phase="signs",
            payload=payload,
        )
        await self.send_bytes(encode(envelope))

    async def dead_letters(self, count: int) -> list[DeadLetter]:
        """Wait for so many dead letters."""
        queue = dead_letter_queue(COORDINATOR)
        while len(found := self.broker.dead_letters(queue)) < count:  # noqa: ASYNC110 - Nobody announces them.
            await asyncio.sleep(0)
        return found


def by_reason(letters: Sequence[DeadLetter]) -> list[str]:
    return [letter.reason for letter in letters]


def go(*effects: Effect, then: State = State.BUSY) -> Callable[[Envelope], Sequence[Fed]]:
    """Every message becomes one `Go` with these effects."""
    return lambda _: [(KEY, Go(effects, then))]


def go_by_kind(envelope: Envelope) -> Sequence[Fed]:
    """A message of each kind does something else; see the cases."""
    match envelope.body:
        case RunJoined():
            return [(KEY, Go())]
        case RunRefused():
            return [(KEY, Unlisted())]
        case PartyFailed():
            raise ZeroDivisionError("a bug in the shell")
        case RunEnded():
            return []
    raise PeerError(RejectReason.UNKNOWN_RUN, "what run is that")


@asynccontextmanager
async def probe(shell: ProbeShell | None = None, clock: ManualClock | None = None) -> AsyncIterator[Probe]:
    """Start the probe; what is rejected or retried comes back at once."""
    shell, counters, broker = shell or ProbeShell(), Counters(), MemoryBroker()
    moments: asyncio.Queue[Moment] = asyncio.Queue()
    at_once = RetryPause(first_s=0.0)
    async with (
        MemoryTransport(broker, topology_for(COORDINATOR, Role.COORDINATOR), retry_pause=at_once) as transport,
        MemoryTransport(broker, topology_for(CLIENT, Role.CLIENT)) as sender,
    ):
        runner = Runner(
            identity=Identity(COORDINATOR, Role.COORDINATOR),
            transport=transport,
            shell=shell,
            clock=clock or ManualClock(),
            counters=counters,
            observer=moments.put_nowait,
        )
        runner.add(KEY, TABLE, State.IDLE, Data())
        await runner.start()
        try:
            yield Probe(runner, shell, broker, transport, sender, counters, moments)
        finally:
            await runner.stop()
