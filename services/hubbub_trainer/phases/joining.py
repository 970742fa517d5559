"""Joining a run: a proposal is considered, keys are exchanged, and all clients agree on one group secret."""

from __future__ import annotations

from dataclasses import replace

from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import CountRefusal, Effect, Failed, Publish, Record, Tell
from hubbub.machine.table import Step, To
from hubbub.messages.manifest import describe_run
from hubbub.messages.runs import GroupConfirmed, PartyFailed, RunJoined, RunProposed, RunReady, RunRefused
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
)
from hubbub_trainer.phases.catchup import heirs
from hubbub_trainer.phases.standing import (
    AcceptKeys,
    AgreeOnSecret,
    DealContribution,
    Enrolment,
    KeepContribution,
    PrepareTask,
    RememberRun,
    SetUpCatchUp,
    State,
    answer,
    record_end,
)


def consider(data: Enrolment, event: Proposed) -> Step[State, Enrolment]:
    """Look at the manifest, then at the task."""
    del event
    if data.manifest.strategy not in STRATEGIES:
        why = f"{data.me} does not know the strategy {data.manifest.strategy}"
        return _refuse(data, Code.PROTOCOL_STRATEGY, why)
    if data.objections:
        why = "; ".join(str(each) for each in data.objections)
        return _refuse(data, data.objections[0].code, why)
    return Step(State.PREPARING, data, (PrepareTask(),))


def pledge(data: Enrolment, event: Prepared) -> Step[State, Enrolment]:
    """Join if our task is the manifest's, number for number."""
    if event.parameters != data.manifest.parameters:
        return _refuse(
            data,
            Code.PROTOCOL_TASK,
            f"the task has {event.parameters} parameters here, the manifest says {data.manifest.parameters}",
        )
    if data.manifest.is_scored and event.metrics != data.manifest.metrics:
        return _refuse(data, Code.PROTOCOL_TASK, "the task has other metrics here than the manifest says")
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
    data = _begin_from(data, event.initial)
    record = Record("joined", describe_run(data.manifest))
    return Step(State.PLEDGED, data, (RememberRun(), *_join(data), record))


def refuse_task(data: Enrolment, event: Failed) -> Step[State, Enrolment]:
    """The task could not be loaded. Why depends on the owner's files, so that there is one code for all of it."""
    return _refuse(data, Code.PROTOCOL_TASK, event.why)


def _refuse(data: Enrolment, code: Code, why: str) -> Step[State, Enrolment]:
    return Step(State.REFUSED, data, _say_refusal(data, code, why))


def _say_refusal(data: Enrolment, code: Code, why: str) -> tuple[Effect, ...]:
    """Tell the coordinator the code, and our own log why."""
    refusal = CountRefusal(RejectReason.RUN_REFUSED, RunProposed.kind, data.manifest.coordinator, why)
    return answer(data, RunRefused(code=code)), refusal


def _begin_from(data: Enrolment, initial: InitialModel) -> Enrolment:
    return replace(data, models=(initial.sha256,), wasted_on_model=initial.voids) if initial.sha256 else data


def _join(data: Enrolment) -> tuple[Effect, ...]:
    return () if data.run_key is None else (answer(data, RunJoined(run_key=data.run_key)),)


def repeat_answer(data: Enrolment, event: Proposed) -> Step[State, Enrolment]:
    """The coordinator asks again: it has not heard us."""
    del event
    return Step(State.PLEDGED, data, _join(data))


# Keys and the group secret ------------------------------------------------------------------------------


def deal(data: Enrolment, event: KeysArrived) -> Step[State, Enrolment]:
    """Everybody's keys are here: seal our part of the group secret to every other client."""
    data = replace(data, publics=event.publics, keys_sha256=event.keys_sha256)
    record = Record("keys", {"keys_sha256": event.keys_sha256})
    effects = (AcceptKeys(event.publics), DealContribution(), record, *agree_if_all_dealt(data))
    return Step(State.AGREEING, data, effects)


def same_keys_again(state: State) -> To[State, Enrolment]:
    """A row for run keys that come again: the same are old news, others are refused."""

    def check_keys(data: Enrolment, event: KeysArrived) -> Step[State, Enrolment]:
        if event.keys_sha256 != data.keys_sha256:
            raise PeerError(RejectReason.SECOND_KEY, "other run keys than before: a party has one key in a run")
        return Step(state, data)

    return To(check_keys, state)


def keep_early_part(data: Enrolment, event: ContributionArrived) -> Step[State, Enrolment]:
    """Another client had the keys before us."""
    data, effects = _keep_part(data, event)
    return Step(State.PLEDGED, data, effects)


def keep_part(data: Enrolment, event: ContributionArrived) -> Step[State, Enrolment]:
    """Keep a part of the group secret; put them together when the last is here."""
    if event.client in data.contributions:
        return Step(State.AGREEING, data)
    data, effects = _keep_part(data, event)
    return Step(State.AGREEING, data, (*effects, *agree_if_all_dealt(data)))


def _keep_part(data: Enrolment, event: ContributionArrived) -> tuple[Enrolment, tuple[Effect, ...]]:
    """A client deals one part; another from it changes nothing."""
    if event.client in data.contributions:
        return data, ()
    data = replace(data, contributions=data.contributions | {event.client})
    return data, (KeepContribution(event.client),)


def agree_if_all_dealt(data: Enrolment) -> tuple[Effect, ...]:
    """Put the parts of the group secret together if all are here."""
    return (AgreeOnSecret(),) if data.contributions == set(data.peers) else ()


def confirm(data: Enrolment, event: GroupAgreed) -> Step[State, Enrolment]:
    """Tell every other client which secret we hold."""
    data = replace(data, confirmation=event.confirmation)
    body = GroupConfirmed(confirmation=event.confirmation)
    tell = tuple(Publish(client, Role.CLIENT, body) for client in data.peers)
    onward = _join_if_all_confirmed(data)
    return replace(onward, effects=(*tell, *onward.effects))


def note_early_confirmation(data: Enrolment, event: PeerConfirmed) -> Step[State, Enrolment]:
    """Another client is ahead of us."""
    return Step(State.PLEDGED, _note_confirmation(data, event))


def note_confirmation(data: Enrolment, event: PeerConfirmed) -> Step[State, Enrolment]:
    """Take part once all clients have confirmed the secret that we hold."""
    return _join_if_all_confirmed(_note_confirmation(data, event))


def _note_confirmation(data: Enrolment, event: PeerConfirmed) -> Enrolment:
    """A client's first word counts."""
    return replace(data, confirmed={event.client: event.confirmation, **data.confirmed})


def _join_if_all_confirmed(data: Enrolment) -> Step[State, Enrolment]:
    if not data.confirmation:
        return Step(State.AGREEING, data)
    others = [client for client, said in data.confirmed.items() if said != data.confirmation]
    if others:
        return _leave_group(data, others[0])
    if data.confirmed.keys() != set(data.peers):
        return Step(State.AGREEING, data)
    record = Record("group", {"confirmation": data.confirmation})
    if data.lacks_model:
        asking = (SetUpCatchUp(0), Tell(data.catch_up_key, Lost(number=0)))
        return Step(State.INHERITING, data, (record, *asking))
    return Step(State.JOINED, data, (answer(data, RunReady()), record))


def inherit(data: Enrolment, event: Inherited) -> Step[State, Enrolment]:
    """We hold what the others begin with, and take part if the ledger lets us begin with it."""
    if event.initial.objection:
        refusal = _say_refusal(data, Code.POLICY_LEDGER, event.initial.objection)
        return Step(State.ENDED, data, (*refusal, record_end("left")))
    data = _begin_from(replace(data, lacks_model=False), event.initial)
    return Step(State.JOINED, data, (answer(data, RunReady()),))


def _leave_group(data: Enrolment, client: PartyId) -> Step[State, Enrolment]:
    """Somebody dealt different parts to different clients: nobody can say who, and the run must not begin."""
    why = f"{client} confirms another group secret than {data.me} holds: a client dealt different parts"
    effects = (
        answer(data, PartyFailed(code=Code.PROTOCOL_GROUP)),
        CountRefusal(RejectReason.DIFFERENT_GROUP, GroupConfirmed.kind, client, why),
        record_end("left"),
    )
    return Step(State.ENDED, data, effects)


def leave(data: Enrolment, event: Ended) -> Step[State, Enrolment]:
    """The run ended before we had joined it."""
    del event
    return Step(State.ENDED, data)


def leave_pledge(data: Enrolment, event: Ended) -> Step[State, Enrolment]:
    """The run ended before its first round."""
    return Step(State.ENDED, data, (record_end(event.outcome),))
