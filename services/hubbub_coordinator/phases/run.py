"""A run, from the proposal to its last word.

    ENROLLING   every named party was asked; one that has not answered is asked again
    RUNNING     rounds are opened one after the other; each reports its verdict here
    COMPLETED, FAILED, CANCELLED   final, with a reason; every party was told

All parties must join: the manifest fixes the ring by the size of the cohort, and a refusal is a reason to talk,
not to go on without asking. A void round is followed by the next one, up to the manifest's limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CancelTimer, Effect, Failed, Publish, SetTimer
from hubbub.machine.table import STAY, Step, Table, To
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

PROPOSAL_INTERVAL_S = 2.0


class State(Enum):
    """Where a run is."""

    ENROLLING = "enrolling"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


OUTCOMES: dict[State, Literal["completed", "failed", "cancelled"]] = {
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the coordinator knows of a run."""

    manifest: Manifest
    began_at_s: float = 0.0
    ended_at_s: float | None = None
    joined: frozenset[PartyId] = field(default_factory=frozenset)
    round: int = 0
    released: int = 0
    void: int = 0
    reason: str = ""

    @property
    def parties(self) -> dict[PartyId, Role]:
        """Everybody that the manifest names, but for the coordinator."""
        return {
            **dict.fromkeys(self.manifest.aggregators, Role.AGGREGATOR),
            **dict.fromkeys(self.manifest.clients, Role.CLIENT),
        }


@dataclass(frozen=True, slots=True)
class RememberRun(Effect):
    """Never begin this run again."""


@dataclass(frozen=True, slots=True)
class OpenRound(Effect):
    """Set up the machine of the next round."""

    number: int


def _propose(run: Run, at_s: float) -> tuple[Effect, ...]:
    missing = [(party, role) for party, role in run.parties.items() if party not in run.joined]
    body = RunProposed(manifest=run.manifest)
    return (
        *(Publish(party, role, body) for party, role in missing),
        SetTimer("proposal", at_s + PROPOSAL_INTERVAL_S, ProposalDue),
    )


def begin(run: Run, event: Began) -> Step[State, Run]:
    """Ask everybody. Only then is it a run that there has been: nobody was asked if asking failed."""
    run = replace(run, began_at_s=event.at_s)
    return Step(State.ENROLLING, run, (*_propose(run, event.at_s), RememberRun()))


def ask_again(run: Run, event: ProposalDue) -> Step[State, Run]:
    """Ask those who have not answered."""
    return Step(State.ENROLLING, run, _propose(run, event.at_s))


def enrol(run: Run, event: PartyJoined) -> Step[State, Run]:
    """Count a party in; when all are there the first round opens."""
    run = replace(run, joined=run.joined | {event.party})
    if run.joined != run.parties.keys():
        return Step(State.ENROLLING, run)
    run = replace(run, round=1)
    return Step(State.RUNNING, run, (CancelTimer("proposal"), OpenRound(1)))


def go_on(run: Run, event: RoundEnded) -> Step[State, Run]:
    """After a round: the next one, or the end."""
    if event.verdict is RoundVerdict.CONTRADICTED:
        return _end(run, State.FAILED, event.reason, event.at_s)
    if event.verdict is RoundVerdict.RELEASED:
        run = replace(run, released=run.released + 1)
    else:
        run = replace(run, void=run.void + 1)
    if run.released == run.manifest.rounds:
        return _end(run, State.COMPLETED, f"all {run.released} rounds are done", event.at_s)
    if run.void > run.manifest.max_void_rounds:
        reason = f"{run.void} rounds were void, the last because {event.reason}"
        return _end(run, State.FAILED, reason, event.at_s)
    run = replace(run, round=run.round + 1)
    return Step(State.RUNNING, run, (OpenRound(run.round),))


def give_up(run: Run, event: PartyRefused | PartyBroke) -> Step[State, Run]:
    """A party refused, or cannot go on: the run fails and says whose word it was."""
    return _end(run, State.FAILED, f"{event.party}: {event.reason}", event.at_s)


def break_off(run: Run, event: Failed) -> Step[State, Run]:
    """The coordinator itself could not do what it had to."""
    return _end(run, State.FAILED, f"the coordinator failed: {event.why}", run.began_at_s)


def cancel(run: Run, event: CancelRequested) -> Step[State, Run]:
    """End it because an operator says so."""
    return _end(run, State.CANCELLED, "an operator cancelled it", event.at_s)


def _end(run: Run, state: State, reason: str, at_s: float) -> Step[State, Run]:
    run = replace(run, reason=reason, ended_at_s=at_s)
    body = RunEnded(outcome=OUTCOMES[state], reason=reason)
    tell = tuple(Publish(party, role, body) for party, role in run.parties.items())
    return Step(state, run, (CancelTimer("proposal"), *tell))


TRANSITIONS: Table[State, Run] = {
    State.ENROLLING: {
        Began: To(begin, State.ENROLLING),
        ProposalDue: To(ask_again, State.ENROLLING),
        PartyJoined: To(enrol, State.ENROLLING, State.RUNNING),
        PartyRefused: To(give_up, State.FAILED),
        PartyBroke: To(give_up, State.FAILED),
        CancelRequested: To(cancel, State.CANCELLED),
        Failed: To(break_off, State.FAILED),
    },
    State.RUNNING: {
        RoundEnded: To(go_on, State.RUNNING, State.COMPLETED, State.FAILED),
        PartyJoined: STAY,  # The broker may deliver twice, and a proposal may have been asked twice.
        ProposalDue: STAY,
        PartyRefused: To(give_up, State.FAILED),
        PartyBroke: To(give_up, State.FAILED),
        CancelRequested: To(cancel, State.CANCELLED),
        Failed: To(break_off, State.FAILED),
    },
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
}
