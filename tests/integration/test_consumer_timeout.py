"""A broker that takes a consumer for dead which does not acknowledge in time, and phases that take longer.

RabbitMQ closes the channel of such a consumer and delivers all that it held again, and again. So nobody here holds
an acknowledgement while training, adding or waiting for somebody else.
"""

import asyncio
import errno
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import SumChunk
from hubbub.messages.shares import ShareChunk
from hubbub.runtime import spool
from hubbub.runtime.runner import Transition
from hubbub.transport.base import ACK, Delivery, Handler, Transport, Verdict
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import DELIVERY_LIMIT, Topology, inbox, merge, route, topology_for
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import Federation, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from support.broker import declared
from support.frames import decode
from support.held_task import HeldTask, Silence
from support.live_coordinator import manifest_of
from support.parties import parties_of
from support.plain_run import run_plainly
from support.private_node import PrivateNode
from support.twins import PAUSE, Recorder, listening_for, new_party

pytestmark = pytest.mark.broker

TIMEOUT_S = float(os.environ.get("HUBBUB_CONSUMER_TIMEOUT_S", "3"))
"""After which the broker here gives a consumer up; it looks every half second."""
PHASE_S = 2.5 * TIMEOUT_S
PREFETCH = 8
TASK = SyntheticTask(10_007)
SEED, DEMO_SEED = 7, 11


@pytest.fixture(scope="module")
def impatient_url(private_node: PrivateNode) -> Iterator[str]:
    """A node that gives consumers up early; by itself it looks once a minute, and does so after half an hour."""

    def set_limits(timeout_ms: int, look_ms: int) -> None:
        limits = {"consumer_timeout": timeout_ms, "channel_tick_interval": look_ms}
        calls = [f"application:set_env(rabbit, {name}, {value})" for name, value in limits.items()]
        private_node.ctl("eval", f"{', '.join(calls)}.")

    set_limits(round(1_000 * TIMEOUT_S), 500)
    yield private_node.url
    set_limits(1_800_000, 60_000)


class CountingTransport(RabbitMqTransport):
    """Notes every delivery before anybody else sees it."""

    def __init__(self, url: str, topology: Topology, deliveries: list[Delivery]) -> None:
        super().__init__(url, topology, retry_pause=PAUSE)
        self._deliveries = deliveries

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = PREFETCH) -> None:
        async def count(delivery: Delivery) -> Verdict:
            self._deliveries.append(delivery)
            return await handler(delivery)

        await super().subscribe(queue, count, prefetch=prefetch)


def draw_up() -> Manifest:
    return manifest_of(TASK, seed=SEED, strategy="sec-union", q=3, chunk_bytes=256)


@asynccontextmanager
async def start(
    manifest: Manifest, url: str, deliveries: list[Delivery], folder: Path, **how: Any
) -> AsyncIterator[Federation]:
    """A federation over the broker, whose deliveries are noted."""
    parties = parties_of(manifest)

    def connect(_: PartyId, topology: Topology) -> Transport:
        return CountingTransport(url, topology, deliveries)

    async with (
        declared(url, merge(topology_for(party.name, party.role) for party in parties.roster.parties)),
        start_federation(
            manifest, parties=parties, folder=folder, demo_seed=DEMO_SEED, connect=connect, **how
        ) as federation,
    ):
        yield federation


def most_chunks(deliveries: list[Delivery], kind: type[ShareChunk | SumChunk]) -> int:
    """Of how many chunks the longest vector was that one party sent another."""
    envelopes = [decode(delivery.body) for delivery in deliveries]
    indices = [each.body.index for each in envelopes if isinstance(each.body, kind)]
    return max(indices) + 1


def how_long_it_collected(moments: list[Transition]) -> float:
    """The time of the first round's first phase, from its order to its close."""
    first = [moment for moment in moments if moment.key.kind == "round"]
    closed = next(moment for moment in first if moment.after is rounds.State.RELEASING)
    return closed.at_s - first[0].at_s


async def test_disk_that_is_full_longer_than_the_brokers_patience_costs_no_message(
    impatient_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, deliveries = draw_up(), list[Delivery]()
    attempts, room, write = list[Path](), threading.Event(), spool._write

    def write_if_there_is_room(slot: Path, number: int, name: bytes, payload: bytes) -> None:
        if not room.is_set():
            attempts.append(slot)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(slot, number, name, payload)

    monkeypatch.setattr(spool, "_write", write_if_there_is_room)
    monkeypatch.setattr("hubbub.runtime.effects.PAUSE_S", PHASE_S / DELIVERY_LIMIT / 2)
    async with start(manifest, impatient_url, deliveries, tmp_path, load_task=lambda _: TASK) as federation:
        asyncio.get_running_loop().call_later(PHASE_S, room.set)
        state, _ = await federation.run(manifest)

    assert state is runs.State.COMPLETED
    assert len(attempts) > DELIVERY_LIMIT
    assert max(Counter(delivery.body for delivery in deliveries).values()) == 2, "each was given back once"


async def test_phase_longer_than_the_brokers_patience_delivers_every_chunk_once(
    impatient_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest, deliveries, moments = draw_up(), list[Delivery](), list[Transition]()
    silence = Silence((2, 1), patience_s=2 * PHASE_S)
    how = {"load_task": HeldTask(TASK, silence).load, "observer": moments.append}

    async with start(manifest, impatient_url, deliveries, tmp_path, **how) as federation:
        # The others have sent their shares long before, and all aggregators wait for this client.
        asyncio.get_running_loop().call_later(PHASE_S, silence.lift_all)
        state, _ = await federation.run(manifest)
        digests = federation.model_digests(manifest)

    assert state is runs.State.COMPLETED
    assert how_long_it_collected(moments) > 2 * TIMEOUT_S
    assert most_chunks(deliveries, ShareChunk) > PREFETCH
    assert most_chunks(deliveries, SumChunk) > PREFETCH
    assert not any(delivery.redelivered for delivery in deliveries)
    assert set(Counter(delivery.body for delivery in deliveries).values()) == {1}
    assert "subscribing again" not in caplog.text
    plain = run_plainly(manifest, TASK, demo_seed=DEMO_SEED)
    for number in (1, 2):
        plain.play_round(number)
    assert set(digests.values()) == {plain.digest()}


async def test_consumer_that_holds_its_acknowledgement_is_given_up_and_served_again(impatient_url: str) -> None:
    """The test above would see this, were a delivery acknowledged only when the phase is over."""
    party, recorder, deliveries = new_party(), Recorder(), list[Delivery]()
    topology, given_up = topology_for(party, Role.AGGREGATOR), asyncio.Event()

    async def hold(delivery: Delivery) -> Verdict:
        await given_up.wait()
        await recorder(delivery)
        return ACK

    async with (
        declared(impatient_url, topology),
        CountingTransport(impatient_url, topology, deliveries) as transport,
    ):
        await transport.subscribe(inbox(party), hold)
        await transport.publish(route(Role.CLIENT, Role.AGGREGATOR, party), b"chunk")
        with listening_for("subscribing again") as ended:
            await ended.wait()
        given_up.set()
        await recorder.wait_for(2)

    assert [delivery.redelivered for delivery in deliveries] == [False, True]
