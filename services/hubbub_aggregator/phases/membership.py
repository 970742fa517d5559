"""An aggregator's part in a run.

    INVITED   a proposal arrived
    JOINED    it takes part; `round` and `phase` say what it accepts now
    REFUSED, ENDED   final

Rounds go in order. The position moves on when a phase is journalled, before its sum leaves: whoever has heard
this aggregator's verdict on a phase may send to the next one, and nobody may before. Within a round all phases
are released over the members of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Publish
from hubbub.machine.table import Step, Table, To
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import RunJoined, RunRefused
from hubbub.strategies.registry import STRATEGIES
from hubbub_aggregator.events import Ended, PhaseEnded, Proposed


class State(Enum):
    """Where this aggregator stands in a run."""

    INVITED = "invited"
    JOINED = "joined"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The manifest, and the one phase that is open now."""

    me: PartyId
    manifest: Manifest
    stale: bool = False
    """We joined this run before a restart, and have lost our place in it."""
    round: int = 1
    phase: int = 0
    members: frozenset[PartyId] = field(default_factory=frozenset)

    @property
    def phase_names(self) -> tuple[str, ...]:
        """The strategy's phases that this aggregator takes part in; all of them if it takes part in none."""
        phases = STRATEGIES[self.manifest.strategy].phases
        ours = [phase for phase in phases if self.me in phase.aggregators(self.manifest.aggregators)]
        return tuple(phase.name for phase in ours or phases)


@dataclass(frozen=True, slots=True)
class RememberRun(Effect):
    """Never join this run again."""


def _answer(data: Membership, body: RunJoined | RunRefused) -> Effect:
    return Publish(data.manifest.coordinator, Role.COORDINATOR, body)


def consider(data: Membership, event: Proposed) -> Step[State, Membership]:
    """Join what we are named in and can run."""
    del event
    if data.me not in data.manifest.aggregators:
        return _refuse(data, f"{data.me} is not among the manifest's aggregators")
    if data.manifest.strategy not in STRATEGIES:
        return _refuse(data, f"{data.me} does not know the strategy {data.manifest.strategy}")
    if data.stale:
        return _refuse(data, f"{data.me} took part in this run before it was restarted; a run is joined once")
    return Step(State.JOINED, data, (RememberRun(), _answer(data, RunJoined())))


def _refuse(data: Membership, reason: str) -> Step[State, Membership]:
    return Step(State.REFUSED, data, (_answer(data, RunRefused(reason=reason)),))


def repeat_answer(data: Membership, event: Proposed) -> Step[State, Membership]:
    """The coordinator asks again: it has not heard us."""
    del event
    return Step(State.JOINED, data, (_answer(data, RunJoined()),))


def move_on(data: Membership, event: PhaseEnded) -> Step[State, Membership]:
    """Open the next phase of the round, or the next round after the last phase or a void one."""
    if event.round != data.round:
        return Step(State.JOINED, data)
    last = data.phase + 1 == len(data.phase_names)
    if last or not event.members:
        return Step(State.JOINED, replace(data, round=data.round + 1, phase=0, members=frozenset()))
    return Step(State.JOINED, replace(data, phase=data.phase + 1, members=event.members))


def end(data: Membership, event: Ended) -> Step[State, Membership]:
    """The run is over; what is left of it is cleaned up."""
    del event
    return Step(State.ENDED, data)


TRANSITIONS: Table[State, Membership] = {
    State.INVITED: {Proposed: To(consider, State.JOINED, State.REFUSED), Ended: To(end, State.ENDED)},
    State.JOINED: {
        Proposed: To(repeat_answer, State.JOINED),
        PhaseEnded: To(move_on, State.JOINED),
        Ended: To(end, State.ENDED),
    },
    State.REFUSED: {},
    State.ENDED: {},
}
