"""Where a round's time went, by the steps of trainers in the same process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hubbub.machine.effects import Key
from hubbub.runtime.runner import Transition
from hubbub_coordinator.accounts import Account
from hubbub_local.demo_screen import Durations, Stopwatch
from hubbub_trainer.events import Evaluated, Trained
from hubbub_trainer.phases.round import State
from support.builders import make_manifest

RUN = make_manifest().run_id
ACCOUNT = Account(round=1, metrics={}, members=(), union_size=0, costs={}, fedavg_bits=0, round_s=10.0)


def step(event: object, number: int = 1) -> Transition:
    key = Key("round", RUN, number)
    return Transition(1, key, State.TRAINING, event, State.SHARING, None, 0.0, None)


def test_the_slowest_client_counts_and_the_rest_is_the_protocols() -> None:
    stopwatch = Stopwatch()
    for event in (
        Trained(training_s=2.0),
        Trained(training_s=3.0),
        Evaluated(evaluation_s=1.5),
        Evaluated(evaluation_s=0.5),
    ):
        stopwatch.observe(step(event))
    stopwatch.observe(step(Trained(training_s=9.0), number=2))

    assert stopwatch.split(RUN, ACCOUNT) == Durations(training_s=3.0, evaluation_s=1.5, protocol_s=5.5)


@pytest.mark.parametrize("round_s", [0.0, 2.0])
def test_the_protocol_never_takes_less_than_no_time(round_s: float) -> None:
    stopwatch = Stopwatch()
    stopwatch.observe(step(Trained(training_s=3.0)))

    assert stopwatch.split(RUN, replace(ACCOUNT, round_s=round_s)).protocol_s == 0
