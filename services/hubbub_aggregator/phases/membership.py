"""An aggregator's part in a run.

    INVITED   a proposal arrived
    PLEDGED   it takes part, and has sent its key for the run
    JOINED    it has everybody's keys; `round` and `phase` say what it accepts now
    REFUSED, ENDED   final

Rounds go in order. The position moves on when a phase is journalled, before its sum leaves. So a party that has
this aggregator's verdict on a phase may send to the next one, and nobody may before. Within a round all phases are
released over the members of the first, or of the one before if a phase may lose some.

A released round may have a scores phase; the manifest and the number of rounds released so far decide. All scores
phases of a run are released over the members of its first one: `score_members`. An aggregator that takes part in
the scores phase alone, or in none, does not hear of other phases, and learns the round from the messages that it
gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.errors import Objection, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import AcceptKeys, CountRefusal, Effect, Publish, Record, RememberRun, Sendable
from hubbub.machine.table import STAY, Kind, Step, Table, To
from hubbub.messages.manifest import Manifest, describe_run
from hubbub.messages.runs import RunJoined, RunKey, RunProposed, RunReady, RunRefused
from hubbub.strategies.phase_plan import phases_of
from hubbub.strategies.scores import SCORES
from hubbub_aggregator.events import Ended, KeysArrived, PhaseEnded, Proposed


class State(Enum):
    """State of this aggregator in a run."""

    INVITED = "invited"
    PLEDGED = "pledged"
    JOINED = "joined"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Data of this aggregator's part in a run: the manifest, and the one phase that is open now."""

    me: PartyId
    manifest: Manifest
    objections: tuple[Objection, ...] = ()
    """Reasons not to take part: this aggregator's own, and its operator's policy's."""
    run_key: RunKey | None = None
    publics: Mapping[PartyId, bytes] = field(default_factory=dict)
    keys_sha256: str = ""
    round: int = 1
    phase: int = 0
    members: frozenset[PartyId] = field(default_factory=frozenset)
    released: int = 0
    """Rounds released so far."""
    score_members: frozenset[PartyId] = field(default_factory=frozenset)

    @property
    def phase_names(self) -> tuple[str, ...]:
        """The phases that this aggregator takes part in."""
        phases = phases_of(self.manifest)
        ours = [phase for phase in phases if self.me in phase.aggregators(self.manifest.aggregators)]
        return tuple(phase.name for phase in ours)

    @property
    def adds_no_updates(self) -> bool:
        """Return whether this aggregator takes part in no phase, or in the scores phase alone."""
        return self.phase_names in {(), (SCORES.name,)}

    def members_for(self, phase: str) -> frozenset[PartyId]:
        """Return the members of the phase before this one, or of the scores; empty if it is the first."""
        return self.score_members if phase == SCORES.name else self.members


def _answer(data: Membership, body: Sendable) -> Effect:
    return Publish(data.manifest.coordinator, Role.COORDINATOR, body)


def consider(data: Membership, event: Proposed) -> Step[State, Membership]:
    """Join the run unless there are objections: the coordinator gets the first one's code, the log all of them."""
    del event
    if data.objections or data.run_key is None:
        why = "; ".join(str(each) for each in data.objections)
        refusal = CountRefusal(RejectReason.RUN_REFUSED, RunProposed.kind, data.manifest.coordinator, why)
        return Step(State.REFUSED, data, (_answer(data, RunRefused(code=data.objections[0].code)), refusal))
    record = Record("joined", describe_run(data.manifest))
    return Step(State.PLEDGED, data, (RememberRun(), _answer(data, RunJoined(run_key=data.run_key)), record))


def repeat_answer(data: Membership, event: Proposed) -> Step[State, Membership]:
    """Answer again, because the coordinator asks again: it has not got our answer."""
    del event
    again = () if data.run_key is None else (_answer(data, RunJoined(run_key=data.run_key)),)
    return Step(State.PLEDGED, data, again)


def begin(data: Membership, event: KeysArrived) -> Step[State, Membership]:
    """Accept everybody's keys and report ready for the first round."""
    data = replace(data, publics=event.publics, keys_sha256=event.keys_sha256)
    effects = (
        AcceptKeys(event.publics),
        _answer(data, RunReady()),
        Record("keys", {"keys_sha256": event.keys_sha256}),
    )
    return Step(State.JOINED, data, effects)


def repeat_ready(data: Membership, event: KeysArrived) -> Step[State, Membership]:
    """Ignore the same keys again and refuse others: a party has one key in a run."""
    if event.keys_sha256 != data.keys_sha256:
        raise PeerError(RejectReason.SECOND_KEY, "other run keys than before: a party has one key in a run")
    return Step(State.JOINED, data)


def move_on(data: Membership, event: PhaseEnded) -> Step[State, Membership]:
    """Open the next phase of the round, or the next round after the last phase or a void one."""
    if event.round < data.round or (event.round > data.round and not data.adds_no_updates):
        return Step(State.JOINED, data)
    next_round = replace(data, round=event.round + 1, phase=0, members=frozenset())
    if event.phase == SCORES.name:
        return Step(State.JOINED, replace(next_round, score_members=event.members or data.score_members))
    if not event.members:
        return Step(State.JOINED, next_round)
    follows = data.phase_names[data.phase + 1 :][:1]
    if follows and follows[0] != SCORES.name:
        return Step(State.JOINED, replace(data, phase=data.phase + 1, members=event.members))
    released = data.released + 1
    if data.manifest.is_scored_after(released):
        return Step(State.JOINED, replace(data, phase=data.phase + 1, released=released))
    return Step(State.JOINED, replace(next_round, released=released))


def end(data: Membership, event: Ended) -> Step[State, Membership]:
    """Record the end of the run."""
    return Step(State.ENDED, data, (Record("ended", {"outcome": event.outcome}),))


def leave(data: Membership, event: Ended) -> Step[State, Membership]:
    """End a run that was over before we answered."""
    del event
    return Step(State.ENDED, data)


TRANSITIONS: Table[State, Membership] = {
    State.INVITED: {Proposed: To(consider, State.PLEDGED, State.REFUSED), Ended: To(leave, State.ENDED)},
    State.PLEDGED: {
        Proposed: To(repeat_answer, State.PLEDGED),
        KeysArrived: To(begin, State.JOINED),
        Ended: To(end, State.ENDED),
    },
    State.JOINED: {
        Proposed: STAY,  # A duplicate: that all keys are here shows that our answer arrived.
        KeysArrived: To(repeat_ready, State.JOINED),
        PhaseEnded: To(move_on, State.JOINED),
        Ended: To(end, State.ENDED),
    },
    State.REFUSED: {},
    State.ENDED: {},
}


def resume(state: State, data: Membership) -> tuple[Effect, ...]:
    """Resume nothing: this machine only waits for messages and for the phases."""
    del state, data
    return ()


KIND = Kind(TRANSITIONS, State.INVITED, Membership, resume)
