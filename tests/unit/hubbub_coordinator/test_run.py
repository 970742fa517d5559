"""The coordinator's run by scenario: who must join and agree, what ends it, and that everybody is told."""

from dataclasses import replace
from typing import Any

import pytest

from hubbub.errors import Code, UnexpectedEvent
from hubbub.ids import PartyId
from hubbub.machine.effects import CancelTimer, Effect, Failed, Key, Publish, Record, RememberRun, SetTimer, Tell
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import RunEnded, RunKeys, RunProposed
from hubbub_coordinator.events import (
    Began,
    CancelRequested,
    DeadlinePassed,
    PartyBroke,
    PartyJoined,
    PartyReady,
    PartyRefused,
    PauseRequested,
    ProposalDue,
    ResumeRequested,
    RoundEnded,
    RoundVerdict,
)
from hubbub_coordinator.phases.run import ADVICE, KIND, USUAL_PATIENCE, CoordinatorRun, OpenRound, State
from support.builders import make_manifest, make_run_key
from support.coordinator_play import CLASSIFIED
from support.machine_play import MachinePlay

MANIFEST = make_manifest(max_void_rounds=1)
IN_TIME = SetTimer("agreement", 2.0 + MANIFEST.phase_timeout_s, DeadlinePassed)


def opening(number: int, at_s: float = 9.0) -> tuple[Effect, ...]:
    """The effects that open a round: its machine is set up, and told to begin."""
    return (OpenRound(number), Tell(Key("round", MANIFEST.run_id, number), Began(at_s=at_s)))


class Play(MachinePlay[State, CoordinatorRun]):
    """A run, fed event by event."""

    def __init__(self, manifest: Manifest = MANIFEST, state: State = State.ENROLLING) -> None:
        super().__init__(KIND, CoordinatorRun(manifest=manifest), manifest.coordinator)
        self.feed(Began(at_s=1.0))
        self.reach(state)

    def join(self, *parties: PartyId) -> None:
        for party in parties:
            self.feed(PartyJoined(at_s=2.0, party=party, run_key=make_run_key(MANIFEST, party)))

    def get_ready(self, *parties: PartyId) -> None:
        for party in parties:
            self.feed(PartyReady(at_s=3.0, party=party))

    def reach(self, state: State) -> None:
        """Go on as far as this, with everybody's help."""
        if self.state is State.ENROLLING and state is not State.ENROLLING:
            self.join(*self.data.parties)
        if state in {State.RUNNING, State.PAUSED}:
            self.get_ready(*self.data.parties)
        self.at(state)

    def end_round(
        self,
        verdict: RoundVerdict,
        reason: str = "",
        *,
        accuracy: float | None = None,
        union_size: int | None = 10,
    ) -> None:
        self.feed(
            RoundEnded(
                at_s=9.0,
                number=self.data.round,
                verdict=verdict,
                reason=reason,
                began_at_s=4.0,
                metrics={} if accuracy is None else {"accuracy": accuracy, "loss": 1 - accuracy},
                union_size=union_size,
                payload_bits=100,
                wire_bytes=20,
            )
        )

    def proposed_to(self) -> set[PartyId]:
        return {effect.to for effect in self.of(Publish) if isinstance(effect.body, RunProposed)}

    def expect_end(self, outcome: str, reason: str) -> None:
        """Everybody is told, and it is recorded."""
        assert (self.state.value, self.data.reason) == (outcome, reason)
        told = {effect.to: effect.body for effect in self.of(Publish)}
        body = {"outcome": outcome, "reason": reason, "last_round": self.data.round}
        assert told == dict.fromkeys(self.data.parties, RunEnded.model_validate(body))
        assert self.of(Record) == [Record("ended", {"outcome": outcome})]


def running() -> Play:
    return Play(state=State.RUNNING)


@pytest.fixture(params=[State.ENROLLING, State.AGREEING, State.RUNNING], ids=lambda state: state.value)
def anywhere(request: pytest.FixtureRequest) -> Play:
    """A run in each state that it can be in before its end."""
    return Play(state=request.param)


def test_every_named_party_is_asked_and_a_silent_one_again_also_after_a_restart() -> None:
    """The run is remembered and recorded once everybody was asked."""
    play = Play()
    everybody, first = {*MANIFEST.clients, *MANIFEST.aggregators}, MANIFEST.clients[0]
    assert play.proposed_to() == everybody
    *_, timer, remembered, recorded = play.effects
    assert timer == SetTimer("proposal", 3.0, ProposalDue)
    assert remembered == RememberRun()
    fields = {"manifest": MANIFEST.model_dump(mode="json"), "roster_sha256": MANIFEST.roster_sha256}
    assert recorded == Record("joined", fields)
    play.join(first)
    assert play.resumed() == [SetTimer("proposal", 0.0, ProposalDue)]
    play.feed(ProposalDue(at_s=3.0))
    assert play.proposed_to() == everybody - {first}
    assert play.effects[-1] == SetTimer("proposal", 5.0, ProposalDue)


def test_when_all_have_joined_everybody_is_sent_everybodys_keys() -> None:
    play = Play()
    *others, last = reversed(play.data.parties)
    for party in (*others, *others):  # The broker may deliver twice.
        play.join(party)
        play.expect(State.ENROLLING)
    play.join(last)
    keys = RunKeys(keys=tuple(make_run_key(MANIFEST, party) for party in play.data.parties))
    told = [Publish(party, role, keys) for party, role in play.data.parties.items()]
    play.expect(State.AGREEING, CancelTimer("proposal"), *told, IN_TIME)  # In the manifest's order.
    assert play.resumed() == [IN_TIME]


def test_a_second_key_of_a_party_is_not_passed_on() -> None:
    play = Play()
    first, *others = play.data.parties
    key = make_run_key(MANIFEST, first)
    second = PartyJoined(at_s=2.0, party=first, run_key=key.model_copy(update={"public_key": "9" * 64}))
    play.join(first)
    play.ignores(second)
    play.join(*others)
    assert all(effect.body.keys[0] == key for effect in play.of(Publish))
    play.ignores(second)


def test_the_first_round_opens_when_all_are_ready_and_not_before() -> None:
    play = Play()
    with pytest.raises(UnexpectedEvent):
        play.get_ready(MANIFEST.clients[0])  # There are no keys.
    play.reach(State.AGREEING)
    *others, last = play.data.parties
    for party in (*others, *others):
        play.get_ready(party)
        play.expect(State.AGREEING)
        assert play.data.round == 0
    play.get_ready(last)
    play.expect(State.RUNNING, CancelTimer("agreement"), *opening(1, at_s=3.0))
    assert play.data.round == 1
    assert play.resumed() == []


def test_a_party_that_does_not_check_the_keys_in_time_is_named_and_the_run_fails() -> None:
    play = Play(state=State.AGREEING)
    late, *others = play.data.parties
    play.get_ready(*others)
    play.feed(DeadlinePassed(at_s=9_999.0))
    play.at(State.FAILED)
    assert play.data.reason.startswith(f"{late} did not check the keys within 3600 s")


def test_clients_have_ten_minutes_to_agree_however_short_a_phase_is() -> None:
    play = Play(make_manifest(phase_timeout_s=0.5), State.AGREEING)
    assert SetTimer("agreement", 2.0 + 600.0, DeadlinePassed) in play.effects


def test_a_party_that_refuses_or_cannot_go_on_fails_the_run_and_is_named(anywhere: Play) -> None:
    begun = anywhere.state, anywhere.data
    anywhere.feed(PartyRefused(at_s=4.0, party=MANIFEST.clients[1], code=Code.POLICY_STRATEGY))
    anywhere.expect_end(
        "failed",
        "client-2 refused the run (policy-strategy): its policy does not allow the strategy. "
        "Its owner's log says more",
    )
    assert anywhere.data.failed_party == "client-2"
    anywhere.state, anywhere.data = begun
    anywhere.feed(PartyBroke(at_s=4.0, party=MANIFEST.aggregators[0], code=Code.DISK_FAILED))
    why = "aggregator-1 left the run (disk-failed): its disk failed. Its owner's log says more"
    anywhere.expect_end("failed", why)


def test_released_rounds_lead_to_the_end_and_a_void_one_is_made_up_for() -> None:
    play = running()
    play.end_round(RoundVerdict.VOID, "client-3 did not deliver")
    play.expect(State.RUNNING, *opening(2))
    play.end_round(RoundVerdict.RELEASED)
    play.expect(State.RUNNING, *opening(3))
    play.end_round(RoundVerdict.RELEASED)
    play.expect_end("completed", "all 2 rounds are done")
    assert (play.data.released, play.data.void, play.data.ended_at_s) == (2, 1, 9.0)


# A target ------------------------------------------------------------------------------------------------


def aiming(target: float) -> Play:
    return Play(make_manifest(rounds=3, max_void_rounds=3, metrics=CLASSIFIED, target=target), State.RUNNING)


@pytest.mark.parametrize("accuracy", [0.9, 0.95, 1.0])
def test_the_first_released_round_that_reaches_the_target_completes_the_run(accuracy: float) -> None:
    play = aiming(0.9)
    play.end_round(RoundVerdict.RELEASED, accuracy=0.899)
    play.at(State.RUNNING)
    play.end_round(RoundVerdict.RELEASED, accuracy=accuracy)
    play.expect_end("completed", f"round 2 reached accuracy {accuracy:.2%}; the target was 90.00%")


def test_a_target_that_is_not_reached_leaves_the_run_its_rounds() -> None:
    play = aiming(0.9)
    for accuracy in (0.5, None, 0.8):
        play.at(State.RUNNING)
        play.end_round(RoundVerdict.RELEASED, accuracy=accuracy)
    play.expect_end("completed", "all 3 rounds are done")


@pytest.mark.parametrize("verdict", [RoundVerdict.VOID, RoundVerdict.CONTRADICTED])
def test_only_a_released_round_reaches_the_target(verdict: RoundVerdict) -> None:
    play = aiming(0.9)
    play.end_round(verdict, accuracy=1.0)
    assert play.state is not State.COMPLETED


# A run that does not move ---------------------------------------------------------------------------------


def patient(rounds: int = 20, **fields: Any) -> Play:
    return Play(make_manifest(rounds=rounds, max_void_rounds=3, metrics=CLASSIFIED, **fields), State.RUNNING)


def test_a_run_that_gets_no_better_for_its_patience_is_stalled_and_completes() -> None:
    play = patient(patience=2)
    for accuracy in (0.3, 0.5, 0.4):
        play.end_round(RoundVerdict.RELEASED, accuracy=accuracy)
        assert (play.state, play.data.stalled) == (State.RUNNING, "")
    play.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    plateau = "accuracy was no better than 50.00% in the last 2 scored rounds"
    play.expect_end("completed", f"{plateau}, which is the patience of the run")
    assert play.data.stalled == f"{plateau}; {ADVICE}"


def test_rounds_without_agreed_totals_and_void_ones_are_not_counted_as_no_better() -> None:
    play = patient(patience=2)
    play.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    play.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    play.end_round(RoundVerdict.VOID)
    play.end_round(RoundVerdict.RELEASED)
    play.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    play.at(State.RUNNING)
    play.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    play.at(State.COMPLETED)


def test_rounds_that_are_not_scored_are_passed_over() -> None:
    play = patient(patience=2, evaluate_every=2)
    for accuracy in (None, 0.5, None, 0.5, None):
        play.end_round(RoundVerdict.RELEASED, accuracy=accuracy)
    play.at(State.RUNNING)
    play.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    play.at(State.COMPLETED)


def test_without_patience_a_run_is_called_stalled_and_goes_on_until_it_moves_again() -> None:
    play = patient()
    for _ in range(USUAL_PATIENCE):
        play.end_round(RoundVerdict.RELEASED, accuracy=0.5)
        assert not play.data.stalled
    play.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    play.at(State.RUNNING)
    assert play.data.stalled.startswith(f"accuracy was no better than 50.00% in the last {USUAL_PATIENCE} ")
    play.end_round(RoundVerdict.RELEASED, accuracy=0.6)
    assert not play.data.stalled


def test_a_model_that_cannot_be_better_is_not_stalled() -> None:
    play = patient()
    for _ in range(USUAL_PATIENCE + 2):
        play.end_round(RoundVerdict.RELEASED, accuracy=1.0)
    assert not play.data.stalled


def test_the_target_and_the_last_round_are_told_before_the_patience() -> None:
    on_target = patient(patience=1, target=0.5)
    on_target.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    assert on_target.data.reason.startswith("round 1 reached accuracy")
    at_the_end = patient(rounds=2, patience=1)
    at_the_end.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    at_the_end.end_round(RoundVerdict.RELEASED, accuracy=0.5)
    assert at_the_end.data.reason == "all 2 rounds are done"
    assert at_the_end.data.stalled


@pytest.mark.parametrize(("strategy", "is_stalled"), [("sec-union", True), ("sparse-sum", False)])
def test_a_run_is_stalled_at_once_when_v_is_empty_and_as_long_as_it_is(strategy: str, *, is_stalled: bool) -> None:
    """Where nothing is learnt, an empty V is a result like any other."""
    play = Play(make_manifest(rounds=9, max_void_rounds=3, strategy=strategy), State.RUNNING)
    play.end_round(RoundVerdict.RELEASED, union_size=0)
    play.at(State.RUNNING)
    assert ("|V| is 0" in play.data.stalled) is is_stalled
    play.end_round(RoundVerdict.VOID, union_size=None)
    assert bool(play.data.stalled) is is_stalled, "a void round tells nothing"
    play.end_round(RoundVerdict.RELEASED, union_size=3)
    assert not play.data.stalled


def test_a_run_adds_up_what_its_rounds_came_to() -> None:
    play = running()
    play.end_round(RoundVerdict.RELEASED, accuracy=0.75)
    play.end_round(RoundVerdict.VOID)
    data = play.data
    assert (data.ended, data.rounds_s, data.payload_bits, data.wire_bytes) == (2, 10.0, 200, 40)
    assert data.metrics == {"accuracy": 0.75, "loss": 0.25}, "of the last round that was scored"


def test_a_round_that_was_kept_by_an_earlier_version_says_nothing_of_what_it_came_to() -> None:
    play = running()
    play.feed(RoundEnded(at_s=9.0, number=1, verdict=RoundVerdict.RELEASED))
    assert (play.data.rounds_s, play.data.payload_bits, play.data.metrics) == (0.0, 0, {})


@pytest.mark.parametrize("state", [State.ENROLLING, State.AGREEING], ids=lambda state: state.value)
def test_a_run_that_is_paused_before_its_first_round_opens_none_until_it_is_resumed(state: State) -> None:
    play = Play(state=state)
    play.feed(PauseRequested(at_s=2.0))
    play.expect(state)
    play.reach(State.PAUSED)
    play.expect(State.PAUSED, CancelTimer("agreement"))
    assert (play.data.round, play.data.pausing) == (0, False)
    assert (play.data.paused_since_s or 0.0) > play.data.began_at_s
    play.feed(ResumeRequested(at_s=9.0))
    play.expect(State.RUNNING, *opening(1))
    assert (play.data.round, play.data.reason) == (1, "")
    assert play.data.paused_since_s is None


@pytest.mark.parametrize("state", [State.ENROLLING, State.AGREEING], ids=lambda state: state.value)
def test_a_pause_before_the_first_round_can_be_called_off(state: State) -> None:
    play = Play(state=state)
    play.feed(PauseRequested(at_s=2.0), ResumeRequested(at_s=2.0))
    play.reach(State.RUNNING)


# What goes wrong -------------------------------------------------------------------------------------------


def test_after_a_pause_that_was_asked_for_and_came_for_another_reason_a_run_goes_on() -> None:
    play = running()
    play.data = replace(play.data, pause_when_void=True)
    play.end_round(RoundVerdict.VOID)
    play.feed(PauseRequested(at_s=8.0))
    play.end_round(RoundVerdict.VOID)
    play.at(State.PAUSED)
    play.feed(ResumeRequested(at_s=9.0))
    play.end_round(RoundVerdict.RELEASED)
    play.at(State.RUNNING)


def test_more_void_rounds_than_the_manifest_allows_fail_the_run() -> None:
    play = running()
    play.end_round(RoundVerdict.VOID, "client-3 did not deliver")
    play.at(State.RUNNING)
    play.end_round(RoundVerdict.VOID, "client-2 did not deliver")
    play.expect_end("failed", "2 rounds were void, the last because client-2 did not deliver")


def test_a_contradiction_ends_the_run_at_once() -> None:
    play, why = running(), "aggregator-2 released a sum over other members"
    play.end_round(RoundVerdict.CONTRADICTED, why)
    play.expect_end("failed", why)


def test_an_operator_can_cancel_and_a_failure_of_our_own_fails_the_run(anywhere: Play) -> None:
    begun = anywhere.state, anywhere.data
    anywhere.feed(CancelRequested(at_s=4.0))
    anywhere.expect_end("cancelled", "an operator cancelled it")
    with pytest.raises(UnexpectedEvent):
        anywhere.feed(CancelRequested(at_s=5.0))
    anywhere.state, anywhere.data = begun
    anywhere.feed(Failed("ProposalDue: the broker is away"))
    anywhere.expect_end("failed", "the coordinator failed: ProposalDue: the broker is away")


@pytest.mark.parametrize("state", [State.AGREEING, State.RUNNING])
def test_a_late_answer_changes_nothing(state: State) -> None:
    play, client = Play(state=state), MANIFEST.clients[0]
    play.ignores(PartyJoined(at_s=2.0, party=client, run_key=make_run_key(MANIFEST, client)))
    play.ignores(ProposalDue(at_s=8.0))
    if state is State.RUNNING:
        play.ignores(PartyReady(at_s=3.0, party=client))


def test_the_first_score_members_and_the_last_round_of_each_client_are_known_through_voids_and_pauses() -> None:
    play = running()
    first, second, _ = MANIFEST.clients
    for present, verdict in ({first, second}, RoundVerdict.RELEASED), ({first}, RoundVerdict.VOID):
        known = frozenset(present)
        end = RoundEnded(at_s=9.0, number=play.data.round, verdict=verdict, present=known, score_members=known)
        play.feed(PauseRequested(at_s=8.0), end, ResumeRequested(at_s=10.0))
    assert play.data.attended == {first: 2, second: 1}
    assert play.data.score_members == {first, second}
