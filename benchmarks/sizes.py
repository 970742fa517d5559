"""Cost of one secure round by the size of the model, over memory and RabbitMQ, each in a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.contest import PeerCost, draw_up_contest
from benchmarks.peers.hubbub_rounds import TRAINING, measure_hubbub
from benchmarks.peers.measuring import Call, call_apart
from benchmarks.steps import CLIENTS
from hubbub.protocol.metrics import CLASSIFICATION, Metric

STRATEGY = "sec-union"
SCORES, TAGS, NEITHER = "memory, tags and scores", "memory, tags", "memory, neither"
"""Rows that show the cost of tags and scores to a client: of all its work but training."""
ADDITIONS: dict[str, tuple[bool, tuple[Metric, ...]]] = {
    SCORES: (True, CLASSIFICATION),
    TAGS: (True, ()),
    NEITHER: (False, ()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesPlan:
    """Sizes of models, and the number of rounds of each, of which the first is left out."""

    rounds: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRound:
    """Cost of a round over one transport."""

    transport: str
    cost: PeerCost


def measure_sizes(
    plan: SizesPlan, transports: Mapping[str, str | None], say: Callable[[str], None], call: Call = call_apart
) -> list[SizedRound]:
    """Measure each size over each transport, and with and without tags and scores.

    A transport is a broker's URL, None is memory.
    """
    found = []
    for parameters, rounds in plan.rounds.items():
        with draw_up_contest(parameters, CLIENTS) as contest:
            for name, url in transports.items():
                say(f"A secure round over {name}, N = {parameters:,}")
                cost = call(partial(measure_hubbub, contest, STRATEGY, count=rounds, amqp_url=url))
                found.append(SizedRound(transport=name, cost=cost))
            for name, (verified, metrics) in ADDITIONS.items():
                say(f"A secure round over {name}, N = {parameters:,}")
                measure = partial(measure_hubbub, contest, STRATEGY, count=rounds, aside=(TRAINING,))
                cost = call(partial(measure, verified=verified, metrics=metrics))
                found.append(SizedRound(transport=name, cost=cost))
    return found
