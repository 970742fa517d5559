"""A round at a client: verdicts may come at any time, only unanimous ones are acted upon, and all is recorded."""

from dataclasses import replace
from itertools import permutations

import pytest

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import CountRefusal, Effect, Failed, Job, Key, Publish, Record, Tell
from hubbub.machine.table import step
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import RoundApplied, RoundDropped, RoundScored, ScoreClaim, SumChunk, VoidNotice
from hubbub.messages.runs import PartyFailed
from hubbub.messages.shares import MAX_RESENDS, Traffic
from hubbub.protocol.layout import Vector
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.verified import Verified
from hubbub_trainer.events import (
    Closed,
    Concluded,
    Decoded,
    Evaluated,
    Go,
    HeldModel,
    OtherTranscript,
    Overtaken,
    RoundBroken,
    RoundOver,
    SetAskedFor,
    SharesResent,
    SharesSent,
    Strayed,
    SumArrived,
    SumsLost,
    Trained,
    VoidAnnounced,
)
from hubbub_trainer.phases.participation import ReportOldCopy
from hubbub_trainer.phases.round import (
    KIND,
    TRANSITIONS,
    ClientRound,
    CloseVoid,
    Conclude,
    DecodeSums,
    Evaluate,
    ResendShares,
    SendShares,
    SpoolSum,
    State,
    Train,
)
from support.builders import make_manifest
from support.two_phases import NAME, TwoPhases

VECTORS = (Vector("signs", 100, 7), Vector("factors", 1, 2**32))
OTHER_VECTORS = (Vector("signs", 99, 7), Vector("factors", 1, 2**32))
SENT = (Traffic(counts_as="signs", direction="up", payload_bits=600),)
CHUNKS = 2
TRANSCRIPT, MODEL = "7a" * 32, "5d" * 32
HELD = HeldModel(sha256="5e" * 32, step=1.0)
DECODED = Decoded(transcript=TRANSCRIPT)
WORKING = [State.QUEUED, State.TRAINING, State.SHARING, State.WAITING, State.DECODING, State.CONCLUDING]
METRICS = (MetricClaim(name="accuracy"),)
TOTALS = {"accuracy": 0.75}


def key_of(aggregator: PartyId) -> bytes:
    """The key of an aggregator's sum, wrapped for this client: a new one for every release."""
    return f"the key of {aggregator}".encode()


class Play:
    """The round of the first client of three, with three aggregators."""

    def __init__(self, manifest: Manifest | None = None) -> None:
        self.manifest = manifest or make_manifest(clients=3, servers=3, min_clients=2)
        self.everybody = frozenset(self.manifest.clients)
        self.run = Key("run", self.manifest.run_id)
        self.me = self.manifest.clients[0]
        self.state = State.QUEUED
        self.data = ClientRound(
            me=self.me, key=Key("round", self.run.run, 1), run=self.run, manifest=self.manifest
        )
        self.effects: tuple[Effect, ...] = ()
        self.score_members: frozenset[PartyId] = frozenset()

    def feed(self, event: object) -> None:
        result = step(TRANSITIONS, self.state, self.data, event)
        self.state, self.data, self.effects = result.state, result.data, result.effects

    def expect(self, state: State) -> None:
        assert self.state is state

    def sum_chunk(
        self,
        aggregator: PartyId,
        index: int,
        *,
        members: frozenset[PartyId] | None = None,
        vectors: tuple[Vector, ...] = VECTORS,
        wrapped_key: bytes | None = None,
        phase: str | None = None,
        transcript: str = TRANSCRIPT,
    ) -> None:
        self.feed(
            SumArrived(
                phase=phase or self.data.current.name,
                aggregator=aggregator,
                members=self.everybody if members is None else members,
                vectors=vectors,
                transcript=transcript,
                wrapped_key=wrapped_key or key_of(aggregator),
                index=index,
                chunks=CHUNKS,
                wire_bytes={"signs": 10, "factors": 1},
            )
        )

    def sums(self, *, members: frozenset[PartyId] | None = None, phase: str | None = None) -> None:
        for aggregator in self.manifest.aggregators:
            for index in range(CHUNKS):
                self.sum_chunk(aggregator, index, members=members, phase=phase)

    def announce_void(self, aggregator: PartyId, phase: str | None = None) -> None:
        self.feed(VoidAnnounced(phase=phase or self.data.current.name, aggregator=aggregator))

    def advance(self, state: State) -> None:
        """Come to a state the ordinary way."""
        go = Go(is_scored=self.manifest.is_scored, score_members=self.score_members)
        steps: list[object] = [go, Trained(training_s=2.0), SharesSent(traffic=SENT)]
        while self.state is not state:
            if self.state is State.WAITING and state is State.CLOSING:
                for aggregator in self.manifest.aggregators:
                    self.announce_void(aggregator)
            elif self.state is State.WAITING:
                self.sums()
            elif self.state is State.DECODING:
                self.feed(DECODED)
            else:
                self.feed(steps.pop(0))

    def close(self) -> None:
        """The round is void: the model stays what it was."""
        assert (self.state, self.jobs()) == (State.CLOSING, [CloseVoid()])
        self.feed(Closed(model_hmac=MODEL, held=HELD))
        self.expect(State.VOID)

    def jobs(self) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, Job)]

    def records(self) -> list[Record]:
        return [effect for effect in self.effects if isinstance(effect, Record)]

    def over(self) -> RoundOver:
        (event,) = [effect.event for effect in self.effects if isinstance(effect, Tell)]
        assert isinstance(event, RoundOver)
        return event

    def said(self) -> list[Message]:
        return [
            effect.body
            for effect in self.effects
            if isinstance(effect, Publish)
            and effect.to == self.manifest.coordinator
            and isinstance(effect.body, Message)
        ]

    def failure(self) -> Code:
        assert self.state is State.FAILED
        (body,) = self.said()
        assert isinstance(body, PartyFailed)
        return body.code

    def contradiction(self, kind: str, aggregator: PartyId) -> str:
        """What our log says; the coordinator is told the code, and it was counted against this aggregator."""
        assert self.failure() is Code.PROTOCOL_CONTRADICTION
        (refusal,) = [effect for effect in self.effects if isinstance(effect, CountRefusal)]
        assert (refusal.reason, refusal.kind) == (RejectReason.CONTRADICTION, kind)
        assert refusal.sender == aggregator
        return refusal.explanation


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def two_phases(monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setitem(STRATEGIES, NAME, Verified(TwoPhases()))
    return Play(make_manifest(clients=3, servers=3, min_clients=2, strategy=NAME))


def conclude(play: Play) -> RoundApplied:
    play.feed(Concluded(model_hmac=MODEL, held=HELD))
    play.expect(State.APPLIED)
    exposed = play.me in play.data.members
    over = RoundOver(number=1, released=True, model_hmac=MODEL, held=HELD, exposed=exposed)
    assert Tell(play.run, over) in play.effects
    assert play.records() == [Record("applied", {"model_hmac": MODEL})]
    (body,) = play.said()
    assert isinstance(body, RoundApplied)
    return body


def test_the_ordinary_way(play: Play) -> None:
    play.feed(Go())
    assert [*play.effects] == [Train()]
    play.feed(Trained(training_s=2.0))
    assert [*play.effects] == [SendShares("signs")]
    play.feed(SharesSent(traffic=SENT))
    assert (play.state, play.effects) == (State.WAITING, ())
    play.sums()
    play.expect(State.DECODING)
    assert play.jobs() == [DecodeSums("signs")]
    play.feed(DECODED)
    released = {"phase": "signs", "members": [*play.manifest.clients], "transcript": TRANSCRIPT}
    assert [*play.effects] == [Record("released", released), Conclude(took_part=True)]
    report = conclude(play)
    chunks = CHUNKS * len(play.manifest.aggregators)
    assert report.traffic == (
        *SENT,
        Traffic(counts_as="signs", direction="down", wire_bytes=10 * chunks),
        Traffic(counts_as="factors", direction="down", wire_bytes=chunks),
    )


def test_a_chunk_of_a_sum_is_on_disk_before_it_is_acted_upon(play: Play) -> None:
    play.advance(State.WAITING)
    *others, last = play.manifest.aggregators
    for aggregator in others:
        for index in range(CHUNKS):
            play.sum_chunk(aggregator, index)
            assert [*play.effects] == [SpoolSum("signs", aggregator, index)]
    play.sum_chunk(last, 1)
    play.sum_chunk(last, 0)
    assert play.effects == (SpoolSum("signs", last, 0), DecodeSums("signs"))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_sums_may_come_in_any_order_and_twice(play: Play, order: tuple[int, ...]) -> None:
    play.advance(State.WAITING)
    arrivals = [(play.manifest.aggregators[server], index) for index in (1, 0) for server in order]
    for aggregator, index in arrivals[:-1]:
        play.sum_chunk(aggregator, index)
        before = play.data
        play.sum_chunk(aggregator, index)
        assert (play.state, play.data, play.effects) == (State.WAITING, before, ())
    play.sum_chunk(*arrivals[-1])
    play.expect(State.DECODING)
    play.sum_chunk(*arrivals[-1])  # Delivered twice: no second decoding.
    assert (play.state, play.effects) == (State.DECODING, ())
    play.feed(DECODED)
    play.sum_chunk(*arrivals[0])
    assert (play.state, play.effects) == (State.CONCLUDING, ())


@pytest.mark.parametrize("busy", [State.QUEUED, State.TRAINING, State.SHARING])
def test_sums_that_come_while_the_client_is_busy_are_kept(play: Play, busy: State) -> None:
    play.advance(busy)
    play.sum_chunk(play.manifest.aggregators[0], 0)
    assert [*play.effects] == [SpoolSum("signs", play.manifest.aggregators[0], 0)]
    play.sums()
    play.expect(busy)
    assert not play.jobs()


def test_who_was_away_when_the_round_was_closed_does_not_train_for_it(play: Play) -> None:
    play.sums(members=play.everybody - {play.me})
    play.feed(Go())
    assert [*play.effects] == [Train(idle=True)]
    play.feed(Trained(training_s=0.0))
    assert play.jobs() == [DecodeSums("signs")]


def test_who_may_still_be_a_member_trains(play: Play) -> None:
    *others, _ = play.manifest.aggregators
    for aggregator in others:
        for index in range(CHUNKS):
            play.sum_chunk(aggregator, index, members=play.everybody - {play.me})
    play.feed(Go())
    assert [*play.effects] == [Train(idle=False)]


# An old copy of our state -------------------------------------------------------------------------------


def fails_as_old(play: Play, phase: str) -> None:
    assert play.failure() is Code.DISK_OLD
    (report,) = [effect for effect in play.effects if isinstance(effect, ReportOldCopy)]
    assert f"a share of ours is in the sum of {phase} in round 1, and we sent none" in report.evidence
    assert not play.jobs()


@pytest.mark.parametrize("state", [State.QUEUED, State.TRAINING])
def test_a_share_of_ours_in_a_sum_that_we_sent_nothing_for_shows_an_old_copy(play: Play, state: State) -> None:
    play.advance(state)
    play.sums()
    play.feed(Go() if state is State.QUEUED else Trained(training_s=2.0))
    fails_as_old(play, "signs")


def test_so_does_one_in_a_later_phase(two_phases: Play) -> None:
    first, second = two_phases.data.phases
    two_phases.advance(State.WAITING)
    two_phases.sums(phase=second.name)
    two_phases.sums(phase=first.name)
    two_phases.expect(State.DECODING)
    two_phases.feed(DECODED)
    fails_as_old(two_phases, second.name)


def test_one_aggregator_alone_is_not_believed_to_hold_our_share(play: Play) -> None:
    play.advance(State.TRAINING)
    for index in range(CHUNKS):
        play.sum_chunk(play.manifest.aggregators[0], index)
    play.feed(Trained(training_s=2.0))
    assert play.jobs() == [SendShares("signs")]


def test_a_client_whom_the_others_did_not_wait_for_sends_nothing_and_still_decodes(play: Play) -> None:
    others = play.everybody - {play.me}
    play.advance(State.TRAINING)
    play.sums(members=others)
    play.feed(Trained(training_s=50.0))
    play.expect(State.DECODING)
    assert play.jobs() == [DecodeSums("signs")]
    play.feed(DECODED)
    assert play.jobs() == [Conclude(took_part=False)], "its update stays in its accumulator"
    (record,) = play.records()
    assert record.fields["members"] == [*play.manifest.clients[1:]], "in manifest order, as everybody's log has it"
    report = conclude(play)
    assert all(row.direction == "down" for row in report.traffic)


def test_a_client_that_sent_too_late_is_left_out_too(play: Play) -> None:
    play.advance(State.SHARING)
    play.sums(members=play.everybody - {play.me})
    play.feed(SharesSent(traffic=SENT))
    play.expect(State.DECODING)
    play.feed(DECODED)
    assert play.jobs() == [Conclude(took_part=False)]
    assert conclude(play).traffic[:1] == SENT, "what was sent was sent"


# Void ---------------------------------------------------------------------------------------------------


def test_a_void_counts_when_every_aggregator_has_said_it(play: Play) -> None:
    play.advance(State.WAITING)
    *others, last = play.manifest.aggregators
    for aggregator in (*others, *others):
        play.announce_void(aggregator)
        assert (play.state, play.effects) == (State.WAITING, ())
    play.announce_void(last)
    assert (play.said(), play.records()) == ([], []), "nothing is said before we know which model it leaves"
    play.close()
    assert play.said() == [RoundDropped(traffic=SENT)]
    assert play.records() == [Record("void", {"phase": "signs"})]
    assert play.over() == RoundOver(number=1, released=False, model_hmac=MODEL, held=HELD, exposed=False)


@pytest.mark.parametrize("busy", [State.QUEUED, State.TRAINING, State.SHARING])
def test_a_void_that_comes_while_the_client_is_busy_is_remembered(play: Play, busy: State) -> None:
    play.advance(busy)
    for aggregator in play.manifest.aggregators:
        play.announce_void(aggregator)
        assert (play.state, play.effects) == (busy, ())
    if busy is State.QUEUED:
        play.feed(Go())
    play.feed(SharesSent(traffic=SENT) if busy is State.SHARING else Trained(training_s=2.0))
    assert play.jobs() == [CloseVoid()], "nothing of a void round is sent"
    play.close()


def test_a_void_that_is_said_again_while_the_round_is_closed_changes_nothing(play: Play) -> None:
    play.advance(State.CLOSING)
    before = play.data
    play.announce_void(play.manifest.aggregators[0])
    assert (play.state, play.data, play.effects) == (State.CLOSING, before, ())


def test_a_release_beside_the_void_that_is_being_closed_is_a_contradiction(play: Play) -> None:
    play.advance(State.CLOSING)
    first = play.manifest.aggregators[0]
    play.sum_chunk(first, 0)
    assert "where another says void" in play.contradiction(SumChunk.kind, first)


# Overtaken ----------------------------------------------------------------------------------------------


def test_who_waits_while_later_rounds_are_ordered_says_that_sums_are_lost(play: Play) -> None:
    play.advance(State.WAITING)
    play.sum_chunk(play.manifest.aggregators[0], 0)
    play.feed(Overtaken())
    assert (play.state, play.effects) == (State.WAITING, (Tell(play.run, SumsLost(number=1)),))


def test_sums_that_come_after_all_are_taken_in(play: Play) -> None:
    play.advance(State.WAITING)
    play.feed(Overtaken())
    play.sums()
    assert play.jobs() == [DecodeSums("signs")]


@pytest.mark.parametrize("state", [*(state for state in WORKING if state is not State.WAITING), State.CLOSING])
def test_who_is_busy_itself_has_lost_nothing_yet(play: Play, state: State) -> None:
    play.advance(state)
    play.feed(Overtaken())
    assert (play.state, play.effects) == (state, ())


@pytest.mark.parametrize("state", [State.QUEUED, State.TRAINING, State.SHARING])
def test_what_is_not_here_when_who_was_busy_comes_to_wait_for_it_is_lost(play: Play, state: State) -> None:
    """There may be no further order to tell it by: this was the last one in the queue."""
    play.advance(state)
    play.feed(Overtaken())
    steps: dict[State, object] = {
        State.QUEUED: Go(),
        State.TRAINING: Trained(training_s=2.0),
        State.SHARING: SharesSent(traffic=SENT),
    }
    while play.state is not State.WAITING:
        play.feed(steps[play.state])
    assert play.effects == (Tell(play.run, SumsLost(number=1)),)


def test_who_was_busy_and_finds_all_sums_has_lost_nothing(play: Play) -> None:
    play.advance(State.TRAINING)
    play.feed(Overtaken())
    play.sums(members=play.everybody - {play.me})
    play.feed(Trained(training_s=2.0))
    assert play.effects == (DecodeSums("signs"),)


def test_sums_of_the_second_phase_may_be_lost_alone(two_phases: Play) -> None:
    play = two_phases
    play.feed(Overtaken())
    play.sums(phase="count", members=play.everybody - {play.me})
    play.advance(State.DECODING)
    play.feed(DECODED)
    play.expect(State.WAITING)
    assert Tell(play.run, SumsLost(number=1)) in play.effects


# Another transcript -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["paper", "compact"])
def test_who_was_told_other_sums_says_nothing_more_and_has_the_run_catch_up(wire: str) -> None:
    play = Play(make_manifest(clients=3, servers=3, min_clients=2, wire=wire))
    play.advance(State.DECODING)

    play.feed(OtherTranscript())

    play.expect(State.STRAYED)
    assert [effect.event for effect in play.effects if isinstance(effect, Tell)] == [Strayed(number=1)]
    refused = [effect for effect in play.effects if isinstance(effect, CountRefusal)]
    releasers = play.manifest.aggregators if wire == "paper" else play.manifest.aggregators[1:2]
    assert [each.sender for each in refused] == [*releasers]
    assert {each.reason for each in refused} == {RejectReason.DIFFERENT_TRANSCRIPT}
    assert not [effect for effect in play.effects if isinstance(effect, Publish | Job | Record)]


# Contradictions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", WORKING)
def test_a_void_beside_a_release_fails(play: Play, state: State) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.sum_chunk(first, 0)
    play.announce_void(second)
    assert "says void where" in play.contradiction(VoidNotice.kind, second)


@pytest.mark.parametrize("state", [State.QUEUED, State.TRAINING, State.SHARING, State.WAITING])
def test_a_release_beside_a_void_fails(play: Play, state: State) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    play.announce_void(first)
    play.sum_chunk(second, 0)
    assert "where another says void" in play.contradiction(SumChunk.kind, second)


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize("same_aggregator", [True, False])
def test_two_member_sets_in_one_round_fail(play: Play, state: State, *, same_aggregator: bool) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.sum_chunk(first, 0)
    liar = first if same_aggregator else second
    play.sum_chunk(liar, 1, members=play.everybody - {play.me})
    assert "other members" in play.contradiction(SumChunk.kind, liar)


@pytest.mark.parametrize("state", WORKING)
def test_two_shapes_of_one_sum_fail(play: Play, state: State) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.sum_chunk(first, 0)
    play.sum_chunk(second, 0, vectors=OTHER_VECTORS)
    assert "other vectors" in play.contradiction(SumChunk.kind, second)


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize("same_aggregator", [True, False])
def test_two_transcripts_of_one_phase_fail(play: Play, state: State, *, same_aggregator: bool) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.sum_chunk(first, 0)
    liar = first if same_aggregator else second
    play.sum_chunk(liar, 1, transcript="7b" * 32)
    assert "over another transcript" in play.contradiction(SumChunk.kind, liar)


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize("index", range(CHUNKS))
def test_another_key_of_one_sum_is_another_sum(play: Play, state: State, index: int) -> None:
    """Whichever chunk it is of, one that came already too: an aggregator releases once, under one key."""
    first = play.manifest.aggregators[0]
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.sum_chunk(first, 0)
    play.sum_chunk(first, index, wrapped_key=b"another key")
    assert "two sums of signs" in play.contradiction(SumChunk.kind, first)


@pytest.mark.parametrize("state", WORKING)
def test_a_failure_is_reported_from_every_working_state(play: Play, state: State) -> None:
    play.advance(state)
    play.feed(Failed("DecodeSums: no such file", Code.DISK_FAILED))
    assert play.failure() is Code.DISK_FAILED
    told = [effect.event for effect in play.effects if isinstance(effect, Tell)]
    assert told == [RoundBroken(number=play.data.key.round)], "no later round begins"


# Two phases ---------------------------------------------------------------------------------------------


def test_a_member_goes_on_to_the_next_phase_by_itself(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.WAITING)
    play.sums()
    play.feed(DECODED)
    assert (play.state, play.jobs()) == (State.SHARING, [SendShares("signs")])
    assert [record.fields["phase"] for record in play.records()] == ["count"]
    play.feed(SharesSent(traffic=SENT))
    play.sums()
    assert play.jobs() == [DecodeSums("signs")]
    play.feed(DECODED)
    assert play.jobs() == [Conclude(took_part=True)]
    assert [record.fields["phase"] for record in play.records()] == ["signs"]


def test_who_is_no_member_only_waits_for_the_later_phases(two_phases: Play) -> None:
    play = two_phases
    others = play.everybody - {play.me}
    play.advance(State.WAITING)
    play.sums(members=others)
    play.feed(DECODED)
    assert (play.state, play.jobs()) == (State.WAITING, [])
    play.sums(members=others)
    play.feed(DECODED)
    assert play.jobs() == [Conclude(took_part=False)]


def test_a_very_slow_client_finds_both_phases_over(two_phases: Play) -> None:
    play = two_phases
    others = play.everybody - {play.me}
    play.advance(State.TRAINING)
    play.sums(members=others, phase="count")
    play.sums(members=others, phase="signs")
    play.feed(Trained(training_s=9.0))
    assert play.jobs() == [DecodeSums("count")]
    play.feed(DECODED)
    assert (play.state, play.jobs()) == (State.DECODING, [DecodeSums("signs")])


def test_a_void_second_phase_voids_the_round(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.DECODING)
    for aggregator in play.manifest.aggregators:  # They may be ahead of us.
        play.announce_void(aggregator, phase="signs")
    play.feed(DECODED)
    assert [record.kind for record in play.records()] == ["released"]
    play.close()
    assert [record.kind for record in play.records()] == ["void"]
    assert play.over() == RoundOver(number=1, released=False, model_hmac=MODEL, held=HELD, exposed=True)


def test_a_void_first_phase_wastes_nothing_though_shares_were_sent(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.WAITING)
    for aggregator in play.manifest.aggregators:
        play.announce_void(aggregator)
    play.close()
    assert play.over() == RoundOver(number=1, released=False, model_hmac=MODEL, held=HELD, exposed=False)


def test_who_sent_no_share_has_wasted_nothing(two_phases: Play) -> None:
    """It was too slow for the first phase, which the others released, and the second was void."""
    play = two_phases
    play.advance(State.TRAINING)
    play.sums(members=play.everybody - {play.me})
    play.feed(Trained(training_s=9.0))
    play.feed(DECODED)
    play.expect(State.WAITING)
    for aggregator in play.manifest.aggregators:
        play.announce_void(aggregator)
    play.close()
    assert play.over() == RoundOver(number=1, released=False, model_hmac=MODEL, held=HELD, exposed=False)


def test_who_sent_too_late_has_wasted_a_share_all_the_same(two_phases: Play) -> None:
    """It cannot know who has opened what it sent."""
    play = two_phases
    play.advance(State.SHARING)
    play.sums(members=play.everybody - {play.me})
    play.feed(SharesSent(traffic=SENT))
    play.feed(DECODED)
    for aggregator in play.manifest.aggregators:
        play.announce_void(aggregator)
    play.close()
    assert play.over() == RoundOver(number=1, released=False, model_hmac=MODEL, held=HELD, exposed=True)


def test_another_release_of_a_phase_that_is_behind_us_is_a_contradiction_too(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.DECODING)
    play.feed(DECODED)
    first = play.manifest.aggregators[0]
    play.sum_chunk(first, 0, phase="count", wrapped_key=b"another key")
    assert "two sums of count" in play.contradiction(SumChunk.kind, first)


def test_other_members_in_the_second_phase_fail(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.DECODING)
    play.feed(DECODED)
    first = play.manifest.aggregators[0]
    play.sum_chunk(first, 0, members=play.everybody - {play.manifest.clients[2]})
    assert "other members" in play.contradiction(SumChunk.kind, first)


def test_handlers_leave_the_data_that_they_were_given(play: Play) -> None:
    play.advance(State.WAITING)
    data, copy = play.data, replace(play.data)
    play.sum_chunk(play.manifest.aggregators[0], 0)
    assert data == copy
    assert data.sums == {}


# After a restart ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "effects"),
    [
        (State.QUEUED, ()),
        (State.TRAINING, (Train(),)),
        (State.SHARING, (SendShares("signs"),)),
        (State.WAITING, ()),
        (State.DECODING, (DecodeSums("signs"),)),
        (State.CONCLUDING, (Conclude(took_part=True),)),
        (State.CLOSING, (CloseVoid(),)),
    ],
)
def test_what_was_under_way_is_taken_up_again(play: Play, state: State, effects: tuple[Effect, ...]) -> None:
    """It follows from state and data alone; what was done before it is on disk, and is not asked for."""
    play.advance(state)
    assert KIND.resume(play.state, play.data) == effects


def test_the_phase_that_is_taken_up_again_is_the_current_one(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.DECODING)
    assert KIND.resume(play.state, play.data) == (DecodeSums("count"),)
    assert not play.data.decoded
    play.feed(DECODED)
    assert KIND.resume(play.state, play.data) == (SendShares("signs"),)
    assert [*play.data.decoded] == ["count"]
    play.feed(SharesSent(traffic=SENT))
    play.sums()
    assert KIND.resume(play.state, play.data) == (DecodeSums("signs"),)


def test_who_was_left_out_is_left_out_after_a_restart_too(play: Play) -> None:
    play.advance(State.WAITING)
    play.sums(members=play.everybody - {play.me})
    play.feed(DECODED)
    assert KIND.resume(play.state, play.data) == (Conclude(took_part=False),)


@pytest.mark.parametrize("state", [State.APPLIED, State.VOID, State.FAILED])
def test_nothing_of_a_round_that_is_over_is_taken_up_again(play: Play, state: State) -> None:
    assert KIND.resume(state, play.data) == ()


# Scores -------------------------------------------------------------------------------------------------


@pytest.fixture
def scored() -> Play:
    return Play(make_manifest(clients=3, servers=3, min_clients=2, metrics=METRICS))


def score(play: Play) -> None:
    """Apply the round, then find our own score."""
    play.advance(State.CONCLUDING)
    play.feed(Concluded(model_hmac=MODEL, held=HELD))
    play.expect(State.SCORING)
    play.feed(Evaluated(own={"accuracy": 0.5}))


def over_with(play: Play, scores: dict[str, float], members: frozenset[PartyId]) -> None:
    play.expect(State.APPLIED)
    over = play.over()
    assert (over.released, over.metrics, over.score_members) == (True, scores, members)
    assert [body.scores for body in play.said() if isinstance(body, RoundScored)] == [
        tuple(ScoreClaim(name=name, value=value) for name, value in scores.items())
    ]


def test_a_round_is_reported_as_applied_before_the_model_is_evaluated(scored: Play) -> None:
    scored.advance(State.CONCLUDING)
    scored.feed(Concluded(model_hmac=MODEL, held=HELD))
    scored.expect(State.SCORING)
    assert [type(body) for body in scored.said()] == [RoundApplied]
    assert scored.jobs() == [Evaluate()]
    assert not [effect for effect in scored.effects if isinstance(effect, Tell)], "the round is not over"


def test_a_score_of_ours_that_we_never_shared_shows_an_old_copy(scored: Play) -> None:
    scored.advance(State.CONCLUDING)
    scored.feed(Concluded(model_hmac=MODEL, held=HELD))
    scored.sums(phase="scores")
    scored.feed(Evaluated(own={"accuracy": 0.5}))
    fails_as_old(scored, "scores")


def test_the_score_is_shared_and_the_total_reported(scored: Play) -> None:
    score(scored)
    assert scored.jobs() == [SendShares("scores")]
    scored.feed(SharesSent(traffic=SENT))
    scored.sums()
    assert scored.jobs() == [DecodeSums("scores")]
    scored.feed(Decoded(transcript=TRANSCRIPT, metrics=TOTALS))
    over_with(scored, TOTALS, scored.everybody)
    (report,) = scored.said()
    assert isinstance(report, RoundScored)
    assert [row for row in report.traffic if row.direction == "up"] == [*SENT], (
        "what was reported before is not again"
    )


def test_nothing_of_a_single_score_is_said(scored: Play) -> None:
    score(scored)
    assert scored.said() == []
    assert "0.5" not in repr(scored.data)


def test_scores_without_a_sum_change_nothing_else(scored: Play) -> None:
    score(scored)
    scored.feed(SharesSent(traffic=SENT))
    for aggregator in scored.manifest.aggregators:
        scored.expect(State.WAITING)
        scored.announce_void(aggregator)
    over_with(scored, {}, frozenset())


def test_whose_score_does_not_belong_to_the_sum_only_listens(scored: Play) -> None:
    scored.score_members = frozenset(scored.manifest.clients[1:])
    score(scored)
    scored.expect(State.WAITING)
    assert scored.jobs() == []
    scored.sums(members=scored.score_members)
    scored.feed(Decoded(transcript=TRANSCRIPT, metrics=TOTALS))
    over_with(scored, TOTALS, scored.score_members)


def test_scores_over_other_members_than_the_first_time_end_the_run(scored: Play) -> None:
    scored.score_members = scored.everybody
    score(scored)
    first, *_ = scored.manifest.aggregators
    scored.sum_chunk(first, 0, members=frozenset(scored.manifest.clients[:2]))
    assert "names other members" in scored.contradiction(SumChunk.kind, first)


def test_scores_may_have_other_members_than_the_round(scored: Play) -> None:
    score(scored)
    scored.feed(SharesSent(traffic=SENT))
    scored.sums(members=frozenset(scored.manifest.clients[:2]))
    scored.expect(State.DECODING)


def test_who_is_overtaken_while_waiting_for_scores_has_the_model_and_goes_on(scored: Play) -> None:
    score(scored)
    scored.feed(SharesSent(traffic=SENT))
    scored.feed(Overtaken())
    over_with(scored, {}, frozenset())


def test_after_a_restart_the_model_is_evaluated(scored: Play) -> None:
    scored.advance(State.CONCLUDING)
    scored.feed(Concluded(model_hmac=MODEL, held=HELD))
    assert KIND.resume(scored.state, scored.data) == (Evaluate(),)


# A set that is asked for again --------------------------------------------------------------------------


def ask(play: Play, number: int = 0, phase: str = "signs") -> ResendShares:
    aggregator = play.manifest.aggregators[number]
    play.feed(SetAskedFor(phase=phase, aggregator=aggregator))
    return ResendShares(phase, aggregator)


@pytest.mark.parametrize("state", [State.SHARING, State.WAITING])
def test_a_set_is_sent_again_while_its_phase_is_open_and_each_aggregator_has_its_own_limit(
    play: Play, state: State
) -> None:
    play.advance(state)
    for _ in range(MAX_RESENDS):
        assert ask(play) in play.effects
        play.expect(state)
    with pytest.raises(PeerError) as refusal:
        ask(play)
    assert refusal.value.reason is RejectReason.OVER_LIMIT
    assert ask(play, 1) in play.effects


@pytest.mark.parametrize("state", [State.DECODING, State.CONCLUDING, State.CLOSING])
def test_a_set_whose_phase_has_its_verdict_is_not_sent_again(play: Play, state: State) -> None:
    play.advance(state)
    with pytest.raises(PeerError) as refusal:
        ask(play)
    assert refusal.value.reason is RejectReason.OVER
    play.feed(SharesResent(phase="signs", aggregator=play.manifest.aggregators[0]))
    play.expect(state)


def test_a_set_of_an_earlier_phase_of_the_round_is_not_sent_again(two_phases: Play) -> None:
    two_phases.advance(State.DECODING)
    two_phases.feed(DECODED)
    with pytest.raises(PeerError) as refusal:
        ask(two_phases, phase="count")
    assert refusal.value.reason is RejectReason.OVER


def test_a_restart_while_a_set_is_sent_again_sends_it_once_more(play: Play) -> None:
    play.advance(State.WAITING)
    owed = ask(play)
    assert KIND.resume(play.state, play.data) == (owed,)
    play.feed(SharesResent(phase=owed.phase, aggregator=owed.aggregator))
    assert KIND.resume(play.state, play.data) == ()
