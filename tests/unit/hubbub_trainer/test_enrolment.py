"""A trainer in a run: what it joins, why it refuses, and rounds in order."""

from dataclasses import replace

import pytest

from hubbub.errors import UnexpectedEvent
from hubbub.ids import PartyId
from hubbub.machine.effects import Effect, Failed, Key, Publish, Tell
from hubbub.machine.table import step
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import PartyFailed, RunJoined, RunRefused
from hubbub_trainer.events import Ended, Go, Prepared, Proposed, RoundBroken, RoundOrdered, RoundOver
from hubbub_trainer.phases.enrolment import (
    TRANSITIONS,
    Enrolment,
    PrepareTask,
    RememberRun,
    SaveModel,
    SetUpRound,
    State,
)
from support.builders import make_manifest

MANIFEST = make_manifest()
GOOD = Prepared(parameters=MANIFEST.parameters, initial_model_sha256=MANIFEST.initial_model_sha256)


class Play:
    """One trainer's enrolment."""

    def __init__(self, manifest: Manifest = MANIFEST, me: PartyId = MANIFEST.clients[0]) -> None:
        self.state = State.INVITED
        self.data = Enrolment(me=me, key=Key("run", manifest.run_id), manifest=manifest)
        self.effects: tuple[Effect, ...] = ()

    def feed(self, event: object) -> None:
        result = step(TRANSITIONS, self.state, self.data, event)
        self.state, self.data, self.effects = result.state, result.data, result.effects

    def join(self) -> None:
        self.feed(Proposed())
        self.feed(GOOD)
        assert self.state is State.JOINED

    def answer(self) -> object:
        effect = self.effects[-1]
        assert isinstance(effect, Publish)
        assert effect.to == MANIFEST.coordinator
        return effect.body

    def refusal(self) -> str:
        assert self.state is State.REFUSED
        body = self.answer()
        assert isinstance(body, RunRefused)
        return body.reason

    def round(self, number: int) -> Key:
        return Key("round", self.data.key.run, number)


def test_joins_when_its_task_is_the_manifests_number_for_number() -> None:
    play = Play()
    play.feed(Proposed())
    assert (play.state, play.effects) == (State.PREPARING, (PrepareTask(),))
    play.feed(Proposed())
    assert (play.state, play.effects) == (State.PREPARING, ()), "the task is not loaded twice"
    play.feed(GOOD)
    assert play.state is State.JOINED
    assert play.answer() == RunJoined()
    play.feed(Proposed())
    assert play.answer() == RunJoined()


def test_refuses_a_cohort_that_it_is_not_in() -> None:
    play = Play(me=PartyId("somebody"))
    play.feed(Proposed())
    assert "somebody is not in the manifest's cohort" in play.refusal()


def test_refuses_a_strategy_that_it_does_not_know() -> None:
    play = Play(make_manifest(strategy="magic"))
    play.feed(Proposed())
    assert "magic" in play.refusal()


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
    assert why in play.refusal()


def test_a_round_ordered_while_idle_begins_at_once() -> None:
    play = Play()
    play.join()
    play.feed(RoundOrdered(number=1))
    assert [*play.effects] == [SetUpRound(1), Tell(play.round(1), Go())]


def test_rounds_queue_and_begin_in_order() -> None:
    play = Play()
    play.join()
    play.feed(RoundOrdered(number=1))
    for number in (2, 3):
        play.feed(RoundOrdered(number=number))
        assert play.effects == (SetUpRound(number),), "set up, so that it can take in what others send of it"
    play.feed(RoundOver(number=1))
    assert [*play.effects] == [Tell(play.round(2), Go())]
    play.feed(RoundOver(number=2))
    assert [*play.effects] == [Tell(play.round(3), Go())]
    play.feed(RoundOver(number=3))
    assert [*play.effects] == []
    play.feed(RoundOrdered(number=4))
    assert [*play.effects] == [SetUpRound(4), Tell(play.round(4), Go())]


@pytest.mark.parametrize("number", [1, 2])
def test_an_order_that_came_before_is_old_news(number: int) -> None:
    play = Play()
    play.join()
    play.feed(RoundOrdered(number=1))
    play.feed(RoundOver(number=1))
    play.feed(RoundOrdered(number=2))
    before = play.data
    play.feed(RoundOrdered(number=number))
    assert (play.data, play.effects) == (before, ())


def test_no_round_before_the_run_is_joined() -> None:
    play = Play()
    play.feed(Proposed())
    with pytest.raises(UnexpectedEvent):
        play.feed(RoundOrdered(number=1))


def test_the_model_is_kept_at_the_end() -> None:
    play = Play()
    play.join()
    play.feed(Ended(completed=True))
    assert (play.state, play.effects) == (State.ENDED, (SaveModel(),))


def test_a_slow_client_takes_in_the_last_sums_before_it_keeps_the_model() -> None:
    play = Play()
    play.join()
    play.feed(RoundOrdered(number=1))
    play.feed(RoundOrdered(number=2))
    play.feed(Ended(completed=True))
    assert (play.state, play.effects) == (State.LEAVING, ())
    play.feed(RoundOver(number=1))
    assert (play.state, play.effects) == (State.LEAVING, (Tell(play.round(2), Go()),))
    play.feed(RoundOver(number=2))
    assert (play.state, play.effects) == (State.ENDED, (SaveModel(),))


def test_a_slow_client_that_fails_at_the_end_keeps_no_model() -> None:
    play = Play()
    play.join()
    play.feed(RoundOrdered(number=1))
    play.feed(Ended(completed=True))
    play.feed(RoundBroken(number=1))
    assert (play.state, play.effects) == (State.ENDED, ())


def test_a_run_that_failed_ends_at_once() -> None:
    play = Play()
    play.join()
    play.feed(RoundOrdered(number=1))
    play.feed(Ended(completed=False))
    assert play.state is State.ENDED


def test_a_run_that_was_joined_before_a_restart_is_refused() -> None:
    play = Play()
    play.data = replace(play.data, stale=True)
    play.feed(Proposed())
    assert "a run is joined once" in play.refusal()


def test_the_run_is_remembered_before_it_is_joined() -> None:
    play = Play()
    play.join()
    assert [type(effect) for effect in play.effects] == [RememberRun, Publish]


@pytest.mark.parametrize("proposed", [False, True])
def test_a_run_that_ends_before_it_is_joined_leaves_nothing(*, proposed: bool) -> None:
    play = Play()
    if proposed:
        play.feed(Proposed())
    play.feed(Ended(completed=False))
    assert (play.state, play.effects) == (State.ENDED, ())


def test_a_failure_of_this_machine_is_told() -> None:
    play = Play()
    play.join()
    play.feed(Failed("RoundOver: the disk is full"))
    assert play.state is State.ENDED
    assert play.answer() == PartyFailed(reason="RoundOver: the disk is full")
