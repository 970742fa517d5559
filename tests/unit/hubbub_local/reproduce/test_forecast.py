"""How long it will still take: rounds of the paper, scaled by what was seen so far."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hubbub_local.reproduce.forecast import Forecast, list_expected
from hubbub_local.reproduce.plan import Plan, list_methods, papers_settings
from support.reproduced import make_run

MNIST = papers_settings("mnist")
NO_UNION, LETTER = list_methods()["no-union"], list_methods()["sec-union-letter"]
PLAN = Plan(settings=MNIST, methods=[NO_UNION, LETTER], seeds=(0,))


def test_before_anything_is_known_it_is_the_papers_rounds_and_no_time() -> None:
    forecast = Forecast(PLAN)

    assert (forecast.done, forecast.left, forecast.left_s) == (0, 17 + 22, None)


def test_no_more_rounds_are_expected_than_are_allowed() -> None:
    forecast = Forecast(replace(PLAN, settings=replace(MNIST, max_rounds=5)))

    assert forecast.left == 10


def test_rounds_that_are_done_say_how_long_the_rest_takes() -> None:
    forecast = Forecast(PLAN)

    forecast.begin(NO_UNION, 0)
    forecast.note_round(2.0, 1)
    forecast.note_round(4.0, 2)
    forecast.note_part(0.5)

    assert (forecast.done, forecast.left) == (2.5, 14.5 + 22)
    assert forecast.left_s == pytest.approx(3.0 * 36.5)


def test_a_quicker_run_makes_all_others_be_expected_quicker() -> None:
    forecast = list_expected(PLAN, [make_run("no-union", accuracies=[0.9] * 8)])

    assert forecast.left == pytest.approx(22 * 8 / 17)


def test_a_run_that_takes_longer_than_expected_has_a_round_left() -> None:
    forecast = Forecast(replace(PLAN, methods=[NO_UNION]))

    forecast.begin(NO_UNION, 0)
    forecast.note_round(1.0, 20)

    assert forecast.left == 1


def test_what_was_cut_off_is_still_to_be_done() -> None:
    cut_off = replace(make_run("no-union", accuracies=[0.5]), finished=False)

    assert list_expected(PLAN, [cut_off]).left == 17 + 22
