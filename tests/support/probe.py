"""A service with small machines that do what a test tells them to, over the in-memory transport.

It can die and be started again: give the next probe the same broker and disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from hubbub.errors import PeerError, RejectReason, StorageFailed
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CancelTimer, Effect, Failed, Job, Key, Persist, SetTimer
from hubbub.machine.table import STAY, Kind, Step, Table, To
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.runs import PartyFailed, RunEnded, RunJoined, RunRefused
from hubbub.runtime.clock import Clock
from hubbub.runtime.runner import KeyedEvent, Runner, RunningMachine, Transition
from hubbub.runtime.telemetry import Counters
from hubbub.transport.base import Address, DeadLetter
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.subscription import RetryPause
from hubbub.transport.topology import REPORTS, dead_letter_queue, topology_for
from hubbub.trust.audit import AuditLog, Entry, read_log
from support.builders import make_envelope, make_manifest, make_run_key
from support.forgetful_store import Disk, ForgetfulStore
from support.frames import encode
from support.parties import COORDINATOR, identity_of, roster_of, sign_as

MANIFEST = make_manifest()
KEY = Key("probe", MANIFEST.run_id, 1, "signs")
OTHER = Key("probe", MANIFEST.run_id, 2)
CLIENT = MANIFEST.clients[0]
JOINED = RunJoined(run_key=make_run_key(MANIFEST, CLIENT))


class State(Enum):
    IDLE = auto()
    BUSY = auto()
    OVER = auto()


@dataclass(frozen=True)
class Data:
    """The number of steps that were taken, and what is under way: a job, and the timer "alarm"."""

    steps: int = 0
    job: str = ""
    alarm_s: float | None = None


_SCRIPTS: list[tuple[Effect, ...]] = []


def _number(effects: tuple[Effect, ...]) -> int:
    _SCRIPTS.append(effects)
    return len(_SCRIPTS) - 1


# Effects of all sorts cannot be written down, so what is kept is the number under which the test knows them.
Effects = Annotated[tuple[Effect, ...], PlainValidator(_SCRIPTS.__getitem__), PlainSerializer(_number)]


@dataclass(frozen=True)
class Go:
    """Take these effects."""

    effects: Effects = ()
    then: State = State.BUSY


@dataclass(frozen=True)
class Done:
    """The event that a job comes back as."""

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
class Keep(Persist):
    """A persistent effect of the service's own."""

    text: str


@dataclass(frozen=True)
class SetUp(Effect):
    """Set another machine up."""

    key: Key


@dataclass(frozen=True)
class Ponder(Job):
    text: str


def _go(data: Data, event: Go) -> Step[State, Data]:
    data = replace(data, steps=data.steps + 1)
    for effect in event.effects:
        match effect:
            case Ponder(text=text):
                data = replace(data, job=text)
            case SetTimer(name="alarm", at_s=at_s):
                data = replace(data, alarm_s=at_s)
            case CancelTimer(name="alarm"):
                data = replace(data, alarm_s=None)
    return Step(event.then, data, event.effects)


def _take_result(data: Data, event: Done) -> Step[State, Data]:
    job = "" if event.result == data.job else data.job
    return Step(State.BUSY, replace(data, steps=data.steps + 1, job=job))


def _take_alarm(data: Data, event: Rang) -> Step[State, Data]:
    del event
    return Step(State.BUSY, replace(data, steps=data.steps + 1, alarm_s=None))


_ALL: tuple[State, ...] = tuple(State)
TABLE: Table[State, Data] = {
    State.IDLE: {Go: To(_go, *_ALL), Rang: To(_take_alarm, State.BUSY)},
    State.BUSY: {
        Go: To(_go, *_ALL),
        Done: To(_take_result, State.BUSY),
        Rang: To(_take_alarm, State.BUSY),
        Failed: STAY,
    },
    State.OVER: {},
}


def _resume(state: State, data: Data) -> tuple[Effect, ...]:
    del state
    jobs = (Ponder(data.job),) if data.job else ()
    timers = () if data.alarm_s is None else (SetTimer("alarm", data.alarm_s, Rang),)
    return (*jobs, *timers)


KIND = Kind(TABLE, State.IDLE, Data, _resume)


@dataclass
class ManualClock:
    """Moves when told; a timer of the runner still waits on the loop, so tests set them for now."""

    time_s: float = 1_000.0

    def now_s(self) -> float:
        return self.time_s

    def ahead_s(self) -> float:
        return 0.0

    def go_on_from(self, at_s: float) -> None:
        self.time_s = max(self.time_s, at_s)


@dataclass
class Failing:
    """Raises its errors, one at each call, and then nothing more; or the last of them for ever."""

    errors: list[Exception] = field(default_factory=list)
    for_ever: bool = False

    def __call__(self, *_: object) -> None:
        if self.errors:
            raise self.errors[-1] if self.for_ever else self.errors.pop()

    def fill_disk(self, times: int = 3) -> None:
        """Have the next so many calls find the disk full."""
        self.errors += [StorageFailed("the disk is full")] * times


@dataclass
class ProbeShell:
    """Records what it is asked to do; `events` says what a message of the probe becomes."""

    events: Callable[[Envelope], Sequence[KeyedEvent]] = lambda _: [(KEY, Go())]
    done: list[str] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    retired: list[Key] = field(default_factory=list)
    restored: list[Key] = field(default_factory=list)
    effect: Callable[[Note | Keep], None] = lambda _: None
    job: Callable[[Ponder], object] = lambda job: Done(job.text)
    gate: asyncio.Event | None = None
    job_gate: asyncio.Event | None = None
    """Holds up jobs alone."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    runner: Runner | None = None
    forgets: bool = True
    """Whether the store may forget what is over."""

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[KeyedEvent]:
        del size, now_s
        return self.events(envelope)

    def persist(self, key: Key, effect: Persist, payload: bytes) -> None:
        del key
        assert isinstance(effect, Keep)
        self.effect(effect)
        self.done.append(effect.text)
        self.payloads.append(payload)

    async def perform(self, key: Key, effect: Effect) -> None:
        del key
        if isinstance(effect, SetUp):
            assert self.runner
            await self.runner.set_up(effect.key, Data())
            return
        assert isinstance(effect, Note)
        self.entered.set()
        if self.gate:
            await self.gate.wait()
        self.effect(effect)
        self.done.append(effect.text)

    async def work(self, key: Key, job: Job) -> object:
        del key
        assert isinstance(job, Ponder)
        self.entered.set()
        for gate in (self.gate, self.job_gate):
            if gate:
                await gate.wait()
        self.done.append(f"job {job.text}")
        return self.job(job)

    def open_gate(self) -> None:
        assert self.gate
        self.gate.set()

    def retire(self, key: Key, live: RunningMachine) -> bool:
        del live
        self.retired.append(key)
        return self.forgets

    def observe(self, moment: Transition) -> None:
        """For a probe that dies after a step."""

    def restore(self, machines: Mapping[Key, RunningMachine]) -> None:
        self.restored.extend(machines)


def frame_of(
    body: Message = JOINED,
    *,
    recipient: PartyId = COORDINATOR,
    payload: bytes = b"",
    sender: PartyId = CLIENT,
    signer: PartyId | None = None,
) -> bytes:
    """A message as it crosses the broker, signed by its sender or by somebody else."""
    envelope = make_envelope(
        body, sender=sender, recipient=recipient, manifest=MANIFEST, phase="signs", payload=payload
    )
    return encode(sign_as(MANIFEST, envelope, signer))


@dataclass
class Probe:
    """A running coordinator with one machine, and a client's way to send to it."""

    runner: Runner
    shell: ProbeShell
    broker: MemoryBroker
    transport: MemoryTransport
    sender: MemoryTransport
    counters: Counters
    moments: asyncio.Queue[Transition]
    audit: AuditLog
    audit_path: Path
    store: ForgetfulStore

    def recorded(self, kind: str) -> list[Entry]:
        """The entries of a kind in the audit log; its chain must hold."""
        return [entry for entry in read_log(self.audit_path).entries if entry.kind == kind]

    @property
    def live(self) -> RunningMachine:
        return self.runner.machines[KEY]

    async def take(self, count: int = 1) -> list[Transition]:
        """Wait for the next so many steps."""
        return [await self.moments.get() for _ in range(count)]

    async def take_events(self, count: int) -> list[object]:
        """Wait for the events of the next so many steps."""
        return [moment.event for moment in await self.take(count)]

    def sample(self, name: str, **labels: str) -> float | None:
        """The value of one of its metrics."""
        return self.counters.registry.get_sample_value(f"hubbub_{name}", labels)

    async def send_bytes(self, frame: bytes) -> None:
        await self.sender.publish(Address(REPORTS, COORDINATOR), frame)

    async def send(
        self, body: Message = JOINED, *, recipient: PartyId = COORDINATOR, payload: bytes = b""
    ) -> None:
        await self.send_bytes(frame_of(body, recipient=recipient, payload=payload))

    async def dead_letters(self, count: int) -> list[DeadLetter]:
        """Wait for so many dead letters."""
        queue = dead_letter_queue(COORDINATOR)
        while len(found := self.broker.dead_letters(queue)) < count:  # noqa: ASYNC110 - Nobody announces them.
            await asyncio.sleep(0)
        return found

    async def dead_letters_up_to(self, last: bytes) -> list[DeadLetter]:
        """Wait for the dead letter with this body; all before it were judged before it."""
        count = 1
        while (found := await self.dead_letters(count))[-1].body != last:
            count = len(found) + 1
        return found


def by_reason(letters: Sequence[DeadLetter]) -> list[str]:
    return [letter.reason for letter in letters]


def go(*effects: Effect, then: State = State.BUSY) -> Callable[[Envelope], Sequence[KeyedEvent]]:
    """Every message becomes one `Go` with these effects."""
    return lambda _: [(KEY, Go(effects, then))]


def go_by_kind(envelope: Envelope) -> Sequence[KeyedEvent]:
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
async def _audit_log() -> AsyncIterator[tuple[AuditLog, Path]]:
    """A log that is gone when the probe is."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "audit.jsonl"
        audit = AuditLog(path, COORDINATOR)
        try:
            yield audit, path
        finally:
            audit.close()


@asynccontextmanager
async def probe(
    shell: ProbeShell | None = None,
    clock: Clock | None = None,
    *,
    store: ForgetfulStore | None = None,
    broker: MemoryBroker | None = None,
    fresh: bool = True,
    settled: Callable[[Runner], Awaitable[None]] | None = None,
) -> AsyncIterator[Probe]:
    """Start the probe; what is rejected or retried comes back at once. One that is not fresh has its store alone.

    `settled` is called when all is done that an event asked for.

    When it ends, it has died: what its store did not sync is lost.
    """
    shell, counters, broker = shell or ProbeShell(), Counters(), broker or MemoryBroker()
    store = store or ForgetfulStore(Disk())
    moments: asyncio.Queue[Transition] = asyncio.Queue()
    at_once = RetryPause(first_s=0.0)

    def observe(moment: Transition) -> None:
        moments.put_nowait(moment)
        shell.observe(moment)

    async with (
        _audit_log() as (audit, audit_path),
        MemoryTransport(broker, topology_for(COORDINATOR, Role.COORDINATOR), retry_pause=at_once) as transport,
        MemoryTransport(broker, topology_for(CLIENT, Role.CLIENT)) as sender,
    ):
        runner = Runner(
            identity=identity_of(MANIFEST, COORDINATOR),
            roster=roster_of(MANIFEST),
            transport=transport,
            shell=shell,
            kinds={KEY.kind: KIND},
            store=store,
            clock=clock or ManualClock(),
            counters=counters,
            audit=audit,
            observer=observe,
            settled=None if settled is None else lambda: settled(runner),
        )
        shell.runner = runner
        runner.directory.add_run(KEY.run)
        if fresh:
            runner.add(KEY, Data())
        try:
            await runner.start()
            yield Probe(runner, shell, broker, transport, sender, counters, moments, audit, audit_path, store)
        finally:
            await runner.stop()
            store.crash()
