"""Runs as `hubbub reproduce` keeps them, made up."""

from __future__ import annotations

from collections.abc import Sequence

from hubbub_local.reproduce.records import RoundRecord, RunRecord

PARTIES = ("aggregator-1", "aggregator-2", "client-1", "client-2", "coordinator")


def make_run(name: str, *, seed: int = 0, accuracies: Sequence[float] = (0.5, 0.99)) -> RunRecord:
    """A finished run to 98 % of which every round cost 1 MiB."""
    rounds = [
        RoundRecord(
            round=number,
            accuracy=accuracy,
            union_size=1000,
            payload_bits=8 * 2**20,
            predicted_bits=8 * 2**20,
            wire_bytes=2**20 + 100,
            protocol_cpu_s=dict(zip(PARTIES, (0.3, 0.0, 0.1, 0.2, 0.05), strict=True)),
            training_cpu_s=4.0,
        )
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    reached = accuracies[-1] >= 0.98
    return RunRecord(name=name, seed=seed, finished=True, reached=reached, by_round=tuple(rounds))
