"""Task and learner of a Flower client."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, LocalError
from hubbub.protocol.metrics import CLASSIFICATION, Metric, Scores, check_metrics
from hubbub_trainer.flower.driver import Driver, Evaluated, Keys, Place, Setting, asking, load
from hubbub_trainer.flower.layout import Arrays, Kept, Layout
from hubbub_trainer.learning.own_code import derive_seed
from hubbub_trainer.learning.task import (
    ProgressCallback,
    RoundLearner,
    TaskFailed,
    Theta,
    Training,
    check_client,
    check_scores,
    check_theta,
)

log = logging.getLogger(__name__)

Initial = Callable[[int], Sequence[NDArray[np.generic]] | Arrays]
"""Makes the initial model from the manifest's public seed; it may return flwr's `ArrayRecord`."""

_SEEDS = 1 << 63
"""A config holds signed integers of 64 bits, and so does torch.manual_seed."""
_TEMPLATE = Place(index=0, clients=1)
"""The client to ask for the initial model, which is the same for all clients."""
_HOW_TO_SCORE = (
    "FlowerTask(accuracy=..., loss=...) takes the client's names for these, metrics=[...] declares others, and "
    "with metrics=() the client is not evaluated"
)


class FlowerTask:
    """A Flower client as a task; exactly one of `client_fn`, `client` and `app` is given.

    `client_fn` makes a client from a context, as in Flower; `client` is an existing client, for a process with one
    trainer; `app` is a `ClientApp`. `initial` makes the initial model from the public seed. Without it the
    client's `get_parameters` is called, with the seed in its config; it must return the same bits at every party.
    The global generators of Python, numpy and torch are seeded with it, too.
    `pace` is what the demo says of a round's training: a client may take no notice of `local_steps` in its config.
    `config` is added to the client's config in every round, `run_config` is its context's.

    A Flower client returns means over its examples, so `metrics` are of the kind `mean`. Each is looked up by its
    name in the client's results; `accuracy`, `loss` and `examples` are the client's names for these. Without
    `metrics` these are accuracy and loss, and the client need not return a loss, or none if it cannot evaluate.
    """

    def __init__(
        self,
        name: str,
        *,
        client_fn: Callable[[Any], Any] | None = None,
        client: Any = None,
        app: Any = None,
        initial: Initial | None = None,
        keep_local: Collection[int | str] = (),
        config: Mapping[str, Setting] | None = None,
        run_config: Mapping[str, Setting] | None = None,
        metrics: Sequence[Metric] | None = None,
        accuracy: str = "accuracy",
        loss: str = "loss",
        examples: str = "num-examples",
        pace: str = "one fit of your client",
    ) -> None:
        if sum(each is not None for each in (client_fn, client, app)) != 1:
            raise ConfigurationError("a FlowerTask takes one of client_fn, client and app")
        self.name = name
        self.pace = pace
        self._given_metrics = None if metrics is None else _check_metrics(name, metrics)
        self._keys = Keys(accuracy=accuracy, loss=loss, examples=examples)
        self._driver = Driver(
            _check_app(app),
            (lambda _context: client) if client is not None else client_fn,
            run_config=dict(run_config or {}),
            keys=self._keys,
        )
        self._only_one = client is not None
        self._index: int | None = None
        self._initial = initial
        self._keep_local = frozenset(str(each) for each in keep_local)
        self._config = _check_config(config or {})
        self._making = Lock()
        self._made: dict[int, Arrays] = {}
        self._layout: Layout | None = None

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that were given; else accuracy and loss, or none if the client cannot evaluate."""
        if self._given_metrics is not None:
            return self._given_metrics
        return CLASSIFICATION if self._driver.can_evaluate(_TEMPLATE) else ()

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The shared arrays, in the order in which θ holds them."""
        pieces = self._layout_of(self._initial_arrays(0)).pieces
        return {piece.name: piece.shape for piece in pieces if piece.shared}

    def count_parameters(self) -> int:
        """Return N: the elements of all arrays that are shared."""
        return self._layout_of(self._initial_arrays(0)).parameters

    def initial_model(self, seed: int) -> Theta:
        """Flatten the initial arrays."""
        arrays = self._initial_arrays(seed)
        return self._layout_of(arrays).flatten(arrays)

    def learner(self, *, index: int, clients: int, seed: int) -> FlowerLearner:
        """Make the learner of one client. The client itself is made when it is first used."""
        check_client(index, clients)
        if self._only_one and self._index not in {None, index}:
            raise ConfigurationError(
                f"the task {self.name} has one client object, and two trainers of this process want it: give "
                "client_fn instead"
            )
        self._index = index
        arrays = self._initial_arrays(seed)
        return FlowerLearner(
            self._driver,
            place=Place(index, clients),
            initial=arrays,
            layout=self._layout_of(arrays),
            config=self._config,
            metrics=self.metrics,
            may_lack_loss=self._given_metrics is None,
            keys=self._keys,
        )

    def _layout_of(self, arrays: Arrays) -> Layout:
        layout = Layout.of(arrays, local=self._keep_local)
        if self._layout not in {None, layout}:
            raise ConfigurationError(f"the initial model of {self.name} has another shape for another seed")
        self._layout = layout
        return layout

    def _initial_arrays(self, seed: int) -> Arrays:
        with self._making:
            if seed not in self._made:
                first, second = self._make_arrays(seed), self._make_arrays(seed)
                if not _same_bits(first, second):
                    raise ConfigurationError(
                        f"the initial model of {self.name} differs from call to call, and all parties must begin "
                        "with the same bits: draw it from the global generators, which are seeded, or from "
                        'config["seed"] in get_parameters, or give initial'
                    )
                self._made[seed] = first
            return self._made[seed]

    def _make_arrays(self, seed: int) -> Arrays:
        if self._initial is not None:
            with asking("initial model", seed=seed):
                return _name_arrays(self._initial(seed))
        found = self._driver.ask_parameters(_TEMPLATE, {**self._config, "seed": seed % _SEEDS}, seed=seed)
        if not found:
            raise ConfigurationError(
                f"the client of {self.name} gives no parameters: write get_parameters, or give initial, a "
                "function that makes the initial arrays from a seed"
            )
        return found


class FlowerLearner(RoundLearner):
    """Learner of one Flower client. It keeps no model: local state between rounds is in the memory."""

    def __init__(
        self,
        driver: Driver,
        *,
        place: Place,
        initial: Arrays,
        layout: Layout,
        config: Mapping[str, Setting],
        metrics: tuple[Metric, ...],
        may_lack_loss: bool,
        keys: Keys,
    ) -> None:
        self._driver = driver
        self._place = place
        self._initial = initial
        self._layout = layout
        self._config = config
        self._metrics = metrics
        self._may_lack_loss = may_lack_loss
        self._keys = keys
        self._samples: int | None = None
        self._examples: int | None = None

    @property
    def samples(self) -> int:
        """The number of examples that the client said it trained on last.

        Before it has trained, in a run that weighs by samples, it is let train once, only to learn this number. It
        is 0 if that failed: a run does not end because of it.
        """
        if self._samples is None:
            theta = self._layout.flatten(self._initial)
            try:
                self.train(theta, steps=1, seed=0, progress=lambda _done, _steps: None)
            except LocalError as error:
                log.error("the client cannot train, so its number of samples is unknown: %s", error)  # noqa: TRY400  (As below.)
        return self._samples or 0

    @property
    def examples(self) -> int:
        """The number of examples on which the client says that it scores the initial model.

        It is 0 if there is nothing to score or if that failed: a run does not end because of it.
        """
        if not self._metrics:
            return 0
        if self._examples is None:
            try:
                found = self._ask(self._layout.flatten(self._initial), None)
                self._examples = _check_examples(found.examples, "evaluate", self._keys.examples)
            except LocalError as error:
                log.error("the initial model cannot be scored, so the number of examples is unknown: %s", error)  # noqa: TRY400  (As below.)
                return 0
        return self._examples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Let the client train. `local_steps` in its config is a request that it may ignore.

        Progress is reported at the beginning and at the end only, and only there can training be given up.
        """
        check_theta(theta, self._layout.parameters)
        kept = self._recall(memory)
        progress(0, steps)
        # Outside a run this client's own trainings are counted.
        number, rounds = self.place or (kept.round + 1, None)
        length = {} if rounds is None else {"rounds": rounds}
        told = self._tell(number, **length, local_steps=steps, seed=seed % _SEEDS)
        fitted = self._driver.fit(self._place, self._layout.join(theta, kept), told, seed=seed)
        arrays = self._layout.match(fitted.arrays)
        trained = self._layout.flatten(arrays)
        self._samples = _check_examples(fitted.examples, "train", self._keys.examples)
        progress(steps, steps)
        next_seed = int.from_bytes(derive_seed("evaluation", seed)[:16], "little")
        after = self._layout.keep(arrays, number=number, seed=next_seed)
        return Training(theta=trained, memory=self._layout.pack(after))

    def try_out(self, theta: Theta) -> None:
        """Try evaluation only: one call may train a client for any length of time."""
        scores, metrics = self.evaluate(theta), self._metrics
        if self._may_lack_loss and metrics and "loss" not in scores:
            log.warning(
                "the Flower client returns no loss, or one that is not finite: it is shown as the worst. %s",
                _HOW_TO_SCORE,
            )
            metrics = tuple(metric for metric in metrics if metric.name != "loss")
        try:
            check_scores(metrics, scores)
        except TaskFailed as error:
            raise TaskFailed(f"{error}; {_HOW_TO_SCORE}") from None

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Let the client score a model on its own data; anything it returns beside the metrics is dropped."""
        check_theta(theta, self._layout.parameters)
        if not self._metrics:
            return {}
        found = self._ask(theta, memory)
        examples = _check_examples(found.examples, "evaluate", self._keys.examples)
        means = {**found.metrics, "accuracy": found.metrics.get(self._keys.accuracy), "loss": found.loss}
        if self._may_lack_loss and not (isinstance(found.loss, int | float) and math.isfinite(found.loss)):
            del means["loss"]
        return {
            metric.name: (float(mean) * examples, examples)
            for metric in self._metrics
            if isinstance(mean := means.get(metric.name), int | float)
        }

    def _ask(self, theta: Theta, memory: Theta | None) -> Evaluated:
        kept = self._recall(memory)
        # Before the first training that counts there is no secret seed, and a public one could be guessed.
        seed = kept.seed if kept.round else None
        told = self._tell(kept.round)
        return self._driver.evaluate(self._place, self._layout.join(theta, kept), told, seed=seed)

    def _recall(self, memory: Theta | None) -> Kept:
        return (
            self._layout.keep(self._initial, number=0, seed=0) if memory is None else self._layout.unpack(memory)
        )

    def _tell(self, number: int, **settings: Setting) -> dict[str, Setting]:
        # "server-round" is what Flower's own strategies call it, and "server_round" what many servers did.
        return {"round": number, "server-round": number, "server_round": number, **settings, **self._config}


def _check_app(app: Any) -> Any:
    if app is not None and not isinstance(app, load("flwr.clientapp").ClientApp):
        raise ConfigurationError(f"app is to be flwr's ClientApp, not {type(app).__name__}")
    return app


def _check_metrics(task: str, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    check_metrics(metrics)
    wrong = [metric.name for metric in metrics if metric.kind != "mean"]
    if wrong:
        raise ConfigurationError(
            f"a Flower client returns means, from which {', '.join(wrong)} of {task} cannot be computed: leave "
            "the kind out, and the mean over the clients is taken"
        )
    return tuple(metrics)


def _check_config(config: Mapping[str, Setting]) -> dict[str, Setting]:
    try:
        load("flwr.app").ConfigRecord(dict(config))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"config holds what a Flower config cannot: {error}") from None
    return dict(config)


def _name_arrays(arrays: Any) -> Arrays:
    """Give arrays names, if they have none."""
    if hasattr(arrays, "to_numpy_ndarrays"):
        arrays = dict(zip(arrays.keys(), arrays.to_numpy_ndarrays(), strict=True))
    named = arrays if isinstance(arrays, Mapping) else {str(place): each for place, each in enumerate(arrays)}
    # Copies: the caller may train its own arrays in place later.
    return {str(name): np.asarray(array).copy() for name, array in named.items()}


def _same_bits(first: Arrays, second: Arrays) -> bool:
    return list(first) == list(second) and all(
        (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        for one, other in zip(first.values(), second.values(), strict=True)
    )


def _check_examples(examples: object, what: str, key: str) -> int:
    if isinstance(examples, bool) or not isinstance(examples, int):
        raise LocalError(f"the Flower client's {what} does not say how many examples it had: give it as {key}")
    if examples < 1:
        raise LocalError(f"the Flower client's {what} says that it had no examples: has it any data?")
    return examples
