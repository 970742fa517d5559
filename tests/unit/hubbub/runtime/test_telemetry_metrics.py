"""What a party counts: messages, bytes, steps, ends, times; and what can be read off it at any moment."""

import asyncio
import re
from types import SimpleNamespace
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from hubbub.errors import BrokerUnreachable, StorageFailed
from hubbub.ids import Role, WireMode
from hubbub.machine.effects import Publish
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import RunProposed
from hubbub.runtime import runner
from hubbub.runtime.runner import KeyedEvent
from hubbub.transport.topology import inbox
from support.aio import aio
from support.builders import make_envelope
from support.forgetful_store import Disk, ForgetfulStore
from support.measured_run import Measured, measure_run
from support.parties import COORDINATOR
from support.probe import (
    CLIENT,
    JOINED,
    KEY,
    MANIFEST,
    Done,
    Go,
    ManualClock,
    Note,
    Ponder,
    ProbeShell,
    Rang,
    State,
    frame_of,
    probe,
)

ROUNDS, CLIENTS, SERVERS = 2, 3, 2


@pytest.fixture(scope="module", params=get_args(WireMode))
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("federation")
    return measure_run(folder, rounds=ROUNDS, clients=CLIENTS, wire=request.param)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


# A whole run -------------------------------------------------------------------------------------------------


def test_what_clients_sent_is_what_aggregators_received_and_the_other_way_round(measured: Measured) -> None:
    clients, servers = measured.manifest.clients, measured.manifest.aggregators
    paper = (("share-chunk", clients, servers), ("sum-chunk", servers, clients))
    compact = (
        ("dense-share-chunk", clients, servers),
        ("share-seed", clients, servers),
        ("partial-chunk", servers, servers),
        ("masked-chunk", servers, clients),
    )

    for kind, senders, recipients in paper if measured.manifest.wire == "paper" else compact:
        for phase in ("union", "signs"):
            labels = {"kind": kind, "phase": phase}
            sent = measured.total("hubbub_wire_bytes_total", senders, direction="sent", **labels)
            received = measured.total("hubbub_wire_bytes_total", recipients, direction="received", **labels)
            assert sent == received > 0


def test_all_that_is_sent_by_anybody_is_received_by_somebody(measured: Measured) -> None:
    for kind in ("run-proposed", "run-keys", "group-contribution", "close-phase", "set-received", "round-applied"):
        sent = measured.total("hubbub_wire_bytes_total", direction="sent", kind=kind)
        assert sent == measured.total("hubbub_wire_bytes_total", direction="received", kind=kind) > 0
        assert measured.total("hubbub_messages_sent_total", kind=kind) == measured.total(
            "hubbub_messages_received_total", kind=kind
        )


def test_parties_count_the_payload_that_they_report(measured: Measured) -> None:
    clients, servers = measured.manifest.clients, measured.manifest.aggregators

    for name in ("union", "signs", "factors"):
        for directions, senders in ((["up"], clients), (["down", "across"], servers)):
            reported = sum(
                measured.value(
                    "coordinator", "hubbub_reported_payload_bytes_total", counts_as=name, direction=each
                )
                for each in directions
            )
            sent = measured.total("hubbub_payload_bytes_total", senders, counts_as=name, direction="sent")
            assert sent == reported > 0


def test_the_first_phases_payload_is_the_formulas(measured: Measured) -> None:
    # SecUnion: one bit for each parameter and 128 of tags, a share for each server, of each client, up and down.
    # Compact: one of each client, up and down, and seeds; and a sum of all servers but one.
    vector = measured.manifest.parameters + 128
    bits = {
        "paper": vector * CLIENTS * SERVERS * 2 * ROUNDS,
        "compact": (vector * (2 * CLIENTS + SERVERS - 1) + 256 * CLIENTS * (SERVERS - 1)) * ROUNDS,
    }

    sent = measured.total("hubbub_payload_bytes_total", direction="sent", phase="union")
    assert sent == bits[measured.manifest.wire] / 8


def test_runs_rounds_and_phases_are_counted_by_their_end_at_every_party(measured: Measured) -> None:
    def counted(party: str, name: str, **labels: str) -> float:
        return measured.value(party, f"hubbub_{name}_total", **labels)

    assert counted("coordinator", "runs", outcome="completed") == 1
    assert counted("coordinator", "rounds", outcome="released") == ROUNDS
    assert counted("client-1", "rounds", outcome="applied") == ROUNDS
    for phase in ("union", "signs"):
        assert counted("coordinator", "phases", phase=phase, outcome="released") == ROUNDS
        assert counted("aggregator-2", "phases", phase=phase, outcome="released") == ROUNDS
    for party in ("aggregator-1", "client-3"):
        assert counted(party, "runs", outcome="ended") == 1


@pytest.mark.parametrize(
    ("party", "job", "times"),
    [
        ("client-1", "Train", ROUNDS),
        ("client-1", "Conclude", ROUNDS),
        ("client-1", "Evaluate", ROUNDS),
        ("client-2", "SendShares", 3 * ROUNDS),
        ("client-3", "DecodeSums", 3 * ROUNDS),
        ("aggregator-1", "SumAndRelease", 3 * ROUNDS),
    ],
)
def test_jobs_are_timed(measured: Measured, party: str, job: str, times: int) -> None:
    assert measured.value(party, "hubbub_job_seconds_count", what=job) == times
    assert 0 < measured.value(party, "hubbub_job_seconds_sum", what=job) < 60


def test_no_label_names_a_run_a_round_or_a_party(measured: Measured) -> None:
    manifest = measured.manifest
    # The coordinator of this run is called what its role is called.
    parties = {*manifest.clients, *manifest.aggregators}

    for registry in measured.registries.values():
        for metric in registry.collect():
            for sample in metric.samples:
                values = set(sample.labels.values())
                assert not values & {*parties, manifest.run_id}, sample
                assert not any(re.fullmatch(r"[0-9a-f]{16,}", each) for each in values), sample


def test_every_metric_is_ours_by_name_and_says_what_it_is(measured: Measured) -> None:
    for registry in measured.registries.values():
        for metric in registry.collect():
            assert metric.name.startswith("hubbub_")
            assert len(metric.documentation) > 20, metric.name
            assert metric.documentation.endswith("."), metric.name


def test_one_name_is_one_metric_at_every_party(measured: Measured) -> None:
    kinds: dict[str, set[tuple[str, frozenset[str]]]] = {}
    for registry in measured.registries.values():
        for metric in registry.collect():
            for sample in metric.samples:
                kinds.setdefault(sample.name, set()).add((metric.type, frozenset(sample.labels) - {"le"}))

    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_a_party_has_few_series(measured: Measured) -> None:
    for registry in measured.registries.values():
        series = [sample for metric in registry.collect() for sample in metric.samples]
        assert len(series) < 700


# One service -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.runtime.effects.PAUSE_S", 0.0)


@aio
async def test_a_message_that_changes_nothing_adds_no_bytes() -> None:
    answers: list[list[KeyedEvent]] = [[(KEY, Go())], [], [(KEY, Go())]]
    frame = frame_of(JOINED)

    async with probe(ProbeShell(events=lambda _: answers.pop(0))) as service:
        for _ in range(3):
            await service.send_bytes(frame)
        for _ in range(2):
            await service.moments.get()
        # The verdict on the last one is told when another is asked for.
        await service.send_bytes(b"nothing that can be read")
        await service.dead_letters(1)
        registry = service.counters.registry

        labels = {"direction": "received", "kind": "run-joined", "phase": ""}
        assert value(registry, "hubbub_messages_received_total", kind="run-joined") == 3
        assert value(registry, "hubbub_wire_bytes_total", **labels) == 2 * len(frame)


@aio
async def test_the_phase_that_a_message_claims_becomes_no_label_unless_it_was_checked() -> None:
    async with probe() as service:
        envelope = make_envelope(
            RunProposed(manifest=MANIFEST),
            sender=COORDINATOR,
            recipient=CLIENT,
            manifest=MANIFEST,
            phase="made up",
        )
        service.counters.sent(envelope, 10)

        registry = service.counters.registry
        labels = {"direction": "sent", "kind": "run-proposed", "phase": ""}
        assert value(registry, "hubbub_wire_bytes_total", **labels) == 10


@aio
async def test_steps_are_counted_by_machine_and_event() -> None:
    async with probe() as service:
        await service.runner.feed(KEY, Go())
        await service.runner.feed(KEY, Go())
        await service.runner.feed(KEY, Rang(0.0))

        steps = "hubbub_machine_steps_total"
        registry = service.counters.registry
        assert value(registry, steps, machine="probe", event="Go") == 2
        assert value(registry, steps, machine="probe", event="Rang") == 1


@aio
async def test_machines_are_counted_by_state_while_they_run() -> None:
    def machines(state: State) -> float | None:
        labels = {"machine": "probe", "state": str(state.value)}
        return value(service.counters.registry, "hubbub_machines", **labels)

    async with probe() as service:
        before = [machines(state) for state in State]
        await service.runner.feed(KEY, Go())
        busy = [machines(state) for state in State]
        await service.runner.feed(KEY, Go(then=State.OVER))
        over = [machines(state) for state in State]

    # None is said of a final state: what has ended is counted as an end.
    assert (before, busy, over) == ([1, 0, None], [0, 1, None], [0, 0, None])
    assert value(service.counters.registry, "hubbub_probes_total", outcome=str(State.OVER.value)) == 1


@aio
async def test_the_store_is_counted_as_it_grows_and_shrinks_and_after_a_restart() -> None:
    disk = Disk()

    def entries() -> float | None:
        return value(service.counters.registry, "hubbub_store_entries")

    async with probe(store=ForgetfulStore(disk)) as service:
        await service.runner.feed(KEY, Go())
        grown = entries()
        appends = value(service.counters.registry, "hubbub_store_append_seconds_count")
    async with probe(store=ForgetfulStore(disk), fresh=False) as service:
        rebuilt = entries()
        await service.runner.feed(KEY, Go(then=State.OVER))
        shrunk = entries()

    assert (grown, rebuilt, shrunk) == (2, 2, 0)
    assert appends == 1


@aio
async def test_the_last_event_has_a_time() -> None:
    clock = ManualClock(1_000.0)
    async with probe(clock=clock) as service:
        started = value(service.counters.registry, "hubbub_last_event_timestamp_seconds")
        clock.time_s = 1_234.0
        await service.runner.feed(KEY, Go())
        clock.time_s = 2_000.0

        assert started == 1_000.0
        assert value(service.counters.registry, "hubbub_last_event_timestamp_seconds") == 1_234.0


@aio
async def test_what_is_tried_again_is_counted() -> None:
    tries: list[object] = []

    def fail_once(what: object, error: Exception) -> None:
        tries.append(what)
        if len(tries) in {1, 3}:
            raise error

    def note(effect: object) -> None:
        fail_once(effect, StorageFailed("the disk is full"))

    def ponder(job: Ponder) -> object:
        fail_once(job, BrokerUnreachable("nobody is there"))
        return Done(job.text)

    async with probe(ProbeShell(effect=note, job=ponder)) as service:
        await service.runner.feed(KEY, Go((Note("write"), Ponder("hard"))))
        await service.moments.get()
        await service.moments.get()

        registry = service.counters.registry
        assert value(registry, "hubbub_retries_total", what="effect") == 1
        assert value(registry, "hubbub_retries_total", what="job") == 1
        assert value(registry, "hubbub_internal_errors_total") == 0


@aio
async def test_a_bug_in_a_job_is_an_internal_error() -> None:
    def fail(_: object) -> object:
        raise ZeroDivisionError

    async with probe(ProbeShell(job=fail)) as service:
        await service.runner.feed(KEY, Go((Ponder("hard"),)))
        await service.moments.get()
        await service.moments.get()

        assert value(service.counters.registry, "hubbub_internal_errors_total") == 1


@aio
async def test_the_brokers_condition_shows() -> None:
    def gauges() -> list[float | None]:
        names = ("ready", "broker_connected", "broker_blocked", "reconnects_total", "inbox_messages")
        return [value(service.counters.registry, f"hubbub_{name}") for name in names]

    async with probe() as service:
        well = gauges()
        service.broker.stop()
        cut_off = gauges()
        service.broker.start()
        back = gauges()

    assert well == [1, 1, 0, 0, 0]
    assert cut_off == [0, 0, 0, 0, None]
    assert back == [1, 1, 0, 1, 0]


@aio
async def test_messages_that_are_sent_once_more_show() -> None:
    async with probe() as service:
        service.broker.refuse_next(2)
        await service.runner.feed(KEY, Go((Publish(CLIENT, Role.CLIENT, RoundOpened()),)))

        assert value(service.counters.registry, "hubbub_publish_retries_total") == 2
        assert value(service.counters.registry, "hubbub_messages_sent_total", kind="round-opened") == 1


# Readiness ---------------------------------------------------------------------------------------------------


@aio
async def test_a_party_that_is_connected_replayed_and_consuming_is_ready() -> None:
    async with probe() as service:
        assert service.runner.find_problems() == ()
        assert service.runner.find_stall() == ""


@aio
async def test_a_party_says_what_keeps_it_from_being_ready() -> None:
    no_inbox = f"nothing is received from the queue {inbox(COORDINATOR)}"

    async with probe() as service:
        service.broker.stop()
        assert service.runner.find_problems() == ("there is no connection to the broker", no_inbox)
        service.broker.start()
        assert service.runner.find_problems() == ()
        await service.transport.close()
        assert no_inbox in service.runner.find_problems()
        await service.runner.stop()
        assert "the service is being stopped" in service.runner.find_problems()


@aio
async def test_a_party_is_not_ready_before_its_log_is_replayed() -> None:
    seen: list[tuple[str, ...]] = []

    class Watching(ProbeShell):
        def restore(self, machines: object) -> None:
            del machines
            assert self.runner
            seen.append(self.runner.find_problems())

    async with probe(Watching()) as service:
        assert service.runner.find_problems() == ()

    assert seen[0][0] == "the event log is not replayed yet"


# Liveness ----------------------------------------------------------------------------------------------------


@aio
async def test_a_driver_that_died_is_a_stall() -> None:
    async with probe() as service:
        driver = service.runner._driver
        assert driver
        driver.cancel()
        await asyncio.wait({driver})

        assert "no events are taken any more" in service.runner.find_stall()


@aio
async def test_an_event_that_takes_for_ever_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    async with probe(ProbeShell(gate=gate)) as service:
        feeding = asyncio.create_task(service.runner.feed(KEY, Go((Note("slow"),))))
        await service.shell.entered.wait()
        before = service.runner.find_stall()
        monkeypatch.setattr(runner, "STALL_S", 0.0)
        stalled = service.runner.find_stall()
        gate.set()
        await feeding
        await service.runner.feed(KEY, Go())
        after = service.runner.find_stall()

    assert before == ""
    assert "start this party again" in stalled
    assert after == ""


@aio
async def test_an_outage_is_no_stall_however_long_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, said = [0.0], list[str]()
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def be_away(_: object) -> None:
        now_s[0] += runner.STALL_S / 2
        said.append(service.runner.find_stall())
        if len(said) < 10:
            raise BrokerUnreachable("nobody is there")

    async with probe(ProbeShell(effect=be_away)) as service:
        await service.runner.feed(KEY, Go((Note("send"),)))

    assert said == [""] * 10


@aio
async def test_nothing_to_do_is_no_stall_however_long_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async with probe() as service:
        await service.runner.feed(KEY, Go())
        await service.runner.feed(KEY, Go())
        # Whoever fed it is told before the driver looks for the next.
        await asyncio.sleep(0)
        now_s[0] = 10 * runner.STALL_S

        assert service.runner.find_stall() == ""
