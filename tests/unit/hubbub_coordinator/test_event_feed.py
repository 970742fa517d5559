"""The event feed: what is told of a step, the events that are held, and the same events after a restart."""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hubbub.errors import Code, PeerError, RejectReason, UnexpectedEvent
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Failed, Key
from hubbub.messages.rounds import ScoreClaim
from hubbub.runtime.runner import Transition
from hubbub_coordinator.event_feed import MAX_TEXT_CHARACTERS, FeedEvent, FeedEventKind, describe_transition
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
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.reasons import MEANINGS
from support.builders import SET_ID, TRANSCRIPT, make_manifest, make_run_key
from support.coordinator_play import CLASSIFIED, Play, RoundPlay
from support.coordinator_scene import CLIENT, MANIFEST, REPORT, Scene, running_scene, scene_of
from support.rest_stand_in import StandInCoordinator

UNION_MANIFEST = make_manifest(min_clients=2, strategy="sec-union", metrics=CLASSIFIED)
RUN = UNION_MANIFEST.run_id
ONE, TWO, THREE = UNION_MANIFEST.clients
NORTH, SOUTH = UNION_MANIFEST.aggregators
EVERYBODY = (NORTH, SOUTH, ONE, TWO, THREE)

REPEATABLE = (PartyJoined, PartyReady, PauseRequested, ReceiptArrived, SumReleased, UpdateApplied, SetSpoilt)


class Told(Play[list[FeedEvent]]):
    """A machine whose messages all come twice, of which the second tells nothing."""

    def feed(self, event: object) -> list[FeedEvent]:
        items = super().feed(event)
        if isinstance(event, REPEATABLE):
            with suppress(UnexpectedEvent, PeerError):
                assert super().feed(event) == []
        return items

    def hear(self, *happened: object) -> list[str]:
        """Return what is told of events: kind, party and phase, and the text."""
        return write(item for event in happened for item in self.feed(event))


def write(items: Iterable[FeedEvent]) -> list[str]:
    return [f"{' '.join(filter(None, (item.kind, item.party, item.phase)))}: {item.text}" for item in items]


# Of a run --------------------------------------------------------------------------------------------------


class ToldRun(Told):
    """A run, and what is told of it."""

    def __init__(self) -> None:
        super().__init__(
            runs.KIND, Key("run", RUN), runs.CoordinatorRun(manifest=UNION_MANIFEST), describe_transition
        )

    def begin(self) -> list[FeedEvent]:
        return self.feed(Began(at_s=1.5))


JOINED = [PartyJoined(at_s=2.0, party=party, run_key=make_run_key(UNION_MANIFEST, party)) for party in EVERYBODY]
READY = [PartyReady(at_s=3.0, party=party) for party in EVERYBODY]
PAUSE, RESUME = PauseRequested(at_s=5.0), ResumeRequested(at_s=5.0)
RELEASED = RoundEnded(at_s=9.0, number=1, verdict=RoundVerdict.RELEASED)


def test_a_run_from_its_beginning_to_its_end_with_a_pause() -> None:
    play = ToldRun()
    (item,) = play.begin()
    assert (item.run, item.round, item.at_s, item.state) == (RUN, 0, 1.5, "enrolling")
    assert write([item]) == [
        "run-submitted: a run of 2 rounds was submitted: sec-union on synthetic, 3 clients, 2 aggregators"
    ]
    assert play.hear(ProposalDue(at_s=4.0)) == [], "asking again is no news"
    assert play.hear(*JOINED) == [
        *(f"party-joined {name}: {name} joined ({count} of 5)" for count, name in enumerate(EVERYBODY, 1)),
        "keys-sent: all 5 parties have joined and were sent all keys",
    ]
    checked = "has checked the keys"
    assert play.hear(*READY) == [
        f"party-ready {name}: {name} {checked} ({count} of 5)" for count, name in enumerate(EVERYBODY, 1)
    ]
    assert play.hear(PAUSE, RESUME, RESUME, PAUSE, RELEASED, RESUME, RESUME, RELEASED) == [
        "pause-requested: the run is to pause after round 1",
        "run-resumed: the pause was called off",
        "pause-requested: the run is to pause after round 1",
        "run-paused: the run is paused: an operator paused it",
        "run-resumed: the run goes on with round 2",
        "run-completed: the run is complete: all 2 rounds are done",
    ]


def test_a_run_that_begins_to_be_stalled_is_told_once_and_again_after_it_has_moved() -> None:
    play = ToldRun()
    play.data = replace(play.data, manifest=UNION_MANIFEST.model_copy(update={"rounds": 9}))
    play.begin()
    play.hear(*JOINED, *READY)
    empty, moving = replace(RELEASED, union_size=0), replace(RELEASED, union_size=5)
    why = "the last released round changed no parameter: |V| is 0"

    for told in (1, 0):
        heard = play.hear(empty)
        assert [line.startswith(f"run-stalled: the run is stalled: {why}; docs/") for line in heard] == [
            True
        ] * told
    assert play.hear(moving) == []
    assert len(play.hear(empty)) == 1


MORE = "Its owner's log says more"


def tell_end(kind: str, text: str) -> list[str]:
    return [f"{kind} client-2: client-2 {text}", f"run-failed client-2: the run failed: client-2 {text}"]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (PAUSE, ["pause-requested: the run is to pause before its first round"]),
        (CancelRequested(at_s=5.0), ["run-cancelled: the run was cancelled: an operator cancelled it"]),
        (Failed("no more room"), ["run-failed: the run failed: the coordinator failed: no more room"]),
        (
            PartyRefused(at_s=4.0, party=TWO, code=Code.POLICY_RUNS),
            tell_end("party-refused", f"refused the run (policy-runs): {MEANINGS[Code.POLICY_RUNS]}. {MORE}"),
        ),
        (
            PartyBroke(at_s=4.0, party=TWO, code=Code.DISK_FAILED),
            tell_end("party-failed", f"left the run (disk-failed): its disk failed. {MORE}"),
        ),
    ],
)
def test_the_operator_a_party_or_we_ourselves_may_end_a_run_early(event: object, told: list[str]) -> None:
    play = ToldRun()
    play.begin()

    assert play.hear(event) == told


def test_an_id_is_the_number_of_the_entry_and_a_place_and_a_long_text_is_cut() -> None:
    play = ToldRun()
    (begun,) = play.begin()
    first, second = play.feed(PartyBroke(at_s=4.0, party=TWO, code=Code.DISK_FAILED))
    assert [item.id for item in (begun, first, second)] == [100, 200, 201]

    play = ToldRun()
    play.begin()
    (item,) = play.feed(Failed("x\n" * 9_999))
    assert len(item.text) == MAX_TEXT_CHARACTERS
    assert item.frame.count(b"\n") == 4, "three lines and an empty one, whatever is said"


# Of a round ------------------------------------------------------------------------------------------------

DEADLINE = DeadlinePassed(at_s=160.0)


class ToldRound(RoundPlay[list[FeedEvent]], Told):
    """The fourth round of a run, and what is told of it."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields.pop("manifest", UNION_MANIFEST), describe_transition, 4, **fields)

    def confirm_void(self) -> list[str]:
        phase = self.data.current.name
        return self.hear(*(VoidConfirmed(at_s=170.0, phase=phase, aggregator=name) for name in (NORTH, SOUTH)))


def test_a_round_from_its_opening_to_its_end() -> None:
    play = ToldRound()
    assert write(play.begin()) == ["round-opened union: round 4 was opened: 3 clients train"]
    play.deliver(THREE)
    (item,) = play.receive(THREE, NORTH, "union")
    assert (item.round, item.state) == (4, "collecting")
    assert write([item, *play.receive(THREE, SOUTH, "union")]) == [
        "share-set-delivered client-3 union: client-3 delivered its shares of union to aggregator-1 (1 of 2)",
        "share-set-delivered client-3 union: client-3 delivered its shares of union to aggregator-2 (2 of 2)",
        "phase-closed union: union was closed over 3 of 3 clients",
    ]
    assert write([*play.release_at(NORTH), *play.receive(ONE, SOUTH, "signs"), *play.release_at(SOUTH)]) == [
        "sum-released aggregator-1 union: aggregator-1 released its sum of union (1 of 2)",
        # Before its phase is open, and told once.
        "share-set-delivered client-1 signs: client-1 delivered its shares of signs to aggregator-2 (1 of 2)",
        "sum-released aggregator-2 union: aggregator-2 released its sum of union (2 of 2)",
        "phase-opened signs: signs was opened",
    ]
    assert play.release_at(NORTH, phase="union") == [], "of the phase before, delivered late"
    play.deliver()
    play.release()
    assert write(item for client in (ONE, TWO, THREE) for item in play.apply(client)) == [
        *(f"update-applied {name} signs: {name} applied round 4" for name in (ONE, TWO, THREE)),
        "round-released signs: round 4 was released",
    ]


def test_a_phase_that_everybody_has_delivered_before_it_opens_closes_at_once() -> None:
    play = ToldRound()
    play.begin()
    play.deliver()
    play.release_at(NORTH)
    play.deliver(phase="signs")
    assert [item.kind for item in play.release_at(SOUTH)] == ["sum-released", "phase-opened", "phase-closed"]


def scored(client: PartyId) -> ScoresReported:
    claims = (ScoreClaim(name="accuracy", value=0.5), ScoreClaim(name="loss", value=0.125))
    return ScoresReported(at_s=135.0, client=client, scores=claims, traffic=())


def scoring(*absent: PartyId) -> ToldRound:
    """A round in its scores phase, which all but some have delivered."""
    play = ToldRound(is_scored=True)
    play.play_to_scores()
    play.deliver(*absent)
    return play


def test_a_scored_round_ends_with_what_the_scores_come_to() -> None:
    play = scoring()
    play.release()
    assert play.hear(scored(ONE), scored(TWO), scored(THREE)) == [
        "round-released scores: round 4 was released: accuracy 50.00%, loss 0.125"
    ]


def test_scores_over_fewer_clients_say_whose_are_not_in_them_and_one_report_alone_is_not_enough() -> None:
    play = scoring(TWO)
    assert play.hear(DEADLINE) == [
        "deadline-passed client-2 scores: the time for scores is up; client-2 did not deliver",
        "phase-closed scores: scores was closed over 2 of 3 clients, without client-2",
    ]
    play.release()
    assert play.hear(scored(ONE), DeadlinePassed(at_s=220.0)) == [
        "deadline-passed scores: the time for scores is up; client-2, client-3 did not report",
        "round-released scores: round 4 was released without scores",
    ]


def test_scores_that_come_to_no_sum_leave_the_round_released() -> None:
    play = scoring(TWO, THREE)
    _, closed = play.hear(DEADLINE)
    assert "scores was closed without a sum: client-2, client-3 did not deliver" in closed
    assert play.confirm_void() == ["round-released scores: round 4 was released without scores"]


def test_on_the_compact_wire_a_sum_is_released_to_the_combiner_and_by_it_to_clients() -> None:
    """In round 4 aggregator-1 combines the first phase."""
    play = ToldRound(manifest=make_manifest(min_clients=2, strategy="sec-union", wire="compact"))
    play.begin()
    play.deliver()

    (passed_on,) = play.release_at(SOUTH)
    combined, _ = play.release_at(NORTH)

    assert passed_on.text == "aggregator-2 released its sum of union to aggregator-1 (1 of 2)"
    assert combined.text == "aggregator-1 released the combined sum of union (2 of 2)"


def test_a_deadline_names_who_is_late_and_a_void_round_says_why() -> None:
    play = ToldRound()
    play.begin()
    play.deliver(TWO)
    assert play.hear(DEADLINE, DEADLINE) == [
        "deadline-passed client-2 union: the time for union is up; client-2 did not deliver",
        "phase-closed union: union was closed over 2 of 3 clients, without client-2",
    ]
    play.release()
    play.deliver(ONE, TWO)
    late, closed = play.feed(DEADLINE)
    assert (late.party, closed.kind, closed.state) == (ONE, "phase-closed", "voiding")
    assert "without a sum: client-1 did not deliver in signs" in closed.text
    assert play.hear(UpdateDropped(at_s=170.0, client=THREE, traffic=())) == [
        "update-dropped client-3 signs: client-3 dropped its update of round 4"
    ]
    (end,) = play.confirm_void()
    assert end.startswith("round-void signs: round 4 is void: client-1 did not deliver")


def test_nobody_waits_for_ever_for_a_report() -> None:
    play = ToldRound()
    play.play_to_applying()
    play.apply(ONE)
    assert play.hear(DEADLINE) == [
        "deadline-passed signs: the time for signs is up; client-2, client-3 did not report",
        "round-released signs: round 4 was released",
    ]


def test_a_set_that_was_refused() -> None:
    play, reason = ToldRound(), RejectReason.RESIDUE_OUT_OF_RANGE
    play.begin()
    assert play.hear(SetSpoilt(at_s=2.0, phase="union", aggregator=NORTH, client=TWO, reason=reason)) == [
        "set-refused client-2 union: client-2: aggregator-1 refused its shares: residue-out-of-range"
    ]


def test_an_order_that_was_refused_and_words_against_each_other_end_a_round() -> None:
    for reason, why in [
        (RejectReason.TOO_FEW_MEMBERS, "too-few-members): the members are fewer than min_clients"),
        (RejectReason.NONZERO_PADDING, "nonzero-padding): the order is against its rules"),
    ]:
        play = ToldRound()
        play.begin()
        play.deliver()
        first, second = play.feed(OrderDeclined(at_s=3.0, phase="union", aggregator=NORTH, reason=reason))
        assert (first.kind, first.party) == ("order-declined", NORTH)
        assert first.text.startswith(f"aggregator-1 refused the order on union ({why}")
        assert (second.kind, second.state) == ("round-contradicted", "contradicted")

    play = ToldRound()
    play.begin()
    play.deliver()
    (end,) = play.release_at(NORTH, members={TWO, THREE})
    assert (end.kind, end.party, end.phase) == ("round-contradicted", "", "union")


def test_every_kind_of_news_is_told_in_some_test_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")

    assert [kind for kind in FeedEventKind if f'"{kind.value}' not in text] == []


# The events that are held ----------------------------------------------------------------------------------


def test_what_comes_after_an_id_whether_it_is_there_or_not() -> None:
    reporter = StandInCoordinator()
    feed = reporter.event_feed
    assert (feed.since(0), feed.newest, feed.knows(0), feed.knows(1)) == ([], 0, True, False)
    reporter.report(RUN, 3)
    for after, expected in {0: [100, 200, 300], 99: [100, 200, 300], 100: [200, 300], 155: [200, 300]}.items():
        assert [item.id for item in feed.since(after)] == expected
    assert feed.since(300) == feed.since(999) == []
    assert [feed.knows(after) for after in (0, 100, 300, 301)] == [True, True, True, False]


def test_the_oldest_are_forgotten_of_each_run_and_whoever_asks_for_them_can_tell() -> None:
    reporter = StandInCoordinator(kept=100)
    feed, names = reporter.event_feed, [RunId(f"{number:064x}") for number in range(3)]
    for number in range(1, 301):
        # The first is heard of no more after a while, and then nothing of it is held.
        reporter.report(names[number % 3 if number < 150 else 1 + number % 2])
        for run in names:
            assert list(feed.newest_first(run)) == [item for item in feed.newest_first() if item.run == run]
    assert list(feed.newest_first(names[0])) == []
    held = reporter.ids()
    assert held[-1] == 30_000
    assert 100 <= len(held) <= 110
    assert feed.forgotten == held[0] - 100
    assert feed.knows(feed.forgotten)
    assert not feed.knows(feed.forgotten - 1)


def test_a_listener_hears_of_news_and_of_the_end_and_not_of_steps_that_are_none() -> None:
    reporter, heard = StandInCoordinator(), list[bool]()
    feed, state = reporter.event_feed, runs.State.ENROLLING
    feed.listen(lambda: heard.append(feed.over))
    data = runs.CoordinatorRun(manifest=UNION_MANIFEST)
    feed.note(Transition(1, Key("run", RUN), state, ProposalDue(at_s=1.0), state, data, 0.0, data))
    assert heard == []
    reporter.report(RUN)
    feed.close()
    assert heard == [False, True]


def test_it_is_written_once_and_reads_back() -> None:
    reporter = StandInCoordinator()
    reporter.report(RUN)
    (item,) = reporter.event_feed.since(0)
    assert item.frame is item.frame
    number, kind, data, *rest = item.frame.decode().split("\n")
    assert (number, kind, rest) == ("id: 100", "event: run-submitted", ["", ""])
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
