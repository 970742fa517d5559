import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from pydantic import JsonValue

from hubbub.errors import (
    BrokerUnreachable,
    Code,
    FalseSum,
    LocalError,
    PeerError,
    RejectReason,
    StorageFailed,
    UnexpectedEvent,
)
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import (
    CancelTimer,
    CountRefusal,
    Effect,
    Failed,
    Key,
    Publish,
    Record,
    SetTimer,
    Tell,
    TellOwner,
)
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import PartyFailed, RunEnded, RunProposed, RunRefused
from hubbub.runtime.publisher import authenticate
from hubbub.runtime.runner import BEGINNING, MachineOver, Runner, RunnerStopped
from hubbub.transport import base
from hubbub.transport.base import ACK, Address, Delivery, Verdict
from hubbub.transport.topology import DELIVERY_LIMIT, REPORTS, dead_letter_queue, inbox
from hubbub.trust.audit import AuditLog
from support.aio import until
from support.forgetful_store import Disk, ForgetfulStore
from support.frames import decode
from support.parties import COORDINATOR, roster_of
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
    ManualClock,
    Note,
    Ponder,
    Probe,
    ProbeShell,
    Rang,
    State,
    Unlisted,
    by_reason,
    frame_of,
    go,
    go_by_kind,
    probe,
)


def kinds_kept(service: Probe) -> list[str]:
    return [entry.kind for entry in service.store.read()]


def buried(service: Probe) -> list[str]:
    """The reasons of all dead letters so far."""
    return by_reason(service.broker.dead_letters(dead_letter_queue(COORDINATOR)))


# Steps and effects -----------------------------------------------------------------------------------------


async def test_a_delivery_becomes_events_steps_and_an_acknowledgement() -> None:
    events = [(KEY, Go((Keep("spool"),))), (KEY, Go((Note("b"),)))]
    async with probe(ProbeShell(events=lambda _: events)) as service:
        await service.send(payload=b"share")
        first, second = await service.take(2)

        assert (first.key, first.before, first.after) == (KEY, State.IDLE, State.BUSY)
        assert [first.event, second.event] == [event for _, event in events]
        assert (first.data, second.data, service.live.data) == (Data(steps=1), Data(steps=2), Data(steps=2))
        assert first.at_s == 1_000.0
        assert (service.shell.done, service.shell.payloads) == (["spool", "b"], [b"share"])
    assert service.broker.waiting_in(inbox(COORDINATOR)) == 0
    assert buried(service) == []


async def test_what_is_persistent_is_done_before_the_event_is_kept_and_all_else_after_in_order() -> None:
    kept: list[tuple[str, int, object]] = []

    async with probe() as service:
        service.shell.effect = lambda effect: kept.append(
            (effect.text, len(service.store.read()), service.live.state)
        )
        await service.runner.feed(KEY, Go((Note("a"), Keep("b"), Note("c"), Keep("d"))))

    before, after = (0, State.IDLE), (2, State.BUSY)
    assert kept == [("b", *before), ("d", *before), ("a", *after), ("c", *after)]


async def test_the_delivery_is_settled_only_after_its_effects() -> None:
    async with probe(ProbeShell(events=go(Note("slow")), gate=asyncio.Event())) as service:
        await service.send()
        await service.shell.entered.wait()
        service.broker.stop()
        service.broker.start()
        service.shell.open_gate()
        _, again = await service.take(2)

        # The connection was lost while the effect ran, so that the message came a second time.
        assert again.data == Data(steps=2)


class Impostor:
    """No message, and publishing it is a bug."""

    kind: ClassVar[str] = "round-opened"


async def test_what_is_published_arrives_signed_or_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(delivery: Delivery) -> Verdict:
        arrived.put_nowait(delivery.body)
        return ACK

    async with probe() as service:
        await service.sender.subscribe(inbox(CLIENT), receive)
        published = Publish(CLIENT, Role.CLIENT, RoundOpened())
        effects = (replace(published, to=MANIFEST.clients[2]), published, replace(published, phase="union"))
        await service.runner.feed(KEY, Go((*effects, Note("after"))))
        frames = [await arrived.get(), await arrived.get()]

        assert service.shell.done == ["after"]
        with pytest.raises(LocalError, match="is not a message"):
            await service.runner.feed(KEY, Go((replace(published, body=Impostor()),)))
    first, second = (decode(frame) for frame in frames)
    for envelope, frame in zip((first, second), frames, strict=True):
        authenticate(roster_of(MANIFEST), envelope, frame)
    assert (first.run, first.round, first.phase) == (KEY.run, KEY.round, KEY.phase)
    assert (first.sender, first.recipient, first.body) == (COORDINATOR, CLIENT, RoundOpened())
    assert second.phase == "union"
    assert "client-3 has no inbox yet: round-opened was not delivered" in caplog.text


OUTAGES = [BrokerUnreachable("away"), StorageFailed("the disk is full"), OSError("the disk is full")]


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
async def test_an_effect_that_fails_is_tried_again_before_its_step_goes_on(error: Exception) -> None:
    failing = Failing([error, error])
    seen: list[object] = []

    def fail_twice(_: Note | Keep) -> None:
        effects = service.runner.effects
        begun = len(effects.jobs) + len(effects.timers) + len(effects.told)
        seen.append((service.live.state, begun))
        failing()

    effects = (Ponder("x"), SetTimer("t", 0.0, Rang), Tell(KEY, Go()), Note("write"), Note("after"))
    async with probe(ProbeShell(effect=fail_twice)) as service:
        await service.runner.feed(KEY, Go(effects))
        moments = await service.take(4)

        assert seen == [(State.BUSY, 0)] * 4
        assert service.shell.done == ["write", "after", "job x"]
        assert moments[0].data == Data(steps=1, job="x")
        assert sorted(kinds_kept(service)) == ["Done", "Go", "Go", "Rang", BEGINNING], "the event is kept once"


@pytest.mark.parametrize("error", [*OUTAGES, None], ids=repr)
async def test_an_event_that_cannot_be_kept_has_not_happened_and_comes_again(error: Exception | None) -> None:
    """Either what it relies on fails, or the store itself."""
    failing = Failing([error or OUTAGES[1]] * 2)
    seen: list[object] = []

    def look() -> None:
        seen.append((service.live.state, service.live.data, kinds_on_disk()))
        failing()

    def kinds_on_disk() -> list[str]:
        return [entry.kind for entry in disk.entries.values()]

    def persist(effect: Note | Keep) -> None:
        if isinstance(effect, Keep) and error:
            look()

    disk = Disk()
    store = ForgetfulStore(disk) if error else ForgetfulStore(disk, before_sync=look)
    shell = ProbeShell(events=go(Note("after"), Keep("write")), effect=persist)
    async with probe(shell, store=store) as service:
        await service.send()
        (moment,) = await service.take()

        assert seen == [(State.IDLE, Data(), [])] * 3
        assert moment.data == Data(steps=1)
        assert service.shell.done[-2:] == ["write", "after"]
        assert service.shell.done.count("after") == 1
        assert kinds_kept(service) == [BEGINNING, "Go"]


async def test_a_persistent_effect_that_refuses_undoes_the_event_and_rejects_its_delivery() -> None:
    refuse = Failing([PeerError(RejectReason.SECOND_SET, "a second set")])
    effects = (Note("never"), Ponder("never"), Keep("write"))
    async with probe(ProbeShell(events=go(*effects), effect=refuse)) as service:
        await service.send()

        assert by_reason(await service.dead_letters(1)) == ["second-set"]
        assert service.store.read() == []
        assert (service.live.state, service.live.data) == (State.IDLE, Data())
        assert service.shell.done == []
        assert service.runner.effects.jobs == set()


@dataclass
class FullDisk:
    """Takes nothing for so many attempts, and notes from the second on how the party is meanwhile."""

    attempts: int = 2 * DELIVERY_LIMIT
    problems: set[tuple[str, ...]] = field(default_factory=set)
    gauges: set[float | None] = field(default_factory=set)
    held: set[int] = field(default_factory=set)

    def write(self, service: Probe) -> None:
        if self.attempts:
            if self.attempts < 2 * DELIVERY_LIMIT:
                self.problems.add(service.runner.find_problems())
                self.gauges.add(service.sample("storage_failed"))
                self.held.add(service.broker.held_from(inbox(COORDINATOR)))
            self.attempts -= 1
            raise StorageFailed("the disk is full")

    async def wait_until_all_is_well(self, service: Probe) -> None:
        """Wait until there is room, and nothing is left at the broker."""
        queue = inbox(COORDINATOR)
        await until(
            lambda: (
                not self.attempts
                and not service.runner.find_problems()
                and not service.broker.waiting_in(queue)
                and not service.broker.held_from(queue)
            )
        )


STORAGE_FAILS = ("storage fails, so no messages are taken: the disk is full",)


@pytest.mark.parametrize(
    "effect", [Keep("relied on"), Note("follows"), Ponder("job")], ids=lambda effect: type(effect).__name__
)
async def test_a_full_disk_pauses_the_queue_and_costs_no_message(
    effect: Effect, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()

    def work(job: Ponder) -> object:
        disk.write(service)
        return Done(job.text)

    async with probe(ProbeShell(events=go(effect), effect=lambda _: disk.write(service), job=work)) as service:
        for number in range(3):
            await service.send(payload=b"%d" % number)
        await disk.wait_until_all_is_well(service)

        assert service.live.data.steps >= 3
        assert disk.problems == {STORAGE_FAILS}
        assert disk.gauges == {1.0}
        assert disk.held == {0}, "what was in hand waits at the broker, where it may wait for long"
        assert service.sample("storage_failed") == 0
        assert buried(service) == []
    said = [record.message for record in caplog.records if record.message.startswith("storage")]
    assert said == [
        "storage fails: no messages are taken, and it is tried again until it works: the disk is full",
        "storage works again: messages are taken again",
    ]


async def test_a_timers_event_that_cannot_be_kept_pauses_the_queue_too() -> None:
    disk = FullDisk()
    async with probe(store=ForgetfulStore(Disk(), before_sync=lambda: disk.write(service))) as service:
        service.runner.feed_soon(KEY, Rang(0.0))
        assert await service.take_events(1) == [Rang(0.0)]
        await disk.wait_until_all_is_well(service)

    assert disk.problems == {STORAGE_FAILS}


async def test_a_party_stopped_while_its_disk_is_full_does_not_say_that_it_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = asyncio.Event()

    def fail(_: Note | Keep) -> None:
        failing.set()
        raise StorageFailed("the disk is full")

    async with probe(ProbeShell(events=go(Note("never")), effect=fail)) as service:
        await service.send()
        await failing.wait()
        await until(lambda: bool(service.runner.find_problems()))
        await service.runner.stop()
        assert service.broker.waiting_in(inbox(COORDINATOR)) == 1
    assert "storage works again" not in caplog.text


@pytest.mark.parametrize("feed", [Runner.feed, Runner.feed_until_kept])
async def test_an_event_that_cannot_be_kept_is_told_to_its_source(
    feed: Callable[[Runner, Key, object], object],
) -> None:
    failing = Failing()
    failing.fill_disk(1)
    async with probe(store=ForgetfulStore(Disk(), before_sync=failing)) as service:
        with pytest.raises(StorageFailed, match="full"):
            await feed(service.runner, KEY, Go((Note("never"),)))  # type: ignore[misc]  # A coroutine.
        with pytest.raises(UnexpectedEvent, match="Unlisted is not expected in state IDLE"):
            await feed(service.runner, KEY, Unlisted())  # type: ignore[misc]  # A coroutine.

        assert (service.live.state, service.live.data, service.shell.done) == (State.IDLE, Data(), [])
        assert service.store.read() == []


@pytest.mark.parametrize("event", [Done("x"), Rang(1.0)], ids=lambda event: type(event).__name__)
async def test_what_a_job_or_a_timer_brings_is_kept_when_the_store_takes_things_again(event: object) -> None:
    failing = Failing()
    async with probe(store=ForgetfulStore(Disk(), before_sync=failing)) as service:
        await service.runner.feed(KEY, Go())
        failing.fill_disk()
        service.runner.feed_soon(KEY, event)

        assert await service.take_events(2) == [Go(), event]
        assert kinds_kept(service) == [BEGINNING, "Go", type(event).__name__]


async def test_what_was_told_is_kept_before_anything_else_and_before_its_cause_is_done() -> None:
    failing, disk = Failing(), Disk()
    async with probe(store=ForgetfulStore(disk, before_sync=failing)) as service:
        service.runner.add(OTHER, Data())
        service.shell.effect = lambda _: failing.fill_disk()
        told = (Tell(OTHER, Go()), Tell(OTHER, Rang(1.0)))
        await service.runner.feed(KEY, Go((Note("then the disk is full"), *told)))
        await service.runner.feed(KEY, Go(then=State.IDLE))

        first, *after, last = await service.take(4)
        assert (first.key, last.key) == (KEY, KEY)
        assert [(moment.key, moment.event) for moment in after] == [(each.to, each.event) for each in told]
        (cause,) = (entry.cause for entry in disk.entries.values() if entry.key == OTHER and entry.kind == "Go")
        assert cause == "2.1"


async def test_feeding_until_kept_does_not_wait_for_effects() -> None:
    async with probe(ProbeShell(gate=asyncio.Event())) as service:
        await service.runner.feed_until_kept(KEY, Go((Note("slow"),)))

        assert kinds_kept(service) == [BEGINNING, "Go"]
        assert service.shell.done == []
        service.shell.open_gate()
        await service.take()
        assert service.shell.done == ["slow"]


# The audit log ---------------------------------------------------------------------------------------------

LAST_WORD = Record("round", {"members": ["client-1"], "outcome": "released"})


@pytest.mark.parametrize(
    ("key", "record", "fields"),
    [
        (KEY, LAST_WORD, {"round": 1, "phase": "signs", **LAST_WORD.fields}),
        (Key("probe", MANIFEST.run_id), Record("joined"), {}),
        (KEY, Record("void", {"round": 7, "phase": "union"}), {"round": 7, "phase": "union"}),
    ],
)
async def test_a_record_names_its_run_round_and_phase(key: Key, record: Record, fields: dict[str, object]) -> None:
    async with probe(fresh=False) as service:
        service.runner.add(key, Data())
        await service.runner.feed(key, Go((record,)))

        (entry,) = service.recorded(record.kind)
        assert entry.fields == {"run": KEY.run, **fields}


@pytest.mark.parametrize("failures", [0, 3])
async def test_records_keep_their_place_among_the_effects(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    failing, seen, append = Failing(), list[int](), AuditLog.append
    failing.fill_disk(failures)

    def fail(audit: AuditLog, kind: str, **fields: JsonValue) -> object:
        failing()
        return append(audit, kind, **fields)

    async with probe() as service:
        monkeypatch.setattr(AuditLog, "append", fail)
        service.shell.effect = lambda _: seen.append(len(service.recorded("round")))
        await service.runner.feed(KEY, Go((LAST_WORD, LAST_WORD, Note("between"), LAST_WORD)))

        assert seen == [2]
        assert len(service.recorded("round")) == 3


async def test_a_refusal_is_counted_and_recorded_and_a_word_to_the_owner_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal = CountRefusal(RejectReason.FALSE_SUM, "sum-chunk", PartyId("aggregator-2"), "more than members")
    async with probe() as service:
        await service.runner.feed(KEY, Go((refusal, TellOwner("two rounds were void"), Note("after"))))

        assert service.counters.rejections(RejectReason.FALSE_SUM) == 1
        (entry,) = service.recorded("refused")
        about = {"kind": "sum-chunk", "sender": "aggregator-2", "run": KEY.run}
        assert entry.fields == {"reason": "false-sum", "count": 1, **about}
        assert service.shell.done == ["after"]
    (record,) = [record for record in caplog.records if hasattr(record, "reason")]
    assert (record.levelno, record.__dict__["reason"]) == (logging.WARNING, "false-sum")
    assert "more than members" in record.getMessage()
    assert "two rounds were void" in caplog.messages
    # One that cannot be recorded is counted all the same.
    async with probe() as service:
        service.audit.close()
        await service.send_bytes(b"garbage")
        assert by_reason(await service.dead_letters(1)) == ["malformed"]
        assert service.counters.rejections(RejectReason.MALFORMED) == 1
        await service.send()
        await service.take()
    assert "the refusal could not be recorded" in caplog.text


async def test_a_flood_of_refusals_is_counted_in_full_and_logged_briefly(caplog: pytest.LogCaptureFixture) -> None:
    async with probe(ProbeShell(events=go_by_kind)) as service:
        for _ in range(500):
            await service.send_bytes(b"garbage")
        await service.send(RunRefused(code=Code.INTERNAL))
        await service.dead_letters(501)

        assert service.counters.rejections(RejectReason.MALFORMED) == 500
        # What a message says of itself cannot be read, but the broker says whose it is.
        nobody = {"kind": "", "sender": CLIENT, "run": ""}
        client = {"kind": "run-refused", "sender": CLIENT, "run": KEY.run}
        assert [dict(entry.fields) for entry in service.recorded("refused")] == [
            *({"reason": "malformed", "count": 2**power, **nobody} for power in range(9)),
            {"reason": "unexpected", "count": 1, **client},
        ]
    lines = [record.getMessage() for record in caplog.records if "garbage" not in record.getMessage()]
    single = [line for line in lines if line.startswith("refused: ") and "run-refused" not in line]
    more = [int(line.split()[1]) for line in lines if "more within a second" in line]
    assert len(single) + sum(more) == 500
    assert more
    assert f"more within a second (malformed) from {CLIENT}" in caplog.text


async def test_a_message_that_is_too_large_is_dropped_and_recorded_and_orders_pass(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large = bytes(10_001)
    monkeypatch.setattr(base, "MAX_BODY_BYTES", 10_000)
    async with probe() as service:
        for _ in range(16):
            # Not over a transport, which does not send it.
            assert service.broker.accept(Address(REPORTS, COORDINATOR), large, user=CLIENT)
        await service.send()
        await service.take()

        assert service.counters.rejections(RejectReason.OVERSIZED) == 16
        about = {"kind": "", "sender": CLIENT, "run": "", "count": 1, "size": len(large)}
        digest = hashlib.sha256(large).hexdigest()
        fields = dict(service.recorded("refused")[0].fields)
        assert fields == {"reason": "oversized", "sha256": digest, **about}
        assert buried(service) == []
        assert service.broker.held_from(inbox(COORDINATOR)) <= 1
    assert f"a message of {CLIENT} is too large and is dropped: 10001 bytes, SHA-256" in caplog.text


async def test_a_message_without_a_user_is_dropped_and_a_forgery_put_aside_and_both_are_recorded() -> None:
    forged = frame_of(sender=MANIFEST.clients[1], signer=CLIENT)
    async with probe() as service:
        assert service.broker.accept(Address(REPORTS, COORDINATOR), frame_of(), user="")
        await service.send_bytes(forged)

        assert by_reason(await service.dead_letters(1)) == ["bad-signature"]
        assert service.counters.rejections(RejectReason.NO_USER) == 1
        nobody, forger = (entry.fields for entry in service.recorded("refused"))
        assert (nobody["reason"], nobody["sender"], nobody["size"]) == ("no-user", "", len(frame_of()))
        assert (forger["sender"], forger["user"]) == (MANIFEST.clients[1], CLIENT)
        assert service.live.state is State.IDLE


# Jobs ------------------------------------------------------------------------------------------------------


async def test_a_job_comes_back_as_an_event_and_others_are_taken_meanwhile_and_after_its_machine() -> None:
    async with probe(ProbeShell(gate=asyncio.Event())) as service:
        await service.runner.feed(KEY, Go((Ponder("deep"),)))
        await service.shell.entered.wait()
        await service.runner.feed(KEY, Go())
        service.shell.open_gate()
        assert await service.take_events(3) == [Go((Ponder("deep"),)), Go(), Done("deep")]
    async with probe(ProbeShell(gate=asyncio.Event())) as service:
        service.runner.add(OTHER, Data())
        await service.runner.feed(KEY, Go((Ponder("late"),), then=State.OVER))
        service.shell.open_gate()
        await asyncio.gather(*service.runner.effects.jobs)
        await service.runner.feed(OTHER, Go())
        assert (service.shell.done, service.shell.retired) == (["job late"], [KEY])


UNEXPECTED = "an unexpected {}; the log of this party says more"


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (LocalError("the model is gone"), Code.INTERNAL, "the model is gone"),
        (FalseSum(), Code.PROTOCOL_FALSE_SUM, str(FalseSum())),
        (ZeroDivisionError("of patient 4711"), Code.INTERNAL, UNEXPECTED.format("ZeroDivisionError")),
        (PermissionError("of patient 4711"), Code.DISK_FAILED, UNEXPECTED.format("PermissionError")),
        (PeerError(RejectReason.BROKEN_SEAL, "a seal does not open"), Code.PROTOCOL_PEER, "a seal does not open"),
    ],
)
async def test_a_job_that_fails_comes_back_as_failed(error: Exception, code: Code, why: str) -> None:
    """If a peer did something wrong, that is counted and recorded."""
    async with probe(ProbeShell(job=Failing([error]))) as service:
        await service.runner.feed(KEY, Go((Ponder("x"),)))

        assert (await service.take_events(2))[1] == Failed(why, code)
        assert service.live.state is State.BUSY
        counted = [reason for reason in RejectReason if service.counters.rejections(reason)]
        assert counted == ([error.reason] if isinstance(error, PeerError) else [])
        about = {"count": 1, "kind": "Ponder", "sender": "", "run": KEY.run}
        recorded = [entry.fields for entry in service.recorded("refused")]
        assert recorded == [{"reason": reason.value, **about} for reason in counted]


@pytest.mark.parametrize("error", OUTAGES[:2], ids=repr)
async def test_a_job_that_an_outage_keeps_from_being_done_is_begun_again(error: Exception) -> None:
    failing = Failing([error, error])

    def fail_twice(job: Ponder) -> object:
        failing()
        return Done(job.text)

    async with probe(ProbeShell(job=fail_twice)) as service:
        await service.runner.feed(KEY, Go((Ponder("x"),)))

        assert (await service.take_events(2))[1] == Done("x")
        assert service.shell.done == ["job x"] * 3


async def test_a_job_whose_machine_is_over_is_given_up_without_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given_up = asyncio.Event()

    def look_for_it(_: Ponder) -> object:
        service.runner.forget(KEY)
        asyncio.get_running_loop().call_soon(given_up.set)
        return service.runner.machines[KEY]

    async with probe(ProbeShell(job=look_for_it)) as service:
        await service.runner.feed(KEY, Go((Ponder("x"),)))
        await given_up.wait()
    assert "Ponder is given up: its probe is over" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_a_jobs_event_that_no_row_expects_comes_back_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    async with probe(ProbeShell(job=lambda _: Unlisted())) as service:
        service.runner.feed_soon(KEY, Failed("while idle"))
        await service.runner.feed(KEY, Go((Ponder("x"),)))

        assert (await service.take_events(2))[1] == Failed("Unlisted is not expected in state BUSY")
        assert service.live.data == Data(steps=1, job="x")
    assert caplog.text.count("Failed could not be taken") == 1
    assert "Unlisted could not be taken by probe" in caplog.text


# Timers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_s", [5.0, 0.0], ids=["now", "passed"])
async def test_a_timer_fires_with_the_clocks_time(at_s: float) -> None:
    clock = ManualClock(5.0)
    async with probe(clock=clock) as service:
        await service.runner.feed(KEY, Go((SetTimer("deadline", at_s, Rang),)))
        clock.time_s = 6.0

        assert (await service.take_events(2))[1] == Rang(at_s=6.0)


@pytest.mark.parametrize("end", [CancelTimer("a"), SetTimer("a", 1e9, Rang)], ids=["cancelled", "replaced"])
async def test_a_timer_that_is_cancelled_or_replaced_does_not_fire_and_others_do(end: Effect) -> None:
    async with probe() as service:
        effects = (SetTimer("a", 0.0, Rang), SetTimer("b", 0.0, Rang), end, CancelTimer("no such"))
        await service.runner.feed(KEY, Go(effects))
        await service.take(2)
        await service.runner.feed(KEY, Go())

        assert service.live.data == Data(steps=3), "the step, timer b, the step: timer a came before b and is gone"
        assert len(service.runner.effects.timers) == isinstance(end, SetTimer)


async def test_two_machines_can_have_timers_of_one_name() -> None:
    async with probe() as service:
        service.runner.add(OTHER, Data())
        await service.runner.feed(KEY, Go((SetTimer("t", 0.0, Rang),)))
        await service.runner.feed(OTHER, Go((SetTimer("t", 0.0, Rang), CancelTimer("t"))))
        await service.runner.feed(OTHER, Go((SetTimer("t", 0.0, Rang),)))

        rang = {moment.key for moment in await service.take(5) if isinstance(moment.event, Rang)}
        assert rang == {KEY, OTHER}


# Poison ----------------------------------------------------------------------------------------------------


async def test_poison_goes_to_the_dead_letters_with_its_reason_and_the_service_goes_on() -> None:
    async with probe(ProbeShell(events=go_by_kind)) as service:
        await service.send_bytes(b"garbage")
        await service.send_bytes(b"HBUB\x00\x09" + bytes(14))
        await service.send(recipient=PartyId("aggregator-1"))
        await service.send(RunProposed(manifest=MANIFEST))
        await service.send(RunRefused(code=Code.INTERNAL))
        await service.send(PartyFailed(code=Code.INTERNAL))
        await service.send(RunEnded(outcome="failed", reason="no event"))
        letters = await service.dead_letters(7)

        # A proposal and the end of a run are not for a coordinator at all, whatever name is on them.
        assert by_reason(letters) == [
            *("malformed", "unknown-version", "wrong-recipient", "wrong-recipient", "unexpected"),
            *("internal-error", "wrong-recipient"),
        ]
        assert letters[0].body == b"garbage"
        assert service.live.state is State.IDLE
        await service.send()
        await service.take()
    for reason, count in Counter(by_reason(letters)).items():
        assert reason == "internal-error" or service.counters.rejections(RejectReason(reason)) == count
    assert service.sample("internal_errors_total") == 1
    assert service.sample("messages_received_total", kind="run-joined") == 1


async def test_what_the_intake_refuses_is_counted_under_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: object) -> list[tuple[Key, object]]:
        raise PeerError(RejectReason.SECOND_SET, "a second set")

    async with probe(ProbeShell(events=refuse)) as service:
        await service.send(payload=b"VERY-SECRET-SHARE")

        assert by_reason(await service.dead_letters(1)) == ["second-set"]
        assert service.counters.rejections(RejectReason.SECOND_SET) == 1
    (record,) = [record for record in caplog.records if hasattr(record, "reason")]
    assert (record.levelno, record.__dict__["reason"]) == (logging.WARNING, "second-set")
    assert "a second set" in record.getMessage()
    assert "SECRET" not in caplog.text


async def test_a_bug_in_an_effect_puts_the_message_aside_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Its event is kept and so has happened: the machine must not be where a restart would not find it."""
    shell = ProbeShell(events=go(Note("bug"), Note("after"), Ponder("x")), effect=Failing([KeyError("a bug")]))
    async with probe(shell) as service:
        await service.send()

        assert by_reason(await service.dead_letters(1)) == ["internal-error"]
        assert service.live.state is State.BUSY
        assert (await service.take_events(2))[1] == Done("x")
        assert service.shell.done == ["after", "job x"]
        await service.runner.feed(KEY, Go())
        assert [(entry.kind, entry.done) for entry in service.store.read()] == [
            *((BEGINNING, True), ("Go", False), ("Done", True), ("Go", False)),
        ], "the first is not done; the last is only noted as done"
    assert "a bug: <Envelope run-joined" in caplog.text
    assert "a bug: Note of probe" in caplog.text
    # What follows from a job is for the machine to deal with.
    async with probe(ProbeShell(effect=Failing([KeyError("a bug")]))) as service:
        service.runner.feed_soon(KEY, Go((Note("x"),)))
        assert await service.take_events(2) == [Go((Note("x"),)), Failed(UNEXPECTED.format("KeyError"))]


@pytest.mark.parametrize("late", [True, False], ids=["machine over", "no event"])
async def test_a_message_for_a_machine_that_is_over_or_that_makes_no_event_is_acknowledged(late: bool) -> None:  # noqa: FBT001  (A parameter of the test.)
    async with probe(ProbeShell(events=lambda _: [(OTHER, Go())] if late else [])) as service:
        await service.send()
        await service.send_bytes(b"garbage")

        assert by_reason(await service.dead_letters(1)) == ["malformed"]
        assert service.live.state is State.IDLE
        assert service.sample("messages_late_total", kind="run-joined") == (1 if late else None)


# Beginning and end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("forgets", [True, False])
async def test_a_machine_in_a_final_state_is_retired_with_its_timers_and_may_be_forgotten(forgets: bool) -> None:  # noqa: FBT001  (A parameter of the test.)
    async with probe(ProbeShell(forgets=forgets)) as service:
        service.runner.add(OTHER, Data())
        await service.runner.feed(KEY, Go((SetTimer("t", 1e9, Rang),)))
        await service.runner.feed(KEY, Go((Note("last"),), then=State.OVER))

        assert (service.shell.done, service.shell.retired) == (["last"], [KEY])
        assert KEY not in service.runner.machines
        assert service.runner.effects.timers == {}
        with pytest.raises(MachineOver, match="which is over or never began"):
            await service.runner.feed(KEY, Go())
        await service.runner.feed(OTHER, Go())
        assert {entry.key for entry in service.store.read()} == ({OTHER} if forgets else {OTHER, KEY})


async def test_a_machine_is_added_once_and_one_that_is_dropped_or_forgotten_is_not_retired() -> None:
    async with probe() as service:
        with pytest.raises(LocalError, match="is running already"):
            service.runner.add(KEY, Data())
        service.runner.add(OTHER, Data())
        await service.runner.feed(OTHER, Go((SetTimer("t", 1e9, Rang),)))
        service.runner.forget(OTHER)
        assert service.runner.effects.timers == {}
        await service.runner.feed(KEY, Go((SetTimer("t", 1e9, Rang),)))
        await service.runner.feed(KEY, Go())

        assert {entry.key for entry in service.store.read()} == {KEY}, "what is forgotten is gone from the store"
        assert service.runner.drop(KEY).state is State.BUSY
        assert (service.shell.retired, service.runner.machines) == ([], {})
        assert service.runner.effects.timers == {}


async def test_a_store_that_cannot_forget_now_forgets_later() -> None:
    failing = Failing()
    async with probe(store=ForgetfulStore(Disk(), before_sync=failing)) as service:
        service.shell.effect = lambda _: failing.fill_disk()
        await service.runner.feed(KEY, Go((Note("last"),), then=State.OVER))
        with pytest.raises(MachineOver):
            await service.runner.feed(KEY, Go())

        assert service.store.read() == []
        assert failing.errors == []


async def test_stopping_in_the_middle_of_an_effect_gives_the_message_back_and_lets_the_transport_close() -> None:
    async with probe(ProbeShell(events=go(Note("never")), gate=asyncio.Event())) as service:
        await service.send()
        await service.send()
        await service.shell.entered.wait()
        waiting = asyncio.create_task(service.runner.feed(KEY, Go()))
        await asyncio.sleep(0)

        await service.runner.stop()
        await service.transport.close()

        assert service.shell.done == []
        assert service.broker.waiting_in(inbox(COORDINATOR)) == 2
        with pytest.raises(RunnerStopped):
            await waiting
        with pytest.raises(RunnerStopped):
            await service.runner.feed(KEY, Go())


async def test_what_arrives_after_the_stop_does_not_reach_the_shell_and_is_kept() -> None:
    asked: list[object] = []

    def note(envelope: object) -> list[tuple[Key, object]]:
        asked.append(envelope)
        return []

    async with probe(ProbeShell(events=note)) as service:
        await service.runner.stop()
        await service.send()
        await service.send_bytes(b"garbage")
        await service.transport.close()

        assert asked == []
        assert service.broker.waiting_in(inbox(COORDINATOR)) == 2
