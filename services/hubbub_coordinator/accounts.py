"""What a round came to: accuracy, time, and communication measured against the formula."""

from __future__ import annotations

from dataclasses import dataclass

from hubbub.protocol.costs import Headcount, fedavg_bits
from hubbub.strategies.registry import find_strategy
from hubbub_coordinator.phases.round import Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Communication that counts as one thing (union, signs, factors), over all parties and both directions."""

    payload_bits: int
    predicted_bits: int
    wire_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A released round in numbers."""

    round: int
    accuracy: float
    loss: float
    members: tuple[str, ...]
    union_size: int
    costs: dict[str, Cost]
    fedavg_bits: int
    training_s: float
    evaluation_s: float
    protocol_s: float


def accuracy(data: Round) -> float | None:
    """Correct answers over all slices of the test set, as reported; None before anybody has."""
    total = sum(report.total for report in data.applied.values())
    return sum(report.correct for report in data.applied.values()) / total if total else None


def union_size(data: Round) -> int | None:
    """|V|, known from what the last phase released."""
    if data.phase + 1 < len(data.phases) or not data.records or not data.record.released:
        return None
    released = [claim.vector for claim in data.record.released]
    return find_strategy(data.manifest.strategy).union_size(released)


def costs(data: Round) -> dict[str, Cost]:
    """Measured so far, beside the formula of the wire mode for as many senders and recipients as there were."""
    rows = [row for _, row in data.traffic]
    predicted = predict(data)
    return {
        name: Cost(
            payload_bits=sum(row.payload_bits for row in rows if row.counts_as == name),
            predicted_bits=predicted.get(name, 0),
            wire_bytes=sum(row.wire_bytes for row in rows if row.counts_as == name),
        )
        for name in dict.fromkeys([*predicted, *(row.counts_as for row in rows)])
    }


def predict(data: Round) -> dict[str, int]:
    """Payload by the formula, by what it counts as; nothing while |V| is not known."""
    size = union_size(data)
    if size is None:
        return {}
    strategy, parameters = find_strategy(data.manifest.strategy), data.manifest.protocol_parameters
    everybody = Headcount.complete(len(data.manifest.cohort), len(data.manifest.aggregators))
    return {
        name: strategy.predict_bits(parameters, _count_heads(data, name), size)[name]
        for name in strategy.predict_bits(parameters, everybody, size)
    }


def _count_heads(data: Round, name: str) -> Headcount:
    """Who sent and who received what counts as this."""
    senders = {
        party
        for party, row in data.traffic
        if row.counts_as == name and row.direction == "up" and row.payload_bits
    }
    return Headcount(
        cohort=len(data.manifest.cohort),
        senders=len(senders),
        recipients=len(data.manifest.cohort),
        servers=len(data.manifest.aggregators),
    )


def account(data: Round) -> Account:
    """The whole account of a round that was released."""
    reports = data.applied.values()
    total = sum(report.total for report in reports)
    training_s = max((report.training_s for report in reports), default=0.0)
    evaluation_s = max((report.evaluation_s for report in reports), default=0.0)
    elapsed_s = (data.ended_at_s or data.began_at_s) - data.began_at_s
    return Account(
        round=data.number,
        accuracy=accuracy(data) or 0.0,
        loss=sum(report.loss * report.total for report in reports) / total if total else 0.0,
        members=tuple(client for client in data.manifest.clients if client in data.members),
        union_size=union_size(data) or 0,
        costs=costs(data),
        fedavg_bits=fedavg_bits(data.manifest.parameters, len(data.manifest.cohort)),
        training_s=training_s,
        evaluation_s=evaluation_s,
        protocol_s=max(0.0, elapsed_s - training_s - evaluation_s),
    )
