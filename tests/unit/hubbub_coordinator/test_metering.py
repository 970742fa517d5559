"""What the coordinator counts of a round, and of those who are waited for."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from hubbub.ids import PartyId, SetId
from hubbub.machine.effects import Key
from hubbub.machine.table import step
from hubbub.messages.manifest import MetricClaim
from hubbub.messages.rounds import RoundApplied, ScoreClaim
from hubbub.messages.shares import Receipt, SignedReceipt, Traffic, VectorClaim
from hubbub.protocol.metrics import CLASSIFICATION
from hubbub.runtime.runner import RunningMachine, Transition
from hubbub_coordinator.events import (
    Began,
    DeadlinePassed,
    ReceiptArrived,
    ScoresReported,
    SumReleased,
    UpdateApplied,
    VoidConfirmed,
)
from hubbub_coordinator.metrics import Metering, Waits
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, State
from support.builders import MODEL_HMAC, TRANSCRIPT, make_manifest
from support.probe import ManualClock

MANIFEST = make_manifest(
    clients=3, servers=2, strategy="sec-union", q=1, metrics=tuple(map(MetricClaim.of, CLASSIFICATION))
)
RUN = Key("run", MANIFEST.run_id)
KEY = Key("round", MANIFEST.run_id, 1)
LENGTHS = {"union": MANIFEST.parameters, "signs": 8, "scores": 2}
MODULI = {"union": 2, "signs": 7, "scores": 2**32}


class Play:
    """A round that is fed event by event, and what is counted of it."""

    def __init__(self, *, is_scored: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.seen: list[Transition] = []
        self.meter = Metering(self.registry, self.seen.append)
        self.state, self.data = (
            State.COLLECTING,
            CoordinatorRound(run=RUN, number=1, manifest=MANIFEST, is_scored=is_scored),
        )

    def feed(self, event: object) -> None:
        result = step(rounds.TRANSITIONS, self.state, self.data, event)
        moment = Transition(1, KEY, self.state, event, result.state, result.data, 0.0, self.data)
        self.state, self.data = result.state, result.data
        self.meter(moment)

    def begin(self) -> None:
        self.feed(Began(at_s=100.0))

    def deliver(self, at_s: float, clients: tuple[PartyId, ...] = MANIFEST.clients) -> None:
        phase = self.data.current.name
        for client in clients:
            for aggregator in MANIFEST.aggregators:
                receipt = Receipt(
                    aggregator=aggregator,
                    client=client,
                    set_id=SetId(f"{MANIFEST.clients.index(client):032x}"),
                    vectors=claims(phase),
                    transcript=TRANSCRIPT,
                )
                signed = SignedReceipt(receipt=receipt, signature="5a" * 64)
                self.feed(ReceiptArrived(at_s=at_s, phase=phase, receipt=signed))

    def release(self, at_s: float) -> None:
        phase, members = self.data.current.name, self.data.current_members
        traffic = (Traffic(counts_as=phase, direction="down", payload_bits=800, wire_bytes=150),)
        for aggregator in MANIFEST.aggregators:
            self.feed(
                SumReleased(
                    at_s=at_s,
                    phase=phase,
                    aggregator=aggregator,
                    members=members,
                    vectors=claims(phase),
                    traffic=traffic,
                )
            )

    def apply(self, at_s: float, client: PartyId, *, model_hmac: str = MODEL_HMAC, name: str = "signs") -> None:
        report = RoundApplied(
            model_hmac=model_hmac,
            traffic=(Traffic(counts_as=name, direction="up", payload_bits=24, wire_bytes=7),),
        )
        self.feed(UpdateApplied(at_s=at_s, client=client, report=report))

    def score(self, at_s: float, client: PartyId, **scores: float) -> None:
        claims = tuple(ScoreClaim(name=name, value=value) for name, value in scores.items())
        traffic = (Traffic(counts_as="scores", direction="up", payload_bits=64, wire_bytes=9),)
        self.feed(ScoresReported(at_s=at_s, client=client, scores=claims, traffic=traffic))

    def play_to_applying(self) -> None:
        self.begin()
        self.deliver(110.0)
        self.release(113.0)
        self.deliver(120.0)
        self.release(121.0)

    def value(self, sample: str, /, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"hubbub_{sample}", labels)


def claims(phase: str) -> tuple[VectorClaim, ...]:
    return (VectorClaim(name=phase, length=LENGTHS[phase], modulus=MODULI[phase]),)


def test_a_released_round_is_timed_from_its_phases_opening_to_its_verdict() -> None:
    play = Play()
    play.play_to_applying()
    for client in MANIFEST.clients:
        play.apply(130.0, client)

    assert play.state is State.RELEASED
    for phase, collecting_s, releasing_s in (("union", 10.0, 3.0), ("signs", 7.0, 1.0)):
        assert play.value("phase_collecting_seconds_sum", phase=phase) == collecting_s
        assert play.value("phase_collecting_seconds_count", phase=phase) == 1
        assert play.value("phase_releasing_seconds_sum", phase=phase) == releasing_s
        assert play.value("phase_releasing_seconds_count", phase=phase) == 1
        assert play.value("phases_total", phase=phase, outcome="released") == 1
    assert play.value("round_seconds_sum", outcome="released") == 30.0
    assert play.value("round_seconds_count", outcome="released") == 1
    assert play.value("round_seconds_count", outcome="void") == 0


def test_bytes_are_counted_when_the_round_has_its_verdict_as_parties_report_them() -> None:
    play = Play()
    play.play_to_applying()
    for client in MANIFEST.clients[:2]:
        play.apply(130.0, client)
    before = play.value("reported_wire_bytes_total", counts_as="signs", direction="up")
    play.apply(130.0, MANIFEST.clients[2])

    assert before is None
    assert play.value("reported_payload_bytes_total", counts_as="signs", direction="up") == 3 * 3
    assert play.value("reported_wire_bytes_total", counts_as="signs", direction="up") == 3 * 7
    assert play.value("reported_payload_bytes_total", counts_as="union", direction="down") == 2 * 100
    assert play.value("reported_wire_bytes_total", counts_as="union", direction="down") == 2 * 150
    # Nobody reported to have sent any, so the formula counts the way down alone: 1 bit x N x S x C.
    assert play.value("predicted_payload_bytes_total", counts_as="union") == MANIFEST.parameters * 2 * 3 / 8


def test_a_report_cannot_make_labels_of_its_own() -> None:
    play = Play()
    play.play_to_applying()
    for client in MANIFEST.clients:
        play.apply(130.0, client, name=f"made-up-by-{client}")

    assert play.value("reported_wire_bytes_total", counts_as="other", direction="up") == 3 * 7
    text = str([sample.labels for metric in play.registry.collect() for sample in metric.samples])
    assert "made-up" not in text


def play_scored() -> Play:
    """A round whose scores' sum is out, and nobody has said what it comes to."""
    play = Play(is_scored=True)
    play.play_to_applying()
    for client in MANIFEST.clients:
        play.apply(130.0, client)
    play.deliver(131.0)
    play.release(132.0)
    return play


def test_what_the_scores_come_to_is_shown_by_the_metrics_names() -> None:
    play = play_scored()
    for client in MANIFEST.clients:
        assert play.value("metric", name="accuracy") is None
        play.score(133.0, client, accuracy=0.75, loss=0.5)

    assert play.state is State.RELEASED
    assert play.value("metric", name="accuracy") == 0.75
    assert play.value("metric", name="loss") == 0.5
    assert play.value("reported_payload_bytes_total", counts_as="scores", direction="up") == 3 * 8
    # Two elements of 32 bits, from 3 clients to 2 aggregators and back.
    assert play.value("predicted_payload_bytes_total", counts_as="scores") == 2 * 2 * 3 * 2 * 4


def test_clients_cannot_make_up_metrics() -> None:
    play = play_scored()
    for client in MANIFEST.clients:
        play.score(133.0, client, fortune=1.0)

    assert play.state is State.RELEASED
    assert play.value("metric", name="fortune") is None


def test_a_void_round_counts_its_phase_as_void_and_its_time() -> None:
    play = Play()
    play.begin()
    play.deliver(110.0, MANIFEST.clients[:1])
    play.feed(DeadlinePassed(at_s=160.0))
    for aggregator in MANIFEST.aggregators:
        play.feed(VoidConfirmed(at_s=161.0, phase="union", aggregator=aggregator))

    assert play.state is State.VOID
    assert play.value("phases_total", phase="union", outcome="void") == 1
    assert play.value("phases_total", phase="union", outcome="released") is None
    assert play.value("phase_collecting_seconds_sum", phase="union") == 60.0
    assert play.value("phase_releasing_seconds_count", phase="union") is None
    assert play.value("round_seconds_sum", outcome="void") == 61.0


def test_clients_with_different_models_are_a_disagreement() -> None:
    play = Play()
    play.play_to_applying()
    for client, hmac in zip(MANIFEST.clients, (MODEL_HMAC, MODEL_HMAC, "00" * 32), strict=True):
        play.apply(130.0, client, model_hmac=hmac)

    assert play.state is State.CONTRADICTED
    assert play.value("model_disagreements_total") == 1
    assert play.value("round_seconds_count", outcome="contradicted") == 1


def test_clients_with_one_model_are_none() -> None:
    play = Play()
    play.play_to_applying()
    for client in MANIFEST.clients:
        play.apply(130.0, client)

    assert play.value("model_disagreements_total") == 0


def test_a_step_after_a_restart_does_not_count_what_was_counted_before_it() -> None:
    play, later = Play(), Play()
    play.begin()
    play.deliver(110.0)
    play.release(113.0)
    later.state, later.data = play.state, play.data
    later.deliver(120.0)

    assert later.value("phase_collecting_seconds_count", phase="union") is None
    assert later.value("phases_total", phase="union", outcome="released") is None
    assert later.value("phase_collecting_seconds_count", phase="signs") == 1


def test_whoever_observed_before_still_does() -> None:
    play = Play()
    play.begin()
    play.meter(Transition(2, RUN, runs.State.ENROLLING, object(), runs.State.ENROLLING, None, 0.0, None))

    assert [moment.key for moment in play.seen] == [KEY, RUN]


# Waiting -----------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


def read_waits(machines: dict[Key, RunningMachine], clock: ManualClock) -> tuple[float | None, float | None]:
    registry = CollectorRegistry()
    registry.register(Waits(lambda: machines, clock))
    names = ("hubbub_parties_awaited", "hubbub_longest_wait_seconds")
    awaited, longest_s = (registry.get_sample_value(name) for name in names)
    return awaited, longest_s


def test_nobody_is_waited_for_where_nothing_runs(clock: ManualClock) -> None:
    assert read_waits({}, clock) == (0, 0)


def test_the_longest_wait_of_all_runs_is_told(clock: ManualClock) -> None:
    play = Play()
    play.begin()
    play.deliver(110.0, MANIFEST.clients[:1])
    data = replace(play.data, records=(replace(play.data.record, opened_at_s=990.0),))
    enrolling = make_manifest(clients=3, servers=2, seed=9)
    machines = {
        RUN: RunningMachine(runs.KIND, runs.State.RUNNING, runs.CoordinatorRun(manifest=MANIFEST, round=1)),
        KEY: RunningMachine(rounds.KIND, State.COLLECTING, data),
        Key("run", enrolling.run_id): RunningMachine(
            runs.KIND, runs.State.ENROLLING, runs.CoordinatorRun(manifest=enrolling, began_at_s=960.0)
        ),
    }

    # Two clients are to deliver, and five parties to join, which they have been asked to do for longer.
    assert read_waits(machines, clock) == (7, 40.0)


def test_a_paused_run_waits_for_nobody(clock: ManualClock) -> None:
    paused = RunningMachine(
        runs.KIND, runs.State.PAUSED, runs.CoordinatorRun(manifest=MANIFEST, round=1, began_at_s=1.0)
    )

    assert read_waits({RUN: paused}, clock) == (0, 0)
