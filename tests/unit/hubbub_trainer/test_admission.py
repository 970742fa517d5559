"""A trainer on its way into a run: what it joins, why it refuses, one group secret, and the hand-over."""

from dataclasses import replace
from itertools import permutations
from typing import Any, cast

import pytest

from hubbub.errors import Code, Objection, PeerError, RejectReason, UnexpectedEvent
from hubbub.ids import Role
from hubbub.machine.effects import AcceptKeys, CountRefusal, Failed, Key, Publish, Record, RememberRun, Tell
from hubbub.machine.table import step
from hubbub.messages.manifest import Manifest, describe_run
from hubbub.messages.runs import GroupConfirmed, PartyFailed, RunJoined, RunReady, RunRefused
from hubbub_trainer import events
from hubbub_trainer.events import ContributionArrived, GroupAgreed, InitialModel, PeerConfirmed, Proposed
from hubbub_trainer.phases import participation
from hubbub_trainer.phases.admission import (
    KIND,
    Admission,
    AgreeOnSecret,
    ConfirmSecret,
    DealContribution,
    KeepContribution,
    KeepSamples,
    PrepareTask,
    SetUpParticipation,
    State,
)
from hubbub_trainer.phases.participation import Participation, VoidCaps
from support.builders import make_manifest, make_run_key
from support.machine_play import MachinePlay
from support.run_play import FAILED, KEYS, LEFT, MANIFEST, ME, OTHER_KEYS, SECOND, THIRD, asked, check_old_copy
from support.succession import make_predecessor

RUN_KEY = make_run_key(MANIFEST, ME)
GOOD = events.Prepared(
    parameters=MANIFEST.parameters,
    initial_model_sha256=MANIFEST.initial_model_sha256,
    initial=InitialModel(sha256="0" * 64),
)
TAG, OTHER_TAG = "7a" * 32, "7b" * 32
JOINING = [State.INVITED, State.PREPARING, State.PLEDGED, State.AGREEING]


class Play(MachinePlay[State, Admission]):
    """One trainer's admission in a state, with changes to its data."""

    def __init__(self, manifest: Manifest = MANIFEST, state: State = State.INVITED, **changes: Any) -> None:
        key = Key("admission", manifest.run_id)
        data = Admission(me=ME, key=key, manifest=manifest, run_key=RUN_KEY)
        super().__init__(KIND, data, manifest.coordinator)
        self.advance(State.AGREEING if state is State.INHERITING else state)
        self.state, self.data = state, replace(self.data, **changes)

    def advance(self, state: State) -> None:
        """Come to a state the ordinary way."""
        way: dict[State, list[object]] = {
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
            for event in way[self.state]:
                self.feed(event)

    def refusal(self, code: Code) -> str:
        """The sentence for our own log; the coordinator is told the code."""
        self.at(State.REFUSED)
        assert self.said() == [RunRefused(code=code)]
        why = self.logged()
        refusal = CountRefusal(RejectReason.RUN_REFUSED, "run-proposed", MANIFEST.coordinator, why)
        assert self.effects[1:] == (refusal,), "above all, the run is not remembered: it may be proposed again"
        return why

    def follower(self) -> Participation:
        """The data of the machine that follows on this one."""
        self.at(State.ADMITTED)
        (effect,) = self.of(SetUpParticipation)
        return cast("Participation", effect.data)


# The proposal -------------------------------------------------------------------------------------------


def test_pledges_when_its_task_is_the_manifests_number_for_number() -> None:
    """The run is remembered before it is joined, and recorded last."""
    play = Play()
    play.feed(Proposed())
    play.expect(State.PREPARING, PrepareTask())
    play.ignores(Proposed())
    play.feed(GOOD)
    joined = Publish(MANIFEST.coordinator, Role.COORDINATOR, RunJoined(run_key=RUN_KEY))
    play.expect(State.PLEDGED, RememberRun(), joined, Record("joined", describe_run(MANIFEST)))
    play.feed(Proposed())
    play.expect(State.PLEDGED, joined)  # The same key again.


def test_a_refusal_tells_the_first_code_and_the_log_every_sentence_and_no_task_is_loaded() -> None:
    objections = (
        Objection(Code.POLICY_MIN_CLIENTS, "min_clients is 2"),
        Objection(Code.POLICY_APPROVAL, "the task is not approved"),
    )
    play = Play(objections=objections, run_key=None)
    play.feed(Proposed())
    assert play.refusal(Code.POLICY_MIN_CLIENTS) == "min_clients is 2; the task is not approved"


@pytest.mark.parametrize(
    ("manifest", "answer", "code", "why"),
    [
        (make_manifest(strategy="magic"), None, Code.PROTOCOL_STRATEGY, "magic"),
        (MANIFEST, replace(GOOD, parameters=99), Code.PROTOCOL_TASK, "99 parameters here, the manifest says 100"),
        (
            MANIFEST,
            replace(GOOD, initial_model_sha256="1" * 64),
            Code.PROTOCOL_TASK,
            "is not the one that the manifest",
        ),
        (
            MANIFEST,
            Failed("PrepareTask: there is no task 'magic'"),
            Code.PROTOCOL_TASK,
            "there is no task 'magic'",
        ),
        (
            MANIFEST,
            replace(GOOD, initial=InitialModel(objection="run 1 began")),
            Code.POLICY_LEDGER,
            "run 1 began",
        ),
    ],
    ids=["unknown strategy", "another size", "another model", "no task", "the ledger is against it"],
)
def test_refuses_what_it_does_not_know_and_another_task_or_model_than_the_manifests(
    manifest: Manifest, answer: object, code: Code, why: str
) -> None:
    play = Play(manifest)
    play.feed(*(event for event in (Proposed(), answer) if event is not None))
    assert why in play.refusal(code)


@pytest.mark.parametrize("objection", ["", "run 1 began there"])
def test_a_newcomer_is_ready_when_the_ledger_is_not_against_the_model_that_came(objection: str) -> None:
    play = Play(state=State.INHERITING, lacks_model=True, initial=InitialModel())
    play.feed(events.Inherited(initial=InitialModel(sha256="5" * 64, voids=1, objection=objection)))
    if objection:
        play.at(State.ENDED)
        assert play.said() == [RunRefused(code=Code.POLICY_LEDGER)]
        assert play.effects[-1] == LEFT
    else:
        assert play.said() == [RunReady()]
        assert (play.follower().models, play.follower().wasted_on_model) == (("5" * 64,), 1)


@pytest.mark.parametrize("state", JOINING)
def test_a_run_that_ends_before_its_first_round_is_recorded_if_we_pledged(state: State) -> None:
    play = Play(state=state)
    play.feed(events.Ended(outcome="cancelled", at_s=50.0))
    records = [Record("ended", {"outcome": "cancelled"})] if state in {State.PLEDGED, State.AGREEING} else []
    play.expect(State.ENDED, *records)


# Keys and the group secret ------------------------------------------------------------------------------


def test_the_group_secret_is_agreed_step_by_step_and_put_together_again_after_a_restart() -> None:
    play = Play(state=State.PLEDGED)
    play.feed(KEYS)
    keys = Record("keys", {"keys_sha256": KEYS.keys_sha256})
    play.expect(State.AGREEING, AcceptKeys(KEYS.publics), DealContribution(), keys)
    play.feed(ContributionArrived(client=THIRD))
    play.expect(State.AGREEING, KeepContribution(THIRD))
    play.ignores(ContributionArrived(client=THIRD))
    assert play.resumed() == []
    play.feed(ContributionArrived(client=SECOND))
    play.expect(State.AGREEING, KeepContribution(SECOND), AgreeOnSecret())
    assert play.resumed() == [AgreeOnSecret()]
    play.feed(GroupAgreed(confirmation=TAG))
    play.expect(State.AGREEING, ConfirmSecret(TAG, None))
    assert play.resumed() == []
    play.feed(PeerConfirmed(client=SECOND, confirmation=TAG))
    play.expect(State.AGREEING)  # All clients, not most of them.
    play.feed(PeerConfirmed(client=THIRD, confirmation=TAG))
    assert (play.state, play.said()) == (State.ADMITTED, [RunReady()])
    assert play.effects[-1] == Record("group", {"confirmation": TAG})


def test_sums_of_samples_are_kept_when_all_are_here_and_the_first_word_of_each_counts() -> None:
    play = Play(state=State.PLEDGED)
    play.feed(KEYS, *(ContributionArrived(client=client) for client in (SECOND, THIRD)))
    play.feed(PeerConfirmed(client=SECOND, confirmation=TAG, samples=5))
    play.feed(GroupAgreed(confirmation=TAG, samples=3))
    play.expect(State.AGREEING, ConfirmSecret(TAG, 3))
    play.feed(PeerConfirmed(client=SECOND, confirmation=TAG, samples=6))
    assert play.of(KeepSamples) == []
    play.feed(PeerConfirmed(client=THIRD, confirmation=TAG, samples=2**64 - 1))
    assert play.of(KeepSamples) == [KeepSamples({ME: 3, SECOND: 5, THIRD: 2**64 - 1})]
    play.at(State.ADMITTED)


def test_whatever_comes_first_the_secret_is_agreed_once_and_the_run_joined_once() -> None:
    """Others may have the keys, deal and confirm before we have heard anything of it, each of it twice."""
    everything = [
        KEYS,
        *(ContributionArrived(client=client) for client in (SECOND, THIRD)),
        *(PeerConfirmed(client=client, confirmation=TAG) for client in (SECOND, THIRD)),
    ]
    for order in permutations(everything):
        play, jobs = Play(state=State.PLEDGED), 0
        for event in order:
            play.feed(event)
            jobs += play.effects.count(AgreeOnSecret())
            play.ignores(event)
        assert (play.state, jobs) == (State.AGREEING, 1), order
        play.feed(GroupAgreed(confirmation=TAG))
        assert (play.state, play.said()) == (State.ADMITTED, [RunReady()]), order


OURS = GroupAgreed(confirmation=TAG)
THEIRS = PeerConfirmed(client=THIRD, confirmation=OTHER_TAG)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([KEYS, THEIRS, OURS], id="theirs first"),
        pytest.param([KEYS, OURS, THEIRS], id="ours first"),
        pytest.param([THEIRS, KEYS, OURS], id="before the keys"),
        pytest.param([KEYS, THEIRS, replace(THEIRS, confirmation=TAG), OURS], id="its first word counts"),
    ],
)
def test_another_confirmation_than_ours_ends_it_and_is_counted(order: list[object]) -> None:
    play = Play(state=State.PLEDGED)
    play.feed(*order[:-1])
    assert play.state is not State.ENDED
    play.feed(order[-1])
    play.at(State.ENDED)
    assert play.said() == [PartyFailed(code=Code.PROTOCOL_GROUP)]
    assert "client-3 confirms another group secret" in play.logged()
    (refusal,) = play.of(CountRefusal)
    assert (refusal.reason, refusal.kind) == (RejectReason.DIFFERENT_GROUP, GroupConfirmed.kind)
    assert refusal.sender == THIRD
    assert play.effects[-1] == LEFT


@pytest.mark.parametrize("state", [State.AGREEING, State.INHERITING])
def test_the_same_keys_again_are_old_news_and_others_are_refused(state: State) -> None:
    play = Play(state=state)
    play.ignores(KEYS)
    play.refuses(OTHER_KEYS, RejectReason.SECOND_KEY)


# Orders to train ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", JOINING)
def test_no_round_before_all_clients_confirmed(state: State) -> None:
    with pytest.raises((UnexpectedEvent, PeerError)):
        Play(state=state).feed(events.RoundOrdered(number=1))


@pytest.mark.parametrize("state", [State.PLEDGED, State.AGREEING, State.INHERITING])
def test_a_client_that_took_part_in_a_round_that_it_never_began_holds_an_old_copy(state: State) -> None:
    play = Play(state=state)
    play.feed(events.RoundOrdered(number=4, attended=3))
    play.at(State.ENDED)
    check_old_copy(play, attended=3)


@pytest.mark.parametrize("state", [State.PLEDGED, State.AGREEING])
def test_a_failure_of_this_machine_is_told(state: State) -> None:
    play = Play(state=state)
    play.feed(Failed("AgreeOnSecret: a seal does not open", Code.PROTOCOL_PEER))
    assert play.said() == [PartyFailed(code=Code.PROTOCOL_PEER)], "the sentence is for our log"
    assert play.effects[-1] == FAILED


# The hand-over ------------------------------------------------------------------------------------------


def test_the_participation_is_set_up_with_the_keys_the_limits_and_the_initial_model_before_we_say_ready() -> None:
    play = Play(caps=VoidCaps(per_model=2, per_run=5), snapshots_per_peer=7)
    play.feed(Proposed(), replace(GOOD, initial=replace(GOOD.initial, voids=1)))
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


def test_a_peer_that_asks_for_the_initial_model_too_early_is_sent_it_by_the_participation_once() -> None:
    """A job of the admission would come back when it is over; and who does not agree with us is sent nothing."""
    play = Play(HEIR, State.AGREEING)
    play.feed(asked(THIRD, ME, -1), asked(SECOND, ME, -1))
    play.ignores(asked(THIRD, ME, -1), asked(SECOND, THIRD, -1), asked(SECOND, ME, 0))
    play.advance(State.ADMITTED)
    run = Key("run", HEIR.run_id)
    told = play.of(Tell)
    assert told == [Tell(run, asked(client, ME, -1)) for client in (THIRD, SECOND)]
    taken = step(participation.TRANSITIONS, participation.State.JOINED, play.follower(), told[0].event)
    assert taken.effects == (participation.SendSnapshot(THIRD, 0),)


@pytest.mark.parametrize("manifest", [MANIFEST, HEIR], ids=["anybody can rebuild it", "it is not here either"])
@pytest.mark.parametrize("state", [State.AGREEING, State.INHERITING])
def test_a_client_without_an_initial_model_to_send_notes_no_request(manifest: Manifest, state: State) -> None:
    Play(manifest, state, lacks_model=True).ignores(asked(THIRD, ME, -1))


def test_a_policy_that_allows_no_snapshots_refuses_the_first_request() -> None:
    play = Play(HEIR, State.AGREEING, snapshots_per_peer=0)
    play.refuses(asked(THIRD, ME, -1), RejectReason.OVER_LIMIT, "was given 0 in this run")


@pytest.mark.parametrize("state", list(State))
def test_after_a_restart_only_the_task_is_loaded_again(state: State) -> None:
    play = Play(state=state if state not in {State.REFUSED, State.ENDED} else State.INVITED)
    play.state = state
    assert play.resumed() == ([PrepareTask()] if state is State.PREPARING else [])
