"""A round at a client: verdicts may come at any time, and only unanimous ones are acted upon."""

from dataclasses import replace
from itertools import permutations

import pytest

from hubbub.ids import PartyId
from hubbub.machine.effects import Effect, Failed, Job, Key, Publish, Tell
from hubbub.machine.table import step
from hubbub.messages.base import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied, RoundDropped
from hubbub.messages.runs import PartyFailed
from hubbub.messages.traffic import Traffic
from hubbub.protocol.layout import Vector
from hubbub.strategies.registry import STRATEGIES
from hubbub_trainer.events import (
    Concluded,
    Decoded,
    Go,
    RoundBroken,
    RoundOver,
    SharesSent,
    SumArrived,
    Trained,
    VoidAnnounced,
)
from hubbub_trainer.learning.task import Score
from hubbub_trainer.phases.round import (
    TRANSITIONS,
    Conclude,
    DecodeSums,
    Round,
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
WORKING = [State.QUEUED, State.TRAINING, State.SHARING, State.WAITING, State.DECODING, State.CONCLUDING]


class Play:
    """The round of the first client of three, with three aggregators."""

    def __init__(self, manifest: Manifest | None = None) -> None:
        self.manifest = manifest or make_manifest(clients=3, servers=3, min_clients=2)
        self.everybody = frozenset(self.manifest.clients)
        self.run = Key("run", self.manifest.run_id)
        self.me = self.manifest.clients[0]
        self.state = State.QUEUED
        self.data = Round(me=self.me, key=Key("round", self.run.run, 1), run=self.run, manifest=self.manifest)
        self.effects: tuple[Effect, ...] = ()

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
        phase: str | None = None,
    ) -> None:
        self.feed(
            SumArrived(
                phase=phase or self.data.current.name,
                aggregator=aggregator,
                members=self.everybody if members is None else members,
                vectors=vectors,
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
        steps: list[object] = [Go(), Trained(training_s=2.0), SharesSent(traffic=SENT)]
        while self.state is not state:
            if self.state is State.WAITING:
                self.sums()
            elif self.state is State.DECODING:
                self.feed(Decoded())
            else:
                self.feed(steps.pop(0))

    def jobs(self) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, Job)]

    def said(self) -> list[Message]:
        return [
            effect.body
            for effect in self.effects
            if isinstance(effect, Publish)
            and effect.to == self.manifest.coordinator
            and isinstance(effect.body, Message)
        ]

    def failure(self) -> str:
        assert self.state is State.FAILED
        (body,) = self.said()
        assert isinstance(body, PartyFailed)
        return body.reason


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def two_phases(monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setitem(STRATEGIES, NAME, TwoPhases())
    return Play(make_manifest(clients=3, servers=3, min_clients=2, strategy=NAME))


def conclude(play: Play) -> RoundApplied:
    play.feed(Concluded(score=Score(correct=9, total=10, loss=0.5), evaluation_s=0.25))
    play.expect(State.APPLIED)
    assert Tell(play.run, RoundOver(number=1)) in play.effects
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
    assert play.jobs() == [DecodeSums("signs", VECTORS, play.everybody)]
    play.feed(Decoded())
    assert [*play.effects] == [Conclude(took_part=True)]
    report = conclude(play)
    assert (report.correct, report.total, report.training_s, report.evaluation_s) == (9, 10, 2.0, 0.25)
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
    assert play.effects == (SpoolSum("signs", last, 0), DecodeSums("signs", VECTORS, play.everybody))


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
    play.feed(Decoded())
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


def test_a_client_whom_the_others_did_not_wait_for_sends_nothing_and_still_decodes(play: Play) -> None:
    others = play.everybody - {play.me}
    play.advance(State.TRAINING)
    play.sums(members=others)
    play.feed(Trained(training_s=50.0))
    play.expect(State.DECODING)
    assert play.jobs() == [DecodeSums("signs", VECTORS, others)]
    play.feed(Decoded())
    assert play.effects == (Conclude(took_part=False),), "its update stays in its accumulator"
    report = conclude(play)
    assert all(row.direction == "down" for row in report.traffic)


def test_a_client_that_sent_too_late_is_left_out_too(play: Play) -> None:
    play.advance(State.SHARING)
    play.sums(members=play.everybody - {play.me})
    play.feed(SharesSent(traffic=SENT))
    play.expect(State.DECODING)
    play.feed(Decoded())
    assert [*play.effects] == [Conclude(took_part=False)]
    assert conclude(play).traffic[:1] == SENT, "what was sent was sent"


# Void ---------------------------------------------------------------------------------------------------


def test_a_void_counts_when_every_aggregator_has_said_it(play: Play) -> None:
    play.advance(State.WAITING)
    *others, last = play.manifest.aggregators
    for aggregator in (*others, *others):
        play.announce_void(aggregator)
        assert (play.state, play.effects) == (State.WAITING, ())
    play.announce_void(last)
    play.expect(State.VOID)
    assert play.said() == [RoundDropped(training_s=2.0, traffic=SENT)]
    assert Tell(play.run, RoundOver(number=1)) in play.effects


@pytest.mark.parametrize("busy", [State.QUEUED, State.TRAINING, State.SHARING])
def test_a_void_that_comes_while_the_client_is_busy_is_remembered(play: Play, busy: State) -> None:
    play.advance(busy)
    for aggregator in play.manifest.aggregators:
        play.announce_void(aggregator)
        assert (play.state, play.effects) == (busy, ())
    if busy is State.QUEUED:
        play.feed(Go())
    play.feed(SharesSent(traffic=SENT) if busy is State.SHARING else Trained(training_s=2.0))
    play.expect(State.VOID)
    assert not play.jobs(), "nothing of a void round is sent"


# Contradictions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", WORKING)
def test_a_void_beside_a_release_fails(play: Play, state: State) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.sum_chunk(first, 0)
    play.announce_void(second)
    assert "says void where" in play.failure()


@pytest.mark.parametrize("state", [State.QUEUED, State.TRAINING, State.SHARING, State.WAITING])
def test_a_release_beside_a_void_fails(play: Play, state: State) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    play.announce_void(first)
    play.sum_chunk(second, 0)
    assert "where another says void" in play.failure()


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize("same_aggregator", [True, False])
def test_two_member_sets_in_one_round_fail(play: Play, state: State, *, same_aggregator: bool) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.sum_chunk(first, 0)
    play.sum_chunk(first if same_aggregator else second, 1, members=play.everybody - {play.me})
    assert "other members" in play.failure()


@pytest.mark.parametrize("state", WORKING)
def test_two_shapes_of_one_sum_fail(play: Play, state: State) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.sum_chunk(first, 0)
    play.sum_chunk(second, 0, vectors=OTHER_VECTORS)
    assert "other vectors" in play.failure()


@pytest.mark.parametrize("state", WORKING)
def test_a_failure_is_reported_from_every_working_state(play: Play, state: State) -> None:
    play.advance(state)
    play.feed(Failed("Train: the loss is not a number"))
    assert play.failure() == "Train: the loss is not a number"
    told = [effect.event for effect in play.effects if isinstance(effect, Tell)]
    assert told == [RoundBroken(number=play.data.key.round)], "no later round begins"


# Two phases ---------------------------------------------------------------------------------------------


def test_a_member_goes_on_to_the_next_phase_by_itself(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.WAITING)
    play.sums()
    play.feed(Decoded())
    assert (play.state, play.effects) == (State.SHARING, (SendShares("signs"),))
    play.feed(SharesSent(traffic=SENT))
    play.sums()
    assert play.jobs() == [DecodeSums("signs", VECTORS, play.everybody)]
    play.feed(Decoded())
    assert [*play.effects] == [Conclude(took_part=True)]


def test_who_is_no_member_only_waits_for_the_later_phases(two_phases: Play) -> None:
    play = two_phases
    others = play.everybody - {play.me}
    play.advance(State.WAITING)
    play.sums(members=others)
    play.feed(Decoded())
    assert (play.state, play.effects) == (State.WAITING, ())
    play.sums(members=others)
    play.feed(Decoded())
    assert [*play.effects] == [Conclude(took_part=False)]


def test_a_very_slow_client_finds_both_phases_over(two_phases: Play) -> None:
    play = two_phases
    others = play.everybody - {play.me}
    play.advance(State.TRAINING)
    play.sums(members=others, phase="count")
    play.sums(members=others, phase="signs")
    play.feed(Trained(training_s=9.0))
    assert play.jobs() == [DecodeSums("count", VECTORS, others)]
    play.feed(Decoded())
    assert (play.state, play.jobs()) == (State.DECODING, [DecodeSums("signs", VECTORS, others)])


def test_a_void_second_phase_voids_the_round(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.DECODING)
    for aggregator in play.manifest.aggregators:  # They may be ahead of us.
        play.announce_void(aggregator, phase="signs")
    play.feed(Decoded())
    play.expect(State.VOID)


def test_other_members_in_the_second_phase_fail(two_phases: Play) -> None:
    play = two_phases
    play.advance(State.DECODING)
    play.feed(Decoded())
    play.sum_chunk(play.manifest.aggregators[0], 0, members=play.everybody - {play.manifest.clients[2]})
    assert "other members" in play.failure()


def test_handlers_leave_the_data_that_they_were_given(play: Play) -> None:
    play.advance(State.WAITING)
    data, copy = play.data, replace(play.data)
    play.sum_chunk(play.manifest.aggregators[0], 0)
    assert data == copy
    assert data.sums == {}
