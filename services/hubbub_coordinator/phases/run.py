"""A run, from the proposal to its last word.

    ENROLLING   every named party was asked; one that has not answered is asked again
    AGREEING    all have joined and were sent everybody's keys; they check them, clients agree on a group secret
    RUNNING     rounds are opened one after the other; each reports its verdict here
    PAUSED      no round is open and none is opened until an operator says so
    COMPLETED, FAILED, CANCELLED   final, with a reason; every party was told

All parties must join: the manifest fixes the ring by the size of the cohort, and a refusal is a reason to talk,
not to go on without asking. A void round is followed by the next one, up to the manifest's limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CancelTimer, Effect, Failed, Key, Publish, Record, RememberRun, SetTimer, Tell
from hubbub.machine.table import STAY, Kind, Step, Table, To, stay
from hubbub.messages.manifest import Manifest, describe_run
from hubbub.messages.runs import RunEnded, RunKey, RunKeys, RunProposed
from hubbub.protocol.metrics import Trend, format_value, reaches
from hubbub.strategies.registry import find_strategy
from hubbub_coordinator.events import (
    Began,
    CancelRequested,
    DeadlinePassed,
    PartyBroke,
    PartyJoined,
    PartyReady,
    PartyRefused,
    PauseRequested,
    ProposalDue,
    ResumeRequested,
    RoundEnded,
    RoundVerdict,
)
from hubbub_coordinator.reasons import tell_failure, tell_refusal

PROPOSAL_INTERVAL_S = 2.0
LEAST_AGREEMENT_S = 600.0
"""Applies even if phases are shorter: clients agree only once, and one of them may have to be restarted first."""
USUAL_PATIENCE = 5
"""Scored rounds without a better one after which a run counts as stalled, if its manifest has no patience.

A quarter of a run of the usual length: early enough to save the rest, and a metric that is noisy has time to rise.
"""
ADVICE = "docs/running.md, 'A run does not learn', says what to try"


class State(Enum):
    """States of a run."""

    ENROLLING = "enrolling"
    AGREEING = "agreeing"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


OUTCOMES: dict[State, Literal["completed", "failed", "cancelled"]] = {
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRun:
    """State data of a run at the coordinator."""

    manifest: Manifest
    began_at_s: float = 0.0
    ended_at_s: float | None = None
    keys: Mapping[PartyId, RunKey] = field(default_factory=dict)
    """Run keys of the parties that have joined; the first key that a party sends is its only one."""
    agreeing_since_s: float = 0.0
    ready: frozenset[PartyId] = field(default_factory=frozenset)
    round: int = 0
    released: int = 0
    void: int = 0
    void_forgiven: int = 0
    """Void rounds that an operator has accepted by resuming the run."""
    ended: int = 0
    """Rounds that have ended with any verdict; the three totals below cover these."""
    rounds_s: float = 0.0
    payload_bits: int = 0
    wire_bytes: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last round that was scored."""
    trend: Trend = field(default_factory=Trend)
    """Agreed totals of the headline metric."""
    union_size: int | None = None
    """|V| of the last released round."""
    score_members: frozenset[PartyId] = field(default_factory=frozenset)
    """Clients over which scores are summed, fixed by the first scores phase."""
    attended: Mapping[PartyId, int] = field(default_factory=dict)
    """The last round that each client certainly took part in."""
    pausing: bool = False
    paused_since_s: float | None = None
    """The time since which it is paused; None if it is not."""
    pause_when_void: bool = False
    reason: str = ""
    failed_party: PartyId | None = None
    """Party whose refusal or failure ended the run."""
    place: int = 0
    """Position among all runs, in the order of submission."""
    idempotency_key: str = ""
    """Key of the submission: repeating it, for example after a lost answer, gives this run."""

    @property
    def joined(self) -> frozenset[PartyId]:
        """Parties that have joined."""
        return frozenset(self.keys)

    @property
    def stalled(self) -> str:
        """The reason why the model seems to learn nothing any more, with advice; empty if it does not seem so.

        It follows from sizes that aggregators declared and from totals that clients of min_clients organisations
        reported alike. A later round may take it back.
        """
        if self.union_size == 0 and not find_strategy(self.manifest.strategy).repeats:
            return f"the last released round changed no parameter: |V| is 0; {ADVICE}"
        headline, best = self.manifest.headline, self.trend.best
        if headline is None or best is None or reaches(headline, best, headline.best):
            return ""
        if not self.trend.has_stalled(self.manifest.patience or USUAL_PATIENCE):
            return ""
        return f"{_describe_plateau(headline.name, best, self.trend.since_best)}; {ADVICE}"

    @property
    def parties(self) -> dict[PartyId, Role]:
        """All parties that the manifest names, without the coordinator."""
        return {
            **dict.fromkeys(self.manifest.aggregators, Role.AGGREGATOR),
            **dict.fromkeys(self.manifest.clients, Role.CLIENT),
        }


@dataclass(frozen=True, slots=True)
class OpenRound(Effect):
    """Set up the machine of the next round."""

    number: int


def _describe_plateau(name: str, best: float, since_best: int) -> str:
    rounds = "scored round" if since_best == 1 else f"{since_best} scored rounds"
    return f"{name} was no better than {format_value(name, best)} in the last {rounds}"


def _propose(run: CoordinatorRun, at_s: float) -> tuple[Effect, ...]:
    missing = [(party, role) for party, role in run.parties.items() if party not in run.joined]
    body = RunProposed(manifest=run.manifest)
    return (
        *(Publish(party, role, body) for party, role in missing),
        SetTimer("proposal", at_s + PROPOSAL_INTERVAL_S, ProposalDue),
    )


def begin(run: CoordinatorRun, event: Began) -> Step[State, CoordinatorRun]:
    """Propose the run to all parties, then record its tombstone: if the proposal fails, there was no run."""
    run = replace(run, began_at_s=event.at_s)
    record = Record("joined", describe_run(run.manifest))
    return Step(State.ENROLLING, run, (*_propose(run, event.at_s), RememberRun(), record))


def ask_again(run: CoordinatorRun, event: ProposalDue) -> Step[State, CoordinatorRun]:
    """Repeat the proposal to parties that have not answered."""
    return Step(State.ENROLLING, run, _propose(run, event.at_s))


def enrol(run: CoordinatorRun, event: PartyJoined) -> Step[State, CoordinatorRun]:
    """Add a party; when all have joined, send everybody's run keys to all."""
    if event.party in run.joined:
        return Step(State.ENROLLING, run)
    run = replace(run, keys={**run.keys, event.party: event.run_key})
    if run.joined != run.parties.keys():
        return Step(State.ENROLLING, run)
    run = replace(run, agreeing_since_s=event.at_s)
    body = RunKeys(keys=tuple(run.keys[party] for party in run.parties))
    tell = tuple(Publish(party, role, body) for party, role in run.parties.items())
    return Step(State.AGREEING, run, (CancelTimer("proposal"), *tell, _agree_in_time(run)))


def _agree_in_time(run: CoordinatorRun) -> Effect:
    return SetTimer("agreement", run.agreeing_since_s + _agreement_s(run), DeadlinePassed)


def _agreement_s(run: CoordinatorRun) -> float:
    return max(run.manifest.phase_timeout_s, LEAST_AGREEMENT_S)


def await_ready(run: CoordinatorRun, event: PartyReady) -> Step[State, CoordinatorRun]:
    """Open the first round when all parties are ready, or pause if an operator asked for it."""
    run = replace(run, ready=run.ready | {event.party})
    if run.ready != run.parties.keys():
        return Step(State.AGREEING, run)
    on_time = CancelTimer("agreement")
    return _pause_or_open_next(run, event.at_s).first(on_time)


def _pause_or_open_next(run: CoordinatorRun, at_s: float) -> Step[State, CoordinatorRun]:
    if run.pausing:
        return _pause(replace(run, pausing=False), "an operator paused it", at_s)
    run = replace(run, round=run.round + 1)
    key = Key("round", run.manifest.run_id, run.round)
    return Step(State.RUNNING, run, (OpenRound(run.round), Tell(key, Began(at_s=at_s))))


def _pause(run: CoordinatorRun, reason: str, at_s: float) -> Step[State, CoordinatorRun]:
    return Step(State.PAUSED, replace(run, reason=reason, paused_since_s=at_s))


def stop_agreeing(run: CoordinatorRun, event: DeadlinePassed) -> Step[State, CoordinatorRun]:
    """Fail the run at the deadline: nobody resends what a party lost before the first round."""
    late = ", ".join(party for party in run.parties if party not in run.ready)
    reason = f"{late} did not check the keys within {_agreement_s(run):g} s: start it, and submit a new manifest"
    return _end(run, State.FAILED, reason, event.at_s)


def go_on(run: CoordinatorRun, event: RoundEnded) -> Step[State, CoordinatorRun]:
    """Open the next round after one has ended, or pause or end the run."""
    run = _add_up(run, event)
    if event.verdict is RoundVerdict.CONTRADICTED:
        return _end(run, State.FAILED, event.reason, event.at_s)
    released = event.verdict is RoundVerdict.RELEASED
    run = _follow(run, event) if released else replace(run, void=run.void + 1)
    done = _find_completion(run, event) if released else ""
    if done:
        return _end(run, State.COMPLETED, done, event.at_s)
    if run.void - run.void_forgiven > run.manifest.max_void_rounds:
        reason = f"{run.void} rounds were void, the last because {event.reason}"
        if not run.pause_when_void:
            return _end(run, State.FAILED, reason, event.at_s)
        return _pause(run, reason, event.at_s)
    return _pause_or_open_next(run, event.at_s)


def _follow(run: CoordinatorRun, event: RoundEnded) -> CoordinatorRun:
    """Count a released round, and take in what tells whether the model still learns."""
    released = run.released + 1
    trend = run.manifest.follow(run.trend, event.metrics, released=released)
    return replace(run, released=released, trend=trend, union_size=event.union_size)


def _add_up(run: CoordinatorRun, event: RoundEnded) -> CoordinatorRun:
    """Add a round to the run's totals, so that a list of many runs need not read their rounds."""
    return replace(
        run,
        ended=run.ended + 1,
        rounds_s=run.rounds_s + (0.0 if event.began_at_s is None else max(0.0, event.at_s - event.began_at_s)),
        payload_bits=run.payload_bits + event.payload_bits,
        wire_bytes=run.wire_bytes + event.wire_bytes,
        metrics=event.metrics or run.metrics,
        score_members=run.score_members or event.score_members,
        attended={**run.attended, **dict.fromkeys(sorted(event.present), event.number)},
    )


def _find_completion(run: CoordinatorRun, event: RoundEnded) -> str:
    """Return the reason why the run is complete after this released round; empty if it is not."""
    manifest, trend = run.manifest, run.trend
    headline, target = manifest.headline, manifest.target
    if headline and target is not None and manifest.is_on_target(event.metrics):
        told, wanted = (format_value(headline.name, each) for each in (event.metrics[headline.name], target))
        return f"round {event.number} reached {headline.name} {told}; the target was {wanted}"
    if run.released == manifest.rounds:
        return f"all {run.released} rounds are done"
    if headline and trend.best is not None and manifest.may_end_early(trend, event.metrics):
        return (
            f"{_describe_plateau(headline.name, trend.best, trend.since_best)}, which is the patience of the run"
        )
    return ""


def note_wish(run: CoordinatorRun, event: PauseRequested | ResumeRequested) -> Step[State, CoordinatorRun]:
    """Note or drop the wish to pause; an open round or agreement ends first."""
    return stay(replace(run, pausing=isinstance(event, PauseRequested)))


def go_on_again(run: CoordinatorRun, event: ResumeRequested) -> Step[State, CoordinatorRun]:
    """Resume a paused run, with the manifest's whole allowance of void rounds again."""
    run = replace(run, void_forgiven=run.void, pausing=False, paused_since_s=None, reason="")
    return _pause_or_open_next(run, event.at_s)


def give_up(run: CoordinatorRun, event: PartyRefused | PartyBroke) -> Step[State, CoordinatorRun]:
    """Fail the run because a party refused or failed, and name it."""
    run = replace(run, failed_party=event.party)
    say = tell_refusal if isinstance(event, PartyRefused) else tell_failure
    return _end(run, State.FAILED, say(event.party, event.code), event.at_s)


def break_off(run: CoordinatorRun, event: Failed) -> Step[State, CoordinatorRun]:
    """Fail the run because the coordinator itself failed."""
    return _end(run, State.FAILED, f"the coordinator failed: {event.why}", run.began_at_s)


def cancel(run: CoordinatorRun, event: CancelRequested) -> Step[State, CoordinatorRun]:
    """Cancel the run on an operator's request."""
    return _end(run, State.CANCELLED, "an operator cancelled it", event.at_s)


def _end(run: CoordinatorRun, state: State, reason: str, at_s: float) -> Step[State, CoordinatorRun]:
    run = replace(run, reason=reason, ended_at_s=at_s, paused_since_s=None)
    body = RunEnded(outcome=OUTCOMES[state], reason=reason, last_round=run.round)
    tell = tuple(Publish(party, role, body) for party, role in run.parties.items())
    timers = (CancelTimer("proposal"), CancelTimer("agreement"))
    return Step(state, run, (*timers, *tell, Record("ended", {"outcome": OUTCOMES[state]})))


_ENDINGS: dict[type, To[State, CoordinatorRun]] = {
    PartyRefused: To(give_up, State.FAILED),
    PartyBroke: To(give_up, State.FAILED),
    CancelRequested: To(cancel, State.CANCELLED),
    Failed: To(break_off, State.FAILED),
}

TRANSITIONS: Table[State, CoordinatorRun] = {
    State.ENROLLING: {
        Began: To(begin, State.ENROLLING),
        ProposalDue: To(ask_again, State.ENROLLING),
        PartyJoined: To(enrol, State.ENROLLING, State.AGREEING),
        PauseRequested: To(note_wish, State.ENROLLING),
        ResumeRequested: To(note_wish, State.ENROLLING),
        **_ENDINGS,
    },
    State.AGREEING: {
        PartyReady: To(await_ready, State.AGREEING, State.RUNNING, State.PAUSED),
        PauseRequested: To(note_wish, State.AGREEING),
        ResumeRequested: To(note_wish, State.AGREEING),
        DeadlinePassed: To(stop_agreeing, State.FAILED),
        PartyJoined: STAY,  # A proposal may have been sent twice.
        ProposalDue: STAY,
        **_ENDINGS,
    },
    State.RUNNING: {
        RoundEnded: To(go_on, State.RUNNING, State.PAUSED, State.COMPLETED, State.FAILED),
        PauseRequested: To(note_wish, State.RUNNING),
        ResumeRequested: To(note_wish, State.RUNNING),
        PartyJoined: STAY,  # The broker may deliver twice, and a proposal may have been sent twice.
        PartyReady: STAY,
        ProposalDue: STAY,
        DeadlinePassed: STAY,  # The timer fired while the last party became ready.
        **_ENDINGS,
    },
    State.PAUSED: {
        ResumeRequested: To(go_on_again, State.RUNNING),
        PauseRequested: STAY,
        PartyJoined: STAY,
        PartyReady: STAY,
        ProposalDue: STAY,
        DeadlinePassed: STAY,
        **_ENDINGS,
    },
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
}


def resume(state: State, data: CoordinatorRun) -> tuple[Effect, ...]:
    """Set the timers again after a restart: the repeated proposal, or the agreement's old deadline."""
    if state is State.AGREEING:
        return (_agree_in_time(data),)
    return (SetTimer("proposal", 0.0, ProposalDue),) if state is State.ENROLLING else ()


KIND = Kind(TRANSITIONS, State.ENROLLING, CoordinatorRun, resume)
