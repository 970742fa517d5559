"""Shared local training: the same bits, for the very same question and for no other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hubbub.protocol.metrics import CLASSIFICATION, Metric, Scores
from hubbub.runtime.telemetry import context
from hubbub_local.experiment import Outcome, run_to_target
from hubbub_local.reproduce.caching import CachedLearner, CachedTask, Trained, TrainingCache
from hubbub_local.reproduce.measuring import EVALUATION, TRAINING, Meter
from hubbub_local.reproduce.plan import list_methods, papers_settings
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Theta, Training

SIZE = 300
THETA = np.linspace(-1, 1, SIZE, dtype=np.float32)


class Momentum:
    """A learner with a memory, that counts how often it was asked."""

    samples = 7
    examples = SIZE

    def __init__(self) -> None:
        self.trained = 0
        self.evaluated_with: list[Theta | None] = []

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        self.trained += 1
        progress(steps, steps)
        kept = np.zeros_like(theta) if memory is None else memory
        return Training(theta=theta + np.float32(steps + seed % 7), memory=kept + np.float32(1))

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        self.evaluated_with.append(memory)
        return {"accuracy": (theta.size, theta.size), "loss": (0.0, theta.size)}


class MomentumTask:
    """Makes one learner for all, so that the cache alone tells clients apart."""

    def __init__(self, name: str = "momentum") -> None:
        self.name = name
        self.metrics: tuple[Metric, ...] = CLASSIFICATION
        self.one = Momentum()

    def count_parameters(self) -> int:
        return SIZE

    def initial_model(self, seed: int) -> Theta:
        return THETA + np.float32(seed)

    def learner(self, *, index: int, clients: int, seed: int) -> Momentum:
        del index, clients, seed
        return self.one


def make_learner(
    folder: Path,
    task: MomentumTask,
    *,
    data: str = "digits",
    partition: str = "iid",
    index: int = 0,
    clients: int = 3,
    public_seed: int = 1,
    meter: Meter | None = None,
) -> CachedLearner:
    cached = CachedTask(task, data=data, partition=partition, cache=TrainingCache(folder), meter=meter or Meter())
    return cached.learner(index=index, clients=clients, seed=public_seed)


def train(
    learner: CachedLearner, *, theta: Theta = THETA, memory: Theta | None = None, steps: int = 5
) -> Training:
    return learner.train(theta, steps=steps, seed=2**100 + 3, progress=lambda *_: None, memory=memory)


def test_the_same_question_is_trained_once_and_answered_with_the_same_bits(tmp_path: Path) -> None:
    task = MomentumTask()

    first = train(make_learner(tmp_path, task), memory=THETA)
    again = train(make_learner(tmp_path, task), memory=THETA)

    assert task.one.trained == 1
    assert first.memory is not None
    assert again.memory is not None
    assert (again.theta.tobytes(), again.memory.tobytes()) == (first.theta.tobytes(), first.memory.tobytes())
    assert again.theta.dtype == np.float32


CHANGES: dict[str, Callable[[Path, MomentumTask], object]] = {
    "data": lambda folder, task: train(make_learner(folder, task, data="mnist")),
    "partition": lambda folder, task: train(make_learner(folder, task, partition="dirichlet:0.5")),
    "client": lambda folder, task: train(make_learner(folder, task, index=1)),
    "clients": lambda folder, task: train(make_learner(folder, task, clients=4)),
    "public seed": lambda folder, task: train(make_learner(folder, task, public_seed=2)),
    "model": lambda folder, task: train(make_learner(folder, task), theta=-THETA),
    "an empty memory": lambda folder, task: train(make_learner(folder, task), memory=THETA[:0]),
    "memory": lambda folder, task: train(make_learner(folder, task), memory=THETA),
    "steps": lambda folder, task: train(make_learner(folder, task), steps=6),
    "seed of the batches": lambda folder, task: make_learner(folder, task).train(
        THETA, steps=5, seed=2**100 + 4, progress=lambda *_: None
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_other_question_is_trained(change: str, tmp_path: Path) -> None:
    task = MomentumTask()
    train(make_learner(tmp_path, task))

    CHANGES[change](tmp_path, task)

    assert task.one.trained == 2


def test_another_task_is_trained(tmp_path: Path) -> None:
    train(make_learner(tmp_path, MomentumTask()))
    other = MomentumTask("another")

    train(make_learner(tmp_path, other))

    assert other.one.trained == 1


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, None])
def test_a_damaged_file_is_trained_again(damage: bytes | None, tmp_path: Path) -> None:
    task = MomentumTask()
    first = train(make_learner(tmp_path, task))
    path = next(tmp_path.iterdir())
    flipped = bytearray(path.read_bytes())
    flipped[-1] ^= 1
    path.write_bytes(bytes(flipped) if damage is None else damage)

    again = train(make_learner(tmp_path, task))

    assert task.one.trained == 2
    assert again.theta.tobytes() == first.theta.tobytes()


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    made = Trained(Training(theta=THETA, memory=None), 1.0)
    cache = TrainingCache(tmp_path)
    for age, key in enumerate(("new", "old", "oldest")):
        cache.keep(key, made)
        os.utime(tmp_path / f"{key}.safetensors", (1000 - age, 1000 - age))
    assert cache.find("oldest") is not None
    size = (tmp_path / "new.safetensors").stat().st_size

    TrainingCache(tmp_path, limit_bytes=3 * size).keep("newest", made)

    left = {path.stem for path in tmp_path.iterdir()}
    assert left == {"new", "oldest", "newest"}


def test_a_folder_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    task = MomentumTask()

    train(make_learner(blocked, task))

    assert task.one.trained == 1


def test_training_that_is_saved_counts_as_it_was_measured(tmp_path: Path) -> None:
    task, meter = MomentumTask(), Meter()
    learner = make_learner(tmp_path, task, meter=meter)
    with context(party="client-1"):
        train(learner)
        measured = meter.read().total(TRAINING)
        # As if it had taken long.
        cache, key = TrainingCache(tmp_path), next(tmp_path.iterdir()).stem
        found = cache.find(key)
        assert found is not None
        cache.keep(key, Trained(found.training, 40.0))

        train(learner)

    assert found.cpu_s == pytest.approx(measured, abs=0.005)
    assert meter.read().by_party(TRAINING)["client-1"] == pytest.approx(measured + 40.0)


def test_evaluation_is_given_the_memory_and_is_never_shared(tmp_path: Path) -> None:
    task, meter = MomentumTask(), Meter()
    learner = make_learner(tmp_path, task, meter=meter)

    with context(party="client-1"):
        learner.evaluate(THETA, memory=THETA)
        learner.evaluate(THETA)

    assert learner.examples == SIZE
    assert task.one.evaluated_with[0] is THETA
    assert task.one.evaluated_with[1] is None
    assert "client-1" in meter.read().by_party(EVALUATION)


# Through the services --------------------------------------------------------------------------------------

ROUNDS, CLIENTS = 3, 2
EVERYTHING = ROUNDS * CLIENTS


@dataclass(frozen=True)
class Shared:
    """A run, and how much of its training was there already."""

    outcome: Outcome
    hits: int


def run(name: str, cache: TrainingCache | None = None) -> Outcome:
    settings = replace(papers_settings("mnist"), clients=CLIENTS, max_rounds=ROUNDS, local_steps=3)
    inner = SyntheticTask(SIZE)
    task = CachedTask(inner, data="synthetic", partition="iid", cache=cache, meter=Meter()) if cache else inner
    return asyncio.run(run_to_target(settings.demo_options(list_methods()[name], 5), task, None))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shared]:
    """One after the other, with one cache."""
    cache = TrainingCache(tmp_path_factory.mktemp("cache"))
    found: dict[str, Shared] = {}
    for name in ("no-union", "partial-sec-union", "plaintext-union", "fedavg", "sec-union", "sec-union-letter"):
        before = cache.hits
        outcome = run(name, cache)
        found[name] = Shared(outcome, cache.hits - before)
    return found


@pytest.mark.parametrize("name", ["plaintext-union", "sec-union-letter"])
def test_models_are_the_same_with_and_without_a_cache(name: str, shared: dict[str, Shared]) -> None:
    without = run(name)

    assert shared[name].hits > 0
    assert shared[name].outcome.model_sha256 == without.model_sha256
    assert [each.metrics for each in shared[name].outcome.accounts] == [each.metrics for each in without.accounts]


def test_strategies_that_compute_the_same_sums_share_all_rounds(shared: dict[str, Shared]) -> None:
    same = [shared[name] for name in ("partial-sec-union", "plaintext-union")]

    assert [each.hits for each in same] == [EVERYTHING, EVERYTHING]
    assert {each.outcome.model_sha256 for each in same} == {shared["no-union"].outcome.model_sha256}


def test_strategies_that_differ_share_the_first_round_and_no_more(shared: dict[str, Shared]) -> None:
    assert (shared["no-union"].hits, shared["fedavg"].hits, shared["sec-union"].hits) == (0, CLIENTS, CLIENTS)
    assert shared["fedavg"].outcome.model_sha256 != shared["no-union"].outcome.model_sha256


def test_with_and_without_feedback_the_second_round_is_still_the_same(shared: dict[str, Shared]) -> None:
    """What is fed back is in the accumulator, which does not count before the second round's sums."""
    assert shared["sec-union-letter"].hits == 2 * CLIENTS
