from dataclasses import replace

import pytest

from hubbub.machine.effects import Key
from hubbub_coordinator.api import round_views
from hubbub_coordinator.api.round_views import FEW, RoundViews
from hubbub_coordinator.api.views import RoundView, view_round
from hubbub_coordinator.phases.round import PhaseRecord, Round, State
from support.aio import aio
from support.builders import make_manifest

MANIFEST = make_manifest(clients=3, servers=2)
ENDED = [
    (State.VOID, Round(run=Key("run", MANIFEST.run_id), number=number, manifest=MANIFEST, reason="too few"))
    for number in range(1, FEW + 3)
]


def test_a_phase_says_who_combines_it_where_somebody_does() -> None:
    """Round 2 begins with aggregator-1, and who combines moves on by one from phase to phase."""
    manifest = make_manifest(clients=3, servers=2, strategy="sec-union", wire="compact")
    records = (PhaseRecord(opened_at_s=1.0), PhaseRecord(opened_at_s=2.0))
    data = Round(run=Key("run", manifest.run_id), number=2, manifest=manifest, phase=1, records=records)
    in_full = replace(data, manifest=make_manifest(clients=3, servers=2, strategy="sec-union", wire="paper"))

    compact, paper = view_round(State.COLLECTING, data), view_round(State.COLLECTING, in_full)

    assert [phase.combiner for phase in compact.phases] == ["aggregator-1", "aggregator-2"]
    assert [phase.combiner for phase in paper.phases] == [None, None]


@pytest.fixture
def viewed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds that were viewed, one by one."""
    numbers: list[int] = []

    def view(state: State, data: Round) -> RoundView:
        numbers.append(data.number)
        return view_round(state, data)

    monkeypatch.setattr(round_views, "view_round", view)
    return numbers


@aio
async def test_a_round_that_is_over_is_viewed_once(viewed: list[int]) -> None:
    views = RoundViews()

    first = await views.view(ENDED)
    again = await views.view(ENDED[1:4])

    assert [view.round for view in first] == [data.number for _, data in ENDED]
    assert again == first[1:4]
    assert viewed == [data.number for _, data in ENDED]


@aio
async def test_a_round_that_goes_on_is_viewed_anew(viewed: list[int]) -> None:
    views, (_, data) = RoundViews(), ENDED[2]

    await views.view([(State.COLLECTING, data)])
    (view,) = await views.view([(State.VOIDING, replace(data, reason="late"))])

    assert (view.state, view.reason) == ("voiding", "late")
    assert viewed == [3, 3]


@aio
async def test_what_was_asked_for_last_is_held(viewed: list[int]) -> None:
    views, (first, second, third, *_) = RoundViews(held=2), ENDED

    for each in (first, second, first, third, first, second):
        await views.view([each])

    assert viewed == [1, 2, 3, 2]
