import asyncio
import hashlib
import json
import logging
from dataclasses import dataclass, field
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
from hubbub.messages.codec import decode
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import PartyFailed, RunEnded, RunProposed, RunRefused
from hubbub.runtime.publisher import authenticate
from hubbub.runtime.runner import BEGINNING, MachineOver, RunnerStopped
from hubbub.runtime.telemetry import JsonFormatter
from hubbub.transport import base
from hubbub.transport.base import ACK, Address, Delivery, Verdict
from hubbub.transport.topology import DELIVERY_LIMIT, REPORTS, dead_letter_queue, inbox
from hubbub.trust.audit import AuditLog
from support.aio import aio, until
from support.forgetful_store import Disk, ForgetfulStore
from support.parties import COORDINATOR, roster_of
from support.probe import (
    CLIENT,
    KEY,
    MANIFEST,
    OTHER,
    Data,
    Done,
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


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.runtime.effects.PAUSE_S", 0.0)


def publish(to: PartyId = CLIENT) -> Publish:
    return Publish(to, Role.CLIENT, RoundOpened())


# Steps and effects -----------------------------------------------------------------------------------------


@aio
async def test_a_delivery_becomes_an_event_a_step_and_an_acknowledgement() -> None:
    async with probe() as service:
        await service.send()
        moment = await service.moments.get()

        assert (moment.key, moment.before, moment.after) == (KEY, State.IDLE, State.BUSY)
        assert moment.event == Go()
        assert moment.data == service.live.data == Data(steps=1)
        assert moment.at_s == 1_000.0
    assert service.broker.waiting_in(inbox(COORDINATOR)) == 0
    assert service.broker.dead_letters(dead_letter_queue(COORDINATOR)) == []


@aio
async def test_effects_are_done_in_the_handlers_order_once_the_step_is_taken() -> None:
    states: list[State] = []

    async with probe() as service:
        service.shell.effect = lambda _: states.append(service.live.state)  # type: ignore[arg-type] # an Enum there

        await service.runner.feed(KEY, Go((Note("first"), Note("second"), Note("third"))))

        assert service.shell.done == ["first", "second", "third"]
        assert states == [State.BUSY] * 3


@aio
async def test_what_an_event_relies_on_is_the_payload_of_the_delivery_that_caused_it() -> None:
    async with probe(ProbeShell(events=go(Keep("spool")))) as service:
        await service.send(payload=b"share")
        await service.moments.get()

        assert service.shell.payloads == [b"share"]


@aio
async def test_the_delivery_is_settled_only_after_its_effects() -> None:
    async with probe(ProbeShell(events=go(Note("slow")), gate=asyncio.Event())) as service:
        await service.send()
        await service.shell.entered.wait()
        service.broker.drop_connections()
        assert service.shell.gate
        service.shell.gate.set()
        await service.moments.get()
        again = await service.moments.get()

        # The connection was lost while the effect ran, so that the message came a second time.
        assert again.data == Data(steps=2)


@aio
async def test_publish_reaches_the_party_signed_and_with_the_machines_run_round_and_phase() -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(delivery: Delivery) -> Verdict:
        arrived.put_nowait(delivery.body)
        return ACK

    async with probe() as service:
        await service.sender.subscribe(inbox(CLIENT), receive)
        other_phase = Publish(CLIENT, Role.CLIENT, RoundOpened(), phase="union")
        await service.runner.feed(KEY, Go((publish(), other_phase)))
        frames = [await arrived.get(), await arrived.get()]
        first, second = (decode(frame) for frame in frames)

    for envelope, frame in zip((first, second), frames, strict=True):
        authenticate(roster_of(MANIFEST), envelope, frame)
    assert (first.run, first.round, first.phase) == (KEY.run, KEY.round, KEY.phase)
    assert (first.sender, first.recipient, first.body) == (COORDINATOR, CLIENT, RoundOpened())
    assert second.phase == "union"
    assert first.message_id != second.message_id


@aio
async def test_a_party_without_an_inbox_does_not_hold_up_the_machine(caplog: pytest.LogCaptureFixture) -> None:
    async with probe() as service:
        await service.runner.feed(KEY, Go((publish(PartyId("client-9")), Note("after"))))

        assert service.shell.done == ["after"]
        assert service.live.state is State.BUSY
    assert "client-9 has no inbox yet: round-opened was not delivered" in caplog.text


@aio
async def test_publishing_what_is_no_message_is_a_bug() -> None:
    class Impostor:
        kind: ClassVar[str] = "round-opened"

    async with probe() as service:
        with pytest.raises(LocalError, match="is not a message"):
            await service.runner.feed(KEY, Go((Publish(CLIENT, Role.CLIENT, Impostor()),)))


OUTAGES = [BrokerUnreachable("away"), StorageFailed("the disk is full"), OSError("the disk is full")]


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
@aio
async def test_an_effect_that_fails_is_tried_until_it_succeeds_and_the_event_kept_once(
    error: Exception,
) -> None:
    failures = [error, error]
    states: list[object] = []

    def fail_twice(_: Note | Keep) -> None:
        states.append((service.live.state, service.live.data))
        if failures:
            raise failures.pop()

    async with probe(ProbeShell(events=go(Note("write"), Note("after")))) as service:
        service.shell.effect = fail_twice
        await service.send()
        moment = await service.moments.get()

        assert states == [(State.BUSY, Data(steps=1))] * 4
        assert moment.data == Data(steps=1)
        assert service.shell.done == ["write", "after"]
        assert [entry.kind for entry in service.store.read()] == [BEGINNING, "Go"]
        assert service.broker.dead_letters(dead_letter_queue(COORDINATOR)) == []


@aio
async def test_while_an_effect_fails_jobs_timers_and_tells_of_its_step_are_not_begun() -> None:
    failures = [OSError("the disk is full")] * 3
    begun: list[int] = []

    def fail(_: Note | Keep) -> None:
        begun.append(
            len(service.runner.effects.jobs)
            + len(service.runner.effects.timers)
            + len(service.runner.effects.told)
        )
        if failures:
            raise failures.pop()

    async with probe(ProbeShell(effect=fail)) as service:
        effects = (Ponder("x"), SetTimer("t", 0.0, Rang), Tell(KEY, Go()), Note("write"))
        await service.runner.feed(KEY, Go(effects))

        assert begun == [0, 0, 0, 0]
        assert {type((await service.moments.get()).event) for _ in range(4)} == {Go, Done, Rang}


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
@aio
async def test_a_persistent_effect_that_fails_leaves_all_as_it_was_and_the_delivery_comes_again(
    error: Exception,
) -> None:
    failures = [error, error]
    seen: list[object] = []

    def fail_twice(effect: Note | Keep) -> None:
        if isinstance(effect, Keep):
            seen.append((service.live.state, service.live.data, service.store.read()))
            if failures:
                raise failures.pop()

    async with probe(ProbeShell(events=go(Note("after"), Keep("write")))) as service:
        service.shell.effect = fail_twice
        await service.send(payload=b"share")
        moment = await service.moments.get()

        assert seen == [(State.IDLE, Data(), [])] * 3
        assert moment.data == Data(steps=1)
        assert service.shell.done == ["write", "after"]
        assert [entry.kind for entry in service.store.read()] == [BEGINNING, "Go"]


@aio
async def test_a_persistent_effect_that_refuses_undoes_the_event_and_rejects_its_delivery() -> None:
    def refuse(_: Note | Keep) -> None:
        raise PeerError(RejectReason.SECOND_SET, "a second set")

    async with probe(ProbeShell(events=go(Note("never"), Ponder("never"), Keep("write")))) as service:
        service.shell.effect = refuse
        await service.send()

        assert by_reason(await service.dead_letters(1)) == ["second-set"]
        assert service.store.read() == []
        assert (service.live.state, service.live.data) == (State.IDLE, Data())
        assert service.shell.done == []
        assert service.runner.effects.jobs == set()


@aio
async def test_what_is_persistent_is_done_before_the_event_is_kept_and_all_else_after() -> None:
    kept: list[tuple[str, int]] = []

    async with probe() as service:
        service.shell.effect = lambda effect: kept.append((effect.text, len(service.store.read())))
        await service.runner.feed(KEY, Go((Note("a"), Keep("b"), Note("c"), Keep("d"))))

    assert kept == [("b", 0), ("d", 0), ("a", 2), ("c", 2)]


@aio
async def test_an_event_that_cannot_be_kept_has_not_happened_and_its_delivery_comes_again() -> None:
    failures = [StorageFailed("the disk is full")] * 2
    states: list[State] = []

    def fail_twice() -> None:
        states.append(service.live.state)  # type: ignore[arg-type] # an Enum there
        if failures:
            raise failures.pop()

    store = ForgetfulStore(Disk(), before_sync=fail_twice)
    async with probe(ProbeShell(events=go(Note("after"))), store=store) as service:
        await service.send()
        moment = await service.moments.get()

        assert states == [State.IDLE] * 3
        assert (moment.data, service.shell.done) == (Data(steps=1), ["after"])
        assert [entry.kind for entry in store.read()] == [BEGINNING, "Go"]


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
                self.gauges.add(value_of(service, "hubbub_storage_failed"))
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


def value_of(service: Probe, name: str) -> float | None:
    return service.counters.registry.get_sample_value(name)


STORAGE_FAILS = ("storage fails, so no messages are taken: the disk is full",)


@pytest.mark.parametrize(
    "effect", [Keep("relied on"), Note("follows"), Ponder("job")], ids=lambda effect: type(effect).__name__
)
@aio
async def test_a_disk_that_is_full_for_long_pauses_the_queue_and_costs_no_message(
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

        data = service.live.data
        assert isinstance(data, Data)
        assert data.steps >= 3
        assert disk.problems == {STORAGE_FAILS}
        assert disk.gauges == {1.0}
        assert disk.held == {0}, "what was in hand waits at the broker, where it may wait for long"
        assert value_of(service, "hubbub_storage_failed") == 0
        assert service.broker.dead_letters(dead_letter_queue(COORDINATOR)) == []
    said = [record.message for record in caplog.records if record.message.startswith("storage")]
    assert said == [
        "storage fails: no messages are taken, and it is tried again until it works: the disk is full",
        "storage works again: messages are taken again",
    ]


@aio
async def test_a_timers_event_that_cannot_be_kept_pauses_the_queue_too() -> None:
    disk = FullDisk()
    async with probe(store=ForgetfulStore(Disk(), before_sync=lambda: disk.write(service))) as service:
        service.runner.feed_soon(KEY, Rang(0.0))
        moment = await service.moments.get()
        await disk.wait_until_all_is_well(service)

    assert moment.event == Rang(0.0)
    assert disk.problems == {STORAGE_FAILS}


@aio
async def test_a_party_that_is_stopped_while_its_disk_is_full_does_not_say_that_it_works(
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


@aio
async def test_whoever_feeds_an_event_that_cannot_be_kept_is_told() -> None:
    def fail() -> None:
        raise StorageFailed("the disk is full")

    async with probe(store=ForgetfulStore(Disk(), before_sync=fail)) as service:
        with pytest.raises(StorageFailed, match="full"):
            await service.runner.feed(KEY, Go((Note("never"),)))

        assert (service.live.state, service.live.data, service.shell.done) == (State.IDLE, Data(), [])


@pytest.mark.parametrize("event", [Done("x"), Rang(1.0)], ids=lambda event: type(event).__name__)
@aio
async def test_what_a_job_or_a_timer_brings_is_kept_when_the_store_takes_things_again(event: object) -> None:
    failures: list[Exception] = []

    def fail() -> None:
        if failures:
            raise failures.pop()

    async with probe(store=ForgetfulStore(Disk(), before_sync=fail)) as service:
        await service.runner.feed(KEY, Go())
        failures += [StorageFailed("the disk is full")] * 3
        service.runner.feed_soon(KEY, event)
        await service.moments.get()

        assert (await service.moments.get()).event == event
        assert [entry.kind for entry in service.store.read()] == [BEGINNING, "Go", type(event).__name__]


@aio
async def test_what_was_told_is_kept_before_anything_else_and_before_its_cause_is_done() -> None:
    failures: list[Exception] = []

    def fail() -> None:
        if failures:
            raise failures.pop()

    disk = Disk()
    async with probe(store=ForgetfulStore(disk, before_sync=fail)) as service:
        service.runner.add(OTHER, Data())
        service.shell.effect = lambda _: failures.extend([StorageFailed("the disk is full")] * 3)
        await service.runner.feed(KEY, Go((Note("then the disk is full"), Tell(OTHER, Go()))))
        await service.runner.feed(KEY, Go(then=State.IDLE))

        keys = [(await service.moments.get()).key for _ in range(3)]
        assert keys == [KEY, OTHER, KEY]
        (cause,) = (entry.cause for entry in disk.entries.values() if entry.key == OTHER and entry.kind == "Go")
        assert cause == "2.1"


@aio
async def test_feeding_until_kept_does_not_wait_for_effects() -> None:
    async with probe(ProbeShell(gate=asyncio.Event())) as service:
        await service.runner.feed_until_kept(KEY, Go((Note("slow"),)))

        assert [entry.kind for entry in service.store.read()] == [BEGINNING, "Go"]
        assert service.shell.done == []
        assert service.shell.gate
        service.shell.gate.set()
        assert (await service.moments.get()).after is State.BUSY
        assert service.shell.done == ["slow"]


@aio
async def test_feeding_until_kept_raises_what_keeps_the_event_from_being_kept() -> None:
    async with probe() as service:
        with pytest.raises(UnexpectedEvent):
            await service.runner.feed_until_kept(KEY, Unlisted())

        assert service.store.read() == []


@aio
async def test_an_event_for_another_machine_is_taken_after_this_step() -> None:
    async with probe() as service:
        service.runner.add(OTHER, Data())

        await service.runner.feed(KEY, Go((Tell(OTHER, Go()), Note("own"))))
        first, second = await service.moments.get(), await service.moments.get()

        assert (first.key, second.key) == (KEY, OTHER)


@aio
async def test_one_message_can_be_several_events() -> None:
    shell = ProbeShell(events=lambda _: [(KEY, Go((Note("a"),))), (KEY, Go((Note("b"),)))])
    async with probe(shell) as service:
        await service.send()
        await service.moments.get()
        await service.moments.get()

        assert service.shell.done == ["a", "b"]


# The audit log ---------------------------------------------------------------------------------------------

LAST_WORD = Record("round", {"members": ["client-1"], "outcome": "released"})


@aio
async def test_a_record_is_written_with_the_machines_run_round_and_phase() -> None:
    async with probe() as service:
        await service.runner.feed(KEY, Go((LAST_WORD,)))

        (entry,) = service.recorded("round")
        assert entry.fields == {"run": KEY.run, "round": 1, "phase": "signs", **LAST_WORD.fields}


@aio
async def test_a_record_of_a_machine_without_a_round_or_phase_names_none() -> None:
    whole_run = Key("probe", MANIFEST.run_id)
    async with probe() as service:
        service.runner.add(whole_run, Data())
        await service.runner.feed(whole_run, Go((Record("joined"),)))

        (entry,) = service.recorded("joined")
        assert entry.fields == {"run": KEY.run}


@aio
async def test_a_record_says_another_round_or_phase_where_its_fields_do() -> None:
    async with probe() as service:
        await service.runner.feed(KEY, Go((Record("void", {"round": 7, "phase": "union"}),)))

        (entry,) = service.recorded("void")
        assert entry.fields == {"run": KEY.run, "round": 7, "phase": "union"}


@aio
async def test_records_keep_their_place_among_the_effects() -> None:
    async with probe() as service:
        seen: list[int] = []
        service.shell.effect = lambda _: seen.append(len(service.recorded("round")))
        await service.runner.feed(KEY, Go((LAST_WORD, LAST_WORD, Note("between"), LAST_WORD)))

        assert seen == [2]
        assert len(service.recorded("round")) == 3


@aio
async def test_a_record_that_the_disk_does_not_take_is_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [StorageFailed("the disk is full")] * 3
    append = AuditLog.append

    def fail(audit: AuditLog, kind: str, **fields: JsonValue) -> object:
        if kind == LAST_WORD.kind and failures:
            raise failures.pop()
        return append(audit, kind, **fields)

    monkeypatch.setattr(AuditLog, "append", fail)
    async with probe() as service:
        await service.runner.feed(KEY, Go((LAST_WORD, Note("after"))))

        assert len(service.recorded("round")) == 1
        assert service.shell.done == ["after"]


@aio
async def test_a_counted_refusal_is_counted_logged_and_recorded_and_the_step_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal = CountRefusal(RejectReason.FALSE_SUM, "sum-chunk", PartyId("aggregator-2"), "more than members")
    async with probe() as service:
        await service.runner.feed(KEY, Go((refusal, Note("after"))))

        assert service.counters.rejections(RejectReason.FALSE_SUM) == 1
        (entry,) = service.recorded("refused")
        assert entry.fields == {
            "reason": "false-sum",
            "kind": "sum-chunk",
            "sender": "aggregator-2",
            "run": KEY.run,
            "count": 1,
        }
        assert service.shell.done == ["after"]
        assert service.live.state is State.BUSY
    (record,) = [record for record in caplog.records if hasattr(record, "reason")]
    assert (record.levelno, record.__dict__["reason"]) == (logging.WARNING, "false-sum")
    assert "more than members" in record.getMessage()


@aio
async def test_what_is_for_the_owner_is_logged_and_goes_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    async with probe() as service:
        await service.runner.feed(KEY, Go((TellOwner("two rounds were void"),)))

        assert service.recorded("refused") == []
    assert "two rounds were void" in [record.message for record in caplog.records]


@aio
async def test_a_refusal_that_cannot_be_recorded_is_counted_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async with probe() as service:
        service.audit.close()
        await service.send_bytes(b"garbage")

        assert by_reason(await service.dead_letters(1)) == ["malformed"]
        assert service.counters.rejections(RejectReason.MALFORMED) == 1
        await service.send()
        assert (await service.moments.get()).after is State.BUSY
    assert "the refusal could not be recorded" in caplog.text


@aio
async def test_every_refused_delivery_is_recorded_and_a_flood_of_them_briefly() -> None:
    async with probe(ProbeShell(events=go_by_kind)) as service:
        for _ in range(5):
            await service.send_bytes(b"garbage")
        await service.send(RunRefused(code=Code.INTERNAL))
        await service.dead_letters(6)

        # What a message says of itself cannot be read, but the broker says whose it is.
        nobody = {"kind": "", "sender": CLIENT, "run": ""}
        client = {"kind": "run-refused", "sender": CLIENT, "run": KEY.run}
        assert [dict(entry.fields) for entry in service.recorded("refused")] == [
            *({"reason": "malformed", "count": count, **nobody} for count in (1, 2, 4)),
            {"reason": "unexpected", "count": 1, **client},
        ]


@aio
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
        assert (await service.moments.get()).after is State.BUSY

        assert service.counters.rejections(RejectReason.OVERSIZED) == 16
        assert dict(service.recorded("refused")[0].fields) == {
            "reason": "oversized",
            "kind": "",
            "sender": CLIENT,
            "run": "",
            "count": 1,
            "size": 10_001,
            "sha256": hashlib.sha256(large).hexdigest(),
        }
        assert service.broker.dead_letters(dead_letter_queue(COORDINATOR)) == []
        assert service.broker.held_from(inbox(COORDINATOR)) <= 1
    assert f"a message of {CLIENT} is too large and is dropped: 10001 bytes, SHA-256" in caplog.text


@aio
async def test_a_message_that_names_no_user_of_the_broker_is_dropped_and_recorded() -> None:
    async with probe() as service:
        assert service.broker.accept(Address(REPORTS, COORDINATOR), frame_of(), user="")
        await service.send_bytes(b"garbage")
        letters = await service.dead_letters(1)

        assert by_reason(letters) == ["malformed"]
        assert service.counters.rejections(RejectReason.NO_USER) == 1
        fields = service.recorded("refused")[0].fields
        assert (fields["reason"], fields["sender"], fields["size"]) == ("no-user", "", len(frame_of()))
        assert service.live.state is State.IDLE


@aio
async def test_a_forgery_is_recorded_with_the_user_who_sent_it() -> None:
    forged = frame_of(sender=MANIFEST.clients[1], signer=CLIENT)
    async with probe() as service:
        await service.send_bytes(forged)
        await service.dead_letters(1)

        fields = service.recorded("refused")[0].fields
        assert (fields["reason"], fields["sender"], fields["user"]) == (
            "bad-signature",
            MANIFEST.clients[1],
            CLIENT,
        )


@aio
async def test_a_flood_of_refusals_is_counted_in_full_and_logged_in_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with probe() as service:
        for _ in range(500):
            await service.send_bytes(b"garbage")
        await service.dead_letters(500)

        assert service.counters.rejections(RejectReason.MALFORMED) == 500
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    single = [line for line in lines if line.startswith("refused: ")]
    more = [int(line.split()[1]) for line in lines if line not in single]
    assert len(single) + sum(more) == 500
    assert more
    assert f"more within a second (malformed) from {CLIENT}" in caplog.text


# Jobs ------------------------------------------------------------------------------------------------------


@aio
async def test_a_job_comes_back_as_an_event_and_others_are_taken_meanwhile() -> None:
    async with probe(ProbeShell(gate=asyncio.Event())) as service:
        await service.runner.feed(KEY, Go((Ponder("deep"),)))
        await service.shell.entered.wait()
        await service.runner.feed(KEY, Go())
        assert service.shell.gate
        service.shell.gate.set()
        events = [(await service.moments.get()).event for _ in range(3)]

        assert events == [Go((Ponder("deep"),)), Go(), Done("deep")]


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (LocalError("the model is gone"), Code.INTERNAL, "the model is gone"),
        (FalseSum(), Code.PROTOCOL_FALSE_SUM, str(FalseSum())),
        (
            ZeroDivisionError("of patient 4711"),
            Code.INTERNAL,
            "an unexpected ZeroDivisionError; the log of this party says more",
        ),
        (
            PermissionError("of patient 4711"),
            Code.DISK_FAILED,
            "an unexpected PermissionError; the log of this party says more",
        ),
    ],
)
@aio
async def test_a_job_that_fails_comes_back_as_failed(error: Exception, code: Code, why: str) -> None:
    def fail(_: Ponder) -> object:
        raise error

    async with probe(ProbeShell(job=fail)) as service:
        await service.runner.feed(KEY, Go((Ponder("x"),)))
        await service.moments.get()
        moment = await service.moments.get()

        assert moment.event == Failed(why, code)
        assert service.live.state is State.BUSY


@pytest.mark.parametrize("error", OUTAGES[:2], ids=repr)
@aio
async def test_a_job_that_an_outage_keeps_from_being_done_is_begun_again(error: Exception) -> None:
    failures = [error, error]

    def fail_twice(job: Ponder) -> object:
        if failures:
            raise failures.pop()
        return Done(job.text)

    async with probe(ProbeShell(job=fail_twice)) as service:
        await service.runner.feed(KEY, Go((Ponder("x"),)))
        await service.moments.get()

        assert (await service.moments.get()).event == Done("x")
        assert service.shell.done == ["job x"] * 3


@aio
async def test_a_job_whose_machine_is_over_meanwhile_is_given_up_without_a_word_of_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
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


@aio
async def test_what_a_peer_did_wrong_is_counted_and_recorded_when_a_job_finds_it() -> None:
    def find(_: Ponder) -> object:
        raise PeerError(RejectReason.BROKEN_SEAL, "a seal does not open")

    async with probe(ProbeShell(job=find)) as service:
        await service.runner.feed(KEY, Go((Ponder("x"),)))
        await service.moments.get()
        moment = await service.moments.get()

        assert moment.event == Failed("a seal does not open", Code.PROTOCOL_PEER)
        assert service.counters.rejections(RejectReason.BROKEN_SEAL) == 1
        (entry,) = service.recorded("refused")
        assert entry.fields == {
            "reason": "broken-seal",
            "kind": "Ponder",
            "sender": "",
            "run": KEY.run,
            "count": 1,
        }


@aio
async def test_a_jobs_event_that_no_row_expects_comes_back_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    async with probe(ProbeShell(job=lambda _: Unlisted())) as service:
        await service.runner.feed(KEY, Go((Ponder("x"),)))
        await service.moments.get()
        moment = await service.moments.get()

        assert moment.event == Failed("Unlisted is not expected in state BUSY")
    assert "Unlisted could not be taken by probe" in caplog.text


@aio
async def test_a_failure_that_no_row_expects_is_logged_and_not_fed_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with probe() as service:
        service.runner.feed_soon(KEY, Failed("while idle"))
        for _ in range(3):
            await service.runner.feed(KEY, Go(then=State.IDLE))

        assert service.live.data == Data(steps=3)
    assert caplog.text.count("Failed could not be taken") == 1


# Timers ----------------------------------------------------------------------------------------------------


@aio
async def test_a_timer_fires_with_the_clocks_time() -> None:
    clock = ManualClock(5.0)
    async with probe(clock=clock) as service:
        await service.runner.feed(KEY, Go((SetTimer("deadline", 5.0, Rang),)))
        clock.time_s = 6.0
        await service.moments.get()

        assert (await service.moments.get()).event == Rang(at_s=6.0)


@aio
async def test_a_time_that_has_passed_fires_at_once() -> None:
    async with probe() as service:
        await service.runner.feed(KEY, Go((SetTimer("deadline", 0.0, Rang),)))
        await service.moments.get()

        assert isinstance((await service.moments.get()).event, Rang)


@aio
async def test_a_cancelled_timer_does_not_fire_and_others_do() -> None:
    async with probe() as service:
        effects = (SetTimer("a", 0.0, Rang), SetTimer("b", 0.0, Rang), CancelTimer("a"), CancelTimer("no such"))
        await service.runner.feed(KEY, Go(effects))
        await service.moments.get()
        await service.moments.get()
        await service.runner.feed(KEY, Go())

        assert service.live.data == Data(steps=3), "the step, timer b, the step: timer a came before b and is gone"


@aio
async def test_a_timer_of_the_same_name_replaces_the_first() -> None:
    async with probe() as service:
        effects = (SetTimer("t", 0.0, Rang), SetTimer("t", 1e9, Rang), SetTimer("u", 0.0, Rang))
        await service.runner.feed(KEY, Go(effects))
        await service.moments.get()
        await service.moments.get()
        await service.runner.feed(KEY, Go())

        assert service.live.data == Data(steps=3), "the step, timer u, the step; the first t never rang"
        assert [name for _, name in service.runner.effects.timers] == ["t"]


@aio
async def test_two_machines_can_have_timers_of_one_name() -> None:
    async with probe() as service:
        service.runner.add(OTHER, Data())
        await service.runner.feed(KEY, Go((SetTimer("t", 0.0, Rang),)))
        await service.runner.feed(OTHER, Go((SetTimer("t", 0.0, Rang), CancelTimer("t"))))
        await service.runner.feed(OTHER, Go((SetTimer("t", 0.0, Rang),)))
        moments = [await service.moments.get() for _ in range(5)]

        assert {moment.key for moment in moments if isinstance(moment.event, Rang)} == {KEY, OTHER}


# Poison ----------------------------------------------------------------------------------------------------


@aio
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

        assert by_reason(letters) == [
            "malformed",
            "unknown-version",
            "wrong-recipient",
            # These two are not for a coordinator at all, whatever name is on them.
            "wrong-recipient",
            "unexpected",
            "internal-error",
            "wrong-recipient",
        ]
        assert letters[0].body == b"garbage"
        assert service.live.state is State.IDLE

        await service.send()
        assert (await service.moments.get()).after is State.BUSY
    assert service.counters.rejections(RejectReason.MALFORMED) == 1
    assert service.counters.rejections(RejectReason.UNKNOWN_VERSION) == 1
    assert service.counters.rejections(RejectReason.WRONG_RECIPIENT) == 3
    assert service.counters.rejections(RejectReason.UNEXPECTED) == 1
    assert service.counters.registry.get_sample_value("hubbub_internal_errors_total") == 1
    received = service.counters.registry.get_sample_value("hubbub_messages_received_total", {"kind": "run-joined"})
    assert received == 1


@aio
async def test_what_the_intake_refuses_is_counted_under_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: object) -> list[tuple[Key, object]]:
        raise PeerError(RejectReason.SECOND_SET, "a second set")

    async with probe(ProbeShell(events=refuse)) as service:
        await service.send(payload=b"VERY-SECRET-SHARE")
        letters = await service.dead_letters(1)

        assert by_reason(letters) == ["second-set"]
        assert service.counters.rejections(RejectReason.SECOND_SET) == 1
    (record,) = [record for record in caplog.records if hasattr(record, "reason")]
    assert record.levelno == logging.WARNING
    assert record.__dict__["reason"] == "second-set"
    assert "a second set" in record.getMessage()
    assert "SECRET" not in caplog.text


@aio
async def test_a_bug_in_an_effect_puts_the_message_aside_and_holds_nothing_else_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its event is kept and so has happened: the machine must not be where a restart would not find it."""

    def fail(effect: Note | Keep) -> None:
        if effect.text == "bug":
            raise KeyError("a bug")

    shell = ProbeShell(events=go(Note("bug"), Note("after"), Ponder("x")), effect=fail)
    async with probe(shell) as service:
        await service.send()

        assert by_reason(await service.dead_letters(1)) == ["internal-error"]
        assert service.live.state is State.BUSY
        assert [(await service.moments.get()).event for _ in range(2)][1] == Done("x")
        assert service.shell.done == ["after", "job x"]
        await service.runner.feed(KEY, Go())
        assert [(entry.kind, entry.done) for entry in service.store.read()] == [
            *((BEGINNING, True), ("Go", False), ("Done", True), ("Go", False)),
        ], "the first is not done; the last is only noted as done"
    assert "a bug: <Envelope run-joined" in caplog.text
    assert "a bug: Note of probe" in caplog.text


@aio
async def test_a_bug_in_an_effect_of_a_job_is_for_the_machine_to_deal_with() -> None:
    def fail(_: Note | Keep) -> None:
        raise KeyError("a bug")

    async with probe(ProbeShell(effect=fail)) as service:
        service.runner.feed_soon(KEY, Go((Note("x"),)))
        events = [(await service.moments.get()).event for _ in range(2)]

        assert events == [Go((Note("x"),)), Failed("an unexpected KeyError; the log of this party says more")]


@aio
async def test_a_message_for_a_machine_that_is_over_is_counted_as_late_and_acknowledged() -> None:
    async with probe(ProbeShell(events=lambda _: [(OTHER, Go())])) as service:
        await service.send()
        await service.send_bytes(b"garbage")
        letters = await service.dead_letters(1)

        assert by_reason(letters) == ["malformed"]
    assert service.counters.registry.get_sample_value("hubbub_messages_late_total", {"kind": "run-joined"}) == 1


@aio
async def test_a_message_that_makes_no_event_is_acknowledged() -> None:
    async with probe(ProbeShell(events=lambda _: [])) as service:
        await service.send()
        await service.send_bytes(b"garbage")

        assert by_reason(await service.dead_letters(1)) == ["malformed"]
        assert service.live.state is State.IDLE


@aio
async def test_an_unlisted_event_is_refused_and_changes_nothing() -> None:
    async with probe() as service:
        with pytest.raises(UnexpectedEvent, match="Unlisted is not expected in state IDLE"):
            await service.runner.feed(KEY, Unlisted())

        assert (service.live.state, service.live.data) == (State.IDLE, Data())


# Beginning and end -----------------------------------------------------------------------------------------


@aio
async def test_a_machine_in_a_final_state_is_retired_with_its_timers() -> None:
    async with probe() as service:
        await service.runner.feed(KEY, Go((SetTimer("t", 1e9, Rang),)))
        await service.runner.feed(KEY, Go((Note("last"),), then=State.OVER))

        assert service.shell.done == ["last"]
        assert service.shell.retired == [KEY]
        assert KEY not in service.runner.machines
        assert service.runner.effects.timers == {}
        with pytest.raises(MachineOver, match="which is over or never began"):
            await service.runner.feed(KEY, Go())


@aio
async def test_a_job_that_ends_after_its_machine_does_no_harm() -> None:
    async with probe(ProbeShell(gate=asyncio.Event())) as service:
        service.runner.add(OTHER, Data())
        await service.runner.feed(KEY, Go((Ponder("late"),), then=State.OVER))
        assert service.shell.gate
        service.shell.gate.set()
        await asyncio.gather(*service.runner.effects.jobs)
        await service.runner.feed(OTHER, Go())

        assert service.shell.done == ["job late"]
        assert service.shell.retired == [KEY]


@aio
async def test_what_is_over_is_forgotten_by_the_store_if_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for forgets in (True, False):
        monkeypatch.setattr(ProbeShell, "retire", lambda *_, answer=forgets: answer)
        async with probe() as service:
            service.runner.add(OTHER, Data())
            await service.runner.feed(KEY, Go(then=State.OVER))
            await service.runner.feed(OTHER, Go())

            kept = {entry.key for entry in service.store.read()}
            assert kept == ({OTHER} if forgets else {OTHER, KEY})


@aio
async def test_a_forgotten_machine_is_gone_from_the_store_and_not_retired() -> None:
    async with probe() as service:
        service.runner.add(OTHER, Data())
        await service.runner.feed(OTHER, Go())
        service.runner.forget(OTHER)
        await service.runner.feed(KEY, Go())
        await service.runner.feed(KEY, Go())

        assert {entry.key for entry in service.store.read()} == {KEY}
        assert (service.shell.retired, list(service.runner.machines)) == ([], [KEY])


@aio
async def test_a_store_that_cannot_forget_now_forgets_later() -> None:
    failures: list[Exception] = []

    def fail() -> None:
        if failures:
            raise failures.pop()

    async with probe(store=ForgetfulStore(Disk(), before_sync=fail)) as service:
        service.shell.effect = lambda _: failures.extend([StorageFailed("the disk is full")] * 3)
        await service.runner.feed(KEY, Go((Note("last"),), then=State.OVER))
        with pytest.raises(MachineOver):
            await service.runner.feed(KEY, Go())

        assert service.store.read() == []
        assert failures == []


@aio
async def test_a_dropped_machine_is_not_retired() -> None:
    async with probe() as service:
        await service.runner.feed(KEY, Go((SetTimer("t", 1e9, Rang),)))

        dropped = service.runner.drop(KEY)

        assert dropped.state is State.BUSY
        assert service.shell.retired == []
        assert service.runner.effects.timers == {}


@aio
async def test_a_machine_is_added_once() -> None:
    async with probe() as service:
        with pytest.raises(LocalError, match="is running already"):
            service.runner.add(KEY, Data())


@aio
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


@aio
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


@aio
async def test_log_lines_of_effects_and_jobs_say_which_run_round_and_phase(
    caplog: pytest.LogCaptureFixture,
) -> None:
    formatter, lines = JsonFormatter("coordinator"), []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(formatter.format(record)))

    def say(effect: Note | Ponder) -> object:
        logging.getLogger("probe").warning(effect.text)
        return Done("")

    collector = Collector()
    logging.getLogger("probe").addHandler(collector)
    try:
        async with probe(ProbeShell(effect=say, job=say)) as service:  # type: ignore[arg-type] # result unused
            await service.runner.feed(KEY, Go((Note("effect"), Ponder("job"))))
            await service.moments.get()
            await service.moments.get()
    finally:
        logging.getLogger("probe").removeHandler(collector)

    assert [line["message"] for line in lines] == ["effect", "job"]
    for line in lines:
        assert (line["run"], line["round"], line["phase"]) == (KEY.run, KEY.round, KEY.phase)
    assert caplog.records
