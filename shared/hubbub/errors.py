"""What a party tells others when it refuses a run, fails or leaves: one code, and no words.

A sentence on an impossible sum could tell the sum to the coordinator, who reads it. So a code says what stands in
the way, the owner's policy, the disk or the protocol, and never anything about data. The sentence, with the limit
and what to do about it, is in the party's own log.

Everything that Hubbub raises on purpose.

    HubbubError
    ├── ConfigurationError      what the operator or caller asked for cannot be: parameters, settings, a manifest
    │   ├── DataError           a data set that is missing, corrupt or of the wrong shape
    │   └── BrokenChain         an audit log that was changed (in `hubbub.trust.audit`)
    ├── ProtocolError
    │   ├── PeerError           another party broke the rules; carries a RejectReason
    │   │   ├── MalformedMessage    its bytes are not a message of this version
    │   │   └── FalseSum            a released sum is not what the members' shares add up to
    │   └── LocalError          we broke the rules: a bug, or a disk or a task that failed us
    │       ├── UnexpectedEvent     a machine was given an event that its state has no row for
    │       ├── BadUpdate           an update that cannot be sent: NaN, infinity or another length
    │       ├── StorageFailed       a disk or database did not take what must be kept; it is tried again
    │       └── StorageDamaged      a file that was kept is gone, or does not hold what was written
    └── TransportError
        ├── BrokerUnreachable   nobody answers at the broker's address
        ├── BrokerRefused       the broker answers and says no: credentials, permissions, a missing queue
        └── Unroutable          a message was published that no queue takes

Catch by class, never by text. A `PeerError` is counted and dead-lettered and the service goes on; a
`LocalError` is logged and ends the run it happened in. A client's task that failed ends none: the client goes on
with nothing to say. Of what ends a run others are told the code of its class, never the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


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


class HubbubError(Exception):
    """Base of all. The text is for whoever runs this party; others are told the code alone."""

    code: ClassVar[Code] = Code.INTERNAL


class ConfigurationError(HubbubError):
    """What was asked for cannot be; the message says what to do instead."""


class DataError(ConfigurationError):
    """A data set is missing, corrupt or of the wrong shape."""


class ProtocolError(HubbubError):
    """Somebody broke the rules of the protocol."""


class RejectReason(StrEnum):
    """Why something that a peer sent was refused: stable codes, one metric label each."""

    OVERSIZED = "oversized"
    NO_USER = "no-user"
    FLOOD = "flood"
    MALFORMED = "malformed"
    UNKNOWN_VERSION = "unknown-version"
    UNKNOWN_KIND = "unknown-kind"
    UNKNOWN_RUN = "unknown-run"
    UNKNOWN_PHASE = "unknown-phase"
    RUN_REFUSED = "run-refused"
    WRONG_RECIPIENT = "wrong-recipient"
    WRONG_SENDER = "wrong-sender"
    WRONG_LENGTH = "wrong-length"
    WRONG_RING = "wrong-ring"
    RESIDUE_OUT_OF_RANGE = "residue-out-of-range"
    NONZERO_PADDING = "nonzero-padding"
    TOO_EARLY = "too-early"
    OVER = "over"
    SECOND_SET = "second-set"
    UNEXPECTED = "unexpected"
    TOO_FEW_MEMBERS = "too-few-members"
    NOT_IN_COHORT = "not-in-cohort"
    MISSING_RECEIPT = "missing-receipt"
    DIFFERENT_MEMBERS = "different-members"
    ALREADY_ENDED = "already-ended"
    FALSE_SUM = "false-sum"
    CONTRADICTION = "contradiction"
    NOT_IN_ROSTER = "not-in-roster"
    BAD_SIGNATURE = "bad-signature"
    BROKEN_SEAL = "broken-seal"
    SECOND_KEY = "second-key"
    DIFFERENT_TRANSCRIPT = "different-transcript"
    DIFFERENT_GROUP = "different-group"
    DIFFERENT_MODEL = "different-model"
    OVER_LIMIT = "over-limit"


class PeerError(ProtocolError):
    """Another party sent what the rules do not allow."""

    code = Code.PROTOCOL_PEER

    def __init__(self, reason: RejectReason, explanation: str) -> None:
        super().__init__(explanation)
        self.reason = reason


class MalformedMessage(PeerError):
    """These bytes are not a message of this version."""

    def __init__(self, explanation: str, reason: RejectReason = RejectReason.MALFORMED) -> None:
        super().__init__(reason, explanation)


class FalseSum(PeerError):
    """A released sum is not what the members' shares add up to.

    Text and code are always the same, so that they tell nothing of the sum.
    """

    code = Code.PROTOCOL_FALSE_SUM

    def __init__(self) -> None:
        super().__init__(RejectReason.FALSE_SUM, "a released sum is not what the members' shares add up to")


class LocalError(ProtocolError):
    """We ourselves broke the rules, or something on this machine failed us."""


class UnexpectedEvent(LocalError):
    """A machine was given an event that its present state has no row for; nothing was changed."""


class BadUpdate(LocalError):
    """Local training gave an update that cannot be sent: NaN, infinity or the wrong length."""


class StorageFailed(LocalError):
    """What must be kept could not be written or read: the disk is full, read-only or gone."""

    code = Code.DISK_FAILED


class StorageDamaged(LocalError):
    """A file that was kept is gone, or does not hold what was written; to try again is of no use."""

    code = Code.DISK_FAILED

    def __init__(self, path: object, what: str) -> None:
        self.path, self.what = str(path), what
        super().__init__(
            f"{path} {what}: look whether its disk is failing, and begin another run, because this one cannot go"
            " on without the file"
        )


class TransportError(HubbubError):
    """A message could not be sent or received."""


class BrokerUnreachable(TransportError):
    """Nobody answers at the broker's address."""


class BrokerRefused(TransportError):
    """The broker answers and says no."""


class Unroutable(TransportError):
    """No queue takes this message."""
