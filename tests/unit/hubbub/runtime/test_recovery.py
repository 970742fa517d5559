"""A runner that died is rebuilt from its store: where it was, with all that follows from what had happened."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.errors import Code, LocalError, UnexpectedEvent
from hubbub.ids import Role
from hubbub.machine.effects import CancelTimer, Effect, Failed, Job, Key, Persist, Publish, Record, SetTimer, Tell
from hubbub.messages.envelope import Envelope
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import RunJoined, RunRefused
from hubbub.runtime import runner
from hubbub.runtime.runner import BEGINNING, KeyedEvent, RunningMachine, Transition
from hubbub.store.base import Archive, Draft, Entry
from hubbub.transport.memory import MemoryBroker
from hubbub.transport.topology import dead_letter_queue, inbox
from support.forgetful_store import Disk, ForgetfulStore
from support.parties import COORDINATOR
from support.probe import (
    CLIENT,
    KEY,
    MANIFEST,
    OTHER,
    Data,
    Done,
    Failing,
    Go,
    Keep,
    Note,
    Ponder,
    Probe,
    ProbeShell,
    Rang,
    SetUp,
    State,
    Unlisted,
    probe,
)

FAR_OFF_S = 1e9


def again(disk: Disk, shell: ProbeShell | None = None) -> AbstractAsyncContextManager[Probe]:
    """The party is started again with what is on its disk."""
    return probe(shell, store=ForgetfulStore(disk), fresh=False)


def machines(service: Probe) -> dict[Key, tuple[object, object]]:
    return {key: (live.state, live.data) for key, live in service.runner.machines.items()}


# The same machines ----------------------------------------------------------------------------------------

EFFECTS = st.sampled_from(
    [
        *(Note("note"), Keep("keep"), Publish(CLIENT, Role.CLIENT, RoundOpened()), Record("round"), SetUp(OTHER)),
        *(Ponder("long"), SetTimer("alarm", FAR_OFF_S, Rang), CancelTimer("alarm")),
        *(Tell(KEY, Go()), Tell(OTHER, Go((Note("told"),))), Tell(OTHER, Go(then=State.OVER))),
    ]
)
EVENTS = st.one_of(
    st.builds(Go, st.lists(EFFECTS, max_size=4).map(tuple), st.sampled_from(State)),
    st.sampled_from([Done("long"), Done("short"), Rang(1.0), Failed("why")]),
)


async def archive_all(running: runner.Runner) -> None:
    """Put snapshots in the place of all entries."""
    kept = [key for key, live in running.machines.items() if live.kept]
    await running.archive(
        lambda: Archive(run=MANIFEST.run_id, ongoing=tuple(map(running.event_log.snapshot, kept)))
    )


async def take_and_restart(fed: Sequence[KeyedEvent], *, archived: bool) -> None:
    disk = Disk()
    shell, settled = ProbeShell(job_gate=asyncio.Event()), archive_all if archived else None
    async with probe(shell, store=ForgetfulStore(disk), settled=settled) as service:
        for key, event in fed:
            with suppress(UnexpectedEvent):
                await service.runner.feed(key, event)
        with suppress(UnexpectedEvent):
            await service.runner.feed(KEY, Go())  # By then all that was told before is taken.
        kept = {key for key, live in service.runner.machines.items() if live.kept}
        before = {key: each for key, each in machines(service).items() if key in kept}
    shell = ProbeShell(job_gate=asyncio.Event())
    async with again(disk, shell) as service:
        assert machines(service) == before
        known = {key: live.data for key, live in service.runner.machines.items()}
        assert {key for key, _ in service.runner.effects.timers} == {
            key for key, data in known.items() if data.alarm_s
        }
        assert len(service.runner.effects.jobs) == sum(bool(data.job) for data in known.values())

    assert not archived or len(disk.entries) <= 2, "what the restart itself added"


@pytest.mark.parametrize("archived", [False, True], ids=["from events", "from snapshots"])
@given(fed=st.lists(st.tuples(st.sampled_from([KEY, OTHER]), EVENTS), max_size=8))
@settings(max_examples=60)
def test_machines_timers_and_jobs_are_what_they_were_after_any_events(
    archived: bool,  # noqa: FBT001  (A parameter of the test.)
    fed: Sequence[KeyedEvent],
) -> None:
    asyncio.run(take_and_restart(fed, archived=archived))


async def test_a_machine_goes_on_from_its_snapshot_and_what_followed_on_it() -> None:
    async def archive_second_and_third_step(running: runner.Runner) -> None:
        if running.machines[KEY].data.steps in {2, 3}:
            await archive_all(running)

    disk = Disk()
    async with probe(store=ForgetfulStore(disk), settled=archive_second_and_third_step) as service:
        for event in (Go(), Go(), Rang(at_s=5.0)):
            await service.runner.feed(KEY, event)
        await has_settled(service)
        await service.runner.feed(KEY, Go())
        assert service.runner.event_log.entries == 1
        before = machines(service)
    for _ in range(2):
        async with again(disk) as service:
            assert machines(service) == before
            assert service.runner.event_log.newest_s == 5.0
            assert service.runner.event_log.entries == 1


async def test_nothing_is_archived_of_a_run_while_an_effect_of_it_is_not_done() -> None:
    disk = Disk()
    shell = ProbeShell(effect=Failing([KeyError("a bug")]))
    async with probe(shell, store=ForgetfulStore(disk), settled=archive_all) as service:
        await service.runner.set_up(OTHER, Data())
        with pytest.raises(KeyError):
            await service.runner.feed(KEY, Go((Note("bug"), Tell(OTHER, Go()))))
        await has_settled(service)
        before = machines(service)
    assert [entry.key for entry in disk.entries.values() if entry.kind == "Go"] == [KEY, OTHER]
    async with again(disk) as service:
        await has_settled(service)
        assert service.shell.done == ["bug"]
        assert machines(service) == before, "what was told is told once"


async def has_settled(service: Probe) -> None:
    """Wait until all that was fed is settled: the next to be fed waits for that."""
    with suppress(UnexpectedEvent):
        await service.runner.feed(KEY, Unlisted())


THIRD = Key("probe", MANIFEST.run_id, 3)


async def test_a_machine_is_kept_once_it_is_set_up_or_has_an_event_and_set_up_once() -> None:
    disk = Disk()
    async with probe(store=ForgetfulStore(disk)) as service:
        assert KEY in service.runner.machines, "it was only added"
        service.runner.add(OTHER, Data(steps=5))
        await service.runner.feed(OTHER, Go())
        await service.runner.set_up(OTHER, Data())
        await service.runner.set_up(THIRD, Data(steps=7))
        assert service.runner.machines[OTHER].data == Data(steps=6)
    async with again(disk) as service:
        assert machines(service) == {OTHER: (State.BUSY, Data(steps=6)), THIRD: (State.IDLE, Data(steps=7))}


async def test_a_machine_that_is_set_up_and_told_something_takes_one_write_and_two_entries() -> None:
    disk, writes = Disk(), list[int]()

    async with probe(store=ForgetfulStore(disk, before_sync=lambda: writes.append(len(disk.entries)))) as service:
        await service.runner.feed(KEY, Go((SetUp(OTHER), Tell(OTHER, Go()))))
        await service.runner.feed(KEY, Go())
    assert writes == [0, 2, 4]
    async with again(disk) as service:
        assert machines(service)[OTHER] == (State.BUSY, Data(steps=1))


@pytest.mark.parametrize("dies", [False, True])
async def test_a_machine_that_could_not_be_kept_when_set_up_is_kept_later_or_set_up_again(dies: bool) -> None:  # noqa: FBT001  (A parameter of the test.)
    disk, failing = Disk(), Failing(for_ever=dies)
    failing.fill_disk(1)
    store = ForgetfulStore(disk, before_sync=lambda: failing() if disk.entries else None)
    async with probe(store=store) as service:
        await service.runner.feed(KEY, Go((SetUp(OTHER),)))
        if not dies:
            await service.runner.feed(KEY, Go())  # What comes next waits until the event before it counts as done.
            assert failing.errors == []
    assert any(entry.key == OTHER for entry in disk.entries.values()) is not dies
    async with again(disk) as service:
        assert OTHER in service.runner.machines


async def test_the_shell_sees_the_rebuilt_machines_before_anything_is_done_or_resumed() -> None:
    disk, order = Disk(), list[str]()

    class Watching(ProbeShell):
        def restore(self, machines: object) -> None:
            assert machines == {
                KEY: RunningMachine(service_kind, State.BUSY, Data(steps=1, job="think"), kept=True)
            }
            order.append("restored")

        async def perform(self, key: Key, effect: Effect) -> None:
            del key, effect
            order.append("effect")

        async def work(self, key: Key, job: Job) -> object:
            del key, job
            order.append("job")
            return Done("think")

    async with probe(ProbeShell(gate=asyncio.Event()), store=ForgetfulStore(disk)) as service:
        service_kind = service.live.kind
        await service.runner.feed_until_kept(KEY, Go((Note("x"), Ponder("think"))))
    async with again(disk, Watching()) as service:
        assert isinstance((await service.moments.get()).event, Done)

    assert order == ["restored", "effect", "job"]


async def test_effects_that_were_not_done_are_done_again_and_what_was_relied_on_is_not() -> None:
    disk = Disk()

    def hold(effect: Note | Keep) -> None:
        if effect.text == "stuck":
            raise OSError("for ever")

    effects = (Keep("kept"), Note("first"), Note("stuck"), Note("last"))
    async with probe(ProbeShell(effect=hold), store=ForgetfulStore(disk)) as service:
        await service.runner.feed_until_kept(KEY, Go(effects))
    async with again(disk) as service:
        assert service.shell.done == ["first", "stuck", "last"]
        await service.runner.feed(KEY, Go())
    async with again(disk) as service:
        assert service.shell.done == [], "they were marked as done"


async def test_what_was_told_and_not_taken_is_taken_before_any_delivery() -> None:
    disk, failing = Disk(), Failing(for_ever=True)
    async with probe(store=ForgetfulStore(disk, before_sync=failing)) as service:
        await service.runner.set_up(OTHER, Data())
        service.shell.effect = lambda _: failing.fill_disk()
        await service.runner.feed(KEY, Go((Note("then the disk is full"), Tell(OTHER, Go()))))
    async with again(disk) as service:
        await service.runner.feed(OTHER, Go())
        assert (await service.moments.get()).data == Data(steps=1)
        assert service.runner.machines[OTHER].data == Data(steps=2)


async def test_an_effect_with_a_bug_is_tried_again_after_a_restart_and_does_not_prevent_it() -> None:
    disk = Disk()

    def fail(effect: Note | Keep) -> None:
        if effect.text == "bug":
            raise KeyError("a bug")

    async with probe(ProbeShell(effect=fail), store=ForgetfulStore(disk)) as service:
        with pytest.raises(KeyError):
            await service.runner.feed(KEY, Go((Note("bug"), Note("after"))))
        before = machines(service)
    async with again(disk, ProbeShell(effect=fail)) as service:
        assert machines(service) == before
        assert service.shell.done == ["after"]
    async with again(disk) as service:
        assert service.shell.done == ["bug", "after"]


# Death at every moment ------------------------------------------------------------------------------------


class Death(BaseException):
    """Nobody catches it: the process is gone."""


@dataclass
class Life:
    """A party lives for so many moments, each of them between two things that it does."""

    moments: int | None
    passed: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def pass_by(self, moment: str) -> None:
        self.passed.append(moment)
        if self.moments is not None and len(self.passed) > self.moments:
            # The store calls from threads.
            self.loop.call_soon_threadsafe(self.over.set)
            raise Death(moment)


class MortalStore(ForgetfulStore):
    """May die before and after whatever it does."""

    def __init__(self, disk: Disk, life: Life) -> None:
        super().__init__(disk, before_sync=lambda: life.pass_by("written, not synced"))
        self._life = life

    def append(self, drafts: Sequence[Draft]) -> int:
        number = super().append(drafts)
        self._life.pass_by(f"kept {drafts[-1].kind}")
        return number

    def drop(self, keys: Iterable[Key]) -> None:
        super().drop(keys)
        self._life.pass_by("forgotten")

    def mark_done(self, sequence: int) -> None:
        self._life.pass_by("before an entry is marked")
        super().mark_done(sequence)


@dataclass
class MortalShell(ProbeShell):
    """May die before and after whatever it does."""

    life: Life = field(kw_only=True)

    def persist(self, key: Key, effect: Persist, payload: bytes) -> None:
        self.life.pass_by(f"before {effect}")
        super().persist(key, effect, payload)
        self.life.pass_by(f"after {effect}")

    async def perform(self, key: Key, effect: Effect) -> None:
        self.life.pass_by(f"before {effect}")
        await super().perform(key, effect)
        self.life.pass_by(f"after {effect}")

    async def work(self, key: Key, job: Job) -> object:
        self.life.pass_by(f"before {job}")
        event = await super().work(key, job)
        self.life.pass_by(f"after {job}")
        return event

    def retire(self, key: Key, live: RunningMachine) -> bool:
        self.life.pass_by(f"before {key} retires")
        return super().retire(key, live)

    def observe(self, moment: Transition) -> None:
        self.life.pass_by(f"{type(moment.event).__name__} taken by {moment.key}")


BEGIN = (
    *(Keep("asked"), Note("first"), Publish(CLIENT, Role.CLIENT, RoundOpened()), SetUp(OTHER)),
    *(Tell(OTHER, Go((Note("told"), Ponder("job")))), SetTimer("alarm", 0.0, Rang), Note("second")),
)
END = (Keep("verdict"), Note("last"), Tell(OTHER, Go((Note("told the end"),))))
NOTES = {"asked", "first", "told", "job job", "second", "verdict", "last", "told the end"}


def read(service_runner: Callable[[], runner.Runner], envelope: Envelope) -> Sequence[KeyedEvent]:
    """As services do: the first message sets a machine up, and the same message again changes nothing."""
    running = service_runner()
    match envelope.body:
        case RunJoined():
            if KEY not in running.machines:
                running.add(KEY, Data())
            return [] if running.machines[KEY].data.steps else [(KEY, Go(BEGIN))]
        case RunRefused():
            return [(KEY, Go(END, then=State.OVER))]
    raise AssertionError(envelope)


@dataclass
class Story:
    """A party with two machines that takes two messages, over as many lives as it needs."""

    disk: Disk = field(default_factory=Disk)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    done: list[str] = field(default_factory=list)
    retired: list[Key] = field(default_factory=list)
    sent: int = 0

    async def live(self, moments: int | None) -> Life:
        life = Life(moments)
        with suppress(Death):
            async with self._start(life) as service:
                telling = asyncio.create_task(self._tell(service))
                dying = asyncio.create_task(life.over.wait())
                await asyncio.wait({telling, dying}, return_when=asyncio.FIRST_COMPLETED)
                if telling.done():
                    telling.result()
                telling.cancel()
                dying.cancel()
        return life

    def _start(self, life: Life) -> AbstractAsyncContextManager[Probe]:
        shell = MortalShell(done=self.done, retired=self.retired, life=life)

        def find_runner() -> runner.Runner:
            assert shell.runner
            return shell.runner

        shell.events = lambda envelope: read(find_runner, envelope)
        return probe(shell, store=MortalStore(self.disk, life), broker=self.broker, fresh=False)

    async def _tell(self, service: Probe) -> None:
        if self.sent == 0:
            self.sent = 1
            await service.send()
        await self._until(service, lambda: _steps(service, KEY) in {2, None} and _steps(service, OTHER) in {2, 3})
        if self.sent == 1:
            self.sent = 2
            await service.send(RunRefused(code=Code.INTERNAL))
        await self._until(service, lambda: _steps(service, KEY) is None and _steps(service, OTHER) == 3)
        while self._is_unsettled():  # noqa: ASYNC110 - Nobody announces it.
            await asyncio.sleep(0)

    def _is_unsettled(self) -> bool:
        undone = any(entry.key == KEY or not entry.done for entry in self.events())
        return undone or self.broker.waiting_in(inbox(COORDINATOR)) > 0

    async def _until(self, service: Probe, holds: Callable[[], bool]) -> None:
        while not holds():
            await service.moments.get()

    def events(self) -> list[Entry]:
        return [entry for entry in list(self.disk.entries.values()) if entry.kind != BEGINNING]

    def check(self) -> None:
        """Nothing is lost, and nothing happened twice but effects."""
        told, job, told_last = self.events()
        assert (told.kind, job.kind, told_last.kind) == ("Go", "Done", "Go")
        assert {told.key, job.key, told_last.key} == {OTHER}
        assert told.cause
        assert told_last.cause
        assert told.cause != told_last.cause
        assert set(self.done) == NOTES
        assert set(self.retired) == {KEY}
        assert self.broker.waiting_in(inbox(CLIENT)) >= 1
        assert self.broker.dead_letters(dead_letter_queue(COORDINATOR)) == []


def _steps(service: Probe, key: Key) -> int | None:
    live = service.runner.machines.get(key)
    return live.data.steps if live else None


async def test_without_a_death_everything_is_done_once() -> None:
    story = Story()
    life = await story.live(None)

    story.check()
    assert sorted(story.done) == sorted(NOTES)
    assert story.retired == [KEY]
    assert story.broker.waiting_in(inbox(CLIENT)) == 1
    assert len(life.passed) > 40


async def test_a_death_at_any_moment_loses_nothing() -> None:
    for moments in count():
        story = Story()
        life = await story.live(moments)
        if not life.over.is_set():
            break
        await story.live(None)
        try:
            story.check()
        except AssertionError as error:
            raise AssertionError(f"after a death at moment {moments}, {life.passed[-1]}: {error}") from error
    assert moments > 40


async def live_through(lives: Sequence[int]) -> None:
    story = Story()
    for moments in lives:
        await story.live(moments)
    await story.live(None)
    story.check()


@given(st.lists(st.integers(0, 30), max_size=5))
@settings(max_examples=40)
def test_nor_do_many_deaths_also_while_recovering(lives: Sequence[int]) -> None:
    asyncio.run(live_through(lives))


# What cannot be understood --------------------------------------------------------------------------------


STRANGE = {
    "another service's machine": (Draft(Key("round", MANIFEST.run_id), BEGINNING, "[{}]"), "a machine round"),
    "an unknown event": (Draft(KEY, "Vanished", "[{}]"), "holds a Vanished, which this version does not know"),
    "an event of another shape": (Draft(KEY, "Done", '[{"answer":1}]'), "Done in the store cannot be read"),
    "what is no JSON": (Draft(KEY, "Done", "["), "Done in the store cannot be read"),
    "an event that no row expects": (Draft(KEY, "Done", '[{"result":"x"}]'), "Done is not expected in state IDLE"),
    "an event of a machine that never began": (Draft(OTHER, "Rang", '[{"at_s":1.0}]'), "which never began"),
}


@pytest.mark.parametrize(("draft", "complaint"), STRANGE.values(), ids=STRANGE)
async def test_what_cannot_be_replayed_keeps_the_party_from_starting(draft: Draft, complaint: str) -> None:
    disk = Disk()
    ForgetfulStore(disk).append([Draft(KEY, BEGINNING, "[{}]"), draft])

    with pytest.raises(LocalError, match=complaint):
        async with again(disk):
            pass
