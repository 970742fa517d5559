"""What is told of a step, and of which steps nothing is; and that it is the same after a restart."""

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Failed, Key
from hubbub.machine.table import Kind, step
from hubbub.messages.manifest import MetricClaim
from hubbub.messages.rounds import ScoreClaim
from hubbub.messages.shares import Receipt, SignedReceipt, VectorClaim
from hubbub.protocol.metrics import CLASSIFICATION
from hubbub.runtime.runner import Transition
from hubbub_coordinator.event_feed import (
    MAX_TEXT_CHARACTERS,
    EventFeed,
    FeedEvent,
    FeedEventKind,
    describe_transition,
)
from hubbub_coordinator.events import (
    Began,
    CancelRequested,
    DeadlinePassed,
    OrderDeclined,
    PartyBroke,
    PartyJoined,
    PartyReady,
    PartyRefused,
    PauseRequested,
    ProposalDue,
    ReceiptArrived,
    ResumeRequested,
    RoundEnded,
    RoundVerdict,
    ScoresReported,
    SetSpoilt,
    SumReleased,
    UpdateApplied,
    UpdateDropped,
    VoidConfirmed,
)
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.reasons import MEANINGS
from support.aio import aio
from support.builders import SET_ID, TRANSCRIPT, make_manifest, make_run_key
from support.coordinator_scene import CLIENT, MANIFEST, REPORT, Scene, running_scene, scene_of

UNION_MANIFEST = make_manifest(
    clients=3,
    servers=2,
    min_clients=2,
    strategy="sec-union",
    metrics=tuple(map(MetricClaim.of, CLASSIFICATION)),
)
RUN = UNION_MANIFEST.run_id
ONE, TWO, THREE = UNION_MANIFEST.clients
NORTH, SOUTH = UNION_MANIFEST.aggregators
VECTORS = (VectorClaim(name="signs", length=7, modulus=7),)

Told = list[tuple[str, str, str]]
"""Kind, party and phase."""


class Play:
    """A machine, fed event by event, and what is told of each."""

    def __init__(self, kind: Kind[Any, Any], key: Key, data: object) -> None:
        self.kind, self.key = kind, key
        self.state: Enum = kind.initial
        self.data = data
        self.sequence = 0

    def feed(self, event: object) -> list[FeedEvent]:
        before, earlier = self.state, self.data
        result = step(self.kind.table, self.state, self.data, event)
        self.state, self.data = result.state, result.data
        self.sequence += 1
        return describe_transition(
            Transition(self.sequence, self.key, before, event, self.state, self.data, 0.0, earlier)
        )

    def hear(self, event: object) -> Told:
        return [(item.kind.value, item.party, item.phase) for item in self.feed(event)]


def play_run() -> Play:
    return Play(runs.KIND, Key("run", RUN), runs.CoordinatorRun(manifest=UNION_MANIFEST))


def play_round() -> Play:
    data = rounds.CoordinatorRound(run=Key("run", RUN), number=4, manifest=UNION_MANIFEST)
    return Play(rounds.KIND, Key("round", RUN, 4), data)


def joined(party: PartyId) -> PartyJoined:
    return PartyJoined(at_s=2.0, party=party, run_key=make_run_key(UNION_MANIFEST, party))


def run_until(state: runs.State) -> Play:
    play = play_run()
    play.feed(Began(at_s=1.0))
    everybody = (*UNION_MANIFEST.aggregators, *UNION_MANIFEST.clients)
    if state is not runs.State.ENROLLING:
        for party in everybody:
            play.feed(joined(party))
    if state is runs.State.RUNNING:
        for party in everybody:
            play.feed(PartyReady(at_s=3.0, party=party))
    assert play.state is state
    return play


# Of a run --------------------------------------------------------------------------------------------------


def test_the_beginning_of_a_run() -> None:
    (item,) = play_run().feed(Began(at_s=1.5))

    assert (item.kind, item.run, item.round, item.phase, item.party) == ("run-submitted", RUN, 0, "", "")
    assert (item.at_s, item.state) == (1.5, "enrolling")
    assert "2 rounds" in item.text
    assert "sec-union on synthetic, 3 clients, 2 aggregators" in item.text


def test_who_joins_is_told_once_and_the_last_one_brings_the_keys() -> None:
    play = play_run()
    play.feed(Began(at_s=1.0))
    assert play.hear(joined(NORTH)) == [("party-joined", NORTH, "")]
    assert play.hear(joined(NORTH)) == []
    for party in (SOUTH, ONE, TWO):
        play.feed(joined(party))
    first, second = play.feed(joined(THREE))
    assert (first.text, second.kind) == ("client-3 joined (5 of 5)", "keys-sent")
    assert (first.id, second.id) == (700, 701), "the number of the step's entry, and a place"
    assert play.hear(joined(THREE)) == []


def test_who_has_checked_the_keys_is_told_once() -> None:
    play = run_until(runs.State.AGREEING)
    assert play.hear(PartyReady(at_s=3.0, party=ONE)) == [("party-ready", ONE, "")]
    assert play.hear(PartyReady(at_s=3.0, party=ONE)) == []


def test_asking_again_is_no_news() -> None:
    assert run_until(runs.State.ENROLLING).hear(ProposalDue(at_s=4.0)) == []


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (PartyRefused(at_s=4.0, party=TWO, code=Code.POLICY_LEDGER), "party-refused"),
        (PartyBroke(at_s=4.0, party=TWO, code=Code.DISK_FAILED), "party-failed"),
    ],
)
def test_whose_word_ended_a_run_is_told_with_the_reason(event: object, kind: str) -> None:
    first, second = run_until(runs.State.ENROLLING).feed(event)

    assert (first.kind, first.party) == (kind, TWO)
    assert (second.kind, second.party, second.state) == ("run-failed", TWO, "failed")
    assert MEANINGS[getattr(event, "code", Code.INTERNAL)] in first.text
    assert MEANINGS[getattr(event, "code", Code.INTERNAL)] in second.text


def test_a_pause_from_the_wish_to_the_end() -> None:
    play = run_until(runs.State.RUNNING)
    released = RoundEnded(at_s=9.0, number=1, verdict=RoundVerdict.RELEASED)
    assert play.hear(PauseRequested(at_s=5.0)) == [("pause-requested", "", "")]
    assert play.hear(PauseRequested(at_s=5.0)) == []
    assert play.hear(released) == [("run-paused", "", "")]
    assert play.hear(PauseRequested(at_s=5.0)) == []
    assert play.hear(ResumeRequested(at_s=5.0)) == [("run-resumed", "", "")]
    assert play.hear(ResumeRequested(at_s=5.0)) == []
    assert play.hear(released) == [("run-completed", "", "")]


def test_a_pause_before_the_first_round_says_so() -> None:
    (item,) = run_until(runs.State.ENROLLING).feed(PauseRequested(at_s=5.0))
    assert (item.kind, item.text) == ("pause-requested", "the run is to pause before its first round")


def test_a_pause_that_was_called_off() -> None:
    play = run_until(runs.State.RUNNING)
    play.feed(PauseRequested(at_s=5.0))
    (item,) = play.feed(ResumeRequested(at_s=5.0))
    assert (item.kind, item.text) == ("run-resumed", "the pause was called off")


def test_an_operator_and_we_ourselves_may_end_a_run() -> None:
    assert run_until(runs.State.RUNNING).hear(CancelRequested(at_s=5.0)) == [("run-cancelled", "", "")]
    (item,) = run_until(runs.State.RUNNING).feed(Failed("no more room"))
    assert (item.kind, item.text) == ("run-failed", "the run failed: the coordinator failed: no more room")


def test_what_takes_long_to_say_is_cut() -> None:
    (first,) = run_until(runs.State.RUNNING).feed(Failed("x\n" * 9_999))

    assert len(first.text) == MAX_TEXT_CHARACTERS
    assert first.frame.count(b"\n") == 4, "three lines and an empty one, whatever is said"


# Of a round ------------------------------------------------------------------------------------------------


def received(client: PartyId, server: PartyId, phase: str) -> ReceiptArrived:
    receipt = Receipt(aggregator=server, client=client, set_id=SET_ID, vectors=VECTORS, transcript=TRANSCRIPT)
    return ReceiptArrived(at_s=2.0, phase=phase, receipt=SignedReceipt(receipt=receipt, signature="5a" * 64))


def released(server: PartyId, phase: str, members: frozenset[PartyId]) -> SumReleased:
    return SumReleased(at_s=3.0, phase=phase, aggregator=server, members=members, vectors=VECTORS, traffic=())


ALL = frozenset(UNION_MANIFEST.clients)
DEADLINE = DeadlinePassed(at_s=60.0)


def round_with(phase: str) -> Play:
    """A round in which a phase was opened and nobody has delivered it."""
    play = play_round()
    play.feed(Began(at_s=1.0))
    if phase == "signs":
        deliver(play, "union")
        for server in (NORTH, SOUTH):
            play.feed(released(server, "union", ALL))
    return play


def deliver(play: Play, phase: str, *but: PartyId) -> None:
    for client in UNION_MANIFEST.clients:
        for server in (NORTH, SOUTH):
            if client not in but:
                play.feed(received(client, server, phase))


def test_a_round_from_its_opening_to_its_end() -> None:
    play = play_round()
    assert play.hear(Began(at_s=1.0)) == [("round-opened", "", "union")]
    assert play.hear(received(ONE, NORTH, "union")) == [("share-set-delivered", ONE, "union")]
    assert play.hear(received(ONE, NORTH, "union")) == [], "delivered twice"
    (item,) = play.feed(received(ONE, SOUTH, "union"))
    assert item.text == "client-1 delivered its shares of union to aggregator-2 (2 of 2)"
    assert (item.round, item.state) == (4, "collecting")
    deliver(play, "union", ONE, THREE)
    play.feed(received(THREE, NORTH, "union"))
    assert play.hear(received(THREE, SOUTH, "union")) == [
        ("share-set-delivered", THREE, "union"),
        ("phase-closed", "", "union"),
    ]
    assert play.hear(released(NORTH, "union", ALL)) == [("sum-released", NORTH, "union")]
    assert play.hear(released(NORTH, "union", ALL)) == []
    assert play.hear(released(SOUTH, "union", ALL)) == [
        ("sum-released", SOUTH, "union"),
        ("phase-opened", "", "signs"),
    ]
    assert play.hear(released(NORTH, "union", ALL)) == [], "of the phase before, delivered late"
    deliver(play, "signs")
    play.feed(released(NORTH, "signs", ALL))
    play.feed(released(SOUTH, "signs", ALL))
    assert play.hear(UpdateApplied(at_s=4.0, client=ONE, report=REPORT)) == [("update-applied", ONE, "signs")]
    assert play.hear(UpdateApplied(at_s=4.0, client=ONE, report=REPORT)) == []
    play.feed(UpdateApplied(at_s=4.0, client=TWO, report=REPORT))
    first, second = play.feed(UpdateApplied(at_s=4.0, client=THREE, report=REPORT))
    assert first.text == "client-3 applied round 4"
    assert (second.kind, second.text, second.state) == (*("round-released", "round 4 was released", "released"),)


def scoring(*scorers: PartyId) -> Play:
    """A round in its scores phase, which only some have delivered."""
    data = rounds.CoordinatorRound(run=Key("run", RUN), number=4, manifest=UNION_MANIFEST, is_scored=True)
    play = Play(rounds.KIND, Key("round", RUN, 4), data)
    play.feed(Began(at_s=1.0))
    for phase in ("union", "signs"):
        deliver(play, phase)
        for server in (NORTH, SOUTH):
            play.feed(released(server, phase, ALL))
    for client in (ONE, TWO, THREE):
        play.feed(UpdateApplied(at_s=4.0, client=client, report=REPORT))
    deliver(play, "scores", *(ALL - set(scorers)))
    return play


def scored(client: PartyId, value: float) -> ScoresReported:
    claims = (ScoreClaim(name="accuracy", value=0.5), ScoreClaim(name="loss", value=value))
    return ScoresReported(at_s=5.0, client=client, scores=claims, traffic=())


def test_a_scored_round_ends_with_what_the_scores_come_to() -> None:
    play = scoring(ONE, TWO, THREE)
    for server in (NORTH, SOUTH):
        play.feed(released(server, "scores", ALL))
    for client in (ONE, TWO):
        assert play.hear(scored(client, 0.125)) == []

    (end,) = play.feed(scored(THREE, 0.125))

    assert (end.kind, end.phase, end.state) == ("round-released", "scores", "released")
    assert end.text == "round 4 was released: accuracy 50.00%, loss 0.125"


def test_scores_over_fewer_clients_say_whose_are_not_in_them() -> None:
    play = scoring(ONE, THREE)
    late, closed = play.feed(DEADLINE)
    assert late.text == "the time for scores is up; client-2 did not deliver"
    assert closed.text == "scores was closed over 2 of 3 clients, without client-2"
    for server in (NORTH, SOUTH):
        play.feed(released(server, "scores", frozenset({ONE, THREE})))
    play.feed(scored(ONE, 0.125))

    late, end = play.feed(DeadlinePassed(at_s=120.0))

    assert late.text == "the time for scores is up; client-2, client-3 did not report"
    assert end.text == "round 4 was released without scores", "one alone is not enough"


def test_scores_that_come_to_no_sum_leave_the_round_released() -> None:
    play = scoring(ONE)
    _, closed = play.feed(DEADLINE)
    assert "scores was closed without a sum: client-2, client-3 did not deliver" in closed.text
    play.feed(VoidConfirmed(at_s=70.0, phase="scores", aggregator=NORTH))
    (end,) = play.feed(VoidConfirmed(at_s=70.0, phase="scores", aggregator=SOUTH))
    assert (end.kind, end.text) == ("round-released", "round 4 was released without scores")


def test_on_the_compact_wire_a_sum_is_released_to_the_combiner_and_by_it_to_clients() -> None:
    """In round 4 aggregator-1 combines the first phase."""
    manifest = make_manifest(clients=3, servers=2, min_clients=2, strategy="sec-union", wire="compact")
    data = rounds.CoordinatorRound(run=Key("run", RUN), number=4, manifest=manifest)
    play = Play(rounds.KIND, Key("round", RUN, 4), data)
    play.feed(Began(at_s=1.0))
    deliver(play, "union")

    (passed_on,) = play.feed(released(SOUTH, "union", ALL))
    combined, _ = play.feed(released(NORTH, "union", ALL))

    assert passed_on.text == "aggregator-2 released its sum of union to aggregator-1 (1 of 2)"
    assert combined.text == "aggregator-1 released the combined sum of union (2 of 2)"


def test_what_is_delivered_before_its_phase_is_open_is_told_when_it_comes_and_not_again() -> None:
    play = round_with("union")
    deliver(play, "union")
    play.feed(released(NORTH, "union", ALL))
    (item,) = play.feed(received(ONE, SOUTH, "signs"))
    assert item.text == "client-1 delivered its shares of signs to aggregator-2 (1 of 2)"
    assert play.hear(received(ONE, SOUTH, "signs")) == []
    deliver(play, "signs", ONE)
    play.feed(received(ONE, NORTH, "signs"))
    assert play.hear(released(SOUTH, "union", ALL)) == [
        ("sum-released", SOUTH, "union"),
        ("phase-opened", "", "signs"),
        ("phase-closed", "", "signs"),
    ], "everybody was there already"


def test_a_deadline_names_who_is_late_and_the_phase_closes_without_them() -> None:
    play = round_with("union")
    deliver(play, "union", TWO)
    late, closed = play.feed(DEADLINE)
    assert (late.kind, late.party) == ("deadline-passed", TWO)
    assert late.text == "the time for union is up; client-2 did not deliver"
    assert closed.text == "union was closed over 2 of 3 clients, without client-2"
    assert play.hear(DEADLINE) == []


def test_a_void_round_says_why() -> None:
    play = round_with("signs")
    deliver(play, "signs", TWO)
    _, closed = play.feed(DEADLINE)
    assert (closed.kind, closed.state) == ("phase-closed", "voiding")
    assert "without a sum: client-2 did not deliver in signs" in closed.text
    assert play.hear(VoidConfirmed(at_s=70.0, phase="signs", aggregator=NORTH)) == []
    dropped = UpdateDropped(at_s=70.0, client=ONE, traffic=())
    assert play.hear(dropped) == [("update-dropped", ONE, "signs")]
    (end,) = play.feed(VoidConfirmed(at_s=70.0, phase="signs", aggregator=SOUTH))
    assert (end.kind, end.state) == ("round-void", "void")
    assert "client-2 did not deliver" in end.text


def test_nobody_waits_for_ever_for_a_report() -> None:
    play = round_with("signs")
    deliver(play, "signs")
    for server in (NORTH, SOUTH):
        play.feed(released(server, "signs", ALL))
    play.feed(UpdateApplied(at_s=4.0, client=ONE, report=REPORT))
    late, end = play.feed(DEADLINE)
    assert (late.party, late.text) == ("", "the time for signs is up; client-2, client-3 did not report")
    assert end.kind == "round-released"


def test_a_set_that_was_refused() -> None:
    spoilt = SetSpoilt(
        at_s=2.0, phase="union", aggregator=NORTH, client=TWO, reason=RejectReason.RESIDUE_OUT_OF_RANGE
    )
    play = round_with("union")
    (item,) = play.feed(spoilt)
    assert (item.kind, item.party, item.phase) == ("set-refused", TWO, "union")
    assert item.text == "client-2: aggregator-1 refused its shares: residue-out-of-range"
    assert play.hear(spoilt) == []


def test_an_order_that_was_refused_and_words_against_each_other_end_a_round() -> None:
    play = round_with("union")
    deliver(play, "union")
    declined = OrderDeclined(
        at_s=3.0,
        phase="union",
        aggregator=NORTH,
        reason=RejectReason.TOO_FEW_MEMBERS,
    )
    first, second = play.feed(declined)
    assert (first.kind, first.party) == ("order-declined", NORTH)
    assert "fewer than min_clients" in first.text
    assert (second.kind, second.state) == ("round-contradicted", "contradicted")

    play = round_with("union")
    deliver(play, "union")
    assert play.hear(released(NORTH, "union", ALL - {ONE})) == [("round-contradicted", "", "union")]


def test_every_kind_of_news_is_told_in_some_test_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")

    assert [kind for kind in FeedEventKind if f'"{kind.value}"' not in text] == []


# The list --------------------------------------------------------------------------------------------------


def note_many(news: EventFeed, count: int, beginning: int = 0) -> None:
    data = runs.CoordinatorRun(manifest=UNION_MANIFEST)
    key, state = Key("run", RUN), runs.State.ENROLLING
    for number in range(beginning, beginning + count):
        news.note(Transition(number, key, state, Began(at_s=0.0), state, data, 0.0, data))


def ids(news: EventFeed, after: int) -> list[int]:
    return [item.id for item in news.since(after)]


def test_what_comes_after_an_id_whether_it_is_there_or_not() -> None:
    news = EventFeed()
    assert (ids(news, 0), news.newest, news.knows(0), news.knows(1)) == ([], 0, True, False)
    note_many(news, 3, beginning=5)
    assert ids(news, 0) == ids(news, 499) == [500, 600, 700]
    assert ids(news, 500) == ids(news, 555) == [600, 700]
    assert ids(news, 700) == ids(news, 999) == []
    assert [news.knows(after) for after in (0, 500, 700, 701)] == [True, True, True, False]


def test_the_oldest_are_forgotten_and_whoever_asks_for_them_can_tell() -> None:
    news = EventFeed(kept=100)
    note_many(news, 300, beginning=1)
    held = ids(news, 0)
    assert held[-1] == 30_000
    assert 100 <= len(held) <= 110
    assert news.forgotten == held[0] - 100
    assert news.knows(news.forgotten)
    assert not news.knows(news.forgotten - 1)


def test_what_is_held_of_one_run_is_what_is_held_of_it_among_all() -> None:
    news = EventFeed(kept=100)
    runs_of = [f"{number:064x}" for number in range(3)]
    data, state = runs.CoordinatorRun(manifest=UNION_MANIFEST), runs.State.ENROLLING
    for number in range(1, 301):
        # The first is heard of no more after a while, and then nothing of it is held.
        key = Key("run", RunId(runs_of[number % 3 if number < 150 else 1 + number % 2]))
        news.note(Transition(number, key, state, Began(at_s=0.0), state, data, 0.0, data))
        for run in runs_of:
            assert list(news.newest_first(run)) == [item for item in news.newest_first() if item.run == run]
    assert list(news.newest_first(runs_of[0])) == []
    assert news.forgotten


def test_a_listener_hears_of_news_and_of_the_end_and_not_of_steps_that_are_none() -> None:
    heard: list[bool] = []
    news = EventFeed()
    news.listen(lambda: heard.append(news.over))
    data = runs.CoordinatorRun(manifest=UNION_MANIFEST)
    state = runs.State.ENROLLING
    news.note(Transition(1, Key("run", RUN), state, ProposalDue(at_s=1.0), state, data, 0.0, data))
    assert heard == []
    note_many(news, 1)
    news.close()
    assert heard == [False, True]


def test_it_is_written_once_and_reads_back() -> None:
    news = EventFeed()
    note_many(news, 1, beginning=3)
    (item,) = news.since(0)
    assert item.frame is item.frame
    number, kind, data, *rest = item.frame.decode().split("\n")
    assert (number, kind, rest) == ("id: 300", "event: run-submitted", ["", ""])
    read = json.loads(data.removeprefix("data: "))
    assert read == {name: getattr(item, name) for name in FeedEvent.__dataclass_fields__}


# Across a restart ------------------------------------------------------------------------------------------


async def play_to_the_end(scene: Scene) -> None:
    await scene.open_round()
    await scene.finish()


async def stop_in_the_round(scene: Scene) -> None:
    await scene.open_round()
    await scene.has_taken(Began, 2)


@pytest.mark.parametrize("play", [play_to_the_end, stop_in_the_round])
@aio
async def test_after_a_restart_the_same_has_happened_under_the_same_ids(
    tmp_path: Path, play: Callable[[Scene], Any]
) -> None:
    async with scene_of(tmp_path) as scene:
        async with scene.start() as coordinator:
            await play(scene)
            before = coordinator.event_feed.since(0)
        async with scene.start() as coordinator:
            scene.clock.at_s += 99.0
            assert coordinator.event_feed.since(0)[: len(before)] == before
            assert not coordinator.event_feed.over
    assert before[0].kind == "run-submitted"
    assert [item.id for item in before] == sorted({item.id for item in before})


@aio
async def test_news_names_who_did_what_and_holds_no_key_digest_or_number_of_what_was_summed(
    tmp_path: Path,
) -> None:
    async with running_scene(tmp_path) as scene:
        await play_to_the_end(scene)
        text = b"".join(item.frame for item in scene.coordinator.event_feed.since(0)).decode()

    key = make_run_key(MANIFEST, CLIENT)
    for secret in (key.public_key, key.signature, SET_ID, TRANSCRIPT, REPORT.model_hmac):
        assert secret not in text
    assert CLIENT in text
