"""Admission: a trainer on its way into a run, from the proposal to the first order to train.

    INVITED     a proposal arrived
    PREPARING   nothing is against it; the task is loaded and the initial model rebuilt
    PLEDGED     the digest of that model is the manifest's; our key for the run is out
    AGREEING    we have everybody's keys; all clients deal their parts of the group secret and confirm it
    INHERITING  the run goes on from one that we were no part of; a peer that was sends us its model
    ADMITTED, REFUSED, ENDED   final

To pledge is to promise to take part: from then on the run is remembered for ever, and never joined a second time.
A client takes part only after all clients have confirmed the same group secret. Otherwise one of them could deal
different parts to different clients, who would compare transcripts under different keys without noticing.

If updates are weighed by samples, the same messages carry the secure sum of the clients' numbers of samples
(`hubbub.protocol.weights`): a share beside each part of the group secret, a masked sum of shares beside each
confirmation.

ADMITTED is the end of the admission and not of the run. The step that leads there sets up the participation
(`phases/participation.py`) with all that it needs, and from then on that takes every message about the run. No
message comes between the two: what a step sets up is there before the next event is looked at. After a crash in
the middle of the step the admission is ADMITTED, and what is missing of its effects is done.

A job that was still running when the admission ends would come back to nobody. So a peer that asks for the initial
model while we are AGREEING is noted, and the participation is told of the request. Nothing of the model leaves
before all clients have confirmed the secret.

An order to train that says that we took part in a round, before we are admitted, shows that our folder is an old
copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from hubbub.errors import Code, Objection, PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import (
    AcceptKeys,
    CountRefusal,
    Effect,
    Failed,
    Job,
    Key,
    Persist,
    Record,
    RememberRun,
    Tell,
)
from hubbub.machine.table import STAY, Kind, Step, Table, To, stay
from hubbub.messages.manifest import Manifest, describe_run
from hubbub.messages.runs import GroupConfirmed, PartyFailed, RunJoined, RunKey, RunProposed, RunReady, RunRefused
from hubbub.strategies.registry import STRATEGIES
from hubbub_trainer.events import (
    ContributionArrived,
    Ended,
    GroupAgreed,
    Inherited,
    InitialModel,
    KeysArrived,
    Lost,
    PeerConfirmed,
    Prepared,
    Proposed,
    RoundOrdered,
    SnapshotAsked,
)
from hubbub_trainer.phases.catchup import heirs
from hubbub_trainer.phases.participation import (
    Participation,
    SetUpCatchUp,
    VoidCaps,
    check_allowance,
    record_end,
    refuse_other_keys,
    report_failure,
    report_old_copy,
    tell_coordinator,
)


class State(Enum):
    """Progress of this trainer's admission to a run."""

    INVITED = "invited"
    PREPARING = "preparing"
    PLEDGED = "pledged"
    AGREEING = "agreeing"
    INHERITING = "inheriting"
    ADMITTED = "admitted"
    REFUSED = "refused"
    ENDED = "ended"


# Data ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The manifest, what the policy says of it, and how far the clients agree."""

    me: PartyId
    key: Key
    manifest: Manifest
    objections: tuple[Objection, ...] = ()
    """Objections of this trainer and of the data owner's policy to taking part."""
    run_key: RunKey | None = None
    caps: VoidCaps = field(default_factory=VoidCaps)
    snapshots_per_peer: int = 3
    """Limit on snapshots sent to each peer in this run."""
    runs_per_model: int = 1
    """Limit of the policy on runs that begin from one model."""
    initial: InitialModel = field(default_factory=InitialModel)
    lacks_model: bool = False
    """The run begins with a model that is not here yet."""
    publics: Mapping[PartyId, bytes] = field(default_factory=dict)
    keys_sha256: str = ""
    contributions: frozenset[PartyId] = field(default_factory=frozenset)
    """Clients whose parts of the group secret are here."""
    confirmation: str = ""
    """Of the secret that we hold; empty while we hold none."""
    confirmed: Mapping[PartyId, str] = field(default_factory=dict)
    samples: Mapping[PartyId, int] = field(default_factory=dict)
    """Masked sums of shares of the clients' numbers of samples, ours included, if updates are weighed by them."""
    asked: tuple[PartyId, ...] = ()
    """The peers that asked us for the initial model before we were admitted."""

    @property
    def peers(self) -> tuple[PartyId, ...]:
        """The other clients, in manifest order."""
        return tuple(client for client in self.manifest.clients if client != self.me)


# Effects ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareTask(Job):
    """Load the task and rebuild the initial model."""


@dataclass(frozen=True, slots=True)
class DealContribution(Effect):
    """Seal our part of the group secret, and a share of our number of samples, to every other client."""


@dataclass(frozen=True, slots=True)
class KeepContribution(Persist):
    """Keep the delivery's payload: a part of the group secret, sealed."""

    client: PartyId


@dataclass(frozen=True, slots=True)
class AgreeOnSecret(Job):
    """Open all parts of the group secret and put them together, and our shares of the numbers of samples."""


@dataclass(frozen=True, slots=True)
class ConfirmSecret(Effect):
    """Tell every other client which secret we hold, and our masked sum of shares."""

    confirmation: str
    samples: int | None


@dataclass(frozen=True, slots=True)
class KeepSamples(Persist):
    """Keep the number of samples that all clients have together; their sums of shares are masked."""

    samples: Mapping[PartyId, int]


@dataclass(frozen=True, slots=True)
class SetUpParticipation(Effect):
    """Set up the machine that follows on this one."""

    data: Participation


# The proposal -------------------------------------------------------------------------------------------


def consider(data: Admission, event: Proposed) -> Step[State, Admission]:
    """Look at the manifest, then at the task."""
    del event
    if data.manifest.strategy not in STRATEGIES:
        why = f"{data.me} does not know the strategy {data.manifest.strategy}"
        return _refuse(data, Code.PROTOCOL_STRATEGY, why)
    if data.objections:
        why = "; ".join(str(each) for each in data.objections)
        return _refuse(data, data.objections[0].code, why)
    return Step(State.PREPARING, data, (PrepareTask(),))


def pledge(data: Admission, event: Prepared) -> Step[State, Admission]:
    """Join if our task is the manifest's, number for number."""
    if event.parameters != data.manifest.parameters:
        return _refuse(
            data,
            Code.PROTOCOL_TASK,
            f"the task has {event.parameters} parameters here, the manifest says {data.manifest.parameters}",
        )
    if data.manifest.is_scored and event.metrics != data.manifest.metrics:
        return _refuse(data, Code.PROTOCOL_TASK, "the task has other metrics here than the manifest says")
    if event.ranges not in {None, data.manifest.ranges}:
        return _refuse(data, Code.PROTOCOL_TASK, "the task has other ranges here than the manifest says")
    if event.initial_model_sha256 is None:
        if not heirs(data.manifest) - {data.me}:
            return _refuse(
                data,
                Code.PROTOCOL_MANIFEST,
                "the model that this run begins with is not here, and nobody else in the cohort was in the run "
                "that it goes on from: name a client that was",
            )
        data = replace(data, lacks_model=True)
    elif event.initial_model_sha256 != data.manifest.initial_model_sha256:
        why = "the initial model here is not the one that the manifest commits to"
        return _refuse(data, Code.PROTOCOL_TASK, why)
    if event.initial.objection:
        return _refuse(data, Code.POLICY_LEDGER, event.initial.objection)
    data = replace(data, initial=event.initial)
    record = Record("joined", describe_run(data.manifest))
    return Step(State.PLEDGED, data, (RememberRun(), *_join(data), record))


def refuse_task(data: Admission, event: Failed) -> Step[State, Admission]:
    """The task could not be loaded. Why depends on the owner's files, so that there is one code for all of it."""
    return _refuse(data, Code.PROTOCOL_TASK, event.why)


def _refuse(data: Admission, code: Code, why: str) -> Step[State, Admission]:
    return Step(State.REFUSED, data, _say_refusal(data, code, why))


def _say_refusal(data: Admission, code: Code, why: str) -> tuple[Effect, ...]:
    """Tell the coordinator the code, and our own log why."""
    refusal = CountRefusal(RejectReason.RUN_REFUSED, RunProposed.kind, data.manifest.coordinator, why)
    return tell_coordinator(data.manifest, RunRefused(code=code)), refusal


def _join(data: Admission) -> tuple[Effect, ...]:
    return () if data.run_key is None else (tell_coordinator(data.manifest, RunJoined(run_key=data.run_key)),)


def repeat_answer(data: Admission, event: Proposed) -> Step[State, Admission]:
    """The coordinator asks again: it has not heard us."""
    del event
    return Step(State.PLEDGED, data, _join(data))


# Keys and the group secret ------------------------------------------------------------------------------


def deal(data: Admission, event: KeysArrived) -> Step[State, Admission]:
    """Everybody's keys are here: seal our part of the group secret to every other client."""
    data = replace(data, publics=event.publics, keys_sha256=event.keys_sha256)
    record = Record("keys", {"keys_sha256": event.keys_sha256})
    effects = (AcceptKeys(event.publics), DealContribution(), record, *_agree_if_all_dealt(data))
    return Step(State.AGREEING, data, effects)


def same_keys_again(data: Admission, event: KeysArrived) -> Step[State, Admission]:
    """Ignore the same run keys again, and refuse others."""
    refuse_other_keys(data.keys_sha256, event)
    return stay(data)


def keep_part(data: Admission, event: ContributionArrived) -> Step[State, Admission]:
    """Keep a client's part of the group secret, its first alone; put all together when the last is here.

    If another client had everybody's keys before us, that waits until we have them too.
    """
    if event.client in data.contributions:
        return stay(data)
    data = replace(data, contributions=data.contributions | {event.client})
    return stay(data, KeepContribution(event.client), *_agree_if_all_dealt(data))


def _agree_if_all_dealt(data: Admission) -> tuple[Effect, ...]:
    """Put the parts of the group secret together if all are here, and everybody's keys."""
    return (AgreeOnSecret(),) if data.keys_sha256 and data.contributions == set(data.peers) else ()


def confirm(data: Admission, event: GroupAgreed) -> Step[State, Admission]:
    """Tell every other client which secret we hold."""
    data = _note_samples(replace(data, confirmation=event.confirmation), data.me, event.samples)
    return _go_on_if_all_confirmed(data).first(ConfirmSecret(event.confirmation, event.samples))


def note_confirmation(data: Admission, event: PeerConfirmed) -> Step[State, Admission]:
    """Go on once all clients have confirmed the secret that we hold; the first word of each counts."""
    data = _note_samples(data, event.client, event.samples)
    return _go_on_if_all_confirmed(replace(data, confirmed={event.client: event.confirmation, **data.confirmed}))


def _note_samples(data: Admission, client: PartyId, samples: int | None) -> Admission:
    return data if samples is None else replace(data, samples={client: samples, **data.samples})


def _go_on_if_all_confirmed(data: Admission) -> Step[State, Admission]:
    if not data.confirmation:
        return stay(data)
    others = [client for client, said in data.confirmed.items() if said != data.confirmation]
    if others:
        return _leave_group(data, others[0])
    if data.confirmed.keys() != set(data.peers):
        return stay(data)
    effects: tuple[Effect, ...] = (Record("group", {"confirmation": data.confirmation}),)
    if data.samples:
        effects = (*effects, KeepSamples(data.samples))
    if data.lacks_model:
        asking = (SetUpCatchUp(0), Tell(Key("catchup", data.key.run), Lost(number=0)))
        return Step(State.INHERITING, data, (*effects, *asking))
    return _admit(data, *effects)


def inherit(data: Admission, event: Inherited) -> Step[State, Admission]:
    """We hold what the others begin with, and take part if the ledger lets us begin with it."""
    if event.initial.objection:
        refusal = _say_refusal(data, Code.POLICY_LEDGER, event.initial.objection)
        return Step(State.ENDED, data, (*refusal, record_end("left")))
    return _admit(replace(data, lacks_model=False, initial=event.initial))


def _leave_group(data: Admission, client: PartyId) -> Step[State, Admission]:
    """Somebody dealt different parts to different clients: nobody can say who, and the run must not begin."""
    why = f"{client} confirms another group secret than {data.me} holds: a client dealt different parts"
    effects = (
        tell_coordinator(data.manifest, PartyFailed(code=Code.PROTOCOL_GROUP)),
        CountRefusal(RejectReason.DIFFERENT_GROUP, GroupConfirmed.kind, client, why),
        record_end("left"),
    )
    return Step(State.ENDED, data, effects)


# The initial model, for a peer that lacks it ------------------------------------------------------------


def note_request(data: Admission, event: SnapshotAsked) -> Step[State, Admission]:
    """A peer that knows the group to be agreed before we do asks us for the model that the run begins with."""
    gives = event.after < 0 and event.giver == data.me and data.me in heirs(data.manifest) and not data.lacks_model
    if not gives or event.client in data.asked:
        return Step(State.AGREEING, data)
    check_allowance(event.client, 0, data.snapshots_per_peer)
    return Step(State.AGREEING, replace(data, asked=(*data.asked, event.client)))


# The end ------------------------------------------------------------------------------------------------


def _admit(data: Admission, *records: Effect) -> Step[State, Admission]:
    """Say that we are ready, and hand over to the participation."""
    run, initial = Key("run", data.key.run), data.initial
    participation = Participation(
        me=data.me,
        key=run,
        manifest=data.manifest,
        run_key=data.run_key,
        publics=data.publics,
        keys_sha256=data.keys_sha256,
        caps=data.caps,
        snapshots_per_peer=data.snapshots_per_peer,
        models=(initial.sha256,) if initial.sha256 else (),
        wasted_on_model=initial.voids if initial.sha256 else 0,
    )
    ready = tell_coordinator(data.manifest, RunReady())
    requests = (Tell(run, SnapshotAsked(client=client, after=-1, giver=data.me)) for client in data.asked)
    return Step(State.ADMITTED, data, (SetUpParticipation(participation), ready, *records, *requests))


def find_old_copy(data: Admission, event: RoundOrdered) -> Step[State, Admission]:
    """An order that comes before the clients agreed is refused, or shows that our state is old."""
    if not event.attended:
        raise PeerError(RejectReason.UNEXPECTED, f"round {event.number} is ordered before all clients agreed")
    return Step(State.ENDED, data, report_old_copy(data.manifest, event, begun=0))


def leave(data: Admission, event: Ended) -> Step[State, Admission]:
    """The run ended before we had joined it."""
    del event
    return Step(State.ENDED, data)


def leave_pledge(data: Admission, event: Ended) -> Step[State, Admission]:
    """The run ended before its first round."""
    return Step(State.ENDED, data, (record_end(event.outcome),))


def fail(data: Admission, event: Failed) -> Step[State, Admission]:
    """Something on this machine failed."""
    return Step(State.ENDED, data, report_failure(data.manifest, event))


TRANSITIONS: Table[State, Admission] = {
    State.INVITED: {
        Proposed: To(consider, State.PREPARING, State.REFUSED),
        Ended: To(leave, State.ENDED),
    },
    State.PREPARING: {
        Prepared: To(pledge, State.PLEDGED, State.REFUSED),
        Failed: To(refuse_task, State.REFUSED),
        Proposed: STAY,  # Asked again while the task loads.
        Ended: To(leave, State.ENDED),
    },
    State.PLEDGED: {
        Proposed: To(repeat_answer, State.PLEDGED),
        KeysArrived: To(deal, State.AGREEING),
        ContributionArrived: To(keep_part, State.PLEDGED),
        PeerConfirmed: To(note_confirmation, State.PLEDGED),
        RoundOrdered: To(find_old_copy, State.ENDED),
        Ended: To(leave_pledge, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.AGREEING: {
        ContributionArrived: To(keep_part, State.AGREEING),
        GroupAgreed: To(confirm, State.AGREEING, State.INHERITING, State.ADMITTED, State.ENDED),
        PeerConfirmed: To(note_confirmation, State.AGREEING, State.INHERITING, State.ADMITTED, State.ENDED),
        SnapshotAsked: To(note_request, State.AGREEING),
        KeysArrived: To(same_keys_again, State.AGREEING),
        RoundOrdered: To(find_old_copy, State.ENDED),
        Proposed: STAY,  # Asked twice; that all keys are here says that our answer was heard.
        Ended: To(leave_pledge, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.INHERITING: {
        Inherited: To(inherit, State.ADMITTED, State.ENDED),
        SnapshotAsked: STAY,  # We lack it too.
        KeysArrived: To(same_keys_again, State.INHERITING),
        RoundOrdered: To(find_old_copy, State.ENDED),
        ContributionArrived: STAY,  # Delivered twice.
        PeerConfirmed: STAY,
        Proposed: STAY,
        Ended: To(leave_pledge, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.ADMITTED: {},
    State.REFUSED: {},
    State.ENDED: {},
}


def resume(state: State, data: Admission) -> tuple[Effect, ...]:
    """Load the task again, or put the group secret together again."""
    if state is State.PREPARING:
        return (PrepareTask(),)
    if state is State.AGREEING and not data.confirmation:
        return _agree_if_all_dealt(data)
    return ()


KIND = Kind(TRANSITIONS, State.INVITED, Admission, resume)
