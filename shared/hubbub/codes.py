"""What a party tells others when it refuses a run, fails or leaves: one code, and no words.

A sentence on an impossible sum could tell the sum to the coordinator, who reads it. So a code says what stands in
the way, the owner's policy, the disk or the protocol, and never anything about data. The sentence, with the limit
and what to do about it, is in the party's own log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Why a party does not take part, or does not go on; the first word says whose matter it is."""

    POLICY_UNREADABLE = "policy-unreadable"
    POLICY_ROSTER = "policy-roster"
    POLICY_COORDINATOR = "policy-coordinator"
    POLICY_STRATEGY = "policy-strategy"
    POLICY_MIN_CLIENTS = "policy-min-clients"
    POLICY_MIN_SERVERS = "policy-min-servers"
    POLICY_APPROVAL = "policy-approval"
    POLICY_RUNS = "policy-runs"
    POLICY_ROUNDS = "policy-rounds"
    POLICY_VOID_ROUNDS = "policy-void-rounds"
    POLICY_PARAMETERS = "policy-parameters"
    POLICY_SIZE = "policy-size"
    POLICY_SEED = "policy-seed"
    POLICY_SCORES = "policy-scores"
    POLICY_LEDGER = "policy-ledger"
    DISK_FAILED = "disk-failed"
    DISK_LOST = "disk-lost"
    DISK_OLD = "disk-old"
    PROTOCOL_MANIFEST = "protocol-manifest"
    PROTOCOL_STRATEGY = "protocol-strategy"
    PROTOCOL_JOINED_BEFORE = "protocol-joined-before"
    PROTOCOL_TASK = "protocol-task"
    PROTOCOL_GROUP = "protocol-group"
    PROTOCOL_CONTRADICTION = "protocol-contradiction"
    PROTOCOL_FALSE_SUM = "protocol-false-sum"
    PROTOCOL_PEER = "protocol-peer"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Objection:
    """One thing against taking part in a run: a code for others, and a sentence for the party's owner."""

    code: Code
    sentence: str

    def __str__(self) -> str:
        return self.sentence
