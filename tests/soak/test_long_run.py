"""What takes too long for every day: all transitions of all parties at all points, and two hundred rounds with
parties killed at random, over which memory and queues must stay as they are. `make soak` runs it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from hubbub.ids import PartyId, Role, RunId
from support.failpoints import Failpoint, Point
from support.one_process import run_in_one_process
from support.processes import ProcessFederation, SharedBroker, wait_until
from support.transitions import WHY_NOT, Row, is_certain, list_rows

SAMPLES = os.environ.get("HUBBUB_SOAK", "")
pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(not SAMPLES, reason="takes half an hour; HUBBUB_SOAK names the file for its measurements"),
]

DEMO_SEED = 7
RUN_S = 1800.0
ROUNDS = 200
ONE_IN = 4
"""Somebody is killed in one of so many rounds."""
LARGEST_PAUSE_S = 0.3
"""How long after a round has begun somebody may be killed: longer than it takes."""


def federation_at(url: str, folder: Path, *, forked: bool = False) -> ProcessFederation:
    return ProcessFederation(SharedBroker(url), folder, trainers=3, demo_seed=DEMO_SEED, forked=forked)


# Every transition ---------------------------------------------------------------------------------------


def plan_deaths(federation: ProcessFederation, point: Point) -> tuple[dict[PartyId, dict[Failpoint, Row]], int]:
    """Every party dies in every transition, in each round one of those that recur; and how many rounds it takes.

    What a run need not come by has its turn whenever it happens.
    """
    plan: dict[PartyId, dict[Failpoint, Row]] = {name: {} for name in federation.roles}
    number = 0
    for row in (row for row in list_rows() if row.event not in WHY_NOT):
        for name in (name for name, role in federation.roles.items() if role is row.role):
            due = row.recurs and is_certain(row)
            number += due
            failpoint = Failpoint(
                kind=row.kind, state=row.state, event=row.event, point=point, round=number if due else 0
            )
            plan[name][failpoint] = row
    return plan, number


@pytest.mark.parametrize("strategy", ["sec-union", "shared-mask"])
@pytest.mark.parametrize("point", list(Point))
def test_run_whose_parties_are_killed_at_every_transition_ends_with_the_model_of_one_process(
    amqp_url: str, tmp_path: Path, point: Point, strategy: str
) -> None:
    federation = federation_at(amqp_url, tmp_path, forked=True)
    federation.allow(strategy)
    plan, rounds = plan_deaths(federation, point)
    for name, failpoints in plan.items():
        federation.inject(name, list(failpoints))

    def certain_ahead() -> list[tuple[PartyId, Failpoint]]:
        federation.check_alive()
        pending = federation.pending()
        return [
            (name, failpoint)
            for name in pending
            for failpoint in pending[name]
            if is_certain(plan[name][failpoint])
        ]

    with federation:
        manifest = federation.draw_up(rounds=rounds + 2, strategy=strategy)
        run = federation.submit(manifest)
        digests = federation.finish(run, RUN_S)
        # The last deaths are over the news that the run has ended.
        wait_until(lambda: not certain_ahead(), f"everybody dies: {certain_ahead()}")

        assert federation.read_run(run).rounds_void == 0
        put_aside = asyncio.run(SharedBroker(amqp_url).dead_letters(federation.roster))
        assert not any(put_aside.values()), "a restart sends nothing that is refused"
    assert digests == run_in_one_process(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)


# Two hundred rounds -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """What is measured when a round is over: memory, then what waits, also for whoever was killed just now."""

    round: int
    killed: PartyId | None
    memory: dict[PartyId, int]
    waiting: dict[PartyId, int]


def follow(federation: ProcessFederation, broker: SharedBroker, run: RunId) -> Iterator[Sample]:
    """Measure round after round, and kill somebody now and then, somewhere in the round that has begun."""
    chance = random.Random(DEMO_SEED)
    for number in range(1, ROUNDS):
        federation.wait_for_round(run, number)
        memory = {name: service.read_memory() for name, service in federation.services.items()}
        victim = chance.choice(list(federation.roles)) if chance.randrange(ONE_IN) == 0 else None
        if victim is not None:
            time.sleep(chance.uniform(0, LARGEST_PAUSE_S))
            federation.kill(victim)
            federation.restart(victim)
        waiting = asyncio.run(broker.queue_lengths(federation.roster))
        yield Sample(number, victim, memory, waiting)


def test_two_hundred_rounds_with_random_kills_take_no_more_memory_and_leave_no_queue_behind(
    amqp_url: str, tmp_path: Path
) -> None:
    # Not forked, so that the memory of each process is its own from the first page on.
    broker, federation = SharedBroker(amqp_url), federation_at(amqp_url, tmp_path)
    with federation:
        manifest = federation.draw_up(rounds=ROUNDS)
        run = federation.submit(manifest)

        samples = list(follow(federation, broker, run))
        digests = federation.finish(run, RUN_S)

        left = asyncio.run(broker.queue_lengths(federation.roster))
    Path(SAMPLES).write_text(json.dumps([asdict(sample) for sample in samples]), encoding="utf-8")
    assert digests == run_in_one_process(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)
    assert sum(sample.killed is not None for sample in samples) > ROUNDS / ONE_IN / 2
    assert set(left.values()) == {0}
    third = len(samples) // 3
    for name, role in federation.roles.items():
        early, late = samples[third : 2 * third], samples[2 * third :]
        grown = max(each.memory[name] for each in late) - max(each.memory[name] for each in early)
        assert grown < allowance(role), f"{name} has grown by {grown} bytes in {third} rounds"
        # At most what two rounds put there: they go in order.
        assert max(each.waiting[name] for each in samples) <= 2 * len(federation.roles) ** 2


def allowance(role: Role) -> int:
    """How much memory may differ for reasons of its own; the coordinator keeps what it knows of every round."""
    return (16 if role is Role.COORDINATOR else 8) << 20
