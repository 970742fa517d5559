"""Views of runs and rounds."""

from dataclasses import replace

import pytest

from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ScoreClaim
from hubbub.protocol.metrics import Trend
from hubbub.rest import HeadlineView
from hubbub_coordinator.api.views import view_round, view_run
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import PhaseRecord, State
from hubbub_coordinator.phases.run import ADVICE, USUAL_PATIENCE, CoordinatorRun
from support.builders import make_manifest
from support.coordinator_play import REGRESSED, make_round
from support.coordinator_scene import REPORT


def test_a_phase_says_who_combines_it_where_somebody_does() -> None:
    """Round 2 begins with aggregator-1, and who combines moves on by one from phase to phase."""
    manifest = make_manifest(strategy="sec-union", wire="compact")
    records = (PhaseRecord(opened_at_s=1.0), PhaseRecord(opened_at_s=2.0))
    data = make_round(manifest, 2, phase=1, records=records)
    in_full = replace(data, manifest=make_manifest(strategy="sec-union", wire="paper"))

    compact, paper = view_round(State.COLLECTING, data), view_round(State.COLLECTING, in_full)

    assert [phase.combiner for phase in compact.phases] == ["aggregator-1", "aggregator-2"]
    assert [phase.combiner for phase in paper.phases] == [None, None]


def test_scores_are_shown_by_name_and_without_a_sum_they_are_void_and_the_round_is_not() -> None:
    manifest = make_manifest(min_clients=2, metrics=REGRESSED)
    claims = (ScoreClaim(name="r2", value=0.5), ScoreClaim(name="mse", value=4.0))
    closed = PhaseRecord(opened_at_s=2.0, closed_at_s=3.0)
    data = make_round(
        manifest,
        is_scored=True,
        phase=1,
        records=(PhaseRecord(opened_at_s=1.0, closed_at_s=1.5, released_at_s=2.0), closed),
        applied=dict.fromkeys(manifest.clients, REPORT),
    )
    summed = replace(
        data,
        records=(data.records[0], replace(closed, released_at_s=4.0)),
        reported=dict.fromkeys(manifest.clients, claims),
    )

    void, released = view_round(State.RELEASED, data), view_round(State.RELEASED, summed)

    assert [(phase.name, phase.state) for phase in void.phases] == [("signs", "released"), ("scores", "void")]
    assert (void.metrics, void.applied) == ({}, list(manifest.clients))
    assert [phase.state for phase in released.phases] == ["released", "released"]
    assert released.metrics == {"r2": 0.5, "mse": 4.0}


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({}, HeadlineView(name="mse", higher_is_better=False)),
        ({"scores": "none"}, None),
        ({"evaluate_every": 0}, None),
    ],
)
def test_a_run_says_which_metric_counts(changes: dict[str, object], headline: HeadlineView | None) -> None:
    described = make_manifest(metrics=REGRESSED[1:]).model_dump()
    target = None if changes else 2.5
    manifest = Manifest.model_validate({**described, **changes, "target": target})
    run = CoordinatorRun(manifest=manifest, metrics={"mse": 4.0})

    view = view_run(manifest.run_id, runs.State.RUNNING, run, None)

    assert view.headline == headline
    assert (view.target, view.metrics) == (target, {"mse": 4.0})


def test_a_run_says_that_it_is_stalled_also_after_its_end() -> None:
    manifest = make_manifest(metrics=REGRESSED[1:])
    moving = CoordinatorRun(manifest=manifest, trend=Trend(best=4.0, since_best=USUAL_PATIENCE - 1))
    stalled = replace(moving, trend=Trend(best=4.0, since_best=USUAL_PATIENCE))

    views = [
        view_run(manifest.run_id, state, run, None)
        for state in (runs.State.RUNNING, runs.State.COMPLETED)
        for run in (moving, stalled)
    ]

    why = f"mse was no better than 4 in the last {USUAL_PATIENCE} scored rounds; {ADVICE}"
    assert [view.stalled for view in views] == ["", why, "", why]
