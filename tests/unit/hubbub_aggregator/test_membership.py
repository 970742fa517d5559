"""An aggregator in a run: what it joins, whose keys it takes, and which one phase it accepts at a time."""

from dataclasses import replace

import pytest

from hubbub.errors import Code, Objection, PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import CountRefusal, Effect, Publish, Record
from hubbub.machine.table import Step, step
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.runs import RunJoined, RunReady, RunRefused
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.verified import Verified
from hubbub_aggregator.events import Ended, KeysArrived, PhaseEnded, Proposed
from hubbub_aggregator.phases.membership import TRANSITIONS, AcceptKeys, Membership, RememberRun, State
from support.builders import make_manifest, make_run_key
from support.two_phases import NAME, TwoPhases

MANIFEST = make_manifest()
ME = MANIFEST.aggregators[0]
MEMBERS = frozenset(MANIFEST.clients)
KEYS = KeysArrived(publics={ME: b"mine", MANIFEST.clients[0]: b"another's"}, keys_sha256="1" * 64)


def membership(manifest: Manifest = MANIFEST, me: PartyId = ME) -> Membership:
    """That of an aggregator which has nothing against the run and made its key for it."""
    return Membership(me=me, manifest=manifest, run_key=make_run_key(manifest, me))


def take(state: State, data: Membership, event: object) -> Step[State, Membership]:
    return step(TRANSITIONS, state, data, event)


def answers(effects: tuple[Effect, ...]) -> list[object]:
    """What the coordinator was told, and nobody else was told anything."""
    published = [effect for effect in effects if isinstance(effect, Publish)]
    assert {effect.to for effect in published} <= {MANIFEST.coordinator}
    return [effect.body for effect in published]


# Joining ------------------------------------------------------------------------------------------------


def test_joins_with_its_key_and_remembers_the_run_before_anybody_hears_of_it() -> None:
    data = membership()
    result = take(State.INVITED, data, Proposed())
    assert (result.state, result.data) == (State.PLEDGED, data)
    remembered, answer, recorded = result.effects
    assert remembered == RememberRun()
    assert answers((answer,)) == [RunJoined(run_key=make_run_key(MANIFEST, ME))]
    assert isinstance(recorded, Record)
    assert recorded.kind == "joined"
    assert recorded.fields["manifest"] == MANIFEST.model_dump(mode="json")
    assert recorded.fields["roster_sha256"] == MANIFEST.roster_sha256


def test_asked_again_before_the_keys_came_it_gives_the_same_key_again() -> None:
    data = membership()
    again = take(State.PLEDGED, data, Proposed())
    assert (again.state, again.data) == (State.PLEDGED, data)
    assert answers(again.effects) == [RunJoined(run_key=make_run_key(MANIFEST, ME))]
    assert len(again.effects) == 1


def test_asked_again_once_it_has_everybodys_keys_it_has_nothing_to_add() -> None:
    data = replace(membership(), publics=KEYS.publics, keys_sha256=KEYS.keys_sha256)
    assert take(State.JOINED, data, Proposed()) == Step(State.JOINED, data)


def test_refuses_with_the_first_code_and_logs_everything_that_it_has_against_the_run() -> None:
    objections = (
        Objection(Code.POLICY_ROSTER, "client-2 is not in the roster"),
        Objection(Code.POLICY_ROUNDS, "there are too many rounds"),
    )
    result = take(State.INVITED, Membership(me=ME, manifest=MANIFEST, objections=objections), Proposed())
    assert result.state is State.REFUSED
    assert answers(result.effects) == [RunRefused(code=Code.POLICY_ROSTER)]
    why = "client-2 is not in the roster; there are too many rounds"
    refusal = CountRefusal(RejectReason.RUN_REFUSED, "run-proposed", MANIFEST.coordinator, why)
    assert result.effects[1:] == (refusal,), "a run that was refused is counted, and not remembered"


# Keys ---------------------------------------------------------------------------------------------------


def test_everybodys_keys_make_it_ready() -> None:
    result = take(State.PLEDGED, membership(), KEYS)
    assert result.state is State.JOINED
    assert result.data == replace(membership(), publics=KEYS.publics, keys_sha256=KEYS.keys_sha256)
    accepted, ready, recorded = result.effects
    assert accepted == AcceptKeys(KEYS.publics)
    assert answers((ready,)) == [RunReady()]
    assert recorded == Record("keys", {"keys_sha256": KEYS.keys_sha256})


def test_the_same_keys_again_are_old_news_and_others_are_refused() -> None:
    joined = take(State.PLEDGED, membership(), KEYS).data
    assert take(State.JOINED, joined, KEYS) == Step(State.JOINED, joined)
    with pytest.raises(PeerError) as caught:
        take(State.JOINED, joined, replace(KEYS, keys_sha256="2" * 64))
    assert caught.value.reason is RejectReason.SECOND_KEY


# One phase at a time ------------------------------------------------------------------------------------


def ended(data: Membership, phase: str, members: frozenset[PartyId], *, number: int = 1) -> Membership:
    result = take(State.JOINED, data, PhaseEnded(round=number, phase=phase, members=members))
    assert result.state is State.JOINED
    return result.data


def test_a_released_round_opens_the_next_without_any_members() -> None:
    data = ended(membership(), "signs", MEMBERS)
    assert (data.round, data.phase, data.members) == (2, 0, frozenset())


def test_the_members_of_the_first_phase_bind_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, NAME, Verified(TwoPhases()))
    data = ended(membership(make_manifest(strategy=NAME)), "count", MEMBERS)
    assert (data.round, data.phase, data.members) == (1, 1, MEMBERS)
    data = ended(data, "signs", MEMBERS)
    assert (data.round, data.phase, data.members) == (2, 0, frozenset())


@pytest.mark.parametrize("phase", ["count", "signs"])
def test_a_void_phase_ends_its_round(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    monkeypatch.setitem(STRATEGIES, NAME, Verified(TwoPhases()))
    data = membership(make_manifest(strategy=NAME))
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
    assert membership(manifest, manifest.aggregators[place]).phase_names == names


def test_who_takes_part_in_the_second_phase_alone_goes_from_round_to_round() -> None:
    manifest = make_manifest(strategy="plaintext-union")
    data = membership(manifest, manifest.aggregators[1])
    assert ended(data, "signs", MEMBERS).round == 2
    assert ended(data, "union", frozenset()).round == 2, "a void of any phase ends the round"


def test_a_verdict_that_is_not_on_the_open_phase_changes_nothing() -> None:
    data = replace(membership(), round=3)
    assert ended(data, "signs", MEMBERS, number=2) is data
    assert ended(data, "signs", MEMBERS, number=4) is data


# The end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.PLEDGED, State.JOINED])
def test_the_coordinators_last_word_ends_it_and_is_recorded(state: State) -> None:
    data = membership()
    result = take(state, data, Ended(outcome="cancelled"))
    assert result == Step(State.ENDED, data, (Record("ended", {"outcome": "cancelled"}),))


# Scores -------------------------------------------------------------------------------------------------

SCORED = make_manifest(rounds=3, evaluate_every=2, metrics=(MetricClaim(name="accuracy"),))


def test_a_scored_round_is_over_when_its_scores_are() -> None:
    first = ended(membership(SCORED), "signs", MEMBERS)
    assert (first.round, first.released) == (2, 1), "the first round is not scored"
    second = ended(first, "signs", MEMBERS, number=2)
    assert (second.round, second.phase_names[second.phase]) == (2, "scores")
    third = ended(second, "scores", MEMBERS, number=2)
    assert (third.round, third.phase, third.score_members) == (3, 0, MEMBERS)
    assert ended(third, "signs", MEMBERS, number=3).phase == 1, "the last round always is"


def test_void_scores_end_the_round_and_fix_no_members() -> None:
    data = replace(membership(SCORED), round=2, released=1)
    data = ended(ended(data, "signs", MEMBERS, number=2), "scores", frozenset(), number=2)
    assert (data.round, data.score_members, data.released) == (3, frozenset(), 2)


def test_a_void_round_is_not_scored_and_not_counted() -> None:
    data = ended(replace(membership(SCORED), round=2, released=1), "signs", frozenset(), number=2)
    assert (data.round, data.phase, data.released) == (3, 0, 1)


def test_scores_have_members_of_their_own() -> None:
    data = replace(membership(SCORED), members=MEMBERS, score_members=frozenset(SCORED.clients[:2]))
    assert data.members_for("signs") == MEMBERS
    assert data.members_for("scores") == frozenset(SCORED.clients[:2])


def test_who_adds_scores_alone_follows_the_rounds_by_what_it_is_sent() -> None:
    manifest = make_manifest(strategy="fedavg", rounds=3, metrics=(MetricClaim(name="accuracy"),))
    data = membership(manifest, manifest.aggregators[1])
    assert data.only_adds_scores
    data = ended(data, "scores", MEMBERS, number=2)
    assert (data.round, data.score_members) == (3, MEMBERS)
