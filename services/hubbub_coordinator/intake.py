"""Turns messages into events: checks that the manifest and the signatures support a sender's claim."""

from __future__ import annotations

from hubbub.errors import PeerError, RejectReason
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import (
    OrderRefused,
    PhaseReleased,
    PhaseVoided,
    RoundApplied,
    RoundDropped,
    RoundScored,
    ScoreClaim,
)
from hubbub.messages.runs import PartyFailed, RunJoined, RunReady, RunRefused
from hubbub.messages.shares import SetReceived, SetRefused
from hubbub.trust.roster import Roster
from hubbub.trust.signed import check_receipt, check_run_key
from hubbub_coordinator.events import (
    Event,
    OrderDeclined,
    PartyBroke,
    PartyJoined,
    PartyReady,
    PartyRefused,
    ReceiptArrived,
    ScoresReported,
    SetSpoilt,
    SumReleased,
    UpdateApplied,
    UpdateDropped,
    VoidConfirmed,
)


def read_run_event(roster: Roster, envelope: Envelope, at_s: float) -> Event | None:
    """Return the event for the run's machine; None if the message is not about the run as a whole."""
    match envelope.body:
        case RunJoined(run_key=run_key):
            if run_key.party != envelope.sender:
                raise PeerError(RejectReason.WRONG_SENDER, "a party joins with its own run key")
            check_run_key(roster, envelope.run, run_key)
            return PartyJoined(at_s=at_s, party=envelope.sender, run_key=run_key)
        case RunReady():
            return PartyReady(at_s=at_s, party=envelope.sender)
        case RunRefused(code=code):
            return PartyRefused(at_s=at_s, party=envelope.sender, code=code)
        case PartyFailed(code=code):
            return PartyBroke(at_s=at_s, party=envelope.sender, code=code)
    return None


def read_round_event(roster: Roster, manifest: Manifest, envelope: Envelope, at_s: float) -> Event:
    """Return the event for the machine of the message's round."""
    sender, phase = envelope.sender, envelope.phase
    match envelope.body:
        case SetReceived(receipt=receipt):
            if receipt.receipt.aggregator != sender:
                raise PeerError(RejectReason.WRONG_SENDER, "a receipt is given by the aggregator that it names")
            check_receipt(roster, envelope.run, envelope.round, phase, receipt)
            return ReceiptArrived(at_s=at_s, phase=phase, receipt=receipt)
        case SetRefused(client=client, reason=reason):
            return SetSpoilt(at_s=at_s, phase=phase, aggregator=sender, client=client, reason=reason)
        case PhaseReleased(members=members, vectors=vectors, traffic=traffic):
            return SumReleased(
                at_s=at_s,
                phase=phase,
                aggregator=sender,
                members=frozenset(members),
                vectors=vectors,
                traffic=traffic,
            )
        case PhaseVoided():
            return VoidConfirmed(at_s=at_s, phase=phase, aggregator=sender)
        case OrderRefused(reason=reason):
            return OrderDeclined(at_s=at_s, phase=phase, aggregator=sender, reason=reason)
        case RoundApplied() as report:
            return UpdateApplied(at_s=at_s, client=sender, report=report)
        case RoundScored(scores=scores, traffic=traffic):
            _check_scores(manifest, scores)
            return ScoresReported(at_s=at_s, client=sender, scores=scores, traffic=traffic)
        case RoundDropped(traffic=traffic):
            return UpdateDropped(at_s=at_s, client=sender, traffic=traffic)
    raise PeerError(RejectReason.UNEXPECTED, f"a coordinator takes no {envelope.kind}")


def _check_scores(manifest: Manifest, scores: tuple[ScoreClaim, ...]) -> None:
    """Raise `PeerError` if the metrics are not the manifest's, or a value is out of its metric's range."""
    metrics = manifest.score_sheet.metrics
    if not scores:
        return
    if [claim.name for claim in scores] != [metric.name for metric in metrics]:
        raise PeerError(RejectReason.UNEXPECTED, "a client reports the metrics that the manifest declares")
    for claim, metric in zip(scores, metrics, strict=True):
        low, high = metric.range
        if not low <= claim.value <= high:
            raise PeerError(RejectReason.UNEXPECTED, f"{metric.name} lies between {low:g} and {high:g}")
