"""An aggregator in a run: what it joins, and which one phase it accepts at a time."""

import pytest

from hubbub.ids import PartyId
from hubbub.machine.effects import Publish
from hubbub.machine.table import step
from hubbub.messages.runs import RunJoined, RunRefused
from hubbub.strategies.registry import STRATEGIES
from hubbub_aggregator.events import Ended, PhaseEnded, Proposed
from hubbub_aggregator.phases.membership import TRANSITIONS, Membership, State
from support.builders import make_manifest
from support.two_phases import NAME, TwoPhases

MANIFEST = make_manifest()
ME = MANIFEST.aggregators[0]
MEMBERS = frozenset(MANIFEST.clients)


def test_joins_what_names_it_and_says_so_again_when_asked_again() -> None:
    first = step(TRANSITIONS, State.INVITED, Membership(me=ME, manifest=MANIFEST), Proposed())
    assert first.state is State.JOINED
    again = step(TRANSITIONS, first.state, first.data, Proposed())
    for result in (first, again):
        answer = result.effects[-1]
        assert isinstance(answer, Publish)
        assert (answer.to, answer.body) == (MANIFEST.coordinator, RunJoined())
    assert again.data == first.data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Membership(me=PartyId("somebody"), manifest=MANIFEST), "is not among the manifest's aggregators"),
        (Membership(me=ME, manifest=make_manifest(strategy="magic")), "does not know the strategy magic"),
        (Membership(me=ME, manifest=MANIFEST, stale=True), "a run is joined once"),
    ],
)
def test_refuses_with_a_reason(data: Membership, why: str) -> None:
    result = step(TRANSITIONS, State.INVITED, data, Proposed())
    assert result.state is State.REFUSED
    (answer,) = result.effects
    assert isinstance(answer, Publish)
    assert isinstance(answer.body, RunRefused)
    assert why in answer.body.reason


def ended(data: Membership, phase: str, members: frozenset[PartyId], *, number: int = 1) -> Membership:
    event = PhaseEnded(round=number, phase=phase, members=members)
    result = step(TRANSITIONS, State.JOINED, data, event)
    assert result.state is State.JOINED
    return result.data


def test_a_released_round_opens_the_next_without_any_members() -> None:
    data = ended(Membership(me=ME, manifest=MANIFEST), "signs", MEMBERS)
    assert (data.round, data.phase, data.members) == (2, 0, frozenset())


def test_the_members_of_the_first_phase_bind_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, NAME, TwoPhases())
    data = ended(Membership(me=ME, manifest=make_manifest(strategy=NAME)), "count", MEMBERS)
    assert (data.round, data.phase, data.members) == (1, 1, MEMBERS)
    data = ended(data, "signs", MEMBERS)
    assert (data.round, data.phase, data.members) == (2, 0, frozenset())


@pytest.mark.parametrize("phase", ["count", "signs"])
def test_a_void_phase_ends_its_round(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    monkeypatch.setitem(STRATEGIES, NAME, TwoPhases())
    data = Membership(me=ME, manifest=make_manifest(strategy=NAME))
    if phase == "signs":
        data = ended(data, "count", MEMBERS)
    data = ended(data, phase, frozenset())
    assert (data.round, data.phase, data.members) == (2, 0, frozenset())


@pytest.mark.parametrize(
    ("strategy", "place", "names"),
    [
        ("sec-union", 0, ("union", "signs")),
        ("sec-union", 1, ("union", "signs")),
        ("plaintext-union", 0, ("union", "signs")),
        ("plaintext-union", 1, ("signs",)),
        ("fedavg", 0, ("update",)),
        ("fedavg", 1, ("update",)),
    ],
)
def test_the_phases_that_an_aggregator_takes_part_in(strategy: str, place: int, names: tuple[str, ...]) -> None:
    manifest = make_manifest(strategy=strategy)
    assert Membership(me=manifest.aggregators[place], manifest=manifest).phase_names == names


def test_who_takes_part_in_the_second_phase_alone_goes_from_round_to_round() -> None:
    manifest = make_manifest(strategy="plaintext-union")
    data = Membership(me=manifest.aggregators[1], manifest=manifest)
    assert ended(data, "signs", MEMBERS).round == 2
    assert ended(data, "union", frozenset()).round == 2, "a void of any phase ends the round"


def test_a_verdict_that_is_not_on_the_open_phase_changes_nothing() -> None:
    data = Membership(me=ME, manifest=MANIFEST, round=3)
    assert ended(data, "signs", MEMBERS, number=2) is data
    assert ended(data, "signs", MEMBERS, number=4) is data


@pytest.mark.parametrize("state", [State.INVITED, State.JOINED])
def test_the_coordinators_last_word_ends_it(state: State) -> None:
    result = step(TRANSITIONS, state, Membership(me=ME, manifest=MANIFEST), Ended())
    assert (result.state, result.effects) == (State.ENDED, ())
