"""Round accounting: metrics, time, and communication measured against the formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from pydantic import BaseModel

from hubbub.frame_costs import count_orders, count_sent
from hubbub.messages.shares import Direction
from hubbub.parameters import Parameters
from hubbub.protocol import tags
from hubbub.protocol.costs import Headcount, fedavg_bits, tags_bits
from hubbub.rest import CostView
from hubbub.strategies.registry import STRATEGIES, find_strategy
from hubbub.strategies.scores import SCORES, predict_bits
from hubbub_coordinator.phases.round import CoordinatorRound, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A released round in numbers."""

    round: int
    metrics: dict[str, float]
    """By name; empty if the round was not scored."""
    members: tuple[str, ...]
    union_size: int
    costs: dict[str, CostView]
    fedavg_bits: int
    fedavg_wire_bytes: int
    secure_fedavg_wire_bytes: int
    round_s: float
    """From its opening to its end, by the coordinator's clock."""


def costs(data: CoordinatorRound) -> dict[str, CostView]:
    """Return the cost so far by category, such as the signs: measured, and by formula for the actual senders."""
    rows = [row for _, row in data.traffic]
    predicted = predict(data)
    return {
        name: CostView(
            payload_bits=sum(row.payload_bits for row in rows if row.counts_as == name),
            predicted_bits=predicted.get(name, 0),
            wire_bytes=sum(row.wire_bytes for row in rows if row.counts_as == name),
        )
        for name in dict.fromkeys([*predicted, *(row.counts_as for row in rows)])
    }


def predict(data: CoordinatorRound) -> dict[str, int]:
    """Return the payload bits by category, by the formula of the run's wire mode; empty before the sum is out."""
    return _add_scores(data, _predict_strategy(data))


def _add_scores(data: CoordinatorRound, learning: Mapping[str, int]) -> dict[str, int]:
    scores = _predict_scores(data)
    return {name: learning.get(name, 0) + scores.get(name, 0) for name in {**learning, **scores}}


def _predict_scores(data: CoordinatorRound) -> dict[str, int]:
    record = data.find_record(SCORES.name)
    if record is None or not record.released:
        return {}
    heads = _count_heads(data, SCORES.name)
    parameters = data.manifest.protocol_parameters
    bits = {SCORES.name: predict_bits(data.manifest.score_sheet, heads, parameters.wire)}
    if parameters.verified:
        bits[tags.NAME] = tags_bits("integers", parameters.q, heads, parameters.wire)
    return bits


def _predict_strategy(data: CoordinatorRound) -> dict[str, int]:
    size = data.union_size
    if size is None:
        return {}
    strategy, parameters = find_strategy(data.manifest.strategy), data.manifest.protocol_parameters
    everybody = Headcount.complete(len(data.manifest.cohort), len(data.manifest.aggregators))
    bits = {
        name: strategy.predict_bits(parameters, _count_heads(data, name), size)[name]
        for name in strategy.predict_bits(parameters, everybody, size)
    }
    if tags.NAME in bits:
        # Several phases carry tags. A client that sent a phase's first vector has sent its tags.
        bits[tags.NAME] = strategy.predict_tags_bits(parameters, partial(_count_heads, data))
    return bits


def _count_heads(data: CoordinatorRound, name: str) -> Headcount:
    """Count the senders and recipients of one category of traffic."""
    senders = {
        party
        for party, row in data.traffic
        if row.counts_as == name and row.direction == "up" and row.payload_bits
    }
    everybody = Headcount.complete(len(data.manifest.cohort), len(data.manifest.aggregators))
    return replace(everybody, senders=len(senders))


def predict_others(data: CoordinatorRound) -> dict[str, int]:
    """Return this round's payload under every strategy, with the same wire mode, |V|, members and recipients.

    Scores are left out: they are the same under every strategy.

    Without a union phase nobody learns |V|. Then the other strategies are counted with its upper bound: all
    that the members chose. The result is empty before the round's last sum is out.
    """
    size = data.union_size
    if size is None:
        return {}
    parameters, mine = data.manifest.protocol_parameters, data.manifest.strategy
    heads = replace(
        Headcount.complete(len(data.manifest.cohort), len(data.manifest.aggregators)), senders=len(data.members)
    )
    largest = min(size, len(data.members) * parameters.kept)
    others = {
        name: sum(strategy.predict_bits(parameters, heads, largest).values())
        for name, strategy in STRATEGIES.items()
    }
    return {**others, mine: sum(_predict_strategy(data).values())}


class PartyTotalView(BaseModel):
    """Traffic of one category that one party reported in one direction, over all rounds."""

    counts_as: str
    party: str
    direction: Direction
    """`up` from clients to aggregators, `across` among aggregators, `down` to clients."""
    payload_bits: int
    wire_bytes: int


def split_by_party(data: CoordinatorRound) -> list[PartyTotalView]:
    """Return a round's reported payload bits and wire bytes by category, party and direction."""
    return _merge(PartyTotalView(party=party, **dict(row)) for party, row in data.traffic)


def _merge(rows: Iterable[PartyTotalView]) -> list[PartyTotalView]:
    """Add up the rows of the same category, party and direction."""
    found: dict[tuple[str, str, Direction], PartyTotalView] = {}
    for row in rows:
        key = (row.counts_as, row.party, row.direction)
        if key not in found:
            found[key] = row.model_copy()
        else:
            found[key].payload_bits += row.payload_bits
            found[key].wire_bytes += row.wire_bytes
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Totals over the rounds of a run, from the first to round `last`."""

    last: int = 0
    """Number of the last round that was added."""
    released: int = 0
    costs: Mapping[str, CostView] = field(default_factory=dict)
    parties: tuple[PartyTotalView, ...] = ()
    fedavg_bits: int = 0
    """Of released rounds only, like `others`."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Payload under every strategy."""


def add_up(sums: Sums, state: State, data: CoordinatorRound) -> Sums:
    """Add the next round to the totals."""
    nothing = CostView(payload_bits=0, predicted_bits=0, wire_bytes=0)
    added = {
        name: CostView(
            payload_bits=before.payload_bits + cost.payload_bits,
            predicted_bits=before.predicted_bits + cost.predicted_bits,
            wire_bytes=before.wire_bytes + cost.wire_bytes,
        )
        for name, cost in costs(data).items()
        for before in [sums.costs.get(name, nothing)]
    }
    released = state is State.RELEASED
    others = predict_others(data) if released else {}
    return Sums(
        last=data.number,
        released=sums.released + released,
        costs={**sums.costs, **added},
        parties=tuple(_merge((*sums.parties, *split_by_party(data)))),
        fedavg_bits=sums.fedavg_bits + (count_fedavg_bits(data) if released else 0),
        others={name: sums.others.get(name, 0) + others.get(name, 0) for name in {**sums.others, **others}},
    )


def count_fedavg_bits(data: CoordinatorRound) -> int:
    """Return the bits that uncompressed FedAvg takes for a round of the whole cohort."""
    return fedavg_bits(data.manifest.parameters, len(data.manifest.cohort))


def count_fedavg_bytes(data: CoordinatorRound, strategy: str = "fedavg") -> int:
    """Predict the bytes of all messages of such a round of FedAvg, scored if this one was.

    FedAvg is uncompressed: `fedavg` in the clear, or `secure-fedavg`.
    """
    run = data.manifest.protocol_parameters
    heads = Headcount.complete(run.clients, run.servers)
    payload = _add_scores(data, find_strategy(strategy).predict_bits(run, heads, run.model_size))
    return _predict_sent(strategy, tuple(payload.items()), run)


@lru_cache  # The rounds of a run ask for the same.
def _predict_sent(strategy: str, payload: tuple[tuple[str, int], ...], run: Parameters) -> int:
    return count_sent(strategy, dict(payload), run)


def count_all_bytes(data: CoordinatorRound) -> int:
    """Return the bytes of all messages so far: reported where they have payload; orders and such by formula."""
    names = frozenset(row.counts_as for _, row in data.traffic)
    return data.wire_bytes + count_orders(data.manifest.strategy, names, data.manifest.protocol_parameters)


def account(data: CoordinatorRound) -> Account:
    """Return the whole account of a released round."""
    return Account(
        round=data.number,
        metrics=data.metrics,
        members=tuple(client for client in data.manifest.clients if client in data.members),
        union_size=data.union_size or 0,
        costs=costs(data),
        fedavg_bits=count_fedavg_bits(data),
        fedavg_wire_bytes=count_fedavg_bytes(data),
        secure_fedavg_wire_bytes=count_fedavg_bytes(data, "secure-fedavg"),
        round_s=max(0.0, (data.ended_at_s or data.began_at_s) - data.began_at_s),
    )
