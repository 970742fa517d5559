"""Sealed shares for tests/vectors: chunks of one share set, and payloads that must not open."""

from dataclasses import dataclass, replace

from message_vectors import Json, key_for, make_identity

from hubbub.crypto.sealing import Kem, SealingKey, share_overhead
from hubbub.errors import PeerError
from hubbub.ids import PartyId, RunId, SetId
from hubbub.trust.seals import RunSeals, ShareKey, Stage, derive_share_key

SECRET = key_for("share set")
STAGE = Stage(RunId(key_for("share run").hex()), 2, "signs")
CLIENT, AGGREGATOR = PartyId("client-1"), PartyId("aggregator-1")
SET_ID = SetId("5e" * 16)
SHARES = (bytes(range(40)), b"", bytes(range(255, 238, -1)))
"""Contents of the chunks."""
CHUNK = 2

SEALED_KEY = bytes.fromhex(
    "95368538fca86ad90c3941531b49eee1a0ef2cc712535a82466963920fb8fa726da36bdb1f4c3c46"
    "12b4e9f78311163329df874f791a3dfd59b384c4d6d603eae9764d9851ddc4af4eeb2386ffe4410a"
)
"""The set's key under HPKE, which is randomised; sealed once, so that the files stay as they are."""


@dataclass(frozen=True)
class Where:
    """Context in which a payload is opened: the right one, unless a field is replaced."""

    stage: Stage = STAGE
    sender: PartyId = CLIENT
    recipient: PartyId = AGGREGATOR
    set_id: SetId = SET_ID
    chunk: int = CHUNK

    def open(self, payload: bytes) -> bytes:
        """Open a payload with the aggregator's run key, under the name in this context."""
        identity = replace(make_identity(AGGREGATOR), name=self.recipient)
        seals = RunSeals(identity, self.stage.run, run_key())
        key = seals.open_share_key(self.stage, self.sender, self.set_id, payload)
        return bytes(key.open(self.chunk, payload))

    def describe(self) -> Json:
        """Return the context, field by field."""
        return {
            "run": self.stage.run,
            "round": self.stage.round,
            "phase": self.stage.phase,
            "sender": self.sender,
            "recipient": self.recipient,
            "set_id": self.set_id,
            "chunk": self.chunk,
        }


def run_key() -> SealingKey:
    """Return the aggregator's key for the run."""
    return SealingKey.from_bytes(Kem.X25519, key_for("share run key"))


def share_key() -> ShareKey:
    """Return the set's key at the aggregator; it has encrypted nothing yet."""
    return ShareKey(STAGE, CLIENT, AGGREGATOR, SET_ID, derive_share_key(STAGE, SECRET, AGGREGATOR), SEALED_KEY)


def share_files() -> dict[str, Json]:
    """Return every file's content, by name."""
    key = share_key()
    keys = {
        "run_key": key_for("share run key").hex(),
        "secret": SECRET.hex(),
        "share_key": key.key.to_bytes().hex(),
    }
    cases = [_share_case(key, chunk, share) for chunk, share in enumerate(SHARES)]
    return {"share_0": {**keys, "cases": cases}, "share_bad": {"run_key": keys["run_key"], "cases": _bad_cases()}}


def _share_case(key: ShareKey, chunk: int, share: bytes) -> Json:
    payload, where = key.seal(chunk, share), Where(chunk=chunk)
    if where.open(payload) != share:
        raise AssertionError(f"chunk {chunk} does not open")
    return {**where.describe(), "share": share.hex(), "payload": payload.hex()}


MOVES = {
    "another run": Where(stage=replace(STAGE, run=RunId("0" * 64))),
    "another round": Where(stage=replace(STAGE, round=3)),
    "another phase": Where(stage=replace(STAGE, phase="union")),
    "another sender": Where(sender=PartyId("client-2")),
    "another recipient": Where(recipient=PartyId("aggregator-2")),
    "another set": Where(set_id=SetId("5f" * 16)),
    "another chunk": Where(chunk=0),
}


def _bad_cases() -> list[Json]:
    payload = share_key().seal(CHUNK, SHARES[CHUNK])
    other = ShareKey(
        STAGE, CLIENT, AGGREGATOR, SET_ID, derive_share_key(STAGE, key_for("other set"), AGGREGATOR), SEALED_KEY
    )
    last_of_key, first_of_chunk = len(SEALED_KEY) - 1, len(SEALED_KEY)
    spoilt = {
        "flipped bit in the sealed key": _flip(payload, last_of_key),
        "flipped bit in the chunk": _flip(payload, first_of_chunk),
        "flipped bit in the tag": _flip(payload, len(payload) - 1),
        "short": payload[:-1],
        "trailing byte": payload + b"\x00",
        "no chunk": payload[: share_overhead(Kem.X25519) - 1],
        "empty": b"",
        "chunk under another key": other.seal(CHUNK, SHARES[CHUNK]),
    }
    faults = {fault: (Where(), data) for fault, data in spoilt.items()}
    faults |= {fault: (where, payload) for fault, where in MOVES.items()}
    return [
        {"fault": fault, **where.describe(), "payload": data.hex(), "reason": _refusal(fault, where, data)}
        for fault, (where, data) in faults.items()
    ]


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def _refusal(fault: str, where: Where, payload: bytes) -> str:
    try:
        where.open(payload)
    except PeerError as error:
        return error.reason.value
    raise AssertionError(f"a payload with {fault} was opened")
