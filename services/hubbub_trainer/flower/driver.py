"""Driver of a Flower client: sends it flwr's own messages, handled by flwr's own `ClientApp`.

There are two dialects. A client that was made by a `client_fn` gets what a Flower server sends to a `NumPyClient`;
an app of `@app.train()` and `@app.evaluate()` gets arrays and a config, as from the strategies of
`flwr.serverapp`. A client is made anew for every message, as Flower does, and its context's state is empty.

A client's code runs one call at a time in the whole process, and before each call the global generators are
seeded: they belong to the process, and clients that ran at once would draw from each other's.

An exception or log line of a client may show its data. Its traceback goes to the log of this trainer and no
further: the error that leaves here names the exception's class alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from hubbub.errors import ConfigurationError, LocalError
from hubbub_trainer.flower.layout import Arrays
from hubbub_trainer.learning.own_code import OWN_CODE, seeded

log = logging.getLogger(__name__)

Setting: TypeAlias = bool | int | float | str | bytes
"""A value in a config, in either dialect."""

HOW_TO_INSTALL = "flwr is not installed; docs/flower.md has the two lines that install it"
_SEE_LOG = "this trainer's log says more"
_NODE_OF_SERVER, _RUN = 1, 1
_TTL_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Names under which a client returns its metrics."""

    accuracy: str
    loss: str
    examples: str


@dataclass(frozen=True, slots=True)
class Place:
    """Index of a client and the number of clients, as Flower's simulation passes them."""

    index: int
    clients: int


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Result of training. It tells of the data, so it does not print."""

    arrays: Arrays
    examples: object

    def __repr__(self) -> str:
        return f"<Fitted: {len(self.arrays)} arrays>"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Result of evaluation, not checked yet."""

    loss: object
    examples: object
    metrics: Mapping[str, object]


def load(name: str) -> Any:  # flwr is optional, so a type checker may not have its types.
    """Import a module of flwr; raise `ConfigurationError`, which says how to install it, if it is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "flwr":
            raise ConfigurationError(HOW_TO_INSTALL) from None
        raise ConfigurationError(f"flwr needs {error.name}: docs/flower.md says how to install both") from None


@contextmanager
def asking(what: str, *, seed: int | None) -> Iterator[None]:
    """Run the client's code and read its answers; an error that leaves names the exception's class alone.

    Only one thread does so at a time. Without a seed the global generators are left as they are.
    """
    try:
        with OWN_CODE, ExitStack() as stack:
            if seed is not None:
                stack.enter_context(seeded(seed))
            yield
    except LocalError:
        raise
    except (Exception, SystemExit) as error:
        log.exception("the Flower client failed in %s", what)
        # Nothing of the error's own text: it may show data, and this goes to the coordinator.
        raise LocalError(f"{type(error).__name__} in the Flower client's {what}: {_SEE_LOG}") from None


class _AnyLoss:
    """A `NumPyClient` that may return anything for its loss; flwr refuses what is no float, such as None or 0."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Evaluate, and return NaN for a loss that is not a number."""
        found = self._client.evaluate(parameters, config)
        if not isinstance(found, tuple):
            return found
        loss, *rest = found
        return (float(loss) if isinstance(loss, Real) else math.nan, *rest)


def wrap_clients(client_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that makes each client a `Client`, whether `client_fn` returns that or a `NumPyClient`."""
    numpy_client = load("flwr.client").NumPyClient

    def make_client(context: Any) -> Any:
        client = client_fn(context)
        if isinstance(client, numpy_client):
            # flwr does the same, and complains each time.
            client = client.to_client()
        inner = getattr(client, "numpy_client", None)
        if isinstance(inner, numpy_client):
            client.numpy_client = _AnyLoss(inner)
        return client

    return make_client


class Driver:
    """Driver of one `ClientApp`, or of the clients that a function makes."""

    def __init__(
        self, app: Any, client_fn: Callable[[Any], Any] | None, *, run_config: Mapping[str, Setting], keys: Keys
    ) -> None:
        self._make_client = None if client_fn is None else wrap_clients(client_fn)
        self._app = load("flwr.clientapp").ClientApp(client_fn=self._make_client) if app is None else app
        self._run_config = run_config
        self._keys = keys
        # An app does not say which dialect it speaks. This is None unless it has a client_fn.
        self._has_clients = self._app._call is not None  # noqa: SLF001

    def can_evaluate(self, place: Place) -> bool:
        """Return whether there is something to evaluate with; True if that cannot be told without a client's data.

        It does not depend on data: all parties with the same code find the same.
        """
        if not self._has_clients:
            return "evaluate.default" in self._app._registered_funcs  # noqa: SLF001  (As above.)
        if self._make_client is None:
            return True
        try:
            with OWN_CODE, seeded(0):
                client = self._make_client(self._make_context(place))
        except (Exception, SystemExit):  # noqa: BLE001  (It fails again, and is logged, when the client is used.)
            return True
        return type(client).evaluate is not load("flwr.client").Client.evaluate

    def ask_parameters(self, place: Place, config: Mapping[str, Setting], *, seed: int) -> Arrays:
        """Ask for the client's own parameters; none if it has no way to give them."""
        if not self._has_clients:
            return {}
        content = {"getparametersins.config": load("flwr.app").ConfigRecord(dict(config))}
        with asking("get_parameters", seed=seed):
            reply = self._ask("get_parameters", place, content)
            if reply.config_records["getparametersres.status"]["code"] != 0:
                return {}
            return _read_arrays(reply.array_records["getparametersres.parameters"])

    def fit(self, place: Place, arrays: Arrays, config: Mapping[str, Setting], *, seed: int) -> Fitted:
        """Let the client train from a model."""
        with asking("training", seed=seed):
            reply = self._ask("train", place, self._tell("fit", arrays, config))
            if not self._has_clients:
                records = list(reply.array_records.values())
                if len(records) != 1:
                    raise LocalError(
                        f"the Flower client's train answers with {len(records)} array records: answer with one"
                    )
                return Fitted(_read_arrays(records[0]), _merge(reply.metric_records).get(self._keys.examples))
            _check_status(reply, "fit")
            examples = reply.metric_records["fitres.num_examples"]["num_examples"]
            return Fitted(_read_arrays(reply.array_records["fitres.parameters"]), examples)

    def evaluate(
        self, place: Place, arrays: Arrays, config: Mapping[str, Setting], *, seed: int | None
    ) -> Evaluated:
        """Let the client score a model."""
        with asking("evaluation", seed=seed):
            reply = self._ask("evaluate", place, self._tell("evaluate", arrays, config))
            if not self._has_clients:
                metrics = _merge(reply.metric_records)
                return Evaluated(metrics.get(self._keys.loss), metrics.get(self._keys.examples), metrics)
            _check_status(reply, "evaluate")
            return Evaluated(
                reply.metric_records["evaluateres.loss"]["loss"],
                reply.metric_records["evaluateres.num_examples"]["num_examples"],
                dict(reply.config_records["evaluateres.metrics"]),
            )

    def _tell(self, what: str, arrays: Arrays, config: Mapping[str, Setting]) -> dict[str, object]:
        flwr = load("flwr.app")
        named = {name: flwr.Array(array) for name, array in arrays.items()}
        names = (f"{what}ins.parameters", f"{what}ins.config") if self._has_clients else ("arrays", "config")
        return dict(zip(names, (flwr.ArrayRecord(named), flwr.ConfigRecord(dict(config))), strict=True))

    def _ask(self, message_type: str, place: Place, content: Mapping[str, object]) -> Any:
        flwr = load("flwr.app")
        # Made by hand: `Message` would ask for a SuperNode's task, and there is none.
        metadata = flwr.Metadata(
            run_id=_RUN,
            message_id="",
            src_node_id=_NODE_OF_SERVER,
            dst_node_id=_node_of(place),
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=_TTL_S,
            message_type=message_type,
        )
        message = flwr.Message(content=flwr.RecordDict(dict(content)), metadata=metadata)
        reply = self._app(message, self._make_context(place))
        if reply.has_error():
            log.error("the Flower client answered %s with an error: %s", message_type, reply.error)
            raise LocalError(f"the Flower client answered {message_type} with an error: {_SEE_LOG}")
        return reply.content

    def _make_context(self, place: Place) -> Any:
        flwr = load("flwr.app")
        return flwr.Context(
            run_id=_RUN,
            node_id=_node_of(place),
            node_config={"partition-id": place.index, "num-partitions": place.clients},
            state=flwr.RecordDict(),
            run_config=dict(self._run_config),
        )


def _node_of(place: Place) -> int:
    return _NODE_OF_SERVER + 1 + place.index


def _check_status(reply: Any, what: str) -> None:
    if reply.config_records[f"{what}res.status"]["code"] != 0:
        raise LocalError(f"the Flower client has no {what}, or its {what} gave a status other than OK")


def _read_arrays(record: Any) -> Arrays:
    return {name: np.asarray(array.numpy()) for name, array in record.items()}


def _merge(records: Any) -> dict[str, object]:
    return {name: value for record in records.values() for name, value in record.items()}
