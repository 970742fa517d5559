"""Log lines of a trainer's progress: runs joined, rounds trained, delivered and applied, metrics, the end of runs.

They are for the data owner: seconds of training tell something of the data, and the log stays with its owner.
"""

from __future__ import annotations

from hubbub.protocol.metrics import format_value
from hubbub.runtime.event_log import Transition
from hubbub.runtime.participant import describe_joining
from hubbub.strategies.scores import SCORES
from hubbub_trainer.events import Concluded, Decoded, Ended, Prepared, SharesSent, Trained
from hubbub_trainer.phases import admission, participation
from hubbub_trainer.phases import round as rounds
from hubbub_trainer.phases.admission import Admission
from hubbub_trainer.phases.participation import Participation
from hubbub_trainer.phases.round import ClientRound
from hubbub_trainer.tracking import find_outcome


def describe(moment: Transition) -> str:
    """Return a line about a transition; empty for most."""
    match moment.data:
        case ClientRound() as data:
            told = _describe_round(moment, data)
            return told and f"round {data.key.round}: {told}"
        case Admission() as data:
            return _describe_admission(moment, data)
        case Participation() as data if moment.after is participation.State.ENDED:
            return f"the run is over: {find_outcome(moment, data)}"
    return ""


def _describe_round(moment: Transition, data: ClientRound) -> str:
    match moment.event:
        case Trained() if data.idle:
            return "closed without us, so not trained"
        case Trained():
            return f"trained {data.training_s:.1f} s"
        case SharesSent():
            return f"delivered {data.current.name}"
        case Concluded():
            return f"applied, {len(data.members)} of {len(data.manifest.clients)} clients in it"
        case Decoded(metrics=metrics) if metrics:
            values = [f"{name} {format_value(name, value)}" for name, value in metrics.items()]
            return f"{', '.join(values)} over {len(data.members_of(SCORES.name))} clients"
    match moment.after:
        case rounds.State.VOID:
            return "void, its update is dropped"
        case rounds.State.STRAYED:
            return "released over other sums than ours: a peer is asked for its model"
        case rounds.State.FAILED:
            return "cannot go on"
    return ""


def _describe_admission(moment: Transition, data: Admission) -> str:
    match moment.after:
        case admission.State.PLEDGED if isinstance(moment.event, Prepared):
            return describe_joining(data.manifest)
        case admission.State.ADMITTED:
            return "all clients hold the same secret; waiting for the first round"
        case admission.State.ENDED:
            return f"the run is over: {moment.event.outcome if isinstance(moment.event, Ended) else 'failed'}"
    return ""
