"""The coordinator's run by scenario: who must join and agree, what ends it, and that everybody is told."""

from dataclasses import replace

import pytest

from hubbub.errors import Code, UnexpectedEvent
from hubbub.ids import PartyId
from hubbub.machine.effects import CancelTimer, Effect, Failed, Key, Publish, Record, SetTimer, Tell
from hubbub.machine.table import step
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.runs import RunEnded, RunKeys, RunProposed
from hubbub.protocol.metrics import CLASSIFICATION
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
from hubbub_coordinator.phases.run import KIND, TRANSITIONS, CoordinatorRun, OpenRound, RememberRun, State
from support.builders import make_manifest, make_run_key

MANIFEST = make_manifest(clients=3, servers=2, rounds=2, max_void_rounds=1)
IN_TIME = SetTimer("agreement", 2.0 + MANIFEST.phase_timeout_s, DeadlinePassed)


def opening(number: int, at_s: float = 9.0) -> tuple[Effect, ...]:
    """What opens a round: its machine is set up, and told to begin."""
    return (OpenRound(number), Tell(Key("round", MANIFEST.run_id, number), Began(at_s=at_s)))


class Play:
    """A run, fed event by event."""

    def __init__(self, manifest: Manifest = MANIFEST) -> None:
        self.state, self.data = State.ENROLLING, CoordinatorRun(manifest=manifest)
        self.effects: tuple[Effect, ...] = ()
        self.feed(Began(at_s=1.0))

    def feed(self, event: object) -> None:
        result = step(TRANSITIONS, self.state, self.data, event)
        self.state, self.data, self.effects = result.state, result.data, result.effects

    def expect(self, state: State) -> None:
        assert self.state is state

    def join(self, *parties: PartyId) -> None:
        for party in parties:
            self.feed(PartyJoined(at_s=2.0, party=party, run_key=make_run_key(MANIFEST, party)))

    def get_ready(self, *parties: PartyId) -> None:
        for party in parties:
            self.feed(PartyReady(at_s=3.0, party=party))

    def reach(self, state: State) -> None:
        """Go on as far as this, with everybody's help."""
        if state is not State.ENROLLING:
            self.join(*self.data.parties)
        if state is State.RUNNING:
            self.get_ready(*self.data.parties)
        self.expect(state)

    def end_round(self, verdict: RoundVerdict, reason: str = "", *, accuracy: float | None = None) -> None:
        self.feed(
            RoundEnded(
                at_s=9.0,
                number=self.data.round,
                verdict=verdict,
                reason=reason,
                began_at_s=4.0,
                metrics={} if accuracy is None else {"accuracy": accuracy, "loss": 1 - accuracy},
                payload_bits=100,
                wire_bytes=20,
            )
        )

    def proposed_to(self) -> set[PartyId]:
        return {
            effect.to
            for effect in self.effects
            if isinstance(effect, Publish) and isinstance(effect.body, RunProposed)
        }

    def recorded(self) -> list[tuple[str, object]]:
        return [
            (effect.kind, effect.fields.get("outcome")) for effect in self.effects if isinstance(effect, Record)
        ]

    def last_words(self) -> dict[PartyId, RunEnded]:
        return {
            effect.to: effect.body
            for effect in self.effects
            if isinstance(effect, Publish) and isinstance(effect.body, RunEnded)
        }


def running() -> Play:
    play = Play()
    play.reach(State.RUNNING)
    return play


@pytest.fixture(params=[State.ENROLLING, State.AGREEING, State.RUNNING], ids=lambda state: state.value)
def anywhere(request: pytest.FixtureRequest) -> Play:
    """A run in each state that it can be in before its end."""
    play = Play()
    play.reach(request.param)
    return play


def test_a_run_is_recorded_and_remembered_once_everybody_was_asked() -> None:
    *_, remembered, recorded = Play().effects
    assert remembered == RememberRun()
    assert recorded == Record(
        "joined", {"manifest": MANIFEST.model_dump(mode="json"), "roster_sha256": MANIFEST.roster_sha256}
    )


def test_every_named_party_is_asked_and_a_silent_one_again() -> None:
    play = Play()
    everybody = {*MANIFEST.clients, *MANIFEST.aggregators}
    assert play.proposed_to() == everybody
    assert any(isinstance(effect, SetTimer) and effect.event is ProposalDue for effect in play.effects)
    play.join(MANIFEST.clients[0])
    play.feed(ProposalDue(at_s=3.0))
    assert play.proposed_to() == everybody - {MANIFEST.clients[0]}
    assert any(isinstance(effect, SetTimer) and effect.at_s > 3.0 for effect in play.effects)


def test_when_all_have_joined_everybody_is_sent_everybodys_keys() -> None:
    play = Play()
    *others, last = reversed(play.data.parties)
    for party in (*others, *others):  # The broker may deliver twice.
        play.join(party)
        assert (play.state, play.effects) == (State.ENROLLING, ())
    play.join(last)
    play.expect(State.AGREEING)
    keys = RunKeys(keys=tuple(make_run_key(MANIFEST, party) for party in play.data.parties))
    assert play.effects == (
        CancelTimer("proposal"),
        *(Publish(party, role, keys) for party, role in play.data.parties.items()),
        IN_TIME,
    ), "in the manifest's order, whoever answered first"


def test_a_second_key_of_a_party_is_not_passed_on() -> None:
    play = Play()
    first, *others = play.data.parties
    play.join(first)
    before = play.data
    other_key = make_run_key(MANIFEST, first).model_copy(update={"public_key": "9" * 64})
    play.feed(PartyJoined(at_s=2.0, party=first, run_key=other_key))
    assert (play.state, play.data, play.effects) == (State.ENROLLING, before, ())
    play.join(*others)
    sent = [effect.body for effect in play.effects if isinstance(effect, Publish)]
    assert all(isinstance(body, RunKeys) and body.keys[0] == make_run_key(MANIFEST, first) for body in sent)
    before = play.data
    play.feed(PartyJoined(at_s=2.0, party=first, run_key=other_key))
    assert (play.state, play.data, play.effects) == (State.AGREEING, before, ())


def test_the_first_round_opens_when_all_are_ready_and_not_before() -> None:
    play = Play()
    play.reach(State.AGREEING)
    *others, last = play.data.parties
    for party in (*others, *others):
        play.get_ready(party)
        assert (play.state, play.effects, play.data.round) == (State.AGREEING, (), 0)
    play.get_ready(last)
    play.expect(State.RUNNING)
    assert (play.effects, play.data.round) == ((CancelTimer("agreement"), *opening(1, at_s=3.0)), 1)


def test_who_does_not_check_the_keys_in_time_is_named_and_the_run_fails() -> None:
    play = Play()
    play.reach(State.AGREEING)
    late, *others = play.data.parties
    for party in others:
        play.get_ready(party)
    play.feed(DeadlinePassed(at_s=9_999.0))
    play.expect(State.FAILED)
    assert play.data.reason.startswith(f"{late} did not check the keys within 3600 s")


def test_clients_have_ten_minutes_to_agree_however_short_a_phase_is() -> None:
    play = Play(make_manifest(clients=3, servers=2, phase_timeout_s=0.5))
    play.reach(State.AGREEING)
    assert SetTimer("agreement", 2.0 + 600.0, DeadlinePassed) in play.effects


def test_nobody_is_ready_before_there_are_keys() -> None:
    play = Play()
    with pytest.raises(UnexpectedEvent):
        play.get_ready(MANIFEST.clients[0])
    assert play.data.ready == frozenset()


def test_a_refusal_fails_the_run_with_its_reason_and_everybody_is_told(anywhere: Play) -> None:
    play = anywhere
    play.feed(PartyRefused(at_s=4.0, party=MANIFEST.clients[1], code=Code.POLICY_STRATEGY))
    play.expect(State.FAILED)
    assert play.data.reason == (
        "client-2 refused the run (policy-strategy): its policy does not allow the strategy. "
        "Its owner's log says more"
    )
    assert play.data.failed_party == "client-2"
    assert play.last_words() == dict.fromkeys(
        play.data.parties, RunEnded(outcome="failed", reason=play.data.reason, last_round=play.data.round)
    )
    assert play.recorded() == [("ended", "failed")]


def test_a_party_that_cannot_go_on_fails_the_run(anywhere: Play) -> None:
    anywhere.feed(PartyBroke(at_s=4.0, party=MANIFEST.aggregators[0], code=Code.DISK_FAILED))
    anywhere.expect(State.FAILED)
    assert anywhere.data.reason == (
        "aggregator-1 left the run (disk-failed): its disk failed. Its owner's log says more"
    )


def test_released_rounds_lead_to_the_end() -> None:
    play = running()
    play.end_round(RoundVerdict.RELEASED)
    assert (play.state, play.effects) == (State.RUNNING, opening(2))
    play.end_round(RoundVerdict.RELEASED)
    play.expect(State.COMPLETED)
    assert {body.outcome for body in play.last_words().values()} == {"completed"}
    assert play.recorded() == [("ended", "completed")]
    assert play.last_words().keys() == play.data.parties.keys()
    assert play.data.ended_at_s == 9.0


# A target ------------------------------------------------------------------------------------------------


METRICS = tuple(MetricClaim.of(metric) for metric in CLASSIFICATION)


def aiming(target: float) -> Play:
    manifest = make_manifest(clients=3, servers=2, rounds=3, max_void_rounds=3, metrics=METRICS, target=target)
    play = Play(manifest)
    play.reach(State.RUNNING)
    return play


@pytest.mark.parametrize("accuracy", [0.9, 0.95, 1.0])
def test_the_first_released_round_that_reaches_the_target_completes_the_run(accuracy: float) -> None:
    play = aiming(0.9)
    play.end_round(RoundVerdict.RELEASED, accuracy=0.899)
    play.expect(State.RUNNING)
    play.end_round(RoundVerdict.RELEASED, accuracy=accuracy)
    play.expect(State.COMPLETED)
    assert play.data.reason == f"round 2 reached accuracy {accuracy:.2%}; the target was 90.00%"
    assert {body.outcome for body in play.last_words().values()} == {"completed"}


def test_a_target_that_is_not_reached_leaves_the_run_its_rounds() -> None:
    play = aiming(0.9)
    for accuracy in (0.5, None, 0.8):
        play.expect(State.RUNNING)
        play.end_round(RoundVerdict.RELEASED, accuracy=accuracy)
    play.expect(State.COMPLETED)
    assert play.data.reason == "all 3 rounds are done"


@pytest.mark.parametrize("verdict", [RoundVerdict.VOID, RoundVerdict.CONTRADICTED])
def test_only_a_released_round_reaches_the_target(verdict: RoundVerdict) -> None:
    play = aiming(0.9)
    play.end_round(verdict, accuracy=1.0)
    assert play.state is not State.COMPLETED


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
    play = Play()
    play.reach(state)
    play.feed(PauseRequested(at_s=2.0))
    play.expect(state)
    if state is State.ENROLLING:
        play.join(*play.data.parties)
    play.get_ready(*play.data.parties)
    play.expect(State.PAUSED)
    assert (play.effects, play.data.round, play.data.pausing) == ((CancelTimer("agreement"),), 0, False)

    play.feed(ResumeRequested(at_s=9.0))
    play.expect(State.RUNNING)
    assert (play.effects, play.data.round, play.data.reason) == (opening(1), 1, "")


@pytest.mark.parametrize("state", [State.ENROLLING, State.AGREEING], ids=lambda state: state.value)
def test_a_pause_before_the_first_round_can_be_called_off(state: State) -> None:
    play = Play()
    play.reach(state)
    play.feed(PauseRequested(at_s=2.0))
    play.feed(ResumeRequested(at_s=2.0))
    if state is State.ENROLLING:
        play.join(*play.data.parties)
    play.get_ready(*play.data.parties)
    play.expect(State.RUNNING)


# What goes wrong -------------------------------------------------------------------------------------------


def test_after_a_pause_that_was_asked_for_and_came_for_another_reason_a_run_goes_on() -> None:
    play = Play()
    play.data = replace(play.data, pause_when_void=True)
    play.reach(State.RUNNING)
    play.end_round(RoundVerdict.VOID)
    play.feed(PauseRequested(at_s=8.0))
    play.end_round(RoundVerdict.VOID)
    play.expect(State.PAUSED)
    play.feed(ResumeRequested(at_s=9.0))
    play.end_round(RoundVerdict.RELEASED)
    play.expect(State.RUNNING)


def test_a_void_round_is_made_up_for_by_another() -> None:
    play = running()
    play.end_round(RoundVerdict.VOID, "client-3 did not deliver")
    assert play.effects == opening(2)
    play.end_round(RoundVerdict.RELEASED)
    assert play.effects == opening(3)
    play.end_round(RoundVerdict.RELEASED)
    play.expect(State.COMPLETED)
    assert (play.data.released, play.data.void) == (2, 1)


def test_more_void_rounds_than_the_manifest_allows_fail_the_run() -> None:
    play = running()
    play.end_round(RoundVerdict.VOID, "client-3 did not deliver")
    play.expect(State.RUNNING)
    play.end_round(RoundVerdict.VOID, "client-2 did not deliver")
    play.expect(State.FAILED)
    assert play.data.reason == "2 rounds were void, the last because client-2 did not deliver"


def test_a_contradiction_ends_the_run_at_once() -> None:
    play = running()
    play.end_round(RoundVerdict.CONTRADICTED, "aggregator-2 released a sum over other members")
    play.expect(State.FAILED)
    assert "other members" in play.data.reason


def test_an_operator_can_cancel(anywhere: Play) -> None:
    anywhere.feed(CancelRequested(at_s=4.0))
    anywhere.expect(State.CANCELLED)
    assert {body.outcome for body in anywhere.last_words().values()} == {"cancelled"}
    assert anywhere.recorded() == [("ended", "cancelled")]
    with pytest.raises(UnexpectedEvent):
        anywhere.feed(CancelRequested(at_s=5.0))


def test_a_failure_of_our_own_fails_the_run(anywhere: Play) -> None:
    anywhere.feed(Failed("ProposalDue: the broker is away"))
    anywhere.expect(State.FAILED)
    assert "the broker is away" in anywhere.data.reason


@pytest.mark.parametrize("state", [State.AGREEING, State.RUNNING])
def test_a_late_answer_changes_nothing(state: State) -> None:
    play = Play()
    play.reach(state)
    before = play.data
    play.join(MANIFEST.clients[0])
    play.feed(ProposalDue(at_s=8.0))
    if state is State.RUNNING:
        play.get_ready(MANIFEST.clients[0])
    assert (play.state, play.data, play.effects) == (state, before, ())


# After a restart ------------------------------------------------------------------------------------------


def test_who_has_not_answered_is_asked_again_at_once_after_a_restart() -> None:
    play = Play()
    play.join(MANIFEST.clients[0])
    assert KIND.resume(play.state, play.data) == (SetTimer("proposal", 0.0, ProposalDue),)
    play.feed(ProposalDue(at_s=50.0))
    assert play.proposed_to() == play.data.parties.keys() - {MANIFEST.clients[0]}


@pytest.mark.parametrize(("state", "waits"), [(State.AGREEING, (IN_TIME,)), (State.RUNNING, ())])
def test_a_run_in_which_all_have_answered_asks_nobody_again(state: State, waits: tuple[Effect, ...]) -> None:
    play = Play()
    play.reach(state)
    assert KIND.resume(play.state, play.data) == waits


def test_the_last_round_that_each_client_took_part_in_is_known_through_void_rounds_and_pauses() -> None:
    play = running()
    first, second, third = MANIFEST.clients
    for present, verdict in ({first, second}, RoundVerdict.RELEASED), ({first}, RoundVerdict.VOID):
        number = play.data.round
        play.feed(PauseRequested(at_s=8.0))
        play.feed(RoundEnded(at_s=9.0, number=number, verdict=verdict, present=frozenset(present)))
        play.feed(ResumeRequested(at_s=10.0))
    assert play.data.attended == {first: 2, second: 1}
    assert third not in play.data.attended
