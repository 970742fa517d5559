"""Results: kept whole, read again as they were, and never mixed with runs of other settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError, ProtocolError
from hubbub.rest import CostView
from hubbub_coordinator.accounts import Account
from hubbub_local.reproduce.plan import PAPERS
from hubbub_local.reproduce.records import ADDITIONS, FILE, RoundRecord, open_results
from support.reproduced import make_run

MNIST = PAPERS["mnist"]


def make_account(metrics: dict[str, float], *counted: str) -> Account:
    return Account(
        round=3,
        metrics=metrics,
        members=(),
        union_size=7,
        costs={name: CostView(payload_bits=100, predicted_bits=90, wire_bytes=20) for name in counted},
        fedavg_bits=0,
        fedavg_wire_bytes=0,
        secure_fedavg_wire_bytes=0,
        round_s=0.0,
    )


def test_what_the_paper_does_not_send_is_left_out_of_the_payload() -> None:
    account = make_account({"accuracy": 0.5}, "union", "signs", "factors", *ADDITIONS)

    record = RoundRecord.of(account, {}, 1.0)

    assert (record.payload_bits, record.predicted_bits, record.wire_bytes) == (300, 270, 100)


def test_a_round_without_an_accuracy_is_none_of_the_papers() -> None:
    with pytest.raises(ProtocolError, match="round 3 has no accuracy"):
        RoundRecord.of(make_account({"loss": 2.0}, "signs"), {}, 1.0)


def test_what_is_kept_is_read_again_and_a_later_state_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    results = open_results(tmp_path / "out", MNIST, resume=False)
    cut_off = replace(make_run("no-union", accuracies=[0.5]), finished=False)
    records = [make_run("sec-union-letter", seed=1, accuracies=[0.4]), make_run("no-union")]

    for record in (cut_off, *records):
        results.keep(record, tmp_path / "out")

    again = open_results(tmp_path / "out", MNIST, resume=True)
    assert again.results == records
    assert again.find("no-union", 1) is None
    kept = json.loads((tmp_path / "out" / FILE).read_text("utf-8"))["results"][0]
    assert (kept["strategy"], kept["feedback"], len(kept["by_round"])) == ("sec-union", "paper", 1)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    assert open_results(tmp_path / "empty", MNIST, resume=True).results == [], "an empty one is begun"
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(ConfigurationError, match=r"not empty.*--resume.*--out"):
        open_results(tmp_path, MNIST, resume=False)
    with pytest.raises(ConfigurationError, match=r"results\.json cannot be used: No such file"):
        open_results(tmp_path, MNIST, resume=True)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        open_results(tmp_path / "thesis.tex", MNIST, resume=False)


def test_other_settings_and_another_version_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_results(tmp_path, MNIST, resume=False).keep(make_run("no-union"), tmp_path)
    monkeypatch.setattr("hubbub_local.reproduce.records.__version__", "99.0")

    with pytest.raises(ConfigurationError) as refused:
        open_results(tmp_path, replace(MNIST, rho=0.2), resume=True)

    assert "--rho 0.2 instead of the usual" in str(refused.value)
    assert "hubbub 99.0 instead of" in str(refused.value)
    assert "--servers" not in str(refused.value)


@pytest.mark.parametrize("content", ["", "{", '{"settings": {}}', "[]"])
def test_a_damaged_file_is_told_in_a_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)

    with pytest.raises(ConfigurationError, match=r"is damaged \(\w[^\[]+\): choose another"):
        open_results(tmp_path, MNIST, resume=True)
