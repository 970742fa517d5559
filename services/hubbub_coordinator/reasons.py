"""Sentences for the codes that parties send when they refuse, fail or decline an order.

A party sends a code and no text. Its own log has the details: the limit, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId

MEANINGS: Final[Mapping[Code, str]] = {
    Code.POLICY_UNREADABLE: "its policy file cannot be read",
    Code.POLICY_ROSTER: "its policy pins another roster, or the manifest does not agree with the roster",
    Code.POLICY_COORDINATOR: "its policy does not allow this coordinator",
    Code.POLICY_STRATEGY: "its policy does not allow the strategy",
    Code.POLICY_MIN_CLIENTS: "its policy asks for a larger min_clients",
    Code.POLICY_MIN_SERVERS: "its policy asks for aggregators of more organisations",
    Code.POLICY_APPROVAL: "its owner has not approved the manifest",
    Code.POLICY_RUNS: "it has joined as many runs as its policy allows",
    Code.POLICY_ROUNDS: "its policy does not allow so many rounds",
    Code.POLICY_VOID_ROUNDS: "its policy does not allow so many void rounds",
    Code.POLICY_PARAMETERS: "its policy does not allow a parameter of the manifest",
    Code.POLICY_SIZE: "its policy does not allow so large a model or cohort",
    Code.POLICY_SCORES: "its policy does not allow scores as the manifest asks for them",
    Code.POLICY_SEED: "its policy does not accept secrets from the demo's seed",
    Code.POLICY_LEDGER: "its policy allows no further run from this model",
    Code.DISK_FAILED: "its disk failed",
    Code.DISK_LOST: "it has lost its journal and its keys for this run",
    Code.DISK_OLD: "its folder is an old copy of the one that it took part with",
    Code.PROTOCOL_MANIFEST: "it cannot take part in this run as the manifest has it",
    Code.PROTOCOL_STRATEGY: "it does not know the strategy, or lacks a package for it",
    Code.PROTOCOL_JOINED_BEFORE: "it has taken part in this run before, and a run is joined once",
    Code.PROTOCOL_TASK: "its task cannot be loaded, or is not the manifest's",
    Code.PROTOCOL_GROUP: "the clients do not hold one group secret",
    Code.PROTOCOL_CONTRADICTION: "aggregators contradict each other",
    Code.PROTOCOL_FALSE_SUM: "a released sum is not what the members' shares add up to",
    Code.PROTOCOL_PEER: "another party sent what the rules do not allow",
    Code.INTERNAL: "something went wrong inside it",
}

ORDERS: Final[Mapping[RejectReason, str]] = {
    RejectReason.NOT_IN_COHORT: "the members are not distinct clients of the cohort",
    RejectReason.TOO_FEW_MEMBERS: "the members are fewer than min_clients",
    RejectReason.DIFFERENT_MEMBERS: "the members are not those of the round's first phase",
    RejectReason.MISSING_RECEIPT: "a member's share set is not complete at every aggregator",
    RejectReason.WRONG_LENGTH: "the members' share sets declare different vectors",
    RejectReason.DIFFERENT_TRANSCRIPT: "the members' share sets come after different sums or models",
    RejectReason.CONTRADICTION: "another aggregator has released the phase already",
    RejectReason.ALREADY_ENDED: "it has released the phase over other members already",
}


def tell_refusal(party: PartyId, code: Code) -> str:
    """Describe a party's refusal to join."""
    return f"{party} refused the run {_explain(code)}"


def tell_failure(party: PartyId, code: Code) -> str:
    """Describe a party's failure."""
    return f"{party} left the run {_explain(code)}"


def _explain(code: Code) -> str:
    return f"({code}): {MEANINGS[code]}. Its owner's log says more"


def tell_declined(aggregator: PartyId, phase: str, reason: RejectReason) -> str:
    """Describe an aggregator's refusal of an order."""
    why = ORDERS.get(reason, "the order is against its rules")
    return f"{aggregator} refused the order on {phase} ({reason}): {why}. Its owner's log says more"
