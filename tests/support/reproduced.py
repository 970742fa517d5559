"""Runs as `hubbub reproduce` keeps them, made up."""

from __future__ import annotations

from collections.abc import Sequence

from hubbub_local.reproduce.plan import list_methods
from hubbub_local.reproduce.records import RoundRecord, RunRecord

PARTIES = ("aggregator-1", "aggregator-2", "client-1", "client-2", "coordinator")


def make_round(
    number: int, accuracy: float, *, union_size: int = 1000, payload_bits: int = 8 * 2**20
) -> RoundRecord:
    return RoundRecord(
        round=number,
        accuracy=accuracy,
        loss=1.0,
        union_size=union_size,
        payload_bits=payload_bits,
        predicted_bits=payload_bits,
        wire_bytes=payload_bits // 8 + 100,
        wall_s=2.0,
        protocol_cpu_s=dict(zip(PARTIES, (0.3, 0.0, 0.1, 0.2, 0.05), strict=True)),
        training_cpu_s=4.0,
        evaluation_cpu_s=1.0,
        process_cpu_s=10.0,
        attributed_cpu_s=9.0,
    )


def make_run(
    name: str, *, seed: int = 0, accuracies: Sequence[float] = (0.5, 0.99), target: float = 0.98
) -> RunRecord:
    method = list_methods()[name]
    return RunRecord(
        name=name,
        strategy=method.strategy,
        q=method.q,
        feedback=method.feedback,
        block=method.block,
        seed=seed,
        finished=True,
        reached=accuracies[-1] >= target,
        model_sha256=f"{name} {seed}",
        by_round=tuple(make_round(number, accuracy) for number, accuracy in enumerate(accuracies, start=1)),
    )
