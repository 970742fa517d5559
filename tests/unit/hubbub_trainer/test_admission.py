"""A trainer on its way into a run: what it joins, why it refuses, one group secret, and the hand-over."""

from dataclasses import replace
from itertools import permutations

import pytest

from hubbub.errors import Code, Objection, PeerError, RejectReason, UnexpectedEvent
from hubbub.ids import PartyId
from hubbub.machine.effects import CountRefusal, Effect, Failed, Key, Publish, Record, Tell
from hubbub.machine.table import step
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest, describe_run
from hubbub.messages.runs import GroupConfirmed, PartyFailed, RunJoined, RunReady, RunRefused
from hubbub_trainer.events import (
    ContributionArrived,
    Ended,
    GroupAgreed,
    Inherited,
    InitialModel,
    KeysArrived,
    PeerConfirmed,
    Prepared,
    Proposed,
    RoundOrdered,
    SnapshotAsked,
)
from hubbub_trainer.phases import participation
from hubbub_trainer.phases.admission import (
    KIND,
    TRANSITIONS,
    AcceptKeys,
    Admission,
    AgreeOnSecret,
    DealContribution,
    KeepContribution,
    PrepareTask,
    RememberRun,
    SetUpParticipation,
    State,
)
from hubbub_trainer.phases.participation import Participation, ReportOldCopy, VoidCaps
from support.builders import make_manifest, make_run_key
from support.succession import make_predecessor

MANIFEST = make_manifest(rounds=9)
ME, SECOND, THIRD = MANIFEST.clients
RUN_KEY = make_run_key(MANIFEST, ME)
GOOD = Prepared(
    parameters=MANIFEST.parameters,
    initial_model_sha256=MANIFEST.initial_model_sha256,
    initial=InitialModel(sha256="0" * 64),
)
KEYS = KeysArrived(
    publics={name: name.encode() for name in (*MANIFEST.clients, *MANIFEST.aggregators)}, keys_sha256="ab" * 32
)
TAG, OTHER_TAG = "7a" * 32, "7b" * 32
ENDED_AT_S = 50.0
LEFT = Record("ended", {"outcome": "left"})
FAILED = Record("ended", {"outcome": "failed"})


class Play:
    """One trainer's admission."""

    def __init__(self, manifest: Manifest = MANIFEST) -> None:
        self.state = State.INVITED
        self.data = Admission(me=ME, key=Key("admission", manifest.run_id), manifest=manifest, run_key=RUN_KEY)
        self.effects: tuple[Effect, ...] = ()

    def feed(self, event: object) -> None:
        result = step(TRANSITIONS, self.state, self.data, event)
        self.state, self.data, self.effects = result.state, result.data, result.effects

    def advance(self, state: State) -> None:
        """Come to a state the ordinary way."""
        events: dict[State, list[object]] = {
            State.INVITED: [Proposed()],
            State.PREPARING: [GOOD],
            State.PLEDGED: [KEYS],
            State.AGREEING: [
                *(ContributionArrived(client=client) for client in self.data.peers),
                GroupAgreed(confirmation=TAG),
                *(PeerConfirmed(client=client, confirmation=TAG) for client in self.data.peers),
            ],
        }
        while self.state is not state:
            for event in events[self.state]:
                self.feed(event)

    def said(self) -> list[Message]:
        """What the coordinator is told."""
        return [
            effect.body
            for effect in self.effects
            if isinstance(effect, Publish)
            and effect.to == MANIFEST.coordinator
            and isinstance(effect.body, Message)
        ]

    def answer(self) -> Message:
        (body,) = self.said()
        return body

    def refusal(self, code: Code) -> str:
        """What our own log says of the refusal; the coordinator is told the code."""
        assert self.state is State.REFUSED
        assert self.answer() == RunRefused(code=code)
        return self.logged()

    def farewell(self, code: Code) -> str:
        """The same of leaving the run."""
        assert self.state is State.ENDED
        assert self.answer() == PartyFailed(code=code)
        return self.logged()

    def logged(self) -> str:
        (sentence,) = [effect.explanation for effect in self.effects if isinstance(effect, CountRefusal)]
        return sentence

    def follower(self) -> Participation:
        """The data of the machine that follows on this one."""
        assert self.state is State.ADMITTED
        (data,) = [effect.data for effect in self.effects if isinstance(effect, SetUpParticipation)]
        return data


# The proposal -------------------------------------------------------------------------------------------


def test_pledges_when_its_task_is_the_manifests_number_for_number() -> None:
    play = Play()
    play.feed(Proposed())
    assert (play.state, play.effects) == (State.PREPARING, (PrepareTask(),))
    play.feed(Proposed())
    assert (play.state, play.effects) == (State.PREPARING, ()), "the task is not loaded twice"
    play.feed(GOOD)
    assert play.state is State.PLEDGED
    assert play.answer() == RunJoined(run_key=RUN_KEY)
    play.feed(Proposed())
    assert (play.state, play.answer()) == (State.PLEDGED, RunJoined(run_key=RUN_KEY)), "the same key again"


def test_the_run_is_remembered_before_it_is_joined_and_recorded_last() -> None:
    play = Play()
    play.advance(State.PLEDGED)
    assert [type(effect) for effect in play.effects] == [RememberRun, Publish, Record]
    assert play.effects[-1] == Record("joined", describe_run(MANIFEST))


OBJECTIONS = (
    Objection(Code.POLICY_MIN_CLIENTS, "min_clients is 2"),
    Objection(Code.POLICY_APPROVAL, "the task is not approved"),
)


def test_a_refusal_tells_the_first_code_and_the_log_every_sentence_and_no_task_is_loaded() -> None:
    play = Play()
    play.data = replace(play.data, objections=OBJECTIONS, run_key=None)
    play.feed(Proposed())
    why = "min_clients is 2; the task is not approved"
    assert play.refusal(Code.POLICY_MIN_CLIENTS) == why
    assert play.effects[1:] == (CountRefusal(RejectReason.RUN_REFUSED, "run-proposed", MANIFEST.coordinator, why),)


def test_refuses_a_strategy_that_it_does_not_know() -> None:
    play = Play(make_manifest(strategy="magic"))
    play.feed(Proposed())
    assert "magic" in play.refusal(Code.PROTOCOL_STRATEGY)


def test_what_the_ledger_is_against_is_refused_before_anything_else_leaves() -> None:
    """The coordinator is told no more than that it is so; which run was before is for the owner's log."""
    play = Play()
    play.feed(Proposed())
    play.feed(replace(GOOD, initial=replace(GOOD.initial, objection="run 1 began there")))
    assert play.refusal(Code.POLICY_LEDGER) == "run 1 began there"
    assert play.effects[1:] == (
        CountRefusal(RejectReason.RUN_REFUSED, "run-proposed", MANIFEST.coordinator, "run 1 began there"),
    )


@pytest.mark.parametrize("objection", ["", "run 1 began there"])
def test_a_newcomer_is_ready_when_the_ledger_is_not_against_the_model_that_came(objection: str) -> None:
    play = Play()
    play.advance(State.AGREEING)
    play.state, play.data = State.INHERITING, replace(play.data, lacks_model=True, initial=InitialModel())
    play.feed(Inherited(initial=InitialModel(sha256="5" * 64, voids=1, objection=objection)))
    if objection:
        assert play.state is State.ENDED
        assert play.said() == [RunRefused(code=Code.POLICY_LEDGER)]
        assert play.effects[-1] == LEFT
    else:
        assert (play.state, play.said()) == (State.ADMITTED, [RunReady()])
        assert (play.follower().models, play.follower().wasted_on_model) == (("5" * 64,), 1)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Prepared(parameters=99, initial_model_sha256="0" * 64), "99 parameters here, the manifest says 100"),
        (Prepared(parameters=100, initial_model_sha256="1" * 64), "is not the one that the manifest commits to"),
        (Failed("PrepareTask: there is no task 'magic'"), "there is no task 'magic'"),
    ],
)
def test_refuses_another_task_than_the_manifests(event: object, why: str) -> None:
    play = Play()
    play.feed(Proposed())
    play.feed(event)
    assert why in play.refusal(Code.PROTOCOL_TASK)
    assert RememberRun() not in play.effects, "what was never joined may be proposed again"


@pytest.mark.parametrize("state", [State.INVITED, State.PREPARING])
def test_a_run_that_ends_before_our_pledge_leaves_nothing(state: State) -> None:
    play = Play()
    play.advance(state)
    play.feed(Ended(outcome="failed", at_s=ENDED_AT_S))
    assert (play.state, play.effects) == (State.ENDED, ())


@pytest.mark.parametrize("state", [State.PLEDGED, State.AGREEING])
def test_a_run_that_ends_before_its_first_round_is_recorded_and_leaves_no_model(state: State) -> None:
    play = Play()
    play.advance(state)
    play.feed(Ended(outcome="cancelled", at_s=ENDED_AT_S))
    assert (play.state, play.effects) == (State.ENDED, (Record("ended", {"outcome": "cancelled"}),))


# Keys and the group secret ------------------------------------------------------------------------------


def test_the_group_secret_is_agreed_step_by_step() -> None:
    play = Play()
    play.advance(State.PLEDGED)
    play.feed(KEYS)
    assert [*play.effects] == [
        AcceptKeys(KEYS.publics),
        DealContribution(),
        Record("keys", {"keys_sha256": KEYS.keys_sha256}),
    ]
    play.feed(ContributionArrived(client=THIRD))
    assert [*play.effects] == [KeepContribution(THIRD)]
    play.feed(ContributionArrived(client=SECOND))
    assert [*play.effects] == [KeepContribution(SECOND), AgreeOnSecret()]
    play.feed(GroupAgreed(confirmation=TAG))
    told = [effect for effect in play.effects if isinstance(effect, Publish)]
    assert [effect.to for effect in told] == [SECOND, THIRD]
    assert {effect.body for effect in told} == {GroupConfirmed(confirmation=TAG)}
    play.feed(PeerConfirmed(client=SECOND, confirmation=TAG))
    assert (play.state, play.effects) == (State.AGREEING, ()), "all clients, not most of them"
    play.feed(PeerConfirmed(client=THIRD, confirmation=TAG))
    assert (play.state, play.answer()) == (State.ADMITTED, RunReady())
    assert play.effects[-1] == Record("group", {"confirmation": TAG})


EVENTS: dict[str, object] = {
    "keys": KEYS,
    "part of the second": ContributionArrived(client=SECOND),
    "part of the third": ContributionArrived(client=THIRD),
    "word of the second": PeerConfirmed(client=SECOND, confirmation=TAG),
    "word of the third": PeerConfirmed(client=THIRD, confirmation=TAG),
}


def test_whatever_comes_first_the_secret_is_agreed_once_and_the_run_joined_once() -> None:
    """Others may have the keys, deal and confirm before we have heard anything of it."""
    for order in permutations(EVENTS):
        play = Play()
        play.advance(State.PLEDGED)
        jobs = 0
        for name in order:
            play.feed(EVENTS[name])
            jobs += play.effects.count(AgreeOnSecret())
        assert (play.state, jobs) == (State.AGREEING, 1), order
        play.feed(GroupAgreed(confirmation=TAG))
        assert (play.state, play.said()) == (State.ADMITTED, [RunReady()]), order


@pytest.mark.parametrize("early", [False, True])
def test_a_second_part_of_one_client_changes_nothing(*, early: bool) -> None:
    play = Play()
    play.advance(State.PLEDGED if early else State.AGREEING)
    play.feed(ContributionArrived(client=SECOND))
    before = play.data
    play.feed(ContributionArrived(client=SECOND))
    assert (play.data, play.effects) == (before, ())


@pytest.mark.parametrize("first", ["theirs", "theirs before the keys", "ours"])
def test_another_confirmation_than_ours_ends_it_and_is_counted(first: str) -> None:
    play = Play()
    play.advance(State.PLEDGED if first == "theirs before the keys" else State.AGREEING)
    theirs, ours = PeerConfirmed(client=THIRD, confirmation=OTHER_TAG), GroupAgreed(confirmation=TAG)
    if first == "theirs before the keys":
        play.feed(theirs)
        play.feed(KEYS)
        play.feed(ours)
    else:
        for event in (theirs, ours) if first == "theirs" else (ours, theirs):
            assert play.state is State.AGREEING
            play.feed(event)
    assert "client-3 confirms another group secret" in play.farewell(Code.PROTOCOL_GROUP)
    (refusal,) = [effect for effect in play.effects if isinstance(effect, CountRefusal)]
    assert (refusal.reason, refusal.kind, refusal.sender) == (
        RejectReason.DIFFERENT_GROUP,
        GroupConfirmed.kind,
        THIRD,
    )
    assert play.effects[-1] == LEFT


def test_a_clients_first_word_counts() -> None:
    play = Play()
    play.advance(State.AGREEING)
    play.feed(PeerConfirmed(client=THIRD, confirmation=OTHER_TAG))
    play.feed(PeerConfirmed(client=THIRD, confirmation=TAG))
    play.feed(PeerConfirmed(client=SECOND, confirmation=TAG))
    play.feed(GroupAgreed(confirmation=TAG))
    assert "client-3 confirms another group secret" in play.farewell(Code.PROTOCOL_GROUP)


@pytest.mark.parametrize("state", [State.AGREEING, State.INHERITING])
def test_the_same_keys_again_are_old_news_and_others_are_refused(state: State) -> None:
    play = Play()
    play.advance(State.AGREEING)
    play.state = state
    before = play.data
    play.feed(KEYS)
    assert (play.state, play.data, play.effects) == (state, before, ())
    with pytest.raises(PeerError) as caught:
        play.feed(replace(KEYS, keys_sha256="cd" * 32))
    assert caught.value.reason is RejectReason.SECOND_KEY
    assert (play.state, play.data) == (state, before)


# Orders to train ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.INVITED, State.PREPARING, State.PLEDGED, State.AGREEING])
def test_no_round_before_all_clients_confirmed(state: State) -> None:
    play = Play()
    play.advance(state)
    with pytest.raises((UnexpectedEvent, PeerError)):
        play.feed(RoundOrdered(number=1))


@pytest.mark.parametrize("state", [State.PLEDGED, State.AGREEING, State.INHERITING])
def test_who_took_part_in_a_round_that_it_never_began_holds_an_old_copy_and_leaves(state: State) -> None:
    play = Play()
    play.advance(State.PLEDGED if state is State.PLEDGED else State.AGREEING)
    play.state = state
    play.feed(RoundOrdered(number=4, attended=3))
    assert (play.state, play.answer()) == (State.ENDED, PartyFailed(code=Code.DISK_OLD))
    report, _, record = play.effects
    assert isinstance(report, ReportOldCopy)
    assert "took part in round 3" in report.evidence
    assert record == FAILED, "no model is kept, and nothing is set up or asked for"


@pytest.mark.parametrize("state", [State.PLEDGED, State.AGREEING])
def test_a_failure_of_this_machine_is_told(state: State) -> None:
    play = Play()
    play.advance(state)
    play.feed(Failed("AgreeOnSecret: a seal does not open", Code.PROTOCOL_PEER))
    assert play.said() == [PartyFailed(code=Code.PROTOCOL_PEER)], "the sentence is for our log"
    assert play.effects[-1] == Record("ended", {"outcome": "failed"})


# The hand-over ------------------------------------------------------------------------------------------


def test_the_participation_is_set_up_with_the_keys_the_limits_and_the_initial_model_before_we_say_ready() -> None:
    play = Play()
    play.data = replace(play.data, caps=VoidCaps(per_model=2, per_run=5), snapshots_per_peer=7)
    play.feed(Proposed())
    play.feed(replace(GOOD, initial=replace(GOOD.initial, voids=1)))
    play.advance(State.ADMITTED)
    assert play.effects[0] == SetUpParticipation(
        Participation(
            me=ME,
            key=Key("run", MANIFEST.run_id),
            manifest=MANIFEST,
            run_key=RUN_KEY,
            publics=KEYS.publics,
            keys_sha256=KEYS.keys_sha256,
            caps=VoidCaps(per_model=2, per_run=5),
            snapshots_per_peer=7,
            models=("0" * 64,),
            wasted_on_model=1,
        )
    )
    assert play.said() == [RunReady()]


HEIR = make_manifest(rounds=9, predecessor=make_predecessor())


def asked(client: PartyId, giver: PartyId = ME, after: int = -1) -> SnapshotAsked:
    return SnapshotAsked(client=client, giver=giver, after=after)


def test_a_peer_that_asks_for_the_initial_model_too_early_is_sent_it_by_the_participation_once() -> None:
    """A job of the admission would come back when it is over; and who does not agree with us is sent nothing."""
    play = Play(HEIR)
    play.advance(State.AGREEING)
    for event in (asked(THIRD), asked(SECOND), asked(THIRD), asked(SECOND, giver=THIRD), asked(SECOND, after=0)):
        play.feed(event)
        assert (play.state, play.effects) == (State.AGREEING, ())
    play.advance(State.ADMITTED)
    run = Key("run", HEIR.run_id)
    told = [effect for effect in play.effects if isinstance(effect, Tell)]
    assert told == [Tell(run, asked(THIRD)), Tell(run, asked(SECOND))]
    taken = step(participation.TRANSITIONS, participation.State.JOINED, play.follower(), told[0].event)
    assert taken.effects == (participation.SendSnapshot(THIRD, 0),)


@pytest.mark.parametrize("manifest", [MANIFEST, HEIR], ids=["anybody can rebuild it", "it is not here either"])
def test_who_has_no_initial_model_to_send_notes_no_request(manifest: Manifest) -> None:
    play = Play(manifest)
    play.advance(State.AGREEING)
    play.data = replace(play.data, lacks_model=True)
    for state in (State.AGREEING, State.INHERITING):
        play.state, before = state, play.data
        play.feed(asked(THIRD))
        assert (play.state, play.data, play.effects) == (state, before, ())


def test_a_policy_that_allows_no_snapshots_refuses_the_first_request() -> None:
    play = Play(HEIR)
    play.advance(State.AGREEING)
    play.data = before = replace(play.data, snapshots_per_peer=0)
    with pytest.raises(PeerError, match="was given 0 in this run") as caught:
        play.feed(asked(THIRD))
    assert (caught.value.reason, play.data) == (RejectReason.OVER_LIMIT, before)


# After a restart ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(State))
def test_only_the_task_is_loaded_again(state: State) -> None:
    play = Play()
    if state not in {State.INHERITING, State.REFUSED, State.ENDED}:
        play.advance(state)
    expected: dict[State, tuple[Effect, ...]] = {State.PREPARING: (PrepareTask(),)}
    assert KIND.resume(state, play.data) == expected.get(state, ())


def test_the_secret_is_put_together_again_until_that_is_known_to_be_done() -> None:
    play = Play()
    play.advance(State.AGREEING)
    for client in play.data.peers:
        assert KIND.resume(play.state, play.data) == ()
        play.feed(ContributionArrived(client=client))
    assert KIND.resume(play.state, play.data) == (AgreeOnSecret(),)
    play.feed(GroupAgreed(confirmation=TAG))
    assert (play.state, KIND.resume(play.state, play.data)) == (State.AGREEING, ())
