"""A round at a client: verdicts may come at any time, only unanimous ones are acted upon, and all is recorded."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CountRefusal, Effect, Failed, Job, Key, Publish, Record, SetTimer, Tell
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import RoundApplied, RoundDropped, RoundScored, ScoreClaim, SumChunk, VoidNotice
from hubbub.messages.runs import PartyFailed
from hubbub.messages.shares import MAX_RESENDS, Traffic
from hubbub.protocol.layout import Vector
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.verified import Verified
from hubbub_trainer import events
from hubbub_trainer.events import (
    Decoded,
    Go,
    Overtaken,
    RestOverdue,
    RoundOver,
    SetAskedFor,
    SumArrived,
    VoidAnnounced,
)
from hubbub_trainer.phases.participation import ReportOldCopy
from hubbub_trainer.phases.round import (
    KIND,
    REST_WAIT_SHARE,
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
from support.machine_play import MachinePlay
from support.two_phases import NAME, TwoPhases

VECTORS = (Vector("signs", 100, 7), Vector("factors", 1, 2**32))
OTHER_VECTORS = (Vector("signs", 99, 7), Vector("factors", 1, 2**32))
SENT = (Traffic(counts_as="signs", direction="up", payload_bits=600),)
CHUNKS = 2
TRANSCRIPT, MODEL = "7a" * 32, "5d" * 32
HELD = events.HeldModel(sha256="5e" * 32, step=1.0)
DECODED = Decoded(transcript=TRANSCRIPT)
TRAINED = events.Trained(training_s=2.0)
SHARED = events.SharesSent(traffic=SENT)
CONCLUDED = events.Concluded(model_hmac=MODEL, held=HELD)
LOST = events.SumsLost(number=1)
WORKING = [State.QUEUED, State.TRAINING, State.SHARING, State.WAITING, State.DECODING, State.CONCLUDING]
METRICS = (MetricClaim(name="accuracy"),)
TOTALS = {"accuracy": 0.75}


def key_of(aggregator: PartyId) -> bytes:
    """The key of an aggregator's sum, wrapped for this client: a new one for every release."""
    return f"the key of {aggregator}".encode()


class Play(MachinePlay[State, ClientRound]):
    """The round of the first client of three, with three aggregators."""

    def __init__(self, manifest: Manifest | None = None) -> None:
        self.manifest = manifest or make_manifest(clients=3, servers=3, min_clients=2)
        self.everybody = frozenset(self.manifest.clients)
        self.me = self.manifest.clients[0]
        self.others = self.everybody - {self.me}
        self.run = Key("run", self.manifest.run_id)
        data = ClientRound(me=self.me, key=Key("round", self.run.run, 1), run=self.run, manifest=self.manifest)
        super().__init__(KIND, data, self.manifest.coordinator)
        self.score_members: frozenset[PartyId] = frozenset()

    def chunk(self, aggregator: PartyId, index: int = 0, **changes: Any) -> SumArrived:
        """One of two chunks of an aggregator's sum in the current phase, over everybody."""
        arrived = SumArrived(
            phase=self.data.current.name,
            aggregator=aggregator,
            members=self.everybody,
            vectors=VECTORS,
            transcript=TRANSCRIPT,
            wrapped_key=key_of(aggregator),
            index=index,
            chunks=CHUNKS,
            wire_bytes={"signs": 10, "factors": 1},
        )
        return replace(arrived, **changes)

    def chunks(self, aggregator: PartyId, **changes: Any) -> list[SumArrived]:
        return [self.chunk(aggregator, index, **changes) for index in range(CHUNKS)]

    def sums(self, **changes: Any) -> None:
        """All sums of a phase, which may lead to the next phase."""
        changes = {"phase": self.data.current.name, **changes}
        for aggregator in self.manifest.aggregators:
            self.feed(*self.chunks(aggregator, **changes))

    def void(self, aggregator: PartyId, phase: str | None = None) -> VoidAnnounced:
        return VoidAnnounced(phase=phase or self.data.current.name, aggregator=aggregator)

    def voids(self, phase: str | None = None) -> None:
        self.feed(*(self.void(aggregator, phase) for aggregator in self.manifest.aggregators))

    def advance(self, state: State) -> None:
        """Come to a state the ordinary way."""
        go = Go(is_scored=self.manifest.is_scored, score_members=self.score_members)
        steps: list[object] = [go, TRAINED, SHARED]
        while self.state is not state:
            if self.state is State.WAITING and state is State.CLOSING:
                self.voids()
            elif self.state is State.WAITING:
                self.sums()
            elif self.state is State.DECODING:
                self.feed(DECODED)
            else:
                self.feed(steps.pop(0))

    def close(self, *, exposed: bool) -> None:
        """The round is void: the model stays what it was."""
        self.expect(State.CLOSING, *self.of(Record), CloseVoid())
        self.feed(events.Closed(model_hmac=MODEL, held=HELD))
        over = RoundOver(number=1, released=False, model_hmac=MODEL, held=HELD, exposed=exposed)
        dropped = RoundDropped(traffic=self.data.sent + tuple(self.counted()))
        record = Record("void", {"phase": self.data.current.name})
        told = Publish(self.manifest.coordinator, Role.COORDINATOR, dropped)
        self.expect(State.VOID, record, told, Tell(self.run, over))

    def counted(self) -> list[Traffic]:
        return [
            Traffic(counts_as=name, direction="down", wire_bytes=count)
            for name, count in self.data.received.items()
        ]

    def conclude(self) -> RoundApplied:
        self.feed(CONCLUDED)
        exposed = self.me in self.data.members
        over = RoundOver(number=1, released=True, model_hmac=MODEL, held=HELD, exposed=exposed)
        (report,) = self.said()
        assert isinstance(report, RoundApplied)
        told = Publish(self.manifest.coordinator, Role.COORDINATOR, report)
        self.expect(State.APPLIED, Record("applied", {"model_hmac": MODEL}), told, Tell(self.run, over))
        return report

    def jobs(self) -> list[Effect]:
        return self.of(Job)

    def fails(self, code: Code) -> None:
        self.at(State.FAILED)
        assert self.said() == [PartyFailed(code=code)]
        assert [effect.event for effect in self.of(Tell)] == [events.RoundBroken(number=1)], (
            "no later round begins"
        )
        assert not self.jobs()

    def fails_as_old(self, phase: str) -> None:
        self.fails(Code.DISK_OLD)
        (report,) = self.of(ReportOldCopy)
        assert f"a share of ours is in the sum of {phase} in round 1, and we sent none" in report.evidence

    def contradicts(self, event: SumArrived | VoidAnnounced, why: str) -> None:
        """The run ends; the coordinator is told the code, and it is counted against this aggregator."""
        self.feed(event)
        self.fails(Code.PROTOCOL_CONTRADICTION)
        (refusal,) = self.of(CountRefusal)
        kind = SumChunk.kind if isinstance(event, SumArrived) else VoidNotice.kind
        assert (refusal.reason, refusal.kind) == (RejectReason.CONTRADICTION, kind)
        assert refusal.sender == event.aggregator
        assert why in refusal.explanation


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def two_phases(monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setitem(STRATEGIES, NAME, Verified(TwoPhases()))
    return Play(make_manifest(clients=3, servers=3, min_clients=2, strategy=NAME))


def test_the_ordinary_way(play: Play) -> None:
    """A chunk of a sum is on disk before it is acted upon, and counted once."""
    play.feed(Go())
    play.expect(State.TRAINING, Train())
    play.feed(TRAINED)
    play.expect(State.SHARING, SendShares("signs"))
    play.feed(SHARED)
    play.expect(State.WAITING)
    waiting = play.data
    arrivals = [(aggregator, index) for index in (1, 0) for aggregator in play.manifest.aggregators]
    for aggregator, index in arrivals:
        play.at(State.WAITING)
        play.feed(play.chunk(aggregator, index))
        assert play.effects[0] == SpoolSum("signs", aggregator, index)
        play.ignores(play.chunk(aggregator, index))
    assert not waiting.sums, "data is never changed in place"
    play.at(State.DECODING)
    play.feed(DECODED)
    released = {"phase": "signs", "members": [*play.manifest.clients], "transcript": TRANSCRIPT}
    play.expect(State.CONCLUDING, Record("released", released), Conclude(took_part=True))
    play.ignores(play.chunk(*arrivals[0]))
    assert play.conclude().traffic == (
        *SENT,
        Traffic(counts_as="signs", direction="down", wire_bytes=10 * len(arrivals)),
        Traffic(counts_as="factors", direction="down", wire_bytes=len(arrivals)),
    )


def test_the_last_chunk_decodes_whichever_order_they_come_in() -> None:
    for order in permutations(range(3)):
        play = Play()
        play.advance(State.WAITING)
        *first, last = [(play.manifest.aggregators[server], index) for index in (1, 0) for server in order]
        play.feed(*(play.chunk(*each) for each in first))
        play.at(State.WAITING)
        play.feed(play.chunk(*last))
        play.expect(State.DECODING, SpoolSum("signs", *last), DecodeSums("signs"))


BUSY = [State.QUEUED, State.TRAINING, State.SHARING]


@pytest.mark.parametrize("busy", BUSY)
def test_sums_that_come_while_the_client_is_busy_are_kept(play: Play, busy: State) -> None:
    """A client whom the others did not wait for does not train for nothing, sends nothing and still decodes."""
    play.advance(busy)
    first = play.manifest.aggregators[0]
    play.feed(play.chunk(first, members=play.others))
    play.expect(busy, SpoolSum("signs", first, 0))
    play.sums(members=play.others)
    play.at(busy)
    assert not play.jobs()
    if busy is State.QUEUED:
        play.feed(Go())
        play.expect(State.TRAINING, Train(idle=True))
        assert play.resumed() == [Train(idle=True)]
    play.feed(SHARED if busy is State.SHARING else TRAINED)
    play.expect(State.DECODING, DecodeSums("signs"))
    play.feed(DECODED)
    (record,) = play.of(Record)
    assert record.fields["members"] == [*play.manifest.clients[1:]], "in manifest order, as everybody's log has it"
    assert play.jobs() == [Conclude(took_part=False)], "its update stays in its accumulator"
    assert play.resumed() == play.jobs()
    sent = [row for row in play.conclude().traffic if row.direction == "up"]
    assert sent == [*SENT] * (busy is State.SHARING), "what was sent was sent"


def test_a_client_that_may_still_be_a_member_trains(play: Play) -> None:
    for aggregator in play.manifest.aggregators[:-1]:
        play.feed(*play.chunks(aggregator, members=play.others))
    play.feed(Go())
    play.expect(State.TRAINING, Train(idle=False))


# An old copy of our state -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.QUEUED, State.TRAINING])
def test_a_share_of_ours_in_a_sum_that_we_sent_nothing_for_shows_an_old_copy(play: Play, state: State) -> None:
    play.advance(state)
    play.sums()
    play.feed(Go() if state is State.QUEUED else TRAINED)
    play.fails_as_old("signs")


def test_so_does_one_in_a_later_phase(two_phases: Play) -> None:
    two_phases.advance(State.WAITING)
    two_phases.sums(phase="signs")
    two_phases.sums(phase="count")
    two_phases.feed(DECODED)
    two_phases.fails_as_old("signs")


def test_one_aggregator_alone_is_not_believed_to_hold_our_share(play: Play) -> None:
    play.advance(State.TRAINING)
    play.feed(*play.chunks(play.manifest.aggregators[0]), TRAINED)
    play.expect(State.SHARING, SendShares("signs"))


# Void ---------------------------------------------------------------------------------------------------


def test_a_void_counts_when_every_aggregator_has_said_it(play: Play) -> None:
    """Nothing is said before we know which model it leaves."""
    play.advance(State.WAITING)
    *others, last = play.manifest.aggregators
    for aggregator in others:
        play.feed(play.void(aggregator))
        play.expect(State.WAITING)
        play.ignores(play.void(aggregator))
    play.feed(play.void(last))
    play.ignores(play.void(last))
    play.effects = (CloseVoid(),)
    play.close(exposed=False)


@pytest.mark.parametrize("busy", BUSY)
def test_a_void_that_comes_while_the_client_is_busy_is_remembered(play: Play, busy: State) -> None:
    play.advance(busy)
    for aggregator in play.manifest.aggregators:
        play.feed(play.void(aggregator))
        play.expect(busy)
    if busy is State.QUEUED:
        play.feed(Go())
    play.feed(SHARED if busy is State.SHARING else TRAINED)
    play.close(exposed=False)  # Nothing of a void round is sent.


# Overtaken ----------------------------------------------------------------------------------------------


def test_a_client_that_waits_while_later_rounds_are_ordered_says_that_sums_are_lost(play: Play) -> None:
    play.advance(State.WAITING)
    play.feed(play.chunk(play.manifest.aggregators[0]), Overtaken())
    play.expect(State.WAITING, Tell(play.run, LOST))
    play.sums()
    assert play.jobs() == [DecodeSums("signs")], "they have come after all"


@pytest.mark.parametrize("state", [*(state for state in WORKING if state is not State.WAITING), State.CLOSING])
def test_a_busy_client_has_lost_what_is_not_here_when_it_comes_to_wait_for_it(play: Play, state: State) -> None:
    """There may be no further order to tell it by: this was the last one in the queue."""
    play.advance(state)
    play.feed(Overtaken())
    play.expect(state)
    if state in BUSY:
        play.feed(*[Go(), TRAINED, SHARED][BUSY.index(state) :])
        play.expect(State.WAITING, Tell(play.run, LOST))


def test_a_busy_client_that_finds_all_sums_has_lost_nothing(play: Play) -> None:
    play.advance(State.TRAINING)
    play.feed(Overtaken())
    play.sums(members=play.others)
    play.feed(TRAINED)
    play.expect(State.DECODING, DecodeSums("signs"))


def test_sums_of_the_second_phase_may_be_lost_alone(two_phases: Play) -> None:
    two_phases.feed(Overtaken())
    two_phases.sums(phase="count", members=two_phases.others)
    two_phases.advance(State.DECODING)
    two_phases.feed(DECODED)
    two_phases.at(State.WAITING)
    assert two_phases.effects[1:] == (Tell(two_phases.run, LOST),)


# Another transcript, and contradictions -----------------------------------------------------------------


@pytest.mark.parametrize("wire", ["paper", "compact"])
def test_a_client_that_was_told_other_sums_says_nothing_more_and_has_the_run_catch_up(wire: str) -> None:
    play = Play(make_manifest(clients=3, servers=3, min_clients=2, wire=wire))
    play.advance(State.DECODING)
    play.feed(events.OtherTranscript())
    play.at(State.STRAYED)
    *refused, told = play.effects
    assert told == Tell(play.run, events.Strayed(number=1))
    releasers = play.manifest.aggregators if wire == "paper" else play.manifest.aggregators[1:2]
    assert refused == play.of(CountRefusal)
    assert [(each.sender, each.reason) for each in play.of(CountRefusal)] == [
        (server, RejectReason.DIFFERENT_TRANSCRIPT) for server in releasers
    ]


@pytest.mark.parametrize("state", WORKING)
def test_two_verdicts_that_contradict_each_other_end_the_run(subtests: pytest.Subtests, state: State) -> None:
    """Whichever chunk it is of, one that came already too: an aggregator releases once, under one key."""
    play = Play()
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    if state not in {State.DECODING, State.CONCLUDING}:
        play.feed(play.chunk(first))
    begun, others, other = (play.state, play.data), play.others, "7b" * 32
    cases: list[tuple[SumArrived | VoidAnnounced, str]] = [
        (play.void(second), "says void where"),
        *((play.chunk(each, 1, members=others), "other members") for each in (first, second)),
        (play.chunk(second, vectors=OTHER_VECTORS), "other vectors"),
        *((play.chunk(each, 1, transcript=other), "over another transcript") for each in (first, second)),
        *((play.chunk(first, index, wrapped_key=b"another"), "two sums of signs") for index in range(CHUNKS)),
    ]
    for event, why in cases:
        with subtests.test(why):
            play.state, play.data = begun
            play.contradicts(event, why)


@pytest.mark.parametrize("state", [*BUSY, State.WAITING, State.CLOSING])
def test_a_release_beside_a_void_ends_the_run(play: Play, state: State) -> None:
    first, second, _ = play.manifest.aggregators
    play.advance(state)
    play.feed(play.void(first))
    play.contradicts(play.chunk(second), "where another says void")


@pytest.mark.parametrize("state", WORKING)
def test_a_failure_is_reported_from_every_working_state(play: Play, state: State) -> None:
    play.advance(state)
    play.feed(Failed("DecodeSums: no such file", Code.DISK_FAILED))
    play.fails(Code.DISK_FAILED)


# Two phases ---------------------------------------------------------------------------------------------


def test_a_member_goes_on_to_the_next_phase_and_a_restart_takes_up_the_current_one(two_phases: Play) -> None:
    two_phases.advance(State.DECODING)
    assert two_phases.resumed() == [DecodeSums("count")]
    assert not two_phases.data.decoded
    two_phases.feed(DECODED)
    two_phases.at(State.SHARING)
    assert two_phases.jobs() == two_phases.resumed() == [SendShares("signs")]
    assert [record.fields["phase"] for record in two_phases.of(Record)] == ["count"]
    assert [*two_phases.data.decoded] == ["count"]
    first = two_phases.manifest.aggregators[0]
    two_phases.refuses(SetAskedFor(phase="count", aggregator=first), RejectReason.OVER)
    shared = two_phases.state, two_phases.data
    two_phases.contradicts(two_phases.chunk(first, phase="count", wrapped_key=b"another"), "two sums of count")
    two_phases.state, two_phases.data = shared
    two_phases.contradicts(two_phases.chunk(first, members=two_phases.others), "other members")
    two_phases.state, two_phases.data = shared
    two_phases.feed(SHARED)
    two_phases.sums()
    assert two_phases.jobs() == two_phases.resumed() == [DecodeSums("signs")]
    two_phases.feed(DECODED)
    assert two_phases.jobs() == [Conclude(took_part=True)]
    assert [record.fields["phase"] for record in two_phases.of(Record)] == ["signs"]


def test_a_client_that_is_no_member_only_waits_for_the_later_phases(two_phases: Play) -> None:
    two_phases.advance(State.WAITING)
    two_phases.sums(members=two_phases.others)
    two_phases.feed(DECODED)
    two_phases.at(State.WAITING)
    assert not two_phases.jobs()
    two_phases.sums(members=two_phases.others)
    two_phases.feed(DECODED)
    assert two_phases.jobs() == [Conclude(took_part=False)]


def test_a_very_slow_client_finds_both_phases_over(two_phases: Play) -> None:
    two_phases.advance(State.TRAINING)
    two_phases.sums(members=two_phases.others, phase="count")
    two_phases.sums(members=two_phases.others, phase="signs")
    two_phases.feed(TRAINED)
    two_phases.expect(State.DECODING, DecodeSums("count"))
    two_phases.feed(DECODED)
    two_phases.at(State.DECODING)
    assert two_phases.jobs() == [DecodeSums("signs")]


def test_a_void_first_phase_exposes_nothing_though_shares_were_sent(two_phases: Play) -> None:
    two_phases.advance(State.CLOSING)
    two_phases.close(exposed=False)


@pytest.mark.parametrize("state", [State.TRAINING, State.SHARING, State.WAITING])
def test_a_void_second_phase_exposes_those_who_sent_a_share(two_phases: Play, state: State) -> None:
    """A client that sent too late cannot know who has opened it; one that sent nothing has lost nothing."""
    two_phases.advance(state)
    two_phases.sums(members=two_phases.everybody if state is State.WAITING else two_phases.others)
    if state is not State.WAITING:
        two_phases.feed(TRAINED if state is State.TRAINING else SHARED)
    two_phases.voids(phase="signs")  # They may be ahead of us.
    two_phases.feed(DECODED)
    assert [record.kind for record in two_phases.of(Record)] == ["released"]
    two_phases.close(exposed=state is not State.TRAINING)


# After a restart ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "effects"),
    [
        (State.QUEUED, []),
        (State.TRAINING, [Train()]),
        (State.SHARING, [SendShares("signs")]),
        (State.WAITING, []),
        (State.DECODING, [DecodeSums("signs")]),
        (State.CONCLUDING, [Conclude(took_part=True)]),
        (State.CLOSING, [CloseVoid()]),
    ],
)
def test_what_was_under_way_is_taken_up_again(play: Play, state: State, effects: list[Effect]) -> None:
    """It follows from state and data alone; what was done before it is on disk, and is not asked for."""
    play.advance(state)
    assert play.resumed() == effects
    for final in (State.APPLIED, State.VOID, State.STRAYED, State.FAILED):
        assert KIND.resume(final, play.data) == ()


# Scores -------------------------------------------------------------------------------------------------


@pytest.fixture
def scored() -> Play:
    return Play(make_manifest(clients=3, servers=3, min_clients=2, metrics=METRICS))


EVALUATED = events.Evaluated(own={"accuracy": 0.5})
TOTALLED = Decoded(transcript=TRANSCRIPT, metrics=TOTALS)


def apply(play: Play) -> None:
    """The round is reported as applied before the model is evaluated, and is not over."""
    play.advance(State.CONCLUDING)
    play.feed(CONCLUDED)
    assert [type(body) for body in play.said()] == [RoundApplied]
    assert (play.state, [type(effect) for effect in play.effects]) == (State.SCORING, [Record, Publish, Evaluate])
    assert play.resumed() == [Evaluate()]


def score(play: Play) -> None:
    apply(play)
    play.feed(EVALUATED)
    assert play.said() == []
    assert "0.5" not in repr(play.data), "nothing of a single score is said"


def over_with(play: Play, scores: dict[str, float], members: frozenset[PartyId]) -> RoundScored:
    play.at(State.APPLIED)
    (told,) = play.of(Tell)
    assert isinstance(told.event, RoundOver)
    assert (told.event.released, told.event.metrics) == (True, scores)
    assert told.event.score_members == members
    (report,) = play.said()
    assert isinstance(report, RoundScored)
    assert report.scores == tuple(ScoreClaim(name=name, value=value) for name, value in scores.items())
    return report


def test_a_score_of_ours_that_we_never_shared_shows_an_old_copy(scored: Play) -> None:
    apply(scored)
    scored.sums(phase="scores")
    scored.feed(EVALUATED)
    scored.fails_as_old("scores")


def test_the_score_is_shared_and_the_total_reported(scored: Play) -> None:
    score(scored)
    scored.expect(State.SHARING, SendShares("scores"))
    scored.feed(SHARED)
    scored.sums()
    assert scored.jobs() == [DecodeSums("scores")]
    scored.feed(TOTALLED)
    report = over_with(scored, TOTALS, scored.everybody)
    up = [row for row in report.traffic if row.direction == "up"]
    assert up == [*SENT], "what was reported before is not again"


@pytest.mark.parametrize("overtaken", [True, False])
def test_scores_that_are_void_or_late_change_nothing_else(scored: Play, *, overtaken: bool) -> None:
    score(scored)
    scored.feed(SHARED)
    scored.expect(State.WAITING)
    if overtaken:
        scored.feed(Overtaken())
    else:
        scored.voids()
    over_with(scored, {}, frozenset())


def test_a_client_whose_score_does_not_belong_to_the_sum_only_listens(scored: Play) -> None:
    scored.score_members = scored.others
    score(scored)
    scored.expect(State.WAITING)
    scored.sums(members=scored.others)
    scored.feed(TOTALLED)
    over_with(scored, TOTALS, scored.others)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_first_scores_may_have_other_members_than_the_round_and_later_ones_only_the_same(
    scored: Play, *, is_first: bool
) -> None:
    some = frozenset(scored.manifest.clients[:2])
    scored.score_members = frozenset() if is_first else scored.everybody
    score(scored)
    if is_first:
        scored.feed(SHARED)
        scored.sums(members=some)
        scored.at(State.DECODING)
    else:
        scored.contradicts(scored.chunk(scored.manifest.aggregators[0], members=some), "names other members")


# A set that is asked for again --------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.SHARING, State.WAITING])
def test_a_set_is_sent_again_while_its_phase_is_open_and_each_aggregator_has_its_own_limit(
    play: Play, state: State
) -> None:
    play.advance(state)
    first, second, _ = play.manifest.aggregators
    asked = SetAskedFor(phase="signs", aggregator=first)
    for _ in range(MAX_RESENDS):
        play.feed(asked)
        play.expect(state, ResendShares("signs", first))
    play.refuses(asked, RejectReason.OVER_LIMIT)
    play.feed(SetAskedFor(phase="signs", aggregator=second))
    play.expect(state, ResendShares("signs", second))
    if state is State.WAITING:
        assert play.resumed() == [ResendShares("signs", first), ResendShares("signs", second)]
        play.feed(*(events.SharesResent(phase="signs", aggregator=each) for each in (first, second)))
        play.expect(state)
        assert play.resumed() == []


@pytest.mark.parametrize("state", [State.DECODING, State.CONCLUDING, State.CLOSING])
def test_a_set_whose_phase_has_its_verdict_is_not_sent_again(play: Play, state: State) -> None:
    play.advance(state)
    first = play.manifest.aggregators[0]
    play.refuses(SetAskedFor(phase="signs", aggregator=first), RejectReason.OVER)
    play.ignores(events.SharesResent(phase="signs", aggregator=first))


# A phase that needs two of three aggregators ------------------------------------------------------------


@pytest.fixture
def threshold() -> Play:
    play = Play(make_manifest(clients=3, servers=3, min_clients=2, strategy="eastly-tss"))
    play.advance(State.WAITING)
    return play


def test_a_sum_that_is_not_needed_is_waited_for_a_while_also_after_a_restart(threshold: Play) -> None:
    first, second, third = threshold.manifest.aggregators
    overdue_s = 100.0 + REST_WAIT_SHARE * threshold.manifest.phase_timeout_s
    rest = SetTimer("rest", overdue_s, RestOverdue)
    threshold.feed(*threshold.chunks(first, at_s=50.0))
    assert threshold.of(SetTimer) == []

    threshold.feed(*threshold.chunks(second, at_s=100.0))
    assert threshold.of(SetTimer) == [rest]
    threshold.feed(threshold.chunk(third, at_s=101.0))

    threshold.at(State.WAITING)
    assert threshold.of(SetTimer) == []
    assert rest in threshold.resumed()
    threshold.feed(RestOverdue(at_s=overdue_s))
    threshold.at(State.DECODING)


def test_all_sums_are_decoded_at_once_and_a_timer_that_fires_early_takes_no_fewer_than_are_needed(
    threshold: Play,
) -> None:
    threshold.feed(*threshold.chunks(threshold.manifest.aggregators[0]), RestOverdue(at_s=1e9))
    threshold.at(State.WAITING)

    threshold.sums()

    threshold.at(State.DECODING)


def test_as_many_voids_are_enough_as_leave_too_few_to_release(threshold: Play) -> None:
    first, second, _ = threshold.manifest.aggregators

    threshold.feed(threshold.void(first))
    threshold.at(State.WAITING)
    threshold.feed(threshold.void(second))

    threshold.at(State.CLOSING)


# A phase that may lose members --------------------------------------------------------------------------


@pytest.fixture
def losing() -> Play:
    return Play(make_manifest(clients=5, servers=2, min_clients=2, strategy="bonawitz"))


def test_who_is_left_goes_on_and_who_is_not_only_listens(losing: Play) -> None:
    everybody, others = losing.manifest.clients, losing.others
    for left_out in (False, True):
        losing = Play(losing.manifest)
        losing.advance(State.WAITING)
        first = losing.manifest.aggregators[0]
        losing.feed(*losing.chunks(first, phase="advertise", members=everybody), DECODED, SHARED)
        losing.feed(*losing.chunks(first, phase="share-keys", members=others if left_out else everybody[:4]))
        losing.feed(DECODED)
        assert losing.jobs() == ([] if left_out else [SendShares("masked")])


def test_a_second_list_of_who_is_left_or_one_with_somebody_who_had_left_ends_the_run(losing: Play) -> None:
    losing.advance(State.WAITING)
    first, everybody = losing.manifest.aggregators[0], losing.manifest.clients
    losing.feed(*losing.chunks(first, phase="advertise", members=everybody[:4]))
    begun = losing.state, losing.data

    for members in (everybody, everybody[2:]):
        losing.state, losing.data = begun
        losing.contradicts(losing.chunk(first, phase="share-keys", members=members), "other members")
    losing.state, losing.data = begun
    losing.feed(losing.chunk(first, phase="share-keys", members=everybody[:3]))
    losing.contradicts(losing.chunk(first, 1, phase="share-keys", members=everybody[1:4]), "other members")
