"""One secure round by the size of the model, over memory and RabbitMQ, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.contest import PeerCost, draw_up_contest
from benchmarks.peers.hubbub_rounds import measure_hubbub
from benchmarks.peers.measuring import Call, call_apart
from benchmarks.steps import CLIENTS

STRATEGY = "sec-union"
NO_TAGS = "memory, no tags"
"""The row that tells what tags cost: the same round over memory without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesPlan:
    """Which models, and how many rounds of each, of which the first is left out."""

    rounds: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRound:
    """What a round cost over one transport."""

    transport: str
    cost: PeerCost


def measure_sizes(
    plan: SizesPlan, transports: Mapping[str, str | None], say: Callable[[str], None], call: Call = call_apart
) -> list[SizedRound]:
    """Each size over each transport, and over memory without tags; None is memory, otherwise a broker's URL."""
    found = []
    for parameters, rounds in plan.rounds.items():
        with draw_up_contest(parameters, CLIENTS) as contest:
            for name, url in transports.items():
                say(f"A secure round over {name}, N = {parameters:,}")
                cost = call(partial(measure_hubbub, contest, STRATEGY, count=rounds, amqp_url=url))
                found.append(SizedRound(transport=name, cost=cost))
            say(f"A secure round over {NO_TAGS}, N = {parameters:,}")
            cost = call(partial(measure_hubbub, contest, STRATEGY, count=rounds, verified=False))
            found.append(SizedRound(transport=NO_TAGS, cost=cost))
    return found
