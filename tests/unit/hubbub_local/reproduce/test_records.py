"""A round as it is kept: the paper's own vectors are counted, and nothing that it does not have."""

from __future__ import annotations

import pytest

from hubbub.errors import ProtocolError
from hubbub_coordinator.accounts import Account, Cost
from hubbub_local.reproduce.measuring import Reading
from hubbub_local.reproduce.records import ADDITIONS, record_round

NOTHING_SPENT = Reading({}, 0.0, 0.0)


def make_account(metrics: dict[str, float], *counted: str) -> Account:
    return Account(
        round=3,
        metrics=metrics,
        members=(),
        union_size=7,
        costs={name: Cost(payload_bits=100, predicted_bits=90, wire_bytes=20) for name in counted},
        fedavg_bits=0,
        round_s=0.0,
    )


def test_what_the_paper_does_not_send_is_left_out() -> None:
    account = make_account({"accuracy": 0.5, "loss": 2.0}, "union", "signs", "factors", *ADDITIONS)

    record = record_round(account, NOTHING_SPENT, 1.0)

    assert (record.payload_bits, record.predicted_bits, record.wire_bytes) == (300, 270, 100)
    assert (record.accuracy, record.loss) == (0.5, 2.0)


def test_a_round_without_an_accuracy_is_none_of_the_papers() -> None:
    with pytest.raises(ProtocolError, match="round 3 has no accuracy"):
        record_round(make_account({"loss": 2.0}, "signs"), NOTHING_SPENT, 1.0)
