"""Exceptions that Hubbub raises, and the codes by which a party tells others why it refuses, fails or leaves.

    HubbubError
    ├── ConfigurationError      the operator or caller asked for the impossible: parameters, settings, a manifest
    │   ├── DataError           a data set that is missing, corrupt or of the wrong shape
    │   └── BrokenChain         an audit log that was changed (in `hubbub.trust.audit`)
    ├── ProtocolError
    │   ├── PeerError           another party broke the rules; carries a RejectReason
    │   │   ├── MalformedMessage    its bytes are not a message of this version
    │   │   └── FalseSum            a released sum is not what the members' shares add up to
    │   └── LocalError          this party failed: a bug, a disk or a task
    │       ├── UnexpectedEvent     a machine was given an event that its state has no row for
    │       ├── BadUpdate           an update that cannot be sent: NaN, infinity or another length
    │       ├── StorageFailed       a write or read failed on a disk or database; it is retried
    │       └── StorageDamaged      a stored file is gone, or does not hold what was written
    └── TransportError
        ├── BrokerUnreachable   nobody answers at the broker's address
        │   └── ProxyUnreachable    nor does the proxy on the way there
        ├── BrokerRefused       the broker answers and says no: credentials, permissions, a missing queue
        │   └── ProxyRefused        the proxy on the way there says no: a login, a host or port that it forbids
        └── Unroutable          a message was published that no queue takes

Catch by class, never by text. A `PeerError` is counted and dead-lettered, and the service goes on. A
`LocalError` is logged and ends its run. A failed task of a client does not: the client goes on and contributes
nothing.

Other parties see only the code of an error's class, never its text: a sentence about an impossible sum could
reveal the sum to the coordinator. A code names the obstacle (the owner's policy, the disk or the protocol) and
says nothing about data. The sentence, with the limit and what to do about it, is in the party's own log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Code(StrEnum):
    """Reason for which a party does not join a run, or leaves it; the first word names the area."""

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
    """One reason not to join a run: a code for others, and a sentence for the party's owner."""

    code: Code
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class HubbubError(Exception):
    """Base class. The text is for this party's operator; other parties see only the code."""

    code: ClassVar[Code] = Code.INTERNAL


class ConfigurationError(HubbubError):
    """The request or setting is impossible; the message says what to do instead."""


class DataError(ConfigurationError):
    """A data set is missing, corrupt or of the wrong shape."""


class ProtocolError(HubbubError):
    """Somebody broke the rules of the protocol."""


class RejectReason(StrEnum):
    """Reason for which a peer's message was refused: stable codes, one metric label each."""

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
    """Another party broke the rules of the protocol."""

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

    Text and code are constant, so that they reveal nothing of the sum.
    """

    code = Code.PROTOCOL_FALSE_SUM

    def __init__(self) -> None:
        super().__init__(RejectReason.FALSE_SUM, "a released sum is not what the members' shares add up to")


class LocalError(ProtocolError):
    """This party failed: a bug, or something on this machine."""


class UnexpectedEvent(LocalError):
    """A machine was given an event that its state has no row for; nothing was changed."""


class BadUpdate(LocalError):
    """Local training gave an update that cannot be sent: NaN, infinity or the wrong length."""


class StorageFailed(LocalError):
    """A write or read failed on a disk or database: full, read-only or gone."""

    code = Code.DISK_FAILED


class StorageDamaged(LocalError):
    """A stored file is gone, or does not hold what was written; a retry is useless."""

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


class ProxyUnreachable(BrokerUnreachable):
    """Nobody answers at the address of the proxy."""


class ProxyRefused(BrokerRefused):
    """The proxy on the way to the broker answers and says no."""


class Unroutable(TransportError):
    """No queue takes this message."""
