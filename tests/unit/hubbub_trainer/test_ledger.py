"""Runs that began from a model: claimed, counted, given up, and never forgotten once they count."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import ConfigurationError, LocalError
from hubbub.ids import PartyId, RunId
from hubbub_trainer.fingerprint import PART_VALUES, Fingerprint
from hubbub_trainer.ledger import Claim, Ledger, explain_refusal

ONE, TWO, THREE, BEFORE = (RunId(digit * 64) for digit in "1234")
COHORT = (PartyId("north"), PartyId("south"))
SIZE = 4 * PART_VALUES


def draw(seed: int) -> Fingerprint:
    return Fingerprint.of(np.random.default_rng(seed).random(SIZE, dtype=np.float32), [SIZE])


MODEL, OTHER = draw(0), draw(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger(path)
    yield opened
    opened.close()


def claim(
    ledger: Ledger,
    run: RunId,
    model: Fingerprint | None = MODEL,
    *,
    limit: int = 1,
    predecessor: RunId | None = None,
) -> Claim:
    return ledger.claim(run, model, cohort=COHORT, predecessor=predecessor, limit=limit)


def test_one_run_begins_from_a_model_and_no_other_unless_the_policy_allows_more(ledger: Ledger) -> None:
    assert claim(ledger, ONE).granted
    assert claim(ledger, ONE).granted, "it may ask again, after a restart"

    second = claim(ledger, TWO)

    assert (second.granted, [each.run for each in second.earlier]) == (False, [ONE])
    assert [claim(ledger, run, limit=2).granted for run in (TWO, THREE)] == [True, False]
    assert claim(ledger, THREE, OTHER).granted


def test_a_run_that_ends_before_anything_left_gives_its_model_up(ledger: Ledger) -> None:
    claim(ledger, ONE)
    claim(ledger, TWO, OTHER)
    ledger.give_up(ONE)

    assert [entry.model for entry in ledger.list_entries()] == [OTHER.model]
    assert claim(ledger, THREE).granted
    ledger.keep_only({THREE})  # After a restart only open runs have claims.
    assert not claim(ledger, ONE).granted
    assert claim(ledger, ONE, OTHER).granted
    with pytest.raises(LocalError, match="does not know this run"):
        ledger.count(TWO)  # So nothing is sent for it.


def test_a_run_that_sent_a_share_counts_for_ever(ledger: Ledger, path: Path) -> None:
    claim(ledger, ONE)
    ledger.count(ONE)
    ledger.count(ONE)
    ledger.give_up(ONE)
    ledger.keep_only(set())

    again = Ledger(path)

    assert not claim(again, TWO).granted
    ((entry,), (run,)) = again.list_entries(), again.list_entries()[0].runs
    assert (entry.voids, entry.allowed, run.run, run.cohort, run.counted) == (0, 0, ONE, COHORT, True)
    again.close()


def test_a_model_that_shares_most_of_its_parts_is_no_other_model(ledger: Ledger) -> None:
    theta = np.random.default_rng(0).random(SIZE, dtype=np.float32)
    theta[0] += 1
    near = Fingerprint.of(theta, [SIZE])
    claim(ledger, ONE)

    assert near.model != MODEL.model
    assert not claim(ledger, TWO, near).granted


def test_runs_that_go_on_from_one_run_begin_from_one_model_known_or_not(ledger: Ledger) -> None:
    assert claim(ledger, ONE, None, predecessor=BEFORE).granted
    assert not claim(ledger, TWO, None, predecessor=BEFORE).granted
    assert not claim(ledger, TWO, OTHER, predecessor=BEFORE).granted
    assert claim(ledger, THREE, OTHER, predecessor=RunId("9" * 64)).granted
    ledger.give_up(THREE)

    assert claim(ledger, ONE, MODEL, predecessor=BEFORE).granted, "now its model has come"
    assert not claim(ledger, TWO, MODEL).granted
    assert not claim(ledger, TWO, None, predecessor=BEFORE).granted


# The owner's word ---------------------------------------------------------------------------------------


def test_the_owner_allows_more_runs_from_one_model_alone(ledger: Ledger) -> None:
    for run, model in ((ONE, MODEL), (TWO, OTHER)):
        claim(ledger, run, model)

    for wanted, problem in (("zz", "no model begins with 'zz'"), ("", "2 models begin with ''")):
        with pytest.raises(ConfigurationError, match=f"{problem}: the ledger has .*{MODEL.model[:12]}"):
            ledger.allow(wanted)
    assert ledger.allow(MODEL.model[:12]).allowed == 2

    assert claim(ledger, THREE).granted
    assert not claim(ledger, RunId("5" * 64)).granted
    assert not claim(ledger, RunId("5" * 64), OTHER).granted
    assert ledger.allow(MODEL.model, 9).allowed == 9
    successors = [RunId(digit * 64) for digit in "56"]
    assert claim(ledger, successors[0], MODEL, predecessor=BEFORE).granted
    assert claim(ledger, successors[1], None, predecessor=BEFORE).granted, "also while its model is not here yet"


def test_a_refusal_says_who_was_before_what_it_costs_and_what_the_owner_may_do(ledger: Ledger) -> None:
    assert explain_refusal(claim(ledger, ONE), 1) == ""

    text = explain_refusal(claim(ledger, TWO), 1)

    assert f"the same model as run {ONE[:12]} of north, south, and 1 may begin there" in text
    assert "subtract to your update" in text
    assert "a manifest with a fresh seed" in text
    assert f"`hubbub ledger allow {MODEL.model[:12]}`" in text
    claim(ledger, TWO, None, predecessor=BEFORE)
    unknown = claim(ledger, THREE, None, predecessor=BEFORE)
    assert "max_runs_per_model in the policy file" in explain_refusal(unknown, 1)


# Void rounds --------------------------------------------------------------------------------------------


def test_void_rounds_are_counted_by_model_across_runs_each_once(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.note_void([MODEL.model], run=ONE, number=3)
    ledger.note_void([MODEL.model], run=TWO, number=3)

    assert ledger.count_voids(MODEL.model, run=TWO, but_not=0) == 2
    assert ledger.count_voids(MODEL.model, run=TWO, but_not=3) == 1
    assert ledger.count_voids(OTHER.model, run=TWO, but_not=0) == 0


def test_models_that_count_as_one_have_all_of_each_others_void_rounds(ledger: Ledger) -> None:
    ledger.note_void([MODEL.model], run=ONE, number=1)
    ledger.note_void([MODEL.model, OTHER.model], run=ONE, number=None)
    assert ledger.count_voids(OTHER.model, run=ONE, but_not=0) == 1

    ledger.note_void([MODEL.model, OTHER.model], run=ONE, number=2)

    assert {ledger.count_voids(each.model, run=ONE, but_not=0) for each in (MODEL, OTHER)} == {2}


def test_a_run_finds_the_void_rounds_of_its_model_and_too_many_keep_it_out(ledger: Ledger) -> None:
    """Whether an earlier run began there, or only came by."""
    for number in (1, 2):
        ledger.note_void([MODEL.model], run=BEFORE, number=number)

    found = claim(ledger, ONE)

    assert (found.granted, found.voids) == (True, 2)
    assert explain_refusal(found, 2) == ""
    assert "2 rounds of the model that this run begins from were void" in explain_refusal(found, 1)
