"""CPU seconds by party: on the loop and in threads, waiting left out, training taken apart."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from hubbub.runtime.telemetry import context
from hubbub_local.reproduce.measuring import BOOKKEEPING, PROTOCOL, TRAINING, Meter
from support.aio import aio

WORK_S = 0.03
LITTLE_S = 0.01
"""More than what it takes to begin and end tasks and threads."""


def compute(seconds: float = WORK_S) -> None:
    """Use the processor for as long, by this thread's own clock."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


async def compute_on_the_loop() -> None:
    compute()
    await asyncio.sleep(0)
    compute()


@aio
async def test_work_on_the_loop_and_in_threads_is_the_partys_that_asked_for_it() -> None:
    meter = Meter()
    meter.install(asyncio.get_running_loop())

    with context(party="client-1"):
        one = asyncio.create_task(compute_on_the_loop())
    with context(party="aggregator-1"):
        two = asyncio.create_task(asyncio.to_thread(compute))
    await asyncio.gather(one, two)

    spent = meter.read().by_party(PROTOCOL)
    assert spent["client-1"] == pytest.approx(2 * WORK_S, abs=LITTLE_S)
    assert spent["aggregator-1"] == pytest.approx(WORK_S, abs=LITTLE_S)


@aio
async def test_waiting_costs_nothing() -> None:
    meter = Meter()
    meter.install(asyncio.get_running_loop())
    done = threading.Event()

    with context(party="client-1"):
        waiting = asyncio.create_task(asyncio.to_thread(done.wait))
    await asyncio.to_thread(compute)
    done.set()
    await waiting

    assert meter.read().by_party(PROTOCOL)["client-1"] < LITTLE_S


def test_a_block_inside_another_is_taken_off_it() -> None:
    meter = Meter()

    with context(party="client-1"), meter.timing(PROTOCOL):
        compute()
        with meter.timing(TRAINING):
            compute(2 * WORK_S)

    spent = meter.read()
    assert spent.total(PROTOCOL) == pytest.approx(WORK_S, abs=LITTLE_S)
    assert spent.total(TRAINING) == pytest.approx(2 * WORK_S, abs=LITTLE_S)


def test_what_was_saved_counts_as_training_but_nobody_computed_it_here() -> None:
    meter = Meter()

    with context(party="client-1"):
        meter.add_saved(TRAINING, 5.0)

    spent = meter.read()
    assert spent.by_party(TRAINING) == {"client-1": 5.0}
    assert spent.attributed_s == 0.0


def test_a_reading_since_another_has_only_what_came_between() -> None:
    meter = Meter()
    with context(party="client-1"), meter.timing(PROTOCOL):
        compute()
    before = meter.read()

    with context(party="client-2"), meter.timing(PROTOCOL):
        compute()

    spent = meter.read().since(before)
    assert spent.by_party(PROTOCOL)["client-1"] == 0.0
    assert spent.by_party(PROTOCOL)["client-2"] == pytest.approx(WORK_S, abs=LITTLE_S)
    assert spent.process_s >= WORK_S


def test_bookkeeping_has_no_party_and_is_known_all_the_same() -> None:
    meter = Meter()

    with meter.timing(BOOKKEEPING):
        compute()

    assert meter.read().by_party(BOOKKEEPING) == {}
    assert meter.read().attributed_s == pytest.approx(WORK_S, abs=LITTLE_S)


@aio
async def test_what_a_task_raises_or_is_cancelled_with_comes_through() -> None:
    Meter().install(asyncio.get_running_loop())

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("as it was")

    async def clean_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "cleaned up"
        return ""

    cancelled = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    cancelled.cancel()

    with pytest.raises(ValueError, match="as it was"):
        await asyncio.create_task(fail())
    assert await cancelled == "cleaned up"
