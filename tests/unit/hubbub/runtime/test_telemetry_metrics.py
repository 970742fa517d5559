"""Metrics of a party: messages, bytes, steps, ends, times; and what can be read off it at any moment."""

import asyncio
import re
from collections import Counter
from types import SimpleNamespace
from typing import get_args

import pytest

from hubbub.errors import BrokerUnreachable, StorageFailed
from hubbub.ids import Role, WireMode
from hubbub.machine.effects import Publish
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import RunProposed
from hubbub.runtime import runner
from hubbub.runtime.runner import KeyedEvent
from hubbub.transport.topology import inbox
from support.builders import make_envelope
from support.forgetful_store import Disk, ForgetfulStore
from support.measured_run import Measured, measure_run
from support.parties import COORDINATOR
from support.probe import (
    CLIENT,
    JOINED,
    KEY,
    MANIFEST,
    Failing,
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


def test_bytes_are_told_by_kind_and_all_that_is_sent_by_anybody_is_received_by_somebody(
    measured: Measured,
) -> None:
    told: Counter[str] = Counter()
    for counters in measured.counters.values():
        told.update(counters.bytes_sent())

    assert {"close-phase", "round-applied"} <= told.keys()
    for kind, count in told.items():
        assert count == measured.total("hubbub_wire_bytes_total", direction="sent", kind=kind)
    assert told.total() == measured.total("hubbub_wire_bytes_total", direction="sent")
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


def test_jobs_are_timed(measured: Measured) -> None:
    for party, job, times in (
        *(("client-1", job, ROUNDS) for job in ("Train", "Conclude", "Evaluate")),
        *(("client-2", "SendShares", 3 * ROUNDS), ("client-3", "DecodeSums", 3 * ROUNDS)),
        ("aggregator-1", "SumAndRelease", 3 * ROUNDS),
    ):
        assert measured.value(party, "hubbub_job_seconds_count", what=job) == times
        assert 0 < measured.value(party, "hubbub_job_seconds_sum", what=job) < 60


def test_every_metric_is_ours_says_what_it_is_and_has_few_labels_that_name_nobody(measured: Measured) -> None:
    manifest = measured.manifest
    # The coordinator of this run is called what its role is called.
    named = {*manifest.clients, *manifest.aggregators, manifest.run_id}
    kinds: dict[str, set[tuple[str, frozenset[str]]]] = {}

    for registry in (counters.registry for counters in measured.counters.values()):
        metrics = list(registry.collect())
        assert sum(len(metric.samples) for metric in metrics) < 700
        for metric in metrics:
            assert metric.name.startswith("hubbub_")
            assert len(metric.documentation) > 20, metric.name
            assert metric.documentation.endswith("."), metric.name
            for sample in metric.samples:
                kinds.setdefault(sample.name, set()).add((metric.type, frozenset(sample.labels) - {"le"}))
                values = set(sample.labels.values())
                assert not values & named, sample
                assert not any(re.fullmatch(r"[0-9a-f]{16,}", each) for each in values), sample
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}, "one name is one metric"


# One service -------------------------------------------------------------------------------------------------


async def test_a_message_that_changes_nothing_adds_no_bytes_and_a_phase_that_was_not_checked_is_no_label() -> None:
    answers: list[list[KeyedEvent]] = [[(KEY, Go())], [], [(KEY, Go())]]
    frame = frame_of(JOINED)
    made_up = make_envelope(
        RunProposed(manifest=MANIFEST), sender=COORDINATOR, recipient=CLIENT, manifest=MANIFEST, phase="made up"
    )

    async with probe(ProbeShell(events=lambda _: answers.pop(0))) as service:
        for _ in range(3):
            await service.send_bytes(frame)
        await service.take(2)
        # The verdict on the last one is told when another is asked for.
        await service.send_bytes(b"nothing that can be read")
        await service.dead_letters(1)
        service.counters.sent(made_up, 10)

        assert service.sample("messages_received_total", kind="run-joined") == 3
        for direction, kind, size in (("received", "run-joined", 2 * len(frame)), ("sent", "run-proposed", 10)):
            assert service.sample("wire_bytes_total", direction=direction, kind=kind, phase="") == size


async def test_steps_are_counted_by_event_and_machines_by_state_while_they_run() -> None:
    def machines() -> list[float | None]:
        return [service.sample("machines", machine="probe", state=str(state.value)) for state in State]

    async with probe() as service:
        before = machines()
        await service.runner.feed(KEY, Go())
        await service.runner.feed(KEY, Rang(0.0))
        busy = machines()
        await service.runner.feed(KEY, Go(then=State.OVER))
        over = machines()

    # None is said of a final state: what has ended is counted as an end.
    assert (before, busy, over) == ([1, 0, None], [0, 1, None], [0, 0, None])
    assert service.sample("probes_total", outcome=str(State.OVER.value)) == 1
    assert service.sample("machine_steps_total", machine="probe", event="Go") == 2
    assert service.sample("machine_steps_total", machine="probe", event="Rang") == 1


async def test_the_store_is_counted_as_it_grows_and_shrinks_and_the_last_event_is_timed() -> None:
    disk, clock = Disk(), ManualClock(1_000.0)
    async with probe(store=ForgetfulStore(disk), clock=clock) as service:
        started_s = service.sample("last_event_timestamp_seconds")
        clock.time_s = 1_234.0
        await service.runner.feed(KEY, Go())
        clock.time_s = 2_000.0
        grown, appends = service.sample("store_entries"), service.sample("store_append_seconds_count")
        last_s = service.sample("last_event_timestamp_seconds")
    async with probe(store=ForgetfulStore(disk), fresh=False) as service:
        rebuilt = service.sample("store_entries")
        await service.runner.feed(KEY, Go(then=State.OVER))
        shrunk = service.sample("store_entries")

    assert (started_s, last_s) == (1_000.0, 1_234.0)
    assert (grown, rebuilt, shrunk) == (2, 2, 0)
    assert appends == 1


async def test_what_is_tried_or_sent_again_and_bugs_are_counted() -> None:
    away = Failing([ZeroDivisionError(), BrokerUnreachable("nobody is there")])
    full = Failing([StorageFailed("the disk is full")])
    async with probe(ProbeShell(effect=full, job=away)) as service:
        service.broker.refuse_next(2)
        message = Publish(CLIENT, Role.CLIENT, RoundOpened())
        await service.runner.feed(KEY, Go((message, Note("write"), Ponder("hard"))))
        await service.take(2)

        assert service.sample("retries_total", what="effect") == 1
        assert service.sample("retries_total", what="job") == 1
        assert service.sample("internal_errors_total") == 1
        assert service.sample("publish_retries_total") == 2
        assert service.sample("messages_sent_total", kind="round-opened") == 1


# Readiness ---------------------------------------------------------------------------------------------------


async def test_a_party_says_what_keeps_it_from_being_ready() -> None:
    no_inbox = f"nothing is received from the queue {inbox(COORDINATOR)}"
    seen: list[tuple[str, ...]] = []

    class Watching(ProbeShell):
        def restore(self, machines: object) -> None:
            del machines
            assert self.runner
            seen.append(self.runner.find_problems())

    def gauges() -> list[float | None]:
        names = ("ready", "broker_connected", "broker_blocked", "reconnects_total", "inbox_messages")
        return [service.sample(name) for name in names]

    async with probe(Watching()) as service:
        assert seen[0][0] == "the event log is not replayed yet"
        assert (service.runner.find_problems(), service.runner.find_stall()) == ((), "")
        assert gauges() == [1, 1, 0, 0, 0]
        service.broker.stop()
        assert service.runner.find_problems() == ("there is no connection to the broker", no_inbox)
        assert gauges() == [0, 0, 0, 0, None]
        service.broker.start()
        assert service.runner.find_problems() == ()
        assert gauges() == [1, 1, 0, 1, 0]
        await service.transport.close()
        assert no_inbox in service.runner.find_problems()
        await service.runner.stop()
        assert "the service is being stopped" in service.runner.find_problems()


# Liveness ----------------------------------------------------------------------------------------------------


async def test_a_driver_that_died_is_a_stall() -> None:
    async with probe() as service:
        driver = service.runner._driver
        assert driver
        driver.cancel()
        await asyncio.wait({driver})

        assert "no events are taken any more" in service.runner.find_stall()


async def test_neither_a_long_outage_nor_nothing_to_do_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, said = [0.0], list[str]()
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def be_away(_: object) -> None:
        now_s[0] += runner.STALL_S / 2
        said.append(service.runner.find_stall())
        if len(said) < 10:
            raise BrokerUnreachable("nobody is there")

    async with probe(ProbeShell(effect=be_away)) as service:
        await service.runner.feed(KEY, Go((Note("send"),)))
        await service.runner.feed(KEY, Go())
        # Whoever fed it is told before the driver looks for the next.
        await asyncio.sleep(0)
        now_s[0] += 10 * runner.STALL_S
        said.append(service.runner.find_stall())

    assert said == [""] * 11
