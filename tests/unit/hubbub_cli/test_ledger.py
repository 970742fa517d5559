"""`hubbub ledger`: what the owner of a trainer sees of its models, and allows."""

import json
from pathlib import Path

import numpy as np
import pytest

from hubbub.ids import PartyId, RunId
from hubbub_trainer.fingerprint import Fingerprint
from hubbub_trainer.ledger import Ledger
from support.command_line import Hubbub

MODEL = Fingerprint.of(np.arange(9, dtype=np.float32), [9])
FIRST, SECOND = RunId("1" * 64), RunId("2" * 64)
COHORT = (PartyId("north"), PartyId("south"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a trainer that has sent a share in one run and is about to begin another."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for run in (FIRST, SECOND):
        ledger.claim(run, MODEL, cohort=COHORT, predecessor=None, limit=2)
    ledger.count(FIRST)
    ledger.note_void([MODEL.model], run=FIRST, number=3)
    ledger.close()
    return tmp_path


def test_it_shows_models_runs_cohorts_and_void_rounds(hubbub: Hubbub, folder: Path) -> None:
    shown = hubbub("ledger", "show", "--folder", folder, columns=120).check_done()

    for part in (
        MODEL.model[:12],
        FIRST[:12],
        f"{SECOND[:12]} (nothing sent)",
        "north, south",
        "as the policy says",
    ):
        assert part in shown
    (told,) = json.loads(hubbub("ledger", "show", "--folder", folder, "--json").check_done())["models"]
    assert told == {
        "model": MODEL.model,
        "runs": [
            {"run": FIRST, "cohort": list(COHORT), "counted": True},
            {"run": SECOND, "cohort": list(COHORT), "counted": False},
        ],
        "void_rounds": 1,
        "allowed": None,
    }


@pytest.mark.parametrize(("options", "allowed"), [((), 3), (("--runs", "9"), 9)])
def test_it_allows_more_runs_and_says_what_they_cost(
    hubbub: Hubbub, folder: Path, options: tuple[str, ...], allowed: int
) -> None:
    said = hubbub("ledger", "allow", MODEL.model[:12], *options, "--folder", folder, columns=120).check_done()

    assert f"2 began, {allowed} may" in said
    assert "subtract to your update" in said
    assert "96 % of its signs" in said
    (told,) = json.loads(hubbub("ledger", "show", "--folder", folder, "--json").check_done())["models"]
    assert told["allowed"] == allowed


def test_a_folder_without_a_ledger_is_left_as_it_is(hubbub: Hubbub, tmp_path: Path) -> None:
    complaint = f"there is no ledger in {tmp_path}: name the folder of a trainer"
    hubbub("ledger", "show", "--folder", tmp_path).check_refused(complaint)
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_that_began_nothing_has_an_empty_ledger(hubbub: Hubbub, tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()

    assert "No run has begun here." in hubbub("ledger", "show", "--folder", tmp_path).check_done()
