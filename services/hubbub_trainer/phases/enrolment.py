"""A trainer's part in a run.

    INVITED     a proposal arrived
    PREPARING   we are named in it; the task is loaded and the initial model rebuilt
    JOINED      the digest of that model is the manifest's; rounds are begun in order
    LEAVING     the run is completed, but we were slow: its last sums are still to be taken in
    REFUSED, ENDED   final

A round is set up when it is ordered, so that it can take in what others send of it, and begins when the one
before is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Failed, Job, Key, Publish, Tell
from hubbub.machine.table import STAY, Step, Table, To
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import PartyFailed, RunJoined, RunRefused
from hubbub.strategies.registry import STRATEGIES
from hubbub_trainer.events import Ended, Go, Prepared, Proposed, RoundBroken, RoundOrdered, RoundOver


class State(Enum):
    """Where this trainer stands in a run."""

    INVITED = "invited"
    PREPARING = "preparing"
    JOINED = "joined"
    LEAVING = "leaving"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """The manifest, the last round that was ordered and the last one that is over."""

    me: PartyId
    key: Key
    manifest: Manifest
    stale: bool = False
    """We joined this run before a restart, and have lost our place in it."""
    ordered: int = 0
    over: int = 0


@dataclass(frozen=True, slots=True)
class PrepareTask(Job):
    """Load the task and rebuild the initial model."""


@dataclass(frozen=True, slots=True)
class RememberRun(Effect):
    """Never join this run again."""


@dataclass(frozen=True, slots=True)
class SetUpRound(Effect):
    """Set up the machine of a round."""

    number: int


@dataclass(frozen=True, slots=True)
class SaveModel(Effect):
    """Write the model and its digest to our own disk."""


def consider(data: Enrolment, event: Proposed) -> Step[State, Enrolment]:
    """Look at the manifest, then at the task."""
    del event
    if data.me not in data.manifest.clients:
        return _refuse(data, f"{data.me} is not in the manifest's cohort")
    if data.manifest.strategy not in STRATEGIES:
        return _refuse(data, f"{data.me} does not know the strategy {data.manifest.strategy}")
    if data.stale:
        return _refuse(data, f"{data.me} took part in this run before it was restarted; a run is joined once")
    return Step(State.PREPARING, data, (PrepareTask(),))


def join(data: Enrolment, event: Prepared) -> Step[State, Enrolment]:
    """Join if our task is the manifest's, number for number."""
    if event.parameters != data.manifest.parameters:
        return _refuse(
            data,
            f"the task has {event.parameters} parameters here, the manifest says {data.manifest.parameters}",
        )
    if event.initial_model_sha256 != data.manifest.initial_model_sha256:
        return _refuse(data, "the initial model rebuilt here is not the one that the manifest commits to")
    return Step(State.JOINED, data, (RememberRun(), _answer(data, RunJoined())))


def refuse_task(data: Enrolment, event: Failed) -> Step[State, Enrolment]:
    """The task could not be loaded."""
    return _refuse(data, event.why)


def _refuse(data: Enrolment, reason: str) -> Step[State, Enrolment]:
    return Step(State.REFUSED, data, (_answer(data, RunRefused(reason=reason)),))


def _answer(data: Enrolment, body: RunJoined | RunRefused | PartyFailed) -> Effect:
    return Publish(data.manifest.coordinator, Role.COORDINATOR, body)


def repeat_answer(data: Enrolment, event: Proposed) -> Step[State, Enrolment]:
    """The coordinator asks again: it has not heard us."""
    del event
    return Step(State.JOINED, data, (_answer(data, RunJoined()),))


def set_up_round(data: Enrolment, event: RoundOrdered) -> Step[State, Enrolment]:
    """Set the round up; begin it if nothing is before it. An order that came before is old news."""
    if event.number <= data.ordered:
        return Step(State.JOINED, data)
    idle = data.over == data.ordered
    data = replace(data, ordered=event.number)
    go = (Tell(_round(data, event.number), Go()),) if idle else ()
    return Step(State.JOINED, data, (SetUpRound(event.number), *go))


def begin_next(data: Enrolment, event: RoundOver) -> Step[State, Enrolment]:
    """Begin the round that was waiting, if one was."""
    data = replace(data, over=event.number)
    if data.over == data.ordered:
        return Step(State.JOINED, data)
    return Step(State.JOINED, data, (Tell(_round(data, event.number + 1), Go()),))


def _round(data: Enrolment, number: int) -> Key:
    return Key("round", data.key.run, number)


def end(data: Enrolment, event: Ended) -> Step[State, Enrolment]:
    """The run is over: keep the model, once we hold the one that the others hold."""
    if event.completed and data.over < data.ordered:
        return Step(State.LEAVING, data)
    return Step(State.ENDED, data, (SaveModel(),))


def finish(data: Enrolment, event: RoundOver) -> Step[State, Enrolment]:
    """Take in what is left of the completed run, then keep the model."""
    data = replace(data, over=event.number)
    if data.over == data.ordered:
        return Step(State.ENDED, data, (SaveModel(),))
    return Step(State.LEAVING, data, (Tell(_round(data, event.number + 1), Go()),))


def abandon(data: Enrolment, event: RoundBroken | Failed) -> Step[State, Enrolment]:
    """The last sums could not be taken in: there is no final model here, and none is written."""
    del event
    return Step(State.ENDED, data)


def leave(data: Enrolment, event: Ended) -> Step[State, Enrolment]:
    """The run ended before we had joined it."""
    del event
    return Step(State.ENDED, data)


def fail(data: Enrolment, event: Failed) -> Step[State, Enrolment]:
    """Something on this machine failed."""
    return Step(State.ENDED, data, (_answer(data, PartyFailed(reason=event.why)),))


TRANSITIONS: Table[State, Enrolment] = {
    State.INVITED: {
        Proposed: To(consider, State.PREPARING, State.REFUSED),
        Ended: To(leave, State.ENDED),
    },
    State.PREPARING: {
        Prepared: To(join, State.JOINED, State.REFUSED),
        Failed: To(refuse_task, State.REFUSED),
        Proposed: STAY,  # Asked again while the task loads.
        Ended: To(leave, State.ENDED),
    },
    State.JOINED: {
        Proposed: To(repeat_answer, State.JOINED),
        RoundOrdered: To(set_up_round, State.JOINED),
        RoundOver: To(begin_next, State.JOINED),
        RoundBroken: STAY,  # The coordinator was told, and decides.
        Ended: To(end, State.LEAVING, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.LEAVING: {
        RoundOver: To(finish, State.LEAVING, State.ENDED),
        RoundBroken: To(abandon, State.ENDED),
        Failed: To(abandon, State.ENDED),
        RoundOrdered: STAY,  # Delivered twice.
        Proposed: STAY,
        Ended: STAY,
    },
    State.REFUSED: {},
    State.ENDED: {},
}
