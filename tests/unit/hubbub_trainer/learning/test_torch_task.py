"""A user's own PyTorch task: shared and local state, the memory between rounds, metrics, and errors."""

from __future__ import annotations

import logging
import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.compression import Indices
from hubbub.protocol.metrics import BINARY, Metric, Scores, ScoreSheet
from hubbub_trainer.fingerprint import tensor_sizes
from hubbub_trainer.learning.task import HasLearningRate, TaskFailed, Theta
from hubbub_trainer.learning.torch_learner import OwnTask, TorchLearner
from hubbub_trainer.learning.torch_task import Batch, Data, Site, TorchTask
from support.learners import ignore

SEED = 2**127 + 5
"""A round's seed has up to 128 bits."""


def make_samples(count: int, index: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(index)
    inputs = torch.randn(count, 4, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


class Linear(TorchTask):
    batch_size: ClassVar[int] = 8
    learning_rate: ClassVar[float] = 0.1

    def model(self) -> nn.Module:
        return nn.Linear(4, 2)

    def data(self, site: Site) -> Data:
        return Data(train=make_samples(64, site.index), test=make_samples(50, 99))


def vary(base: type[TorchTask] = Linear, **members: Any) -> TorchTask:
    """Make a task that differs from another in some of its members."""
    task: TorchTask = type("Varied", (base,), members)()
    return task


class Normalised(Linear):
    """Has a frozen part, buffers, and draws at random."""

    def model(self) -> nn.Module:
        frozen = nn.Linear(4, 4).requires_grad_(False)
        return nn.Sequential(frozen, nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def learner_of(task: TorchTask, index: int = 0) -> tuple[TorchLearner, Theta]:
    own = OwnTask(task, data="somewhere")
    return own.learner(index=index, clients=3, seed=7), own.initial_model(7)


def train(
    learner: TorchLearner, theta: Theta, *, steps: int = 5, seed: int = SEED, memory: Theta | None = None
) -> tuple[Theta, Theta | None]:
    training = learner.train(theta, steps=steps, seed=seed, progress=ignore, memory=memory)
    return training.theta, training.memory


# What is shared -------------------------------------------------------------------------------------------


def test_only_parameters_that_require_gradients_are_shared() -> None:
    own = OwnTask(Normalised(), data="")
    (first, theta), (second, _) = (learner_of(Normalised(), index) for index in (0, 1))

    assert first.evaluate(theta) == second.evaluate(theta), "all clients make the same frozen part"
    assert own.layout == {"1.weight": (4,), "1.bias": (4,), "3.weight": (2, 4), "3.bias": (2,)}
    assert own.count_parameters() == own.initial_model(0).size == 18


def test_the_initial_model_follows_from_the_seed_alone_and_leaves_torchs_generator_as_it_was() -> None:
    own = OwnTask(Linear(), data="")
    torch.manual_seed(1)
    before = torch.get_rng_state()

    models = [own.initial_model(seed).tobytes() for seed in (3, 3, 4)]

    assert models[0] == models[1] != models[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_task_has_a_name_of_its_own_or_that_of_its_class_and_learns_where_its_data_is() -> None:
    told: list[Site] = []

    class TumourGrades(Linear):
        def data(self, site: Site) -> Data:
            told.append(site)
            return super().data(site)

    class Named(Linear):
        name = "grades"

    own = OwnTask(TumourGrades(), data="/srv/scans")
    own.learner(index=2, clients=5, seed=9)

    assert (own.name, OwnTask(Named(), data="").name) == ("tumour-grades", "grades")
    assert told == [Site(data="/srv/scans", index=2, clients=5, seed=9)]
    assert repr(Linear().data(told[0])) == "<Data>", "samples do not print"


# Training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [Linear(), Normalised()], ids=["plain", "with-dropout-and-buffers"])
def test_training_gives_the_same_bits_for_the_same_seed_and_others_for_another(task: TorchTask) -> None:
    learner, theta = learner_of(task)
    given = theta.copy()

    again = [train(learner, theta, seed=seed)[0].tobytes() for seed in (1, 1, 2)]

    assert again[0] == again[1] != again[2]
    assert theta.tobytes() == given.tobytes(), "the model that was given is as it was"


def adam(_: TorchTask, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def rprop(_: TorchTask, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Rprop(parameters)


class Flat(Linear):
    """Takes the same batch every time, so that training does not depend on the order of batches."""

    batch_size: ClassVar[int] = 64


@pytest.mark.parametrize(
    "task",
    [
        Flat(),
        vary(Flat, model=lambda _: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))),
        vary(Flat, optimiser=adam),
    ],
    ids=["sgd", "batch-norm", "adam"],
)
def test_two_rounds_with_a_memory_are_one_of_twice_the_length(task: TorchTask) -> None:
    """Nothing of a round's end but the order of samples within a batch tells that it was interrupted."""
    learner, theta = learner_of(task)

    whole, _ = train(learner, theta, steps=6)
    half, memory = train(learner, theta, steps=3)
    joined, _ = train(learner, half, steps=3, memory=memory)
    forgetful, _ = train(learner, half, steps=3)

    np.testing.assert_allclose(joined, whole, rtol=1e-4, atol=1e-6)
    assert not np.allclose(forgetful, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimiser", [adam, rprop])
def test_the_state_of_any_optimiser_comes_back(optimiser: object) -> None:
    learner, theta = learner_of(vary(optimiser=optimiser))
    half, memory = train(learner, theta)

    assert memory is not None
    assert train(learner, half, memory=memory)[0].tobytes() == train(learner, half, memory=memory)[0].tobytes()


def test_a_round_that_did_not_count_leaves_no_trace() -> None:
    learner, theta = learner_of(Normalised())
    _, memory = train(learner, theta)
    wanted = train(learner, theta, seed=3, memory=memory)[0].tobytes()

    train(learner, theta, seed=2, memory=memory)

    assert train(learner, theta, seed=3, memory=memory)[0].tobytes() == wanted


def test_a_score_is_of_the_buffers_that_are_remembered() -> None:
    learner, theta = learner_of(Normalised())
    _, memory = train(learner, theta, steps=20)
    before, after = learner.evaluate(theta), learner.evaluate(theta, memory=memory)

    assert before["loss"][1] == after["loss"][1] == learner.examples == 50
    assert before["loss"] != after["loss"]
    assert learner.evaluate(theta) == before


# Adjusted training ------------------------------------------------------------------------------------------


def decaying_sgd(_: TorchTask, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)


def decaying_adam(_: TorchTask, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1)


def grouped(_: TorchTask, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    weight, bias = parameters
    return torch.optim.SGD([{"params": [weight], "lr": 0.02}, {"params": [bias], "lr": 0.08}], momentum=0.9)


@pytest.mark.parametrize("norm", [None, 1e-2], ids=["not-clipped", "clipped"])
@pytest.mark.parametrize("optimiser", [decaying_sgd, decaying_adam])
def test_coordinates_that_may_not_move_keep_their_bits(optimiser: object, norm: float | None) -> None:
    learner, theta = learner_of(vary(Normalised, optimiser=optimiser, max_gradient_norm=norm))
    _, memory = train(learner, theta)
    movable = np.array([0, 3, 9, 10, 17])

    trained, _ = train(learner.adjusted(learning_rate=None, movable=movable), theta, memory=memory)

    moved = np.flatnonzero(trained.view(np.uint32) != theta.view(np.uint32))
    assert np.array_equal(moved, movable)


def test_where_only_some_coordinates_move_the_memory_holds_the_buffers_alone() -> None:
    learner, theta = learner_of(Normalised())
    some = learner.adjusted(learning_rate=None, movable=np.arange(theta.size))
    _, memory = train(learner, theta)

    afresh, kept = train(some, theta)
    assert kept is not None
    assert memory is not None
    assert kept.size < memory.size
    assert afresh.tobytes() == train(learner, theta)[0].tobytes(), "a first round has no memory either"
    assert train(some, theta, memory=memory)[0].tobytes() == afresh.tobytes(), "the momentum is not taken from it"
    counts = [int(some.buffers(each)["1.num_batches_tracked"]) for each in (None, kept, memory)]
    assert counts == [0, 5, 5]
    _, later = train(some, theta, memory=kept)
    assert int(some.buffers(later)["1.num_batches_tracked"]) == 10
    assert some.evaluate(theta, memory=kept) == learner.evaluate(theta, memory=memory)


def test_a_task_may_begin_each_round_with_a_new_optimiser() -> None:
    learner, theta = learner_of(vary(Normalised, keep_optimiser=False))
    usual, _ = learner_of(Normalised())
    once, memory = train(usual, theta)

    assert train(learner, theta)[0].tobytes() == once.tobytes()
    fresh, kept = train(learner, once, memory=memory)
    assert kept is not None
    assert fresh.tobytes() == train(learner, once, memory=train(learner, theta)[1])[0].tobytes()
    assert fresh.tobytes() != train(usual, once, memory=memory)[0].tobytes(), "it has no momentum to begin with"
    assert learner.buffers(kept)["1.num_batches_tracked"] == 10, "buffers go on"


def test_a_learning_rate_is_that_of_the_fastest_group_and_others_keep_their_proportion() -> None:
    learner, theta = learner_of(vary(Flat, optimiser=grouped))
    faster = learner.adjusted(learning_rate=0.8, movable=None)
    _, memory = train(learner, theta)

    for kept in (None, memory):
        once, far = (train(each, theta, steps=1, memory=kept)[0] - theta for each in (learner, faster))
        np.testing.assert_allclose(far, 10 * once, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("optimiser", "rate"), [(None, 0.1), (adam, 0.05), (grouped, 0.08)])
def test_a_task_tells_the_rate_of_the_optimiser_that_it_has(optimiser: object, rate: float) -> None:
    task = OwnTask(vary(optimiser=optimiser) if optimiser else Linear(), data="")

    assert isinstance(task, HasLearningRate)
    assert task.find_learning_rate() == rate


# Personal parameters ----------------------------------------------------------------------------------------


class Personal(Linear):
    """Shares its body, and keeps its head and its normalisation's weights."""

    personal: ClassVar[tuple[str, ...]] = ("head.*", "body.1.*")

    def model(self) -> nn.Module:
        body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        return nn.Sequential(OrderedDict(body=body, head=nn.Linear(3, 2)))


OF_ITS_OWN = {"body.1.weight", "body.1.bias", "head.weight", "head.bias"}


def own_state(learner: TorchLearner, memory: Theta | None) -> dict[str, bytes]:
    """The personal parameters that a memory holds."""
    return {name: each.tobytes() for name, each in learner.buffers(memory).items() if name in OF_ITS_OWN}


def test_personal_parameters_are_trained_and_no_part_of_theta() -> None:
    own, (learner, theta) = OwnTask(Personal(), data=""), learner_of(Personal())
    first = own_state(learner, None)

    trained, memory = train(learner, theta)
    after = own_state(learner, memory)

    assert own.layout == {"body.0.weight": (3, 4), "body.0.bias": (3,)}
    assert own.count_parameters() == theta.size == trained.size == 15
    assert tensor_sizes(own) == (12, 3), "what the ledger of models knows a model by"
    assert own.find_learning_rate() == Linear.learning_rate
    assert first.keys() == after.keys() == OF_ITS_OWN
    assert all(first[name] != after[name] for name in OF_ITS_OWN)
    whole = own.name_tensors(trained, seed=7, buffers=learner.buffers(memory))
    assert {name: whole[name].tobytes() for name in OF_ITS_OWN} == after
    loaded = Personal().model()
    loaded.load_state_dict({name: torch.tensor(each) for name, each in whole.items()})
    with torch.inference_mode():
        exported = Personal().evaluate(loaded.eval(), make_samples(50, 99))
    assert learner.evaluate(trained, memory=memory)["accuracy"] == exported["accuracy"]


def test_a_void_round_leaves_no_trace_in_personal_parameters() -> None:
    learner, theta = learner_of(Personal())
    _, memory = train(learner, theta)
    before = own_state(learner, memory)
    wanted = train(learner, theta, seed=3, memory=memory)

    _, dropped = train(learner, theta, seed=2, memory=memory)
    again = train(learner, theta, seed=3, memory=memory)

    assert own_state(learner, dropped) != before == own_state(learner, memory)
    assert again[0].tobytes() == wanted[0].tobytes()
    assert own_state(learner, again[1]) == own_state(learner, wanted[1])
    assert learner.evaluate(theta, memory=memory) != learner.evaluate(theta)


@pytest.mark.parametrize("norm", [None, 0.01])
def test_where_only_some_coordinates_move_personal_parameters_move_and_go_on(norm: float | None) -> None:
    def optimiser(_: TorchTask, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)

    learner, theta = learner_of(vary(Personal, optimiser=optimiser, max_gradient_norm=norm))
    movable = np.array([2, 14])
    some = learner.adjusted(learning_rate=None, movable=movable)

    trained, memory = train(some, theta)
    later, _ = train(some, theta, memory=memory)

    assert np.array_equal(np.flatnonzero(trained != theta), movable)
    assert own_state(some, memory).items().isdisjoint(own_state(some, None).items())
    assert later.tobytes() != trained.tobytes(), "it begins with what was learnt"


def test_what_is_remembered_is_the_models_own_state_without_the_optimisers() -> None:
    learner, theta = learner_of(Personal())
    afresh, _ = learner_of(vary(Personal, keep_optimiser=False))
    _, memory = train(learner, theta)
    kept = learner.buffers(memory)

    remembered = learner.remember(kept)
    strange = learner.remember({**kept, "head.weight": np.zeros((9, 9), np.float32), "stranger": np.zeros(1)})

    assert own_state(learner, remembered) == own_state(learner, memory)
    assert (
        train(learner, theta, memory=remembered)[0].tobytes() == train(afresh, theta, memory=memory)[0].tobytes()
    )
    assert own_state(learner, strange)["head.weight"] == own_state(learner, None)["head.weight"]
    assert own_state(learner, strange)["head.bias"] == own_state(learner, memory)["head.bias"]


@pytest.mark.parametrize(
    ("personal", "said"),
    [
        (("head.*", "tail"), "'tail', which is no parameter that is trained; there are body.0.weight"),
        (("*",), "no parameters that require gradients and are not personal"),
        ("head.*", "must be a tuple"),
    ],
)
def test_personal_parameters_that_there_are_not_are_refused(personal: object, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        OwnTask(vary(Personal, personal=personal), data="").count_parameters()


# Schedules --------------------------------------------------------------------------------------------------


class Halved(Linear):
    """Its rate is halved in each round."""

    momentum: ClassVar[float] = 0.0

    def schedule(self, number: int, rounds: int) -> float:
        assert number <= rounds
        return 0.5 ** (number - 1)


def test_a_schedule_scales_the_tasks_rate_or_the_one_that_is_asked_for() -> None:
    learner, theta = learner_of(Halved())
    asked = learner.adjusted(learning_rate=0.4, movable=None)
    plain = learner_of(vary(Linear, momentum=0.0))[0]

    def step(trained: TorchLearner) -> Theta:
        return train(trained, theta, steps=1)[0]

    for place, rate in (
        (learner.in_round(1, 9), 0.1),
        (learner.in_round(3, 9), 0.025),
        (asked.in_round(2, 9), 0.2),
    ):
        expected = plain.adjusted(learning_rate=rate, movable=None)
        assert step(place).tobytes() == step(expected).tobytes()
    assert step(learner).tobytes() == step(plain).tobytes(), "no round, no schedule"


def test_a_rate_goes_back_up_if_the_schedule_says_so_and_the_momentum_goes_on() -> None:
    learner, theta = learner_of(vary(schedule=lambda _task, number, _rounds: 0.0 if number == 2 else 1.0))
    usual, _ = learner_of(Linear())
    first = train(learner.in_round(1, 3), theta)

    still = train(learner.in_round(2, 3), first[0], memory=first[1])
    third = train(learner.in_round(3, 3), still[0], memory=first[1])

    assert still[0].tobytes() == first[0].tobytes()
    assert third[0].tobytes() == train(usual, first[0], memory=first[1])[0].tobytes()


@pytest.mark.parametrize("factor", [float("nan"), -0.1, float("inf")])
def test_a_schedule_that_gives_no_factor_is_found_when_the_task_is_tried(
    factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    learner, theta = learner_of(vary(schedule=lambda _task, number, _rounds: factor if number > 7 else 1.0))

    with pytest.raises(TaskFailed):
        learner.try_out(theta)

    assert "a factor of the learning rate, 0 or more" in caplog.text


@pytest.mark.parametrize(("low", "warns"), [(0.2, True), (0.4, False)])
def test_the_owner_is_warned_of_a_schedule_that_ends_where_nothing_moves(
    low: float, caplog: pytest.LogCaptureFixture, *, warns: bool
) -> None:
    def cosine(_task: TorchTask, number: int, rounds: int) -> float:
        return low + (1 - low) * (1 + math.cos(math.pi * number / rounds)) / 2

    learner, theta = learner_of(vary(schedule=cosine))
    with caplog.at_level(logging.WARNING):
        learner.try_out(theta)

    assert ("trainers count rounds in which" in caplog.text) == warns


# Kinds of tasks ---------------------------------------------------------------------------------------------


def score(task: TorchTask, outputs: Tensor, targets: Tensor) -> Scores:
    """The scores of a model with these outputs."""
    given = nn.Identity()
    return task.evaluate(given, (outputs, targets))


class Binary(Linear):
    metrics = "binary"

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)


TWO_OUTPUTS = vary(Binary, model=lambda _: nn.Linear(4, 2))


class Regression(Linear):
    metrics = "regression"
    target_range = (-3.0, 3.0)
    learning_rate: ClassVar[float] = 0.02

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def data(self, site: Site) -> Data:
        train, test = make_samples(64, site.index)[0], make_samples(50, 99)[0]
        return Data(train=(train, train.sum(dim=1)), test=(test, test.sum(dim=1)))


@pytest.mark.parametrize(
    ("task", "headline", "good"),
    [(Linear(), "accuracy", 0.9), (Binary(), "auc", 0.95), (TWO_OUTPUTS, "auc", 0.95), (Regression(), "r2", 0.9)],
    ids=["classification", "one-logit", "two-logits", "regression"],
)
def test_each_kind_of_task_learns_by_its_own_loss_and_says_so_by_its_headline(
    task: TorchTask, headline: str, good: float
) -> None:
    own = OwnTask(task, data="")
    learner, theta = learner_of(task)
    sheet = ScoreSheet(own.metrics, clients=1)

    trained, _ = train(learner, theta, steps=100)

    before, after = (
        sheet.decode(sheet.encode(learner.evaluate(each), learner.examples), 1) for each in (theta, trained)
    )
    learner.try_out(theta)
    assert own.metrics[0].name == headline
    assert before[headline] < good < after[headline]


def test_one_logit_and_two_are_scored_alike() -> None:
    logits, targets = torch.tensor([-3.0, -0.1, 0.2, 40.0]), torch.tensor([0, 1, 1, 0])
    two = torch.stack([torch.zeros(4), logits], dim=1)

    one = score(Binary(), logits.unsqueeze(1), targets.float())

    assert one == score(Binary(), logits, targets) == score(TWO_OUTPUTS, two, targets)
    assert one["accuracy"][0] == 2
    histogram, loss = np.asarray(one["auc"][0]), one["loss"][0]
    # The loss of the last is 40, of which 16 count.
    sure = float(nn.functional.binary_cross_entropy_with_logits(logits[:3], targets[:3].float(), reduction="sum"))
    assert loss == pytest.approx(sure + 16.0)
    assert (histogram.size, histogram[:64].sum(), histogram[64:].sum()) == (128, 2, 2)
    assert histogram[-1] == 1, "the last is a negative in the highest bin"


def test_values_are_cut_to_their_bounds_one_by_one() -> None:
    logits = torch.tensor([[0.0, 100.0], [0.0, 0.0]])
    outputs, targets = torch.tensor([1.0, 90.0, -2.0]).reshape(3, 1), torch.tensor([0.0, 5.0, -7.0])

    assert score(Linear(), logits, torch.tensor([0, 0]))["loss"][0] == pytest.approx(16 + np.log(2))
    for shape in ((3,), (3, 1)):
        found = score(Regression(), outputs, targets.reshape(shape))
        assert found == {"mse": (2.0, 3), "r2": ((2.0, 0.0, 18.0), 3)}


def test_outputs_and_labels_that_the_kind_does_not_have_are_refused() -> None:
    for task in (Binary(), Regression()):
        with pytest.raises(ValueError, match="one value for each example, not 3"):
            score(task, torch.zeros(5, 3), torch.zeros(5))
    with pytest.raises(ValueError, match="must be 0 or 1"):
        score(Binary(), torch.zeros(3), torch.tensor([1, 2, 1]))


def test_what_is_not_finite_in_a_run_is_not_refused_and_counts_as_the_worst() -> None:
    sheet = ScoreSheet(BINARY, clients=1)
    outputs, targets = torch.full((4, 1), torch.nan), torch.tensor([0, 1, 1, 0])

    told = sheet.decode(sheet.encode(score(Binary(), outputs, targets), 4), 1)

    assert (told["auc"], told["loss"]) == (0.0, 16.0)


def without_test(_: TorchTask, site: Site) -> Data:
    return Data(train=make_samples(64, site.index))


def test_a_task_without_test_samples_has_no_metrics_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    own = OwnTask(vary(data=without_test), data="")
    assert own.metrics, "what the class says, where there are no data"

    with caplog.at_level(logging.INFO):
        learners = [own.learner(index=index, clients=2, seed=7) for index in (0, 1)]
    theta = own.initial_model(7)
    learners[0].try_out(theta)

    assert own.metrics == ()
    assert caplog.text.count("no test samples") == 1
    assert (learners[1].evaluate(theta), learners[1].examples) == ({}, 0)
    assert train(learners[1], theta)[0].tobytes() == train(learner_of(Linear(), 1)[0], theta)[0].tobytes()


def test_a_task_that_declares_no_metrics_is_not_scored_and_need_have_no_test_samples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def evaluate(*_: object) -> Scores:
        raise AssertionError

    for members in ({"data": without_test}, {"evaluate": evaluate}):
        learner, theta = learner_of(vary(metrics=(), **members))
        learner.try_out(theta)
        assert learner.evaluate(theta) == {}
    assert not caplog.records


def test_scores_are_the_same_whatever_the_size_of_a_batch() -> None:
    small, theta = learner_of(vary(Binary, evaluation_batch_size=7))
    large, _ = learner_of(Binary())

    first, second = small.evaluate(theta), large.evaluate(theta)

    assert first["auc"] == second["auc"]
    assert first["accuracy"] == second["accuracy"]
    assert first["loss"][0] == pytest.approx(second["loss"][0])


class Distance(Linear):
    metrics = (Metric("distance", high=2.0, higher_is_better=False),)

    def evaluate(self, model: nn.Module, batch: Batch) -> Scores:
        inputs, targets = batch
        distances = (model(inputs)[:, 0] - targets).abs().clamp(max=2.0)
        return {"distance": (float(distances.sum()), len(targets))}


def test_a_task_may_have_metrics_of_its_own() -> None:
    learner, theta = learner_of(Distance())

    learner.try_out(theta)

    assert OwnTask(Distance(), data="").metrics == Distance.metrics
    assert learner.evaluate(theta)["distance"][1] == 50


class WholeSet(Linear):
    """Scores the F1 of all its test samples, in two passes over them."""

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("f1"),)
    evaluation_batch_size: ClassVar[int] = 20

    def evaluate_all(self, model: nn.Module, batches: Iterable[Batch]) -> Scores:
        found = torch.cat([model(inputs).argmax(dim=1) for inputs, _ in batches])
        wanted = torch.cat([targets for _, targets in batches])
        positives = int(((found == 1) & (wanted == 1)).sum())
        return {"f1": (len(wanted) * 2 * positives / int(found.sum() + wanted.sum()), len(wanted))}


def test_a_metric_that_is_no_sum_over_batches_is_scored_over_the_whole_set() -> None:
    learner, theta = learner_of(WholeSet())
    theta, _ = train(learner, theta, steps=50)

    learner.try_out(theta)
    scored, weight = learner.evaluate(theta)["f1"]
    value = float(np.asarray(scored)) / weight

    inputs, targets = make_samples(50, 99)
    found = (inputs.numpy() @ theta[:8].reshape(2, 4).T + theta[8:]).argmax(axis=1)
    both, either = int((found * targets.numpy()).sum()), int(found.sum() + targets.sum())
    assert value == pytest.approx(2 * both / either)
    assert weight == 50


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"f1": (0.5 * 50, 50), "more": (1.0, 1)}, "'more', which the task's metrics do not declare"),
        ({"f1": (50 * 1.5, 50)}, "outside its bounds"),
        ({}, "does not return 'f1'"),
    ],
)
def test_scores_of_a_whole_set_are_checked_when_the_task_is_tried(returned: Scores, said: str) -> None:
    learner, theta = learner_of(vary(WholeSet, evaluate_all=lambda *_: returned))

    with pytest.raises(TaskFailed, match=said):
        learner.try_out(theta)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (vary(metrics="regression"), "'varied' is a regression: set `target_range`"),
        (vary(metrics=(Metric("distance"),)), "metrics of its own: write an `evaluate`"),
        (vary(metrics="regresion"), "must be classification, binary, regression"),
        (vary(Distance, metrics=2 * Distance.metrics), "declared once"),
    ],
    ids=["no-range", "no-evaluate", "misspelt", "twice"],
)
def test_metrics_that_cannot_be_scored_are_refused_when_the_task_is_found(task: TorchTask, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        OwnTask(task, data="")


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Numbers of which every second is too large."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(4), torch.tensor(8.0 * (row % 2))


@pytest.mark.parametrize("samples", [(torch.zeros(300, 4), torch.tensor([0.0, 8.0]).repeat(150)), Pairs()])
def test_the_owner_is_told_how_many_targets_are_outside(samples: Any, caplog: pytest.LogCaptureFixture) -> None:
    def data(_: TorchTask, site: Site) -> Data:
        return Data(train=Regression().data(site).train, test=samples)

    for target_range in ((-30.0, 30.0), (0.0, 7.5)):
        assert not caplog.records, "nothing is said of targets within their range"
        learner, theta = learner_of(vary(Regression, target_range=target_range, data=data))
        learner.try_out(theta)

    count = "150 of 300" if isinstance(samples, tuple) else "128 of 256"
    assert f"{count} test targets are outside target_range, 0 to 7.5" in caplog.text


# Other data -------------------------------------------------------------------------------------------------


class Rows(Dataset[dict[str, Tensor]]):
    """A data set that is not made of tensors."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        inputs, labels = make_samples(40)
        return {"inputs": inputs[row], "label": labels[row]}


def test_any_data_set_and_any_batch_will_do() -> None:
    def loss(_: TorchTask, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch["inputs"]), batch["label"])

    learner, theta = learner_of(vary(data=lambda *_: Data(train=Rows(), test=make_samples(10)), loss=loss))

    assert learner.samples == 40
    assert train(learner, theta)[0].tobytes() != theta.tobytes()


def test_gradients_are_cut_to_the_length_that_is_said() -> None:
    learner, theta = learner_of(vary(momentum=0.0, max_gradient_norm=1e-3))
    trained, memory = train(learner, theta, steps=1)

    assert memory is None, "descent without momentum keeps nothing"
    assert np.linalg.norm(trained - theta) <= 1.001 * Linear.learning_rate * 1e-3


def test_where_only_some_coordinates_move_their_gradient_alone_is_cut() -> None:
    movable = np.array([1, 6])

    def step(norm: float | None = None, *, only: bool = True) -> Theta:
        learner, theta = learner_of(vary(momentum=0.0, max_gradient_norm=norm))
        adjusted = learner.adjusted(learning_rate=None, movable=movable) if only else learner
        return train(adjusted, theta, steps=1)[0] - theta

    length, whole = (float(np.linalg.norm(step(only=only))) / Linear.learning_rate for only in (True, False))
    assert 1.5 * length < whole

    assert step(1.2 * length).tobytes() == step().tobytes(), "the gradient on these is not longer"
    np.testing.assert_allclose(step(0.5 * length), 0.5 * step(), rtol=1e-4)


class Words(Linear):
    """Looks words up in an embedding."""

    sparse: ClassVar[bool] = True

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(10, 3, sparse=self.sparse), nn.Flatten(), nn.Linear(12, 2))

    def data(self, site: Site) -> Data:
        del site
        words = torch.randint(0, 9, (64, 4), generator=torch.Generator().manual_seed(0))
        return Data(train=(words, (words.sum(dim=1) > 16).long()))


@pytest.mark.parametrize("movable", [None, np.array([0, 1, 5, 31, 33])], ids=["all", "some"])
@pytest.mark.parametrize("norm", [None, 1e-2], ids=["not-clipped", "clipped"])
def test_sparse_gradients_train_as_dense_ones_do(norm: float | None, movable: Indices | None) -> None:
    def train_twice(*, sparse: bool) -> list[Theta]:
        learner, theta = learner_of(vary(Words, sparse=sparse, max_gradient_norm=norm))
        adjusted = learner.adjusted(learning_rate=None, movable=movable)
        first, memory = train(adjusted, theta)
        return [theta, first, train(adjusted, first, memory=memory)[0]]

    start, first, second = train_twice(sparse=True)

    np.testing.assert_allclose([start, first, second], train_twice(sparse=False), rtol=1e-5, atol=1e-7)
    if movable is not None:
        assert np.array_equal(np.flatnonzero(first != start), movable)
        assert np.array_equal(np.flatnonzero(second != first), movable)


def test_mixed_precision_computes_with_less_and_keeps_float32() -> None:
    seen: list[torch.dtype] = []

    def loss(task: TorchTask, model: nn.Module, batch: Batch) -> Tensor:
        seen.append(model(batch[0]).dtype)
        return TorchTask.loss(task, model, batch)

    learner, theta = learner_of(vary(mixed_precision=True, loss=loss))
    trained, _ = train(learner, theta)

    assert set(seen) == {torch.bfloat16}
    assert trained.dtype == np.float32


# What is wrong --------------------------------------------------------------------------------------------


def fail(*_: object) -> Any:
    raise KeyError("patient 4711")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (vary(loss=fail), "patient 4711"),
        (vary(model=lambda _: nn.Linear(3, 2)), "mat1 and mat2 shapes cannot be multiplied"),
        (vary(loss=lambda _, model, batch: model(batch[0]).sum() * np.nan), "the loss is nan at step 1"),
        (vary(loss=lambda _, model, batch: model(batch[0])), "`loss` must return a tensor with one element"),
        (vary(learning_rate=float("inf")), "not finite"),
    ],
    ids=["exception", "wrong-shape", "nan", "not-scalar", "explodes"],
)
def test_what_fails_in_training_is_said_in_full_here_and_to_nobody_else(
    task: TorchTask, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    learner, theta = learner_of(task)

    with pytest.raises(TaskFailed) as caught:
        train(learner, theta, steps=2)

    assert str(caught.value) == "the task failed in training; the log of this trainer says how"
    assert said in caplog.text
    assert "Traceback" in caplog.text


def test_a_request_to_stop_is_no_failure_of_the_task(caplog: pytest.LogCaptureFixture) -> None:
    learner, theta = learner_of(Linear())

    def stop(_done: int, _steps: int) -> None:
        raise LocalError("the trainer is being stopped")

    with pytest.raises(LocalError, match="being stopped"):
        learner.train(theta, steps=1, seed=1, progress=stop)
    assert not caplog.records


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (vary(model=lambda _: "a model"), "must return a torch.nn.Module"),
        (vary(model=fail), "patient 4711"),
        (TorchTask(), "say in `model`"),
    ],
    ids=["no-module", "exception", "nothing-said"],
)
def test_a_model_that_cannot_be_made_fails(task: TorchTask, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(TaskFailed, match="while it made its model"):
        OwnTask(task, data="").initial_model(0)
    assert said in caplog.text


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda _: nn.Linear(4, 2).requires_grad_(False), "no parameters that require gradients"),
        (lambda _: nn.Linear(4, 2).half(), "torch.float16: make it with float32"),
    ],
    ids=["no-parameters", "half-precision"],
)
def test_a_model_without_anything_to_share_is_refused(model: object, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        OwnTask(vary(model=model), data="").count_parameters()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Data(train=make_samples(0), test=make_samples(5)), "no training samples"),
        (Data(train=(torch.zeros(3, 4), torch.zeros(2)), test=make_samples(5)), "a row for each sample"),
        (make_samples(5), "`data` must return Data"),
    ],
    ids=["empty", "uneven", "no-data"],
)
def test_data_that_cannot_be_used_is_refused(data: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TaskFailed, match="while it got its data"):
        learner_of(vary(data=lambda *_: data))
    assert said in caplog.text
