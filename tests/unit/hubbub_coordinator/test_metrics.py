"""Metrics of the coordinator: durations, outcomes and bytes of rounds, and the parties that are waited for."""

from dataclasses import replace

from prometheus_client import CollectorRegistry

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.rounds import ScoreClaim
from hubbub.messages.shares import Traffic
from hubbub.runtime.runner import RunningMachine, Transition
from hubbub_coordinator.events import DeadlinePassed, ScoresReported, VoidConfirmed
from hubbub_coordinator.metrics import Metering, OpenRuns
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import State
from support.builders import MODEL_HMAC, make_manifest
from support.coordinator_play import CLASSIFIED, RoundPlay
from support.probe import ManualClock

MANIFEST = make_manifest(strategy="sec-union", q=1, metrics=CLASSIFIED)
RUN = Key("run", MANIFEST.run_id)


class MeteredRound(RoundPlay[None]):
    """A round, and what is counted of it."""

    def __init__(self, *, is_scored: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.seen: list[Transition] = []
        self.meter = Metering(self.registry, self.seen.append)
        super().__init__(MANIFEST, self.meter, is_scored=is_scored)

    def score(self, client: PartyId, **scores: float) -> None:
        claims = tuple(ScoreClaim(name=name, value=value) for name, value in scores.items())
        traffic = (Traffic(counts_as="scores", direction="up", payload_bits=64, wire_bytes=9),)
        self.feed(ScoresReported(at_s=133.0, client=client, scores=claims, traffic=traffic))

    def value(self, sample: str, /, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"hubbub_{sample}", labels)


def test_a_released_round_is_timed_by_phases_and_its_bytes_are_counted_with_the_verdict() -> None:
    play = MeteredRound()
    play.play_to_applying()
    *others, last = MANIFEST.clients
    for client in others:
        play.apply(client)
    assert play.value("reported_wire_bytes_total", counts_as="signs", direction="up") is None
    play.apply(last)

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
    assert play.value("model_disagreements_total") == 0
    assert play.value("reported_payload_bytes_total", counts_as="signs", direction="up") == 3 * 3
    assert play.value("reported_wire_bytes_total", counts_as="signs", direction="up") == 3 * 7
    assert play.value("reported_payload_bytes_total", counts_as="union", direction="down") == 2 * 100
    assert play.value("reported_wire_bytes_total", counts_as="union", direction="down") == 2 * 150
    # Nobody reported to have sent any, so the formula counts the way down alone: 1 bit x N x S x C.
    assert play.value("predicted_payload_bytes_total", counts_as="union") == MANIFEST.parameters * 2 * 3 / 8


def test_scores_are_shown_by_the_names_of_metrics() -> None:
    play = MeteredRound(is_scored=True)
    play.play_to_scores()
    play.deliver(at_s=131.0)
    play.release(132.0)
    for client in MANIFEST.clients:
        assert play.value("metric", name="accuracy") is None
        play.score(client, accuracy=0.75, loss=0.5)

    assert play.state is State.RELEASED
    assert (play.value("metric", name="accuracy"), play.value("metric", name="loss")) == (0.75, 0.5)
    assert play.value("reported_payload_bytes_total", counts_as="scores", direction="up") == 3 * 8
    # Two elements of 32 bits, from 3 clients to 2 aggregators and back.
    assert play.value("predicted_payload_bytes_total", counts_as="scores") == 2 * 2 * 3 * 2 * 4


def test_a_report_cannot_make_labels_of_its_own() -> None:
    play = MeteredRound(is_scored=True)
    play.play_to_applying()
    for client in MANIFEST.clients:
        play.apply(client, counts_as=f"made-up-by-{client}")
    play.deliver()
    play.release()
    for client in MANIFEST.clients:
        play.score(client, fortune=1.0)

    assert play.state is State.RELEASED
    assert play.value("reported_wire_bytes_total", counts_as="other", direction="up") == 3 * 7
    labels = str([sample.labels for metric in play.registry.collect() for sample in metric.samples])
    assert "made-up" not in labels
    assert "fortune" not in labels


def test_a_void_round_counts_its_phase_as_void_and_its_time() -> None:
    play = MeteredRound()
    play.begin()
    play.deliver(*MANIFEST.clients[1:])
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
    play = MeteredRound()
    play.play_to_applying()
    for client, hmac in zip(MANIFEST.clients, (MODEL_HMAC, MODEL_HMAC, "00" * 32), strict=True):
        play.apply(client, model_hmac=hmac)

    assert play.state is State.CONTRADICTED
    assert play.value("model_disagreements_total") == 1
    assert play.value("round_seconds_count", outcome="contradicted") == 1


def test_a_step_after_a_restart_does_not_count_what_was_counted_before_it() -> None:
    play, later = MeteredRound(), MeteredRound()
    play.begin()
    play.deliver()
    play.release()
    later.state, later.data = play.state, play.data
    later.deliver()

    assert later.value("phase_collecting_seconds_count", phase="union") is None
    assert later.value("phases_total", phase="union", outcome="released") is None
    assert later.value("phase_collecting_seconds_count", phase="signs") == 1


def test_whoever_observed_before_still_does() -> None:
    play = MeteredRound()
    play.begin()
    play.meter(Transition(2, RUN, runs.State.ENROLLING, object(), runs.State.ENROLLING, None, 0.0, None))

    assert [moment.key for moment in play.seen] == [play.key, RUN]


def test_of_open_runs_those_that_are_stalled_are_counted_and_who_is_waited_for_and_the_longest_wait() -> None:
    def read(machines: dict[Key, RunningMachine]) -> tuple[float | None, ...]:
        registry = CollectorRegistry()
        registry.register(OpenRuns(machines, ManualClock(1_000.0)))
        names = ("hubbub_parties_awaited", "hubbub_longest_wait_seconds", "hubbub_stalled_runs")
        return tuple(registry.get_sample_value(name) for name in names)

    play = MeteredRound()
    play.begin()
    play.deliver(*MANIFEST.clients[1:])
    data = replace(play.data, records=(replace(play.data.record, opened_at_s=990.0),))
    run = runs.CoordinatorRun(manifest=MANIFEST, round=1, began_at_s=960.0)
    stalled = replace(run, union_size=0)
    enrolling = Key("run", make_manifest(seed=9).run_id)
    waiting = {
        RUN: RunningMachine(runs.KIND, runs.State.RUNNING, run),
        play.key: RunningMachine(rounds.KIND, State.COLLECTING, data),
        enrolling: RunningMachine(runs.KIND, runs.State.ENROLLING, run),
    }

    assert read({}) == (0, 0, 0)
    assert read({RUN: RunningMachine(runs.KIND, runs.State.PAUSED, run)}) == (0, 0, 0)
    assert read({RUN: RunningMachine(runs.KIND, runs.State.PAUSED, stalled)}) == (0, 0, 1)
    # Two clients are to deliver, and five parties to join, which they have been asked to do for longer.
    assert read(waiting) == (7, 40.0, 0)
