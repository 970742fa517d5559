"""The owner's task fails: the client goes on with nothing to say, in the usual time; only its owner is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from hubbub.crypto.key_derivation import ClientSecret
from hubbub.errors import StorageFailed
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.protocol.compression import Indices, check_finite
from hubbub.protocol.metrics import Metric, Scores, ScoreSheet
from hubbub.strategies.base import Conclusion, Theta
from hubbub_trainer.learning.task import ProgressCallback, Training
from hubbub_trainer.task_runner import MOST_BEGINNINGS, Stopping, TaskRunner
from hubbub_trainer.workspace import Learnt, Workspace
from support.builders import make_manifest
from support.probe import ManualClock

N, STEPS, STEP_S = 30, 10, 2.0
MANIFEST = make_manifest(parameters=N, local_steps=STEPS, phase_timeout_s=100.0)
ONE = Key("round", MANIFEST.run_id, 1)
TWO = Key("round", MANIFEST.run_id, 2)
GOOD: Scores = {"accuracy": ([7.0], 9.0)}
MEMORY = np.full(4, 3, np.float32)

Fault = Callable[[], Training]


def raises(error: BaseException) -> Fault:
    def fault() -> Training:
        raise error

    return fault


def gives(theta: Theta) -> Fault:
    return lambda: Training(theta, None)


@dataclass
class Pupil:
    """A learner that takes two seconds a step, and meets a fault after some of them if it has one."""

    clock: ManualClock
    fault: Fault | None = None
    after: int = STEPS
    scoring: Callable[[], Scores] = lambda: GOOD
    samples: int = 5
    examples: int = 9
    trained: int = 0

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        del seed, memory
        self.trained += 1
        for done in range(1, (self.after if self.fault else steps) + 1):
            self.clock.time_s += STEP_S
            progress(done, steps)
        return self.fault() if self.fault else Training(theta + 1, MEMORY)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        del theta, memory
        return self.scoring()


@dataclass
class Home:
    """One client's task, disk and metrics."""

    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.pupil = Pupil(self.clock)
        self.runner = self.start(self.registry)
        self.space = self.open()

    def start(self, registry: CollectorRegistry) -> TaskRunner:
        return TaskRunner(me=PartyId("client-1"), progress=lambda *_: None, clock=self.clock, registry=registry)

    def open(self) -> Workspace:
        """The workspace as a new process opens it."""
        nothing = np.zeros(N, np.float32)
        space = Workspace(self.folder, self.pupil, ClientSecret.for_demo(1, 0), nothing, nothing, memory=MEMORY)
        space.recall()
        return space

    def train(self, key: Key = ONE) -> tuple[Learnt, float]:
        learnt, begun, spare_s = self.runner.train(key, self.space, MANIFEST, begin)
        assert begun is learnt
        return learnt, spare_s

    def failures(self, what: str) -> float | None:
        return self.registry.get_sample_value("hubbub_task_failures_total", {"what": what})

    def notes(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text("utf-8").splitlines()]


def begin(learnt: Learnt) -> Learnt:
    """As a strategy does it."""
    check_finite(learnt.update)
    return learnt


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


FAULTS = {
    "an exception": raises(ValueError("a patient's name")),
    "no memory": raises(MemoryError()),
    "an exit": raises(SystemExit("the loss is nan")),
    "not a number": gives(np.full(N, np.nan, np.float32)),
    "infinity": gives(np.full(N, np.inf, np.float32)),
    "another shape": gives(np.zeros(1, np.float32)),
    "no theta": raises(AttributeError("theta")),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_training_that_fails_leaves_nothing_to_say_and_is_told_to_the_owner(
    home: Home, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    home.pupil.fault = fault

    with caplog.at_level(logging.ERROR):
        learnt, _ = home.train()

    assert learnt.silent
    assert not learnt.update.any()
    assert learnt.memory is MEMORY, "what the optimiser kept before"
    assert (home.failures("training"), home.failures("evaluation")) == (1, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert home.notes() == [{"round": 1, "trouble": ["training"]}]


# Time -------------------------------------------------------------------------------------------------------


def test_who_fails_early_waits_as_long_as_the_other_steps_would_take(home: Home) -> None:
    home.pupil.fault = raises(ValueError())
    for after in (1, 3, STEPS):
        home.pupil.after = after
        assert home.train()[1] == (STEPS - after) * STEP_S


@pytest.mark.parametrize("restarted", [False, True])
def test_the_last_round_that_went_well_tells_how_long_training_takes(home: Home, *, restarted: bool) -> None:
    learnt, spare_s = home.train()
    assert (learnt.silent, learnt.memory is MEMORY, spare_s) == (False, True, 0.0)
    np.testing.assert_array_equal(learnt.update, np.ones(N, np.float32))
    assert home.failures("training") == 0
    home.space.begin("evaluation", 1)
    if restarted:
        home.space = home.open()
    home.space.learner = pupil = Pupil(home.clock, raises(ValueError()), after=0)

    learnt, spare_s = home.train(TWO)

    assert (spare_s, pupil.trained) == (STEPS * STEP_S, 1)


def test_nobody_waits_so_long_that_the_phase_is_over(home: Home) -> None:
    def fail_slowly() -> Training:
        home.clock.time_s += 40
        raise ValueError

    home.pupil.fault, home.pupil.after = fail_slowly, 0

    assert home.train()[1] == MANIFEST.phase_timeout_s / 2


# Adjusted training ------------------------------------------------------------------------------------------


@dataclass
class Adjusted(Pupil):
    """A pupil that notes what it is told."""

    told: list[tuple[float | None, Indices | None]] = field(default_factory=list)

    def adjusted(self, *, learning_rate: float | None, movable: Indices | None) -> Pupil:
        self.told.append((learning_rate, movable))
        return Pupil(self.clock, gives(np.full(N, 2, np.float32)))


def test_a_learner_is_told_the_rate_and_the_coordinates_that_the_round_asks_for(home: Home) -> None:
    movable = np.array([1, 4])
    home.space.learner = pupil = Adjusted(home.clock)
    cases: tuple[tuple[float | None, Indices | None], ...] = ((None, None), (0.5, None), (None, movable))
    for rate, coordinates in cases:
        manifest = make_manifest(parameters=N, local_steps=STEPS, learning_rate=rate)
        learnt, _, _ = home.runner.train(ONE, home.space, manifest, begin, movable=coordinates)
        assert not learnt.silent
        assert learnt.update[0] == (1 if rate is None and coordinates is None else 2)

    assert pupil.told == [(0.5, None), (None, movable)]


def test_a_learner_that_cannot_be_told_a_rate_trains_as_it_is_and_its_owner_is_warned_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    plain, fast = (make_manifest(parameters=N, local_steps=STEPS, learning_rate=rate) for rate in (None, 0.5))
    warnings = []
    for manifest in (plain, fast, fast):
        learnt, _, _ = home.runner.train(ONE, home.space, manifest, begin, movable=np.array([1]))
        np.testing.assert_array_equal(learnt.update, np.ones(N, np.float32))
        warnings.append(caplog.text.count("asks for a learning rate of 0.5"))

    assert warnings == [0, 1, 1]


@dataclass
class Scheduled(Adjusted):
    """A pupil that is also told where in the run it is."""

    places: list[tuple[int, int]] = field(default_factory=list)

    def in_round(self, number: int, rounds: int) -> Adjusted:
        self.places.append((number, rounds))
        return self


def test_a_learner_that_follows_rounds_is_told_which_this_is_before_its_rate(home: Home) -> None:
    home.space.learner = pupil = Scheduled(home.clock)
    manifest = make_manifest(parameters=N, local_steps=STEPS, rounds=9, learning_rate=0.5)
    # A void round is trained again under the next number, and has the same place.
    for key, place in ((ONE, 1), (TWO, 1), (replace(TWO, round=3), 2)):
        learnt, _, _ = home.runner.train(key, home.space, manifest, begin, place=place)
        assert learnt.update[0] == 2, "it is adjusted, too"

    assert pupil.places == [(1, 9), (1, 9), (2, 9)]


# Deaths, stops and disks ------------------------------------------------------------------------------------


def test_what_two_processes_died_over_is_not_tried_a_third_time(home: Home) -> None:
    for what in ("training", "evaluation"):
        for _ in range(MOST_BEGINNINGS):
            home.space.begin(what, 1)  # And here it dies.
            home.space = home.open()
        if what == "training":
            learnt, _ = home.train()
            assert (learnt.silent, home.pupil.trained) == (True, 0)
        else:
            assert home.runner.evaluate(ONE, home.space) == {}
        assert home.failures(what) == 1

    again, _ = home.train(TWO)
    assert (again.silent, home.pupil.trained) == (False, 1), "the next round is another try"
    assert home.runner.evaluate(TWO, home.space) == GOOD


def test_one_death_is_forgiven_and_what_is_tried_again_in_one_process_is_no_death(home: Home) -> None:
    home.space.begin("training", 1)
    home.space = home.open()

    for _ in range(3):  # A disk may refuse to keep what was learnt.
        learnt, _ = home.train()
        assert not learnt.silent


def test_a_trainer_that_is_stopped_has_not_failed(home: Home) -> None:
    for _ in range(MOST_BEGINNINGS + 1):
        home.runner.give_up()
        with pytest.raises(Stopping):
            home.train()
        home.runner = home.start(CollectorRegistry())
        home.space = home.open()

    learnt, _ = home.train()

    assert not learnt.silent
    assert (home.failures("training"), (home.folder / "rounds.jsonl").exists()) == (0, False)


def test_a_disk_that_fails_is_not_the_tasks_fault(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(Workspace, "_keep_record", refuse)

    with pytest.raises(StorageFailed):
        home.train()
    with pytest.raises(StorageFailed):
        home.runner.evaluate(ONE, home.space)
    assert (home.failures("training"), home.failures("evaluation")) == (0, 0)


# Evaluation -------------------------------------------------------------------------------------------------


def fail_to_score() -> Scores:
    raise ZeroDivisionError("a patient's name")


BAD_SCORES: dict[str, Callable[[], Scores]] = {
    "an exception": fail_to_score,
    "what is no number": lambda: {"accuracy": (float("nan"), 2)},
    "what is no score": lambda: {"accuracy": ("seven", 9)},  # type: ignore[dict-item]  # On purpose.
}
SHEET = ScoreSheet((Metric("accuracy"),), clients=3)


@pytest.mark.parametrize("scoring", BAD_SCORES.values(), ids=BAD_SCORES.keys())
def test_an_evaluation_that_fails_is_the_worst_score(home: Home, scoring: Callable[[], Scores]) -> None:
    assert home.runner.evaluate(ONE, home.space) == GOOD
    home.pupil.scoring = scoring

    found = home.runner.evaluate(TWO, home.space)

    assert SHEET.decode_one(found) == {"accuracy": 0.0}
    assert home.failures("evaluation") == 1
    assert home.notes() == [{"round": 2, "trouble": ["evaluation"]}]


def test_what_failed_stands_beside_what_the_round_came_to(home: Home) -> None:
    home.pupil.fault = raises(ValueError())
    home.pupil.scoring = fail_to_score
    home.train()
    home.space.note_round(1, Conclusion(home.space.theta, home.space.accumulator, 1))
    home.runner.evaluate(ONE, home.space)

    (note,) = home.notes()

    assert (note["trouble"], "model_sha256" in note) == (["evaluation", "training"], True)
