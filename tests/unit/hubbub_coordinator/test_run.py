"""The coordinator's run by scenario: who must join, what ends it, and that everybody is told."""

import pytest

from hubbub.errors import UnexpectedEvent
from hubbub.ids import PartyId
from hubbub.machine.effects import CancelTimer, Effect, Failed, Publish, SetTimer
from hubbub.machine.table import step
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import RunEnded, RunProposed
from hubbub_coordinator.events import (
    Began,
    CancelRequested,
    PartyBroke,
    PartyJoined,
    PartyRefused,
    ProposalDue,
    RoundEnded,
    RoundVerdict,
)
from hubbub_coordinator.phases.run import TRANSITIONS, OpenRound, Run, State
from support.builders import make_manifest

MANIFEST = make_manifest(clients=3, servers=2, rounds=2, max_void_rounds=1)


class Play:
    """A run, fed event by event."""

    def __init__(self, manifest: Manifest = MANIFEST) -> None:
        self.state, self.data = State.ENROLLING, Run(manifest=manifest)
        self.effects: tuple[Effect, ...] = ()
        self.feed(Began(at_s=1.0))

    def feed(self, event: object) -> None:
        result = step(TRANSITIONS, self.state, self.data, event)
        self.state, self.data, self.effects = result.state, result.data, result.effects

    def expect(self, state: State) -> None:
        assert self.state is state

    def join_all(self) -> None:
        for party in self.data.parties:
            self.feed(PartyJoined(at_s=2.0, party=party))

    def end_round(self, verdict: RoundVerdict, reason: str = "") -> None:
        self.feed(RoundEnded(at_s=9.0, number=self.data.round, verdict=verdict, reason=reason))

    def proposed_to(self) -> set[PartyId]:
        return {
            effect.to
            for effect in self.effects
            if isinstance(effect, Publish) and isinstance(effect.body, RunProposed)
        }

    def last_words(self) -> dict[PartyId, RunEnded]:
        return {
            effect.to: effect.body
            for effect in self.effects
            if isinstance(effect, Publish) and isinstance(effect.body, RunEnded)
        }


def test_every_named_party_is_asked_and_a_silent_one_again() -> None:
    play = Play()
    everybody = {*MANIFEST.clients, *MANIFEST.aggregators}
    assert play.proposed_to() == everybody
    assert any(isinstance(effect, SetTimer) and effect.event is ProposalDue for effect in play.effects)
    play.feed(PartyJoined(at_s=2.0, party=MANIFEST.clients[0]))
    play.feed(ProposalDue(at_s=3.0))
    assert play.proposed_to() == everybody - {MANIFEST.clients[0]}
    assert any(isinstance(effect, SetTimer) and effect.at_s > 3.0 for effect in play.effects)


def test_the_first_round_opens_when_all_have_joined_and_not_before() -> None:
    play = Play()
    *others, last = play.data.parties
    for party in (*others, *others):  # The broker may deliver twice.
        play.feed(PartyJoined(at_s=2.0, party=party))
        assert (play.state, play.effects) == (State.ENROLLING, ())
    play.feed(PartyJoined(at_s=2.0, party=last))
    play.expect(State.RUNNING)
    assert play.effects == (CancelTimer("proposal"), OpenRound(1))


@pytest.mark.parametrize("joined", [False, True])
def test_a_refusal_fails_the_run_with_its_reason_and_everybody_is_told(*, joined: bool) -> None:
    play = Play()
    if joined:
        play.join_all()
    play.feed(PartyRefused(at_s=4.0, party=MANIFEST.clients[1], reason="refused to join: no such task"))
    play.expect(State.FAILED)
    assert play.data.reason == "client-2: refused to join: no such task"
    assert play.last_words() == dict.fromkeys(
        play.data.parties, RunEnded(outcome="failed", reason=play.data.reason)
    )


def test_a_party_that_cannot_go_on_fails_the_run() -> None:
    play = Play()
    play.join_all()
    play.feed(PartyBroke(at_s=4.0, party=MANIFEST.aggregators[0], reason="the disk is full"))
    play.expect(State.FAILED)
    assert play.data.reason == "aggregator-1: the disk is full"


def test_released_rounds_lead_to_the_end() -> None:
    play = Play()
    play.join_all()
    play.end_round(RoundVerdict.RELEASED)
    assert (play.state, play.effects) == (State.RUNNING, (OpenRound(2),))
    play.end_round(RoundVerdict.RELEASED)
    play.expect(State.COMPLETED)
    assert {body.outcome for body in play.last_words().values()} == {"completed"}
    assert play.last_words().keys() == play.data.parties.keys()
    assert play.data.ended_at_s == 9.0


def test_a_void_round_is_made_up_for_by_another() -> None:
    play = Play()
    play.join_all()
    play.end_round(RoundVerdict.VOID, "client-3 did not deliver")
    assert play.effects == (OpenRound(2),)
    play.end_round(RoundVerdict.RELEASED)
    assert play.effects == (OpenRound(3),)
    play.end_round(RoundVerdict.RELEASED)
    play.expect(State.COMPLETED)
    assert (play.data.released, play.data.void) == (2, 1)


def test_more_void_rounds_than_the_manifest_allows_fail_the_run() -> None:
    play = Play()
    play.join_all()
    play.end_round(RoundVerdict.VOID, "client-3 did not deliver")
    play.expect(State.RUNNING)
    play.end_round(RoundVerdict.VOID, "client-2 did not deliver")
    play.expect(State.FAILED)
    assert play.data.reason == "2 rounds were void, the last because client-2 did not deliver"


def test_a_contradiction_ends_the_run_at_once() -> None:
    play = Play()
    play.join_all()
    play.end_round(RoundVerdict.CONTRADICTED, "aggregator-2 released a sum over other members")
    play.expect(State.FAILED)
    assert "other members" in play.data.reason


@pytest.mark.parametrize("joined", [False, True])
def test_an_operator_can_cancel(*, joined: bool) -> None:
    play = Play()
    if joined:
        play.join_all()
    play.feed(CancelRequested(at_s=4.0))
    play.expect(State.CANCELLED)
    assert {body.outcome for body in play.last_words().values()} == {"cancelled"}
    with pytest.raises(UnexpectedEvent):
        play.feed(CancelRequested(at_s=5.0))


@pytest.mark.parametrize("joined", [False, True])
def test_a_failure_of_our_own_fails_the_run(*, joined: bool) -> None:
    play = Play()
    if joined:
        play.join_all()
    play.feed(Failed("ProposalDue: the broker is away"))
    play.expect(State.FAILED)
    assert "the broker is away" in play.data.reason


def test_a_late_answer_changes_nothing_once_running() -> None:
    play = Play()
    play.join_all()
    before = play.data
    play.feed(PartyJoined(at_s=7.0, party=MANIFEST.clients[0]))
    play.feed(ProposalDue(at_s=8.0))
    assert (play.state, play.data, play.effects) == (State.RUNNING, before, ())
