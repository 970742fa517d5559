"""One secure round by the size of the model, over memory and RabbitMQ, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.contest import PeerCost, draw_up_contest
from benchmarks.peers.hubbub_rounds import TRAINING, measure_hubbub
from benchmarks.peers.measuring import Call, call_apart
from benchmarks.steps import CLIENTS

STRATEGY = "sec-union"
TAGS, NO_TAGS = "memory, all of it", "memory, no tags"
"""Two rows that tell what tags cost a client: of all that it computes, with only training put aside."""


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
    """Each size over each transport, and with and without tags; a transport is a broker's URL, None is memory."""
    found = []
    for parameters, rounds in plan.rounds.items():
        with draw_up_contest(parameters, CLIENTS) as contest:
            for name, url in transports.items():
                say(f"A secure round over {name}, N = {parameters:,}")
                cost = call(partial(measure_hubbub, contest, STRATEGY, count=rounds, amqp_url=url))
                found.append(SizedRound(transport=name, cost=cost))
            for name, verified in ((TAGS, True), (NO_TAGS, False)):
                say(f"A secure round over {name}, N = {parameters:,}")
                measure = partial(measure_hubbub, contest, STRATEGY, count=rounds, aside=(TRAINING,))
                found.append(SizedRound(transport=name, cost=call(partial(measure, verified=verified))))
    return found
