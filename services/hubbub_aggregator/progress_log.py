"""Log lines of an aggregator's progress: a run joined, each phase closed, released or void, the run's end.

They name what an aggregator may know: who took part, and when.
"""

from __future__ import annotations

from hubbub.runtime.event_log import Transition
from hubbub.runtime.participant import describe_joining
from hubbub_aggregator.events import CloseOrdered, Ended, Proposed
from hubbub_aggregator.phases import accumulation, membership
from hubbub_aggregator.phases.accumulation import Accumulation
from hubbub_aggregator.phases.membership import Membership


def describe(moment: Transition) -> str:
    """Return a line about a transition; empty for most."""
    match moment.data:
        case Accumulation() as data:
            told = _describe_phase(moment, data)
            return told and f"round {data.key.round}, {data.key.phase}: {told}"
        case Membership() as data:
            return _describe_run(moment, data)
    return ""


def _describe_phase(moment: Transition, data: Accumulation) -> str:
    if moment.before is moment.after:
        return ""
    match moment.after:
        case accumulation.State.SUMMING | accumulation.State.AWAITING if isinstance(moment.event, CloseOrdered):
            return f"closed over {len(data.members)} of {len(data.manifest.clients)} clients"
        case accumulation.State.RELEASED if data.combiner not in {None, data.me}:
            return f"added up and sent to {data.combiner}"
        case accumulation.State.RELEASED:
            return "released to the clients"
        case accumulation.State.VOID:
            return "void"
        case accumulation.State.FAILED:
            return "cannot go on"
    return ""


def _describe_run(moment: Transition, data: Membership) -> str:
    if moment.before is moment.after:
        return ""
    match moment.after:
        case membership.State.PLEDGED if isinstance(moment.event, Proposed):
            return describe_joining(data.manifest)
        case membership.State.JOINED:
            return "all keys are here; waiting for shares"
        case membership.State.ENDED if isinstance(moment.event, Ended):
            return f"the run is over: {moment.event.outcome}"
    return ""
