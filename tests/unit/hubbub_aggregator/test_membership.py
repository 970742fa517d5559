"""An aggregator in a run: what it joins, whose keys it takes, and which one phase it accepts at a time."""

from dataclasses import replace

import pytest

from hubbub.errors import Code, Objection, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import AcceptKeys, CountRefusal, Publish, Record, RememberRun
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest, MetricClaim, describe_run
from hubbub.messages.runs import RunJoined, RunReady, RunRefused
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.verified import Verified
from hubbub_aggregator.events import Ended, KeysArrived, PhaseEnded, Proposed
from hubbub_aggregator.phases.membership import KIND, Membership, State
from support.builders import make_manifest, make_run_key
from support.machine_play import MachinePlay
from support.two_phases import NAME, TwoPhases

MANIFEST = make_manifest()
ME = MANIFEST.aggregators[0]
MEMBERS = frozenset(MANIFEST.clients)
KEYS = KeysArrived(publics={ME: b"mine", MANIFEST.clients[0]: b"another's"}, keys_sha256="1" * 64)


def membership(manifest: Manifest = MANIFEST, me: PartyId = ME) -> Membership:
    """That of an aggregator which has nothing against the run and made its key for it."""
    return Membership(me=me, manifest=manifest, run_key=make_run_key(manifest, me))


class Play(MachinePlay[State, Membership]):
    """One aggregator in a run."""

    def __init__(self, state: State = State.INVITED, data: Membership | None = None) -> None:
        super().__init__(KIND, data or membership(), MANIFEST.coordinator)
        self.state = state


def tell(body: Message) -> Publish:
    return Publish(MANIFEST.coordinator, Role.COORDINATOR, body)


def test_joins_and_takes_everybodys_keys_and_no_others() -> None:
    """It remembers the run before anybody hears of it, and gives the same key again when it is asked again."""
    play = Play()
    joined = tell(RunJoined(run_key=make_run_key(MANIFEST, ME)))
    play.feed(Proposed())
    play.expect(State.PLEDGED, RememberRun(), joined, Record("joined", describe_run(MANIFEST)))
    play.feed(Proposed())
    play.expect(State.PLEDGED, joined)
    play.feed(KEYS)
    keys = Record("keys", {"keys_sha256": KEYS.keys_sha256})
    play.expect(State.JOINED, AcceptKeys(KEYS.publics), tell(RunReady()), keys)
    assert play.data == replace(membership(), publics=KEYS.publics, keys_sha256=KEYS.keys_sha256)
    play.ignores(KEYS, Proposed())
    play.refuses(replace(KEYS, keys_sha256="2" * 64), RejectReason.SECOND_KEY)


def test_refuses_with_the_first_code_and_logs_everything_that_it_has_against_the_run() -> None:
    """A run that was refused is counted, and not remembered."""
    objections = (
        Objection(Code.POLICY_ROSTER, "client-2 is not in the roster"),
        Objection(Code.POLICY_ROUNDS, "there are too many rounds"),
    )
    play = Play(data=Membership(me=ME, manifest=MANIFEST, objections=objections))
    play.feed(Proposed())
    why = "client-2 is not in the roster; there are too many rounds"
    refusal = CountRefusal(RejectReason.RUN_REFUSED, "run-proposed", MANIFEST.coordinator, why)
    play.expect(State.REFUSED, tell(RunRefused(code=Code.POLICY_ROSTER)), refusal)


@pytest.mark.parametrize("state", [State.INVITED, State.PLEDGED, State.JOINED])
def test_the_coordinators_last_word_ends_it_and_is_recorded_once_it_has_joined(state: State) -> None:
    play = Play(state)
    play.feed(Ended(outcome="cancelled"))
    play.expect(State.ENDED, *[Record("ended", {"outcome": "cancelled"})][state is State.INVITED :])


# One phase at a time ------------------------------------------------------------------------------------


def ended(data: Membership, phase: str, members: frozenset[PartyId], *, number: int = 1) -> Membership:
    play = Play(State.JOINED, data)
    play.feed(PhaseEnded(round=number, phase=phase, members=members))
    play.expect(State.JOINED)
    return play.data


@pytest.fixture
def two_phases(monkeypatch: pytest.MonkeyPatch) -> Membership:
    monkeypatch.setitem(STRATEGIES, NAME, Verified(TwoPhases()))
    return membership(make_manifest(strategy=NAME))


def test_the_members_of_the_first_phase_bind_the_second_and_a_round_opens_without_any(
    two_phases: Membership,
) -> None:
    data = ended(two_phases, "count", MEMBERS)
    assert (data.round, data.phase, data.members) == (1, 1, MEMBERS)
    data = ended(data, "signs", MEMBERS)
    assert (data.round, data.phase, data.members) == (2, 0, frozenset())


@pytest.mark.parametrize("phase", ["count", "signs"])
def test_a_void_phase_ends_its_round(two_phases: Membership, phase: str) -> None:
    data = ended(two_phases, "count", MEMBERS) if phase == "signs" else two_phases
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
        ("fedavg", 1, ()),
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


@pytest.mark.parametrize("scored", [True, False])
def test_void_scores_fix_no_members_and_a_void_round_is_neither_scored_nor_counted(*, scored: bool) -> None:
    data = replace(membership(SCORED), round=2, released=1)
    data = ended(data, "signs", MEMBERS, number=2) if scored else data
    data = ended(data, "scores" if scored else "signs", frozenset(), number=2)
    assert (data.round, data.phase, data.released) == (3, 0, 1 + scored)
    assert data.score_members == frozenset()
    fixed = replace(membership(SCORED), round=2, phase=1, score_members=MEMBERS)
    assert ended(fixed, "scores", frozenset(), number=2).score_members == MEMBERS


def test_scores_have_members_of_their_own() -> None:
    data = replace(membership(SCORED), members=MEMBERS, score_members=frozenset(SCORED.clients[:2]))
    assert data.members_for("signs") == MEMBERS
    assert data.members_for("scores") == frozenset(SCORED.clients[:2])


def test_who_adds_scores_alone_follows_the_rounds_by_what_it_is_sent() -> None:
    manifest = make_manifest(strategy="fedavg", rounds=3, metrics=(MetricClaim(name="accuracy"),))
    data = membership(manifest, manifest.aggregators[1])
    assert data.adds_no_updates
    data = ended(data, "scores", MEMBERS, number=2)
    assert (data.round, data.score_members) == (3, MEMBERS)


def test_who_takes_part_in_no_phase_follows_the_rounds_by_the_voids_that_it_is_sent() -> None:
    """A void ends a round at every aggregator, and this one has not heard of the rounds before."""
    manifest = make_manifest(strategy="bonawitz", rounds=3)
    data = membership(manifest, manifest.aggregators[1])
    assert data.phase_names == ()
    assert data.adds_no_updates
    assert ended(data, "unmask", frozenset(), number=3).round == 4


def test_a_phase_that_has_lost_members_hands_on_those_that_are_left() -> None:
    manifest = make_manifest(strategy="bonawitz", clients=5)
    data = ended(membership(manifest), "advertise", frozenset(manifest.clients))
    left = frozenset(manifest.clients[1:4])
    data = ended(data, "share-keys", left)
    assert (data.phase, data.members_for("masked")) == (2, left)
