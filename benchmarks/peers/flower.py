"""Flower's SecAgg+ in this process: its own client mod and server workflow, with real messages between them.

Instead of a SuperLink there is a grid. It carries every message as the bytes that a deployment pushes and pulls
(flwr's objects, deflated and inflated), passes it to the client app, and carries the reply back likewise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

import flwr.compat.common.recorddict_compat as compat
import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict, UserConfig
from flwr.server import LegacyContext
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.peers.contest import Contest, PeerCost, check_error, name_versions
from benchmarks.peers.flower_app.secagg_round.client_app import app as client_app
from benchmarks.peers.flower_app.secagg_round.server_app import prepare
from benchmarks.peers.memory import MemoryWatch

T = TypeVar("T")

SYSTEM = "Flower SecAgg+"
THRESHOLD = 3
ROUNDS = 2
"""Only the second counts: from then on the model sent to clients has the float64 values that SecAgg+ returns."""
# One step of SecAgg+'s defaults: a clipping range of 8 to both sides in 2^22 steps. It rounds at random.
_STEP = 2 * 8.0 / 2**22
_SERVER, _RUN, _FIRST_NODE = 1, 1, 1000


@dataclass(slots=True)
class _Reading:
    client_s: float = 0.0
    client_wire_s: float = 0.0
    server_wire_s: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(slots=True)
class CountingGrid(Grid):
    """Grid that passes messages to the clients one after the other, and records the cost of each part."""

    contexts: dict[int, Context]
    reading: _Reading = field(default_factory=_Reading)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        del timeout
        return [self._carry(message) for message in messages]

    def _carry(self, message: Message) -> Message:
        noted = self.reading
        (name, contents), took_s = _timed(lambda: _deflate(message))
        noted.server_wire_s += took_s
        noted.down_bytes += sum(map(len, contents.values()))
        request, took_s = _timed(lambda: _inflate(name, contents))
        noted.client_wire_s += took_s
        reply, took_s = _timed(lambda: client_app(request, self.contexts[request.metadata.dst_node_id]))
        noted.client_s += took_s
        (name, replied), took_s = _timed(lambda: _deflate(reply))
        noted.client_wire_s += took_s
        noted.up_bytes += sum(map(len, replied.values()))
        received, took_s = _timed(lambda: _inflate(name, replied))
        noted.server_wire_s += took_s
        return received

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    began_s = time.process_time()
    result = call()
    return result, time.process_time() - began_s


def _deflate(message: Message) -> tuple[str, dict[str, bytes]]:
    """Serialise a message as flwr's HttpGrid pushes it: each object in it as bytes, under their hash."""
    with no_object_id_recompute():
        name = message.object_id
        message.metadata.__dict__["_message_id"] = name
        return name, {each: part.deflate() for each, part in get_all_nested_objects(message).items()}


def _inflate(name: str, contents: dict[str, bytes]) -> Message:
    message = cast("Message", inflate_object_from_contents(name, contents))
    message.metadata.__dict__["_message_id"] = name
    return message


def measure_flower(contest: Contest) -> PeerCost:
    """Run two rounds in which all clients are each other's neighbours, and measure the second."""
    memory = MemoryWatch()
    with _as_server():
        reading, legacy, spent_s, wall_s = _run_rounds(contest)
    mean = legacy.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()[0]
    error = float(np.abs(mean * contest.clients - contest.add_up()).max())
    return PeerCost(
        system=SYSTEM,
        version=name_versions("flwr"),
        setting=f"in process, {contest.clients} shares, threshold {THRESHOLD}, 22 bits, mod 2^32",
        parameters=contest.parameters,
        clients=contest.clients,
        up_bytes=reading.up_bytes,
        down_bytes=reading.down_bytes,
        client_s=reading.client_s / contest.clients,
        server_s=spent_s - reading.client_s - reading.client_wire_s - reading.server_wire_s,
        client_wire_s=reading.client_wire_s / contest.clients,
        server_wire_s=reading.server_wire_s,
        wall_s=wall_s,
        memory_bytes=memory.grown_bytes(),
        largest_error=check_error(SYSTEM, error, allowed_error(contest.clients)),
        allowed_error=allowed_error(contest.clients),
        measured=contest.parameters,
    )


def allowed_error(clients: int) -> float:
    """Return the error allowed in a sum: a step of each client, and float32's rounding of the weighted update."""
    return clients * _STEP * 1.01


def _run_rounds(contest: Contest) -> tuple[_Reading, LegacyContext, float, float]:
    config: UserConfig = {
        "folder": str(contest.folder),
        "clients": contest.clients,
        "rounds": ROUNDS,
        "num-shares": contest.clients,
        "reconstruction-threshold": THRESHOLD,
    }
    grid = CountingGrid(
        {
            _FIRST_NODE + place: Context(
                _RUN, _FIRST_NODE + place, {"partition-id": place}, state=RecordDict(), run_config=config
            )
            for place in range(contest.clients)
        }
    )
    legacy, workflow = prepare(Context(_RUN, _SERVER, {}, state=RecordDict(), run_config=config))
    for node in grid.contexts:
        legacy.client_manager.register(GridClientProxy(node, grid, _RUN))
    initial = legacy.strategy.initialize_parameters(legacy.client_manager)
    if initial is None:
        raise AssertionError("the strategy was given initial parameters")
    legacy.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(initial, keep_input=True)
    settings = legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord()
    for number in range(1, ROUNDS + 1):
        grid.reading = _Reading()
        settings[Key.CURRENT_ROUND] = number
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        workflow(grid, legacy)
        spent_s, wall_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
    return grid.reading, legacy, spent_s, wall_s


@contextmanager
def _as_server() -> Iterator[None]:
    """Act as the server's task, in whose name Flower's messages are made; silence its log of every round."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN, _SERVER, _SERVER
    try:
        yield
    finally:
        logger.setLevel(level)
