"""Flower clients as trainers, with the real flwr: docs/flower.md says how to install it."""

from __future__ import annotations

import hashlib
import logging
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import nn

from hubbub.errors import ConfigurationError, LocalError
from hubbub.ids import Weights
from hubbub.protocol.metrics import CLASSIFICATION, Metric, regression
from hubbub.runtime.runner import Transition
from hubbub_coordinator.accounts import account
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.demo import draw_up
from hubbub_local.federation import start_federation
from hubbub_local.options import DemoOptions
from hubbub_trainer.fingerprint import tensor_sizes
from hubbub_trainer.flower import FlowerTask
from hubbub_trainer.flower.layout import Kept, Layout
from hubbub_trainer.learning.registry import try_task
from hubbub_trainer.learning.task import HasOwnPace, Theta
from support.learners import ignore
from support.patience import HANG_S

WHY = "docs/flower.md says how to install flwr"
flwr_app = pytest.importorskip("flwr.app", reason=WHY)
NumPyClient: Any = pytest.importorskip("flwr.client", reason=WHY).NumPyClient
ClientApp = pytest.importorskip("flwr.clientapp", reason=WHY).ClientApp

FEATURES, CLASSES, SAMPLES = 20, 4, 80
OPTIONS = DemoOptions(clients=3, rounds=4, local_steps=1, seed=5, strategy="sec-union", q=4, rho=0.3)
SECRET = "patient 4711"

Floats = NDArray[np.floating]


def make_samples(partition: int) -> tuple[Floats, NDArray[np.int64]]:
    prototypes = np.random.default_rng(1).random((CLASSES, FEATURES)) * 2 - 1
    generator = np.random.default_rng([2, partition])
    labels = generator.integers(CLASSES, size=SAMPLES)
    return prototypes[labels] + (generator.random((SAMPLES, FEATURES)) * 2 - 1) * 2, labels


def predict(weights: Floats, biases: Floats, features: Floats) -> Floats:
    logits = np.einsum("sf,fc->sc", features, weights) + biases
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def descend(parameters: list[Any], config: Any, partition: int) -> list[Any]:
    features, labels = make_samples(partition)
    weights, biases = parameters
    generator = np.random.default_rng(config["seed"])
    for _ in range(config["local_steps"]):
        batch = generator.integers(SAMPLES, size=16)
        error = predict(weights, biases, features[batch])
        error[np.arange(16), labels[batch]] -= 1
        weights -= 0.002 * np.einsum("sf,sc->fc", features[batch], error).astype(np.float32)
        biases -= 0.002 * error.sum(axis=0).astype(np.float32)
    return [weights, biases]


def score(parameters: list[Any], partition: int) -> tuple[float, float]:
    features, labels = make_samples(partition)
    weights, biases = parameters
    odds = predict(weights, biases, features)
    loss = float(-np.log(odds[np.arange(SAMPLES), labels]).mean())
    return loss, float((odds.argmax(axis=1) == labels).mean())


def initial(seed: int) -> list[Any]:
    weights = np.random.default_rng(seed).random((FEATURES, CLASSES), dtype=np.float32) / 100
    return [weights, np.zeros(CLASSES, dtype=np.float32)]


class Softmax(NumPyClient):  # type: ignore[misc]  # flwr may not be there, so it is Any.
    """A Flower client as people write it; it knows nothing of Hubbub."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition

    def get_parameters(self, config: Any) -> list[Any]:
        return initial(config["seed"])

    def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        return descend(parameters, config, self.partition), SAMPLES, {}

    def evaluate(self, parameters: list[Any], _config: Any) -> tuple[float, int, dict[str, Any]]:
        loss, accuracy = score(parameters, self.partition)
        return loss, SAMPLES, {"accuracy": accuracy}


def numpy_client(context: Any) -> Softmax:
    return Softmax(int(context.node_config["partition-id"]))


def client_fn(context: Any) -> Any:
    return numpy_client(context).to_client()


def make_message_app() -> Any:
    """The same client once more, as an app of messages."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # As above.
    def train(message: Any, context: Any) -> Any:
        arrays = message.content["arrays"].to_numpy_ndarrays()
        trained = descend(arrays, message.content["config"], context.node_config["partition-id"])
        metrics = flwr_app.MetricRecord({"num-examples": SAMPLES, "train_loss": 0.0})
        content = flwr_app.RecordDict({"arrays": flwr_app.ArrayRecord(trained), "metrics": metrics})
        return flwr_app.Message(content=content, reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator]  # As above.
    def evaluate(message: Any, context: Any) -> Any:
        arrays = message.content["arrays"].to_numpy_ndarrays()
        loss, accuracy = score(arrays, context.node_config["partition-id"])
        metrics = flwr_app.MetricRecord({"num-examples": SAMPLES, "eval_loss": loss, "eval_acc": accuracy})
        return flwr_app.Message(content=flwr_app.RecordDict({"metrics": metrics}), reply_to=message)

    return app


def as_function() -> FlowerTask:
    return FlowerTask("softmax", client_fn=client_fn)


FORMS: dict[str, dict[str, Any]] = {
    "function": {"client_fn": client_fn},
    "numpy clients": {"client_fn": numpy_client},
    "legacy app": {"app": ClientApp(client_fn=client_fn)},
    "message app": {"app": make_message_app(), "initial": initial, "accuracy": "eval_acc", "loss": "eval_loss"},
}


# A whole federation -------------------------------------------------------------------------------------


async def federate(
    task: FlowerTask, folder: Path, options: DemoOptions = OPTIONS
) -> tuple[set[str], list[dict[str, float]]]:
    """Run it to its end; return the clients' models by digest, and the metrics of each round."""
    scores: list[dict[str, float]] = []

    def watch(moment: Transition) -> None:
        if isinstance(moment.data, rounds.CoordinatorRound) and moment.after is rounds.State.RELEASED:
            scores.append(dict(account(moment.data).metrics))

    manifest, parties = draw_up(options, task)
    async with start_federation(
        manifest, parties=parties, folder=folder, load_task=lambda _: task, demo_seed=options.seed, observer=watch
    ) as federation:
        state, run = await federation.run(manifest)
        assert state is runs.State.COMPLETED, run.reason
        return set(federation.model_digests(manifest).values()), scores


async def test_clients_learn_under_secure_aggregation_and_end_with_the_same_model(tmp_path: Path) -> None:
    digests, scores = await federate(as_function(), tmp_path)
    accuracies = [each["accuracy"] for each in scores]

    assert len(digests) == 1
    assert len(accuracies) == 4
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < 0.75
    assert accuracies[-1] > 0.82


async def test_the_same_client_gives_the_same_bits_in_every_form(tmp_path: Path) -> None:
    options = replace(OPTIONS, rounds=1)

    found = [
        await federate(FlowerTask("softmax", **given), tmp_path / form, options) for form, given in FORMS.items()
    ]

    assert found == [found[0]] * 4


@pytest.mark.parametrize("weights", ["equal", "samples"])
async def test_what_a_client_raises_stays_at_home(
    weights: Weights, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it is let train when it joins, for its number of samples."""

    class Broken(Softmax):
        def fit(self, parameters: list[Any], config: Any) -> Any:
            if self.partition == 1:
                raise ValueError(SECRET)
            return super().fit(parameters, config)

    task = FlowerTask("softmax", client_fn=lambda context: Broken(int(context.node_config["partition-id"])))
    _, scores = await federate(task, tmp_path, replace(OPTIONS, weights=weights))

    assert len(scores) == OPTIONS.rounds, "all of them are released"
    assert SECRET in caplog.text


# One client ---------------------------------------------------------------------------------------------


def task_of(client: Any, **options: Any) -> FlowerTask:
    return FlowerTask("one", client=client, **options)


def client_with(**methods: Callable[..., Any]) -> Softmax:
    """Make a client that answers with these functions of parameters and config."""
    client: Softmax = type("Client", (Softmax,), {name: staticmethod(each) for name, each in methods.items()})()
    return client


def train(task: FlowerTask, *, memory: Theta | None = None, steps: int = 3, seed: int = 1) -> Any:
    learner = task.learner(index=0, clients=2, seed=7)
    return learner.train(task.initial_model(7), steps=steps, seed=seed, progress=ignore, memory=memory)


def flatten(arrays: list[Any]) -> Floats:
    return np.concatenate([each.reshape(-1) for each in arrays])


def test_training_and_scores_are_what_the_client_does_itself() -> None:
    task = as_function()
    start = task.initial_model(7)
    learner = task.learner(index=1, clients=2, seed=7)
    reports: list[tuple[int, int]] = []

    assert learner.samples == SAMPLES, "known before training too, after a restart"
    trained = learner.train(start, steps=5, seed=11, progress=lambda *report: reports.append(report))
    found = learner.evaluate(start, memory=None)

    assert np.array_equal(trained.theta, flatten(descend(initial(7), {"seed": 11, "local_steps": 5}, 1)))
    assert reports == [(0, 5), (5, 5)]
    loss, accuracy = score(initial(7), 1)
    assert {name: examples for name, (_, examples) in found.items()} == {"accuracy": SAMPLES, "loss": SAMPLES}
    assert found["accuracy"][0] == pytest.approx(accuracy * SAMPLES)
    assert found["loss"][0] == pytest.approx(loss * SAMPLES)
    # θ is the client's arrays in their order, and is left as it was.
    assert task.count_parameters() == FEATURES * CLASSES + CLASSES
    assert np.array_equal(start, flatten(initial(7)))
    assert not np.array_equal(start, task.initial_model(8))


def test_a_client_does_not_promise_to_take_the_steps_that_are_asked_for() -> None:
    as_it_is, said = task_of(Softmax()), task_of(Softmax(), pace="two epochs")

    assert isinstance(as_it_is, HasOwnPace)
    assert (as_it_is.pace, said.pace) == ("one fit of your client", "two epochs")


def test_the_number_of_examples_is_that_of_the_initial_model_whatever_is_scored() -> None:
    def evaluate(parameters: list[Any], _config: Any) -> tuple[float, int, dict[str, Any]]:
        return 0.5, 10 if np.array_equal(parameters[0], initial(7)[0]) else 3, {"accuracy": 0.5}

    task = task_of(client_with(evaluate=evaluate))
    learner = task.learner(index=0, clients=2, seed=7)

    assert learner.evaluate(task.initial_model(7) + 1)["loss"] == (1.5, 3)
    assert learner.examples == 10


def test_training_may_be_given_up() -> None:
    def give_up(_done: int, _steps: int) -> None:
        raise LocalError("stop")

    task = as_function()
    with pytest.raises(LocalError, match="stop"):
        task.learner(index=0, clients=2, seed=7).train(task.initial_model(7), steps=9, seed=1, progress=give_up)


def test_a_client_is_told_steps_seed_and_round_and_what_its_operator_fixes() -> None:
    heard: list[dict[str, Any]] = []

    def fit(parameters: list[Any], config: Any) -> Any:
        heard.append(dict(config))
        return parameters, SAMPLES, {}

    task = task_of(client_with(fit=fit), config={"rate": 0.5, "local_steps": 2})

    first = train(task, seed=2**100 + 9)
    for seed in (4, 5):  # As after a void round, which is not counted.
        train(task, seed=seed, memory=first.memory)

    told = {"rate": 0.5, "local_steps": 2}
    assert heard == [
        {**told, "seed": seed, "round": number, "server-round": number, "server_round": number}
        for seed, number in ((9, 1), (4, 2), (5, 2))
    ]


def test_a_client_is_told_the_number_of_the_runs_round_also_if_it_missed_some() -> None:
    heard: list[dict[str, Any]] = []

    def fit(parameters: list[Any], config: Any) -> Any:
        heard.append(dict(config))
        return parameters, SAMPLES, {}

    def evaluate(_parameters: list[Any], config: Any) -> tuple[float, int, dict[str, Any]]:
        heard.append(dict(config))
        return 0.5, SAMPLES, {"accuracy": 0.5}

    task = task_of(client_with(fit=fit, evaluate=evaluate))
    learner, theta = task.learner(index=0, clients=2, seed=7), task.initial_model(7)
    fifth = learner.in_round(5, 9)
    trained = fifth.train(theta, steps=3, seed=1, progress=ignore)
    learner.evaluate(theta, memory=trained.memory)

    assert [(each["server-round"], each["round"], each.get("rounds")) for each in heard] == [
        (5, 5, 9),
        (5, 5, None),
    ]
    assert fifth.samples == SAMPLES
    assert len(heard) == 2, "the number of samples is known from the training"


def test_an_app_has_its_run_config_and_an_empty_state() -> None:
    seen: list[tuple[Any, ...]] = []

    def make_client(context: Any) -> Any:
        seen.append((context.run_config["epochs"], dict(context.node_config), len(context.state)))
        context.state["left"] = flwr_app.ConfigRecord({"x": 1})
        return Softmax()

    task = FlowerTask(
        "one", client_fn=make_client, run_config={"epochs": 3}, initial=initial, metrics=CLASSIFICATION
    )
    train(task)
    train(task)

    assert seen == [(3, {"partition-id": 0, "num-partitions": 2}, 0)] * 2


# Arrays that stay ---------------------------------------------------------------------------------------


class Counting(NumPyClient):  # type: ignore[misc]  # As above.
    """Weights, a running mean and a counter, as of a network with BatchNorm."""

    def get_parameters(self, config: Any) -> list[Any]:
        del config
        return [np.ones(3, dtype=np.float32), np.zeros(2, dtype=np.float64), np.array(-1)]

    def fit(self, parameters: list[Any], _config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        weights, mean, counter = parameters
        return [weights + 1, mean + 0.1, np.asarray(counter + 10)], 5, {}

    def evaluate(self, parameters: list[Any], _config: Any) -> tuple[float, int, dict[str, Any]]:
        return float(parameters[2]), 10, {"accuracy": float(parameters[1].mean())}


@pytest.mark.parametrize(("keep_local", "sizes"), [([], (3, 2)), ([1], (3,))], ids=["integers", "and-named"])
def test_integers_and_named_arrays_stay_with_their_client_and_go_on_from_round_to_round(
    keep_local: list[int], sizes: tuple[int, ...]
) -> None:
    task = task_of(Counting(), keep_local=keep_local)
    learner = task.learner(index=0, clients=2, seed=7)

    first = train(task)
    second = train(task, memory=first.memory)

    assert task.count_parameters() == sum(sizes)
    assert tensor_sizes(task) == sizes, "what θ is made of, for the ledger of models"
    assert second.theta[:3].tolist() == [2, 2, 2]
    assert learner.evaluate(task.initial_model(7))["loss"] == (-10, 10)
    for training, counter, mean in ((first, 9, 0.1), (second, 19, 0.2)):
        assert learner.evaluate(second.theta, memory=training.memory)["loss"] == (10 * counter, 10)
        accuracy, _ = learner.evaluate(second.theta, memory=training.memory)["accuracy"]
        assert not keep_local or accuracy == pytest.approx(10 * mean)
    with pytest.raises(LocalError, match="another model"):
        train(task, memory=train(task_of(Softmax())).memory)


def test_what_stays_is_kept_to_the_bit() -> None:
    arrays = {"a": np.ones(2, np.float32), "n": np.array([-1, 2**62]), "b": np.array([True, False, True])}
    layout = Layout.of(arrays)

    found = layout.unpack(layout.pack(Kept(7, 2**127 + 5, {"n": arrays["n"], "b": arrays["b"]})))

    assert (found.round, found.seed) == (7, 2**127 + 5)
    assert found.arrays["n"].tolist() == [-1, 2**62]
    assert found.arrays["b"].tolist() == [True, False, True]


def test_named_arrays_are_found_by_their_names_whatever_their_order() -> None:
    layout = Layout.of({"w": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)})
    w, b = np.ones(2, np.float32), np.full(2, 2, np.float32)

    assert layout.flatten(layout.match({"b": b, "w": w})).tolist() == [1, 1, 2, 2]
    assert layout.flatten(layout.match({"0": w, "1": b})).tolist() == [1, 1, 2, 2]


def test_an_array_record_will_do_as_the_initial_model() -> None:
    task = task_of(Softmax(), initial=lambda seed: flwr_app.ArrayRecord(initial(seed)))

    assert np.array_equal(task.initial_model(7), as_function().initial_model(7))


# Clients with a bug -------------------------------------------------------------------------------------


def fail(*_: object) -> Any:
    raise RuntimeError(SECRET)


def leave(*_: object) -> Any:
    sys.exit(SECRET)


BAD_FITS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (fail, "RuntimeError in the Flower client's training"),
    "exits": (leave, "SystemExit in the Flower client's training"),
    "gives no tuple": (lambda p, _: p, "TypeError in the Flower client's training"),
    "gives objects": (lambda p, _: ([p[0], np.array([SECRET, None])], 5, {}), "in the Flower client's training"),
    "gives too few arrays": (lambda p, _: (p[:1], 5, {}), "1 arrays for a model of 2"),
    "gives another shape": (lambda p, _: ([p[0].T, p[1]], 5, {}), r"array 0 with shape \(4, 20\)"),
    "gives integers": (lambda p, _: ([p[0].astype(int), p[1]], 5, {}), "array 0 as int64"),
    "gives NaN": (lambda p, _: ([p[0] * np.nan, p[1]], 5, {}), "NaN or infinity"),
    "gives too large a number": (lambda p, _: ([p[0].astype(float) + 1e300, p[1]], 5, {}), "NaN or infinity"),
    "has no examples": (lambda p, _: (p, 0, {}), "no examples"),
    "has fewer than none": (lambda p, _: (p, -3, {}), "no examples"),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_training_that_goes_wrong_is_told_without_the_clients_words(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer, message = BAD_FITS[case]

    with pytest.raises(LocalError, match=message) as caught:
        train(task_of(client_with(fit=answer)))

    assert SECRET not in str(caught.value)
    assert ("Traceback" in caplog.text) == ("Flower client's training" in message)


BAD_SCORES: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (fail, "RuntimeError in the Flower client's evaluation"),
    "gives no accuracy": (lambda *_: (0.5, 10, {"f1": 0.5}), "does not return 'accuracy'"),
    "gives words": (lambda *_: (0.5, 10, {"accuracy": SECRET}), "does not return 'accuracy'"),
    "gives a percentage": (lambda *_: (0.5, 10, {"accuracy": 97.3}), "'accuracy' is outside its bounds, 0 and 1"),
    "gives NaN for accuracy": (lambda *_: (0.5, 10, {"accuracy": float("nan")}), "'accuracy' that is not finite"),
    "gives NaN for loss": (lambda *_: (float("nan"), 10, {"accuracy": 0.5}), "'loss' that is not finite"),
    "gives a loss of another kind": (lambda *_: (2900.0, 10, {"accuracy": 0.5}), "'loss' is outside its bounds"),
    "has no examples": (lambda *_: (0.5, 0, {"accuracy": 0.5}), "no examples"),
}


@pytest.mark.parametrize("case", BAD_SCORES)
def test_evaluation_that_goes_wrong_is_told_in_the_trial_without_the_clients_words(case: str) -> None:
    answer, message = BAD_SCORES[case]
    # A loss that is declared is asked for; by default a client need not have one.
    task = task_of(client_with(evaluate=answer), metrics=CLASSIFICATION)
    learner = task.learner(index=0, clients=2, seed=7)

    with pytest.raises(LocalError, match=message) as caught:
        learner.try_out(task.initial_model(7))

    assert SECRET not in str(caught.value)
    assert "97" not in str(caught.value)


def test_a_task_may_declare_what_its_client_returns_under_any_name() -> None:
    mse = Metric("mse", high=1e4, higher_is_better=False)
    renamed = task_of(client_with(evaluate=lambda *_: (0.5, 10, {"f1": 0.5})), accuracy="f1")
    client = client_with(evaluate=lambda *_: (2900.0, 10, {"mse": 2900.0, "mae": 43.5}))
    own = task_of(client, metrics=[mse])

    for task, expected in ((renamed, {"accuracy": (5, 10), "loss": (5, 10)}), (own, {"mse": (29_000.0, 10)})):
        learner = task.learner(index=0, clients=2, seed=7)
        learner.try_out(task.initial_model(7))
        assert learner.evaluate(task.initial_model(7)) == expected
    assert own.metrics == (mse,)


def test_a_client_without_fit_is_told_so() -> None:
    with pytest.raises(LocalError, match="has no fit"):
        train(task_of(NumPyClient(), initial=initial))


def test_an_app_that_answers_with_an_error_or_no_examples_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    refusing, echoing = ClientApp(), ClientApp()

    @refusing.train()  # type: ignore[untyped-decorator]  # As above.
    def refuse(message: Any, _context: Any) -> Any:
        return flwr_app.Message(flwr_app.Error(code=1, reason=SECRET), reply_to=message)

    @echoing.train()  # type: ignore[untyped-decorator]  # As above.
    def echo(message: Any, _context: Any) -> Any:
        content = flwr_app.RecordDict({"arrays": message.content["arrays"]})
        return flwr_app.Message(content=content, reply_to=message)

    with pytest.raises(LocalError, match="answered train with an error") as caught:
        train(FlowerTask("one", app=refusing, initial=initial))
    with pytest.raises(LocalError, match="give it as num-examples"):
        train(FlowerTask("one", app=echoing, initial=initial))

    assert SECRET not in str(caught.value)
    assert SECRET in caplog.text


# Clients without scores ---------------------------------------------------------------------------------


def make_app(metrics: dict[str, Any] | None) -> Any:
    """Make an app of messages that trains like `Softmax` and returns these metrics, or cannot evaluate."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # As above.
    def train(message: Any, context: Any) -> Any:
        arrays = message.content["arrays"].to_numpy_ndarrays()
        trained = descend(arrays, message.content["config"], context.node_config["partition-id"])
        found = {
            "arrays": flwr_app.ArrayRecord(trained),
            "metrics": flwr_app.MetricRecord({"num-examples": SAMPLES}),
        }
        return flwr_app.Message(content=flwr_app.RecordDict(found), reply_to=message)

    if metrics is not None:

        @app.evaluate()  # type: ignore[untyped-decorator]  # As above.
        def evaluate(message: Any, _context: Any) -> Any:
            content = flwr_app.RecordDict({"metrics": flwr_app.MetricRecord(metrics)})
            return flwr_app.Message(content=content, reply_to=message)

    return app


def make_clients(evaluate: Callable[..., Any] | None) -> Callable[[Any], Any]:
    """Return a `client_fn` whose clients train like `Softmax`, and evaluate like this or not at all."""

    def fit(self: Any, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        return descend(parameters, config, self.partition), SAMPLES, {}

    methods: dict[str, Any] = {"fit": fit, "get_parameters": Softmax.get_parameters}
    if evaluate is not None:
        methods["evaluate"] = staticmethod(evaluate)
    kind = type("Client", (NumPyClient,), methods)

    def make(context: Any) -> Any:
        client = kind()
        client.partition = int(context.node_config["partition-id"])
        return client.to_client()

    return make


NO_LOSS = {"accuracy": 0.5, "loss": 16.0}
UNSCORED: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "a loss of None": ({"client_fn": make_clients(lambda *_: (None, 10, {"accuracy": 0.5}))}, NO_LOSS),
    "a loss that is NaN": ({"client_fn": make_clients(lambda *_: (np.nan, 10, {"accuracy": 0.5}))}, NO_LOSS),
    "an app without a loss": ({"app": make_app({"accuracy": 0.5, "num-examples": 10})}, NO_LOSS),
    "no evaluate": ({"client_fn": make_clients(None)}, {}),
    "an app without evaluate": ({"app": make_app(None)}, {}),
    "an app that is not to be scored": ({"app": make_app({"r": [0.1, 0.2]}), "metrics": ()}, {}),
}


@pytest.mark.parametrize("case", UNSCORED)
async def test_a_client_without_a_loss_or_any_score_finishes_its_rounds(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given, expected = UNSCORED[case]
    task = FlowerTask("one", **given, initial=initial)

    try_task(task)
    warned = "returns no loss" in caplog.text
    digests, scores = await federate(task, tmp_path)

    assert len(digests) == 1
    assert scores == [expected] * OPTIONS.rounds
    assert warned == bool(expected)


async def test_an_evaluation_that_fails_from_the_start_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = FlowerTask("one", client_fn=make_clients(fail), initial=initial)

    _, scores = await federate(task, tmp_path)

    assert scores == [{"accuracy": 0.0, "loss": 16.0}] * OPTIONS.rounds
    assert SECRET in caplog.text


def test_a_client_that_cannot_be_made_without_its_data_is_taken_to_evaluate() -> None:
    task = FlowerTask("one", client_fn=fail, initial=initial)

    assert [metric.name for metric in task.metrics] == ["accuracy", "loss"]
    assert task.count_parameters() == FEATURES * CLASSES + CLASSES


# Flower's quickstarts -----------------------------------------------------------------------------------


def answer(message: Any, arrays: list[Any] | None, **metrics: float) -> Any:
    content: dict[str, Any] = {"metrics": flwr_app.MetricRecord(metrics)}
    if arrays is not None:
        content["arrays"] = flwr_app.ArrayRecord(arrays)
    return flwr_app.Message(content=flwr_app.RecordDict(content), reply_to=message)


def make_noise_task() -> FlowerTask:
    """Make a task in the form of quickstart-numpy: one float64 that random numbers are added to, and no scores."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # As above.
    def train(message: Any, _context: Any) -> Any:
        arrays = [each + np.random.rand(*each.shape) for each in message.content["arrays"].to_numpy_ndarrays()]  # noqa: NPY002  (As clients do.)
        return answer(message, arrays, **{"num-examples": 1, "random_metric": 0.5})

    @app.evaluate()  # type: ignore[untyped-decorator]  # As above.
    def evaluate(message: Any, _context: Any) -> Any:
        return answer(message, None, **{"num-examples": 1, "random_metric": 0.5})

    return FlowerTask("noise", app=app, initial=lambda _seed: [np.ones((1, 1))], metrics=())


def make_regression(arrays: list[Any]) -> LogisticRegression:
    """Make scikit-learn's model with these parameters, as quickstart-sklearn does, for one epoch."""
    model = LogisticRegression(max_iter=1, warm_start=True, solver="saga")
    model.classes_ = np.arange(CLASSES)
    model.coef_, model.intercept_ = arrays
    return model


def make_sklearn_task() -> FlowerTask:
    """Make a task in the form of quickstart-sklearn: float64 coefficients, and a loss of another name."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # As above.
    def train(message: Any, context: Any) -> Any:
        model = make_regression(message.content["arrays"].to_numpy_ndarrays(keep_input=False))
        features, labels = make_samples(context.node_config["partition-id"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of an end before it has converged.
            model.fit(features, labels)
        return answer(message, [model.coef_, model.intercept_], **{"num-examples": SAMPLES, "train_logloss": 0.5})

    @app.evaluate()  # type: ignore[untyped-decorator]  # As above.
    def evaluate(message: Any, context: Any) -> Any:
        model = make_regression(message.content["arrays"].to_numpy_ndarrays())
        features, labels = make_samples(context.node_config["partition-id"])
        found = {"accuracy": model.score(features, labels), "test_logloss": 0.5}
        return answer(message, None, **{"num-examples": SAMPLES, **found})

    start = [np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)]
    return FlowerTask("iris", app=app, initial=lambda _seed: start, loss="test_logloss")


# Randomness ---------------------------------------------------------------------------------------------


def throw(count: int = 1) -> list[Any]:
    """Draw from the global generators of Python, numpy and torch, one after the other."""
    return [
        draw()
        for _ in range(count)
        for draw in (random.random, np.random.rand, lambda: float(torch.rand((), dtype=torch.float64)))
    ]


class Dice(NumPyClient):  # type: ignore[misc]  # As above.
    """A client that draws all that it does from global generators."""

    def get_parameters(self, config: Any) -> list[Any]:
        del config
        return [np.array(throw(7))]

    def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        del config
        return [parameters[0] + throw(5000)[-21:]], 10, {}

    def evaluate(self, parameters: list[Any], config: Any) -> tuple[float, int, dict[str, Any]]:
        del parameters, config
        return throw()[0], 10, {"accuracy": throw()[1]}


class Digits(nn.Module):
    """A small network, whose layers draw their initial weights from torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, 16)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.dropout(self.hidden(features).relu()))
        return out


def load_rows(context: Any) -> Any:
    features, labels = make_samples(context.node_config["partition-id"])
    rows = torch.utils.data.TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(labels))
    return torch.utils.data.DataLoader(rows, batch_size=context.run_config["batch-size"], shuffle=True)


def receive_model(message: Any) -> Digits:
    model = Digits()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def make_torch_task() -> FlowerTask:
    """Make a task of an app in the form of Flower's quickstart for PyTorch."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # As above.
    def train(message: Any, context: Any) -> Any:
        model, loader = receive_model(message), load_rows(context)
        optimiser = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
        for _ in range(context.run_config["local-epochs"]):
            for features, labels in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        metrics = flwr_app.MetricRecord({"num-examples": len(loader.dataset), "train_loss": 0.0})
        content = {"arrays": flwr_app.ArrayRecord(model.state_dict()), "metrics": metrics}
        return flwr_app.Message(content=flwr_app.RecordDict(content), reply_to=message)

    @app.evaluate()  # type: ignore[untyped-decorator]  # As above.
    def evaluate(message: Any, context: Any) -> Any:
        model, loader = receive_model(message).eval(), load_rows(context)
        right = sum(int((model(features).argmax(1) == labels).sum()) for features, labels in loader)
        count = len(loader.dataset)
        metrics = flwr_app.MetricRecord({"num-examples": count, "eval_acc": right / count, "eval_loss": 0.5})
        return flwr_app.Message(content=flwr_app.RecordDict({"metrics": metrics}), reply_to=message)

    return FlowerTask(
        "torch",
        app=app,
        initial=lambda _seed: Digits().state_dict(),
        config={"lr": 0.1},
        run_config={"batch-size": 16, "local-epochs": 2},
        accuracy="eval_acc",
        loss="eval_loss",
    )


DRAWING: dict[str, Callable[[], FlowerTask]] = {
    "numpy client": lambda: FlowerTask("dice", client_fn=lambda _context: Dice().to_client()),
    "torch app": make_torch_task,
}


@pytest.mark.parametrize("form", DRAWING)
async def test_one_seed_gives_one_model_if_clients_draw_from_global_generators(form: str, tmp_path: Path) -> None:
    first, second, other = [
        await federate(DRAWING[form](), tmp_path / str(number), replace(OPTIONS, seed=seed))
        for number, seed in enumerate((5, 5, 6))
    ]

    assert first == second
    assert first[0] != other[0]
    assert form != "torch app" or first[1][-1]["accuracy"] > 0.8, "it learns"


@pytest.mark.parametrize("make", [make_noise_task, make_sklearn_task, make_torch_task])
async def test_flowers_quickstarts_run_with_what_is_recommended_and_one_seed_gives_one_model(
    make: Callable[[], FlowerTask], tmp_path: Path
) -> None:
    task, options = make(), replace(OPTIONS, strategy=None, rho=None, q=None)
    first, again = [await federate(task, tmp_path / name, options) for name in ("first", "again")]

    (digest,), scores = first
    assert first == again
    assert digest != hashlib.sha256(task.initial_model(OPTIONS.seed).tobytes()).hexdigest(), "the model moves"
    assert [each.keys() for each in scores] == [{metric.name for metric in task.metrics}] * OPTIONS.rounds
    assert task.name != "iris" or scores[-1]["accuracy"] > 0.8


def test_threads_draw_what_they_would_draw_alone() -> None:
    task = DRAWING["numpy client"]()
    learners = [task.learner(index=index, clients=4, seed=7) for index in range(4)]

    def fit(index: int) -> list[float]:
        found = learners[index].train(task.initial_model(7), steps=1, seed=index, progress=ignore)
        return list(found.theta)

    alone = [fit(index) for index in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(fit, range(4)))

    assert together == alone
    assert len({value for values in alone for value in values}) == 4 * 21, (
        "the generators do not draw alike, nor do clients"
    )


def test_global_generators_are_left_as_they_were() -> None:
    def throw_after(work: Callable[[], object]) -> list[float]:
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002  (As above.)
        torch.manual_seed(3)
        work()
        return throw()

    def break_off() -> None:
        with pytest.raises(LocalError):
            train(task_of(client_with(fit=lambda *_: [throw(), fail()])))

    untouched = throw_after(lambda: None)

    assert throw_after(lambda: train(DRAWING["numpy client"]())) == untouched
    assert throw_after(break_off) == untouched


def test_what_evaluation_draws_follows_from_the_secret_seed_of_the_last_training_alone() -> None:
    task = DRAWING["numpy client"]()
    theta = task.initial_model(7)
    learner = task.learner(index=0, clients=2, seed=7)
    first, again, second = (train(task, seed=seed).memory for seed in (1, 1, 2))

    scores = [learner.evaluate(theta, memory=memory)["loss"] for memory in (first, again, second, None, None)]

    assert scores[0] == scores[1]
    assert len(set(scores)) == 4, "before any training there is no secret to draw from, and no public seed serves"


# Tasks that cannot be -----------------------------------------------------------------------------------


def test_an_initial_model_that_raises_stays_at_home(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LocalError, match="RuntimeError in the Flower client's initial model") as caught:
        task_of(Softmax(), initial=lambda _seed: fail()).initial_model(7)

    assert SECRET not in str(caught.value)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


ONE = {"client": Softmax()}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "takes one of"),
    ({**ONE, "client_fn": client_fn}, "takes one of"),
    ({"app": Softmax()}, "ClientApp, not Softmax"),
    ({"app": make_message_app()}, "give initial"),
    ({**ONE, "config": {"model": object()}}, "config holds"),
    ({**ONE, "metrics": regression(0, 1)}, "from which r2 of one cannot be computed"),
    ({**ONE, "keep_local": [7]}, "there is no array 7; there are 0, 1"),
    ({**ONE, "initial": lambda _: [np.random.default_rng().random(3, np.float32)]}, "differs from call to call"),
    ({**ONE, "initial": lambda _: [np.ones(3, np.float16)]}, "array 0 is of float16"),
    ({**ONE, "initial": lambda _: [np.ones(3, np.complex64)]}, "array 0 is of complex64"),
    ({**ONE, "initial": lambda _: [np.arange(3)]}, "nothing to share"),
    ({**ONE, "initial": lambda _: [np.zeros((0, 3), np.float32)]}, "nothing to share"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_a_task_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FlowerTask("one", **options).count_parameters()


def test_one_client_object_is_not_shared_by_two_trainers() -> None:
    task = task_of(Softmax())
    task.learner(index=0, clients=2, seed=7)

    with pytest.raises(ConfigurationError, match="give client_fn"):
        task.learner(index=1, clients=2, seed=7)


# The package --------------------------------------------------------------------------------------------

IMPORT = """
import sys
import hubbub_trainer.flower, hubbub_trainer.service, hubbub_trainer.learning.registry
assert not any(name.partition(".")[0] == "flwr" for name in sys.modules)
sys.modules["flwr"] = None
try:
    hubbub_trainer.flower.FlowerTask("one", client_fn=print)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_flwr_is_imported_by_a_task_and_not_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=HANG_S
    )

    assert done.stdout.startswith("ConfigurationError flwr is not installed; docs/flower.md")
