"""Messages for tests/vectors: a roster, a manifest with its run id, a signed message of every kind, bad frames."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec

from hubbub.crypto.sealing import Kem, SealingKey
from hubbub.crypto.signing import SigningKey
from hubbub.errors import PeerError
from hubbub.ids import PartyId, Role
from hubbub.messages.codec import KINDS, MAGIC, PREFIX, covered, decode, encode, signed_part
from hubbub.messages.envelope import FORMAT_VERSION, Envelope
from hubbub.messages.manifest import read_manifest
from hubbub.messages.rounds import ReleaseClaim
from hubbub.messages.shares import Receipt
from hubbub.runtime.publisher import DOMAIN, authenticate, sign
from hubbub.trust.identity import Identity
from hubbub.trust.roster import build_roster
from hubbub.trust.signed import sign_receipt, sign_release, sign_run_key
from hubbub.trust.succession import endorse, gather

Json = dict[str, object]


def key_for(name: str) -> bytes:
    """Derive a key from a name."""
    return sha256(f"hubbub test vector: {name}".encode()).digest()


MEMBERS = ["client-1", "client-2", "client-3"]
ORGANISATIONS = {name: f"org-{number}" for number, name in enumerate(MEMBERS, 1)}
ROLES = {
    **dict.fromkeys(MEMBERS, Role.CLIENT),
    "aggregator-1": Role.AGGREGATOR,
    "aggregator-2": Role.AGGREGATOR,
    "coordinator": Role.COORDINATOR,
}


def make_identity(name: str) -> Identity:
    """Return an identity whose key and password are not secret."""
    return Identity(
        name=PartyId(name),
        role=ROLES[name],
        organisation=PartyId(ORGANISATIONS.get(name, name)),
        key=SigningKey.from_bytes(key_for(f"identity of {name}")),
        broker_password=key_for(f"password of {name}").hex()[:43],
    )


IDENTITIES = {name: make_identity(name) for name in ROLES}
ROSTER = build_roster([identity.public() for identity in IDENTITIES.values()])

SET_ID, OTHER_SET_ID = "5e" * 16, "5f" * 16
TRANSCRIPT = "7a" * 32
VECTORS = [
    {"name": "signs", "length": 100, "modulus": 7},
    {"name": "factors", "length": 1, "modulus": 2**32},
    {"name": "tags", "length": 3, "modulus": 2**64},
]
RECEIPT = {
    "aggregator": "aggregator-1",
    "sets": [{"client": "client-1", "set_id": SET_ID}, {"client": "client-2", "set_id": OTHER_SET_ID}],
    "vectors": VECTORS,
    "transcript": TRANSCRIPT,
}
TRAFFIC = [{"counts_as": "signs", "direction": "up", "payload_bits": 600, "wire_bytes": 512}]
ROUND, PHASE = 2, "signs"

# All fields, also those with a default, in the order in which they are encoded.
MANIFEST: Json = {
    "format": 1,
    "cohort": [{"name": name, "organisation": ORGANISATIONS[name]} for name in MEMBERS],
    "aggregators": ["aggregator-1", "aggregator-2"],
    "coordinator": "coordinator",
    "min_clients": 3,
    "strategy": "no-union",
    "rho": 0.1,
    "parameters": 100,
    "alpha_max": 16.0,
    "factor_bits": 32,
    "q": 1,
    "kappa": 4.0,
    "first_factor_bound": 0.1,
    "factor_floor": 0.001,
    "verified": True,
    "alpha_rule": "norm",
    "feedback": "lost",
    "wire": "paper",
    "chunk_bytes": 1048576,
    "task": "synthetic",
    "local_steps": 2,
    "rounds": 2,
    "scores": "sum",
    "metrics": [
        {"name": "auc", "low": 0.0, "high": 1.0, "higher_is_better": True, "kind": "auc", "bins": 64},
        {"name": "loss", "low": 0.0, "high": 16.0, "higher_is_better": False, "kind": "mean", "bins": 0},
    ],
    "score_weights": "equal",
    "max_examples": 1000000,
    "evaluate_every": 1,
    "seed": 7,
    "initial_model_sha256": "0" * 64,
    "phase_timeout_s": 3600.0,
    "max_void_rounds": 3,
    "roster_sha256": ROSTER.digest,
    "nonce": "00112233445566778899aabbccddeeff",
}

MODEL = bytes.fromhex("0000803f000000c0")
"""Model of 1.0 and -2.0: 32-bit floats, little-endian."""

RUN = read_manifest(json.dumps(MANIFEST)).run_id
DIRECTORY = ROSTER.directory(RUN)


def run_key(name: str) -> Json:
    """Return a party's signed key for the run."""
    public = SealingKey.from_bytes(Kem.X25519, key_for(f"run key of {name}")).public
    return sign_run_key(IDENTITIES[name], RUN, Kem.X25519, public).model_dump(mode="json")


def signed_receipt() -> Json:
    """Return a receipt that is valid for this run, round and phase."""
    receipt = Receipt.model_validate_json(json.dumps(RECEIPT))
    return sign_receipt(IDENTITIES["aggregator-1"], RUN, ROUND, PHASE, receipt).model_dump(mode="json")


def signed_release(name: str) -> str:
    """Return an aggregator's signature on its sum in this run, round and phase."""
    content = {"aggregator": name, "members": MEMBERS, "vectors": VECTORS, "transcript": TRANSCRIPT}
    return sign_release(IDENTITIES[name], RUN, ROUND, PHASE, ReleaseClaim.model_validate_json(json.dumps(content)))


BODIES: dict[str, Json] = {
    "run-proposed": {"manifest": MANIFEST},
    "run-joined": {"run_key": run_key("client-1")},
    "run-refused": {"code": "protocol-task"},
    "run-ended": {"outcome": "failed", "reason": "der Lauf ist zu Ende – «lenet»", "last_round": 7},
    "party-failed": {"code": "disk-failed"},
    "run-keys": {"keys": [run_key(name) for name in (*MEMBERS, "aggregator-1", "aggregator-2")]},
    "group-contribution": {},
    "group-confirmed": {"confirmation": "c0" * 32},
    "run-ready": {},
    "round-opened": {"attended": 1},
    "close-phase": {"members": MEMBERS, "receipts": [signed_receipt()]},
    "void-phase": {},
    "phase-released": {"members": MEMBERS, "vectors": VECTORS, "traffic": TRAFFIC},
    "phase-voided": {},
    "order-refused": {"reason": "too-few-members"},
    "round-applied": {
        "model_hmac": "4d" * 32,
        "traffic": TRAFFIC,
    },
    "round-dropped": {"traffic": []},
    "round-scored": {"scores": [{"name": "accuracy", "value": 0.25}], "traffic": TRAFFIC},
    "share-chunk": {"set_id": SET_ID, "vectors": VECTORS, "weight": 1, "transcript": TRANSCRIPT, "index": 0},
    "set-received": {"receipt": signed_receipt()},
    "set-refused": {"client": "client-1", "set_id": SET_ID, "reason": "wrong-length"},
    "sum-chunk": {
        "members": MEMBERS,
        "vectors": VECTORS,
        "transcript": TRANSCRIPT,
        "signature": signed_release("aggregator-1"),
        "wrapped_key": "3b" * 80,
        "index": 0,
    },
    "void-notice": {},
    "snapshot-requested": {"after": 1, "giver": "client-2"},
    "model-vouched": {"vouchers": [{"round": 2, "released": 1, "model_hmac": "4d" * 32}]},
    "snapshot-chunk": {"index": 0},
    "dense-share-chunk": {
        "set_id": SET_ID,
        "vectors": VECTORS,
        "weight": 1,
        "transcript": TRANSCRIPT,
        "index": 0,
    },
    "share-seed": {"set_id": SET_ID, "vectors": VECTORS, "weight": 1, "transcript": TRANSCRIPT},
    "partial-chunk": {
        "members": MEMBERS,
        "vectors": VECTORS,
        "transcript": TRANSCRIPT,
        "signature": signed_release("aggregator-1"),
        "index": 0,
    },
    "masked-chunk": {
        "members": MEMBERS,
        "vectors": VECTORS,
        "transcript": TRANSCRIPT,
        "signatures": [signed_release("aggregator-1"), signed_release("aggregator-2")],
        "index": 0,
    },
    "resend-set": {"set_id": SET_ID},
}


def roster_vector() -> Json:
    """Return the identities, and the roster and digest that follow."""
    return {
        "identities": {
            name: {"private_key": identity.key.to_bytes().hex(), "broker_password": identity.broker_password}
            for name, identity in IDENTITIES.items()
        },
        "roster": ROSTER.model_dump(mode="json"),
        "canonical": ROSTER.canonical.decode("ascii"),
        "digest": ROSTER.digest,
    }


def manifest_vector(document: Json = MANIFEST) -> Json:
    """Return a manifest, its canonical form and the run id that follows."""
    manifest = read_manifest(json.dumps(document))
    return {"manifest": document, "canonical": manifest.canonical.decode("ascii"), "run_id": manifest.run_id}


def successor_vector() -> Json:
    """Return a successor of the other manifest, endorsed by its clients, who sign the same commitment."""
    first = read_manifest(json.dumps(MANIFEST))
    commitment = sha256(key_for("salt of the successor") + MODEL).hexdigest()
    _, predecessor = gather([endorse(IDENTITIES[name], first, commitment) for name in MEMBERS])
    document = {
        **MANIFEST,
        "initial_model_sha256": commitment,
        "predecessor": predecessor.model_dump(mode="json"),
        "nonce": "ff" * 16,
    }
    made_of = {"salt": key_for("salt of the successor").hex(), "model": MODEL.hex()}
    return {"commitment": made_of, **manifest_vector(document)}


def find_party(roles: frozenset[Role], *, other_than: str = "") -> str:
    """Return the first party of one of these roles."""
    return next(name for name, role in ROLES.items() if role in roles and name != other_than)


def make_envelope(kind: str) -> Envelope:
    """Return a signed message of a kind, between parties that may send and receive it."""
    about_run = kind.startswith(("run-", "party-", "group-", "model-"))
    no_phase = about_run or kind.startswith("snapshot-")
    sender = find_party(KINDS[kind].senders)
    envelope = Envelope(
        run=RUN,
        round=0 if about_run else ROUND,
        phase="" if no_phase else PHASE,
        sender=PartyId(sender),
        recipient=PartyId(find_party(KINDS[kind].recipients, other_than=sender)),
        body=KINDS[kind].model_validate_json(json.dumps(BODIES[kind])),
        payload=bytes(range(0, 250, 7)) if kind.endswith(("-chunk", "-contribution", "-seed")) else b"",
    )
    return sign(IDENTITIES[sender], envelope, DIRECTORY)


def message_case(kind: str) -> Json:
    """Return one message, field by field, and its frame."""
    envelope = make_envelope(kind)
    fields = ("kind", "run", "round", "phase", "sender", "recipient")
    return {
        "header": {name: getattr(envelope, name) for name in fields},
        "body": BODIES[kind],
        "payload": envelope.payload.hex(),
        "signature": envelope.signature.hex(),
        "frame": encode(envelope, DIRECTORY).hex(),
    }


KIND, RUN_NAME, ROUND_NUMBER, PHASE_NAME, SENDER, RECIPIENT, _, BODY = range(8)
"""Places in a frame's head."""


def change_head(change: Callable[[list[Any]], object]) -> Callable[[bytes], bytes]:
    """Return a function that changes the head of a frame and leaves all else as it is, its signature too."""

    def apply(frame: bytes) -> bytes:
        end = PREFIX.size + PREFIX.unpack_from(frame)[-1]
        head = msgspec.msgpack.decode(frame[PREFIX.size : end])
        change(head)
        return write_head(msgspec.msgpack.encode(head)) + frame[end:]

    return apply


def write_head(head: bytes) -> bytes:
    """Put the prefix before a head."""
    return PREFIX.pack(MAGIC, FORMAT_VERSION, len(head)) + head


def put(place: int, value: object) -> Callable[[bytes], bytes]:
    """Return a function that puts another value into one place of the head."""
    return change_head(lambda head: head.__setitem__(place, value))


def spell_round_longer(frame: bytes) -> bytes:
    """Encode the round's number in two bytes, and sign the frame as its sender would."""
    envelope, end = decode(frame, DIRECTORY), PREFIX.size + PREFIX.unpack_from(frame)[-1]
    fields = [msgspec.msgpack.encode(each) for each in msgspec.msgpack.decode(frame[PREFIX.size : end])]
    fields[ROUND_NUMBER] = b"\xcc" + fields[ROUND_NUMBER]
    unsigned = write_head(bytes([0x90 + len(fields)]) + b"".join(fields)) + envelope.payload
    key = IDENTITIES[envelope.sender].key
    return unsigned + key.sign(DOMAIN, covered(unsigned, envelope))


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "flipped magic": lambda frame: bytes([frame[0] ^ 1]) + frame[1:],
    "unknown version": lambda frame: frame[:4] + b"\x00\x02" + frame[6:],
    "truncated prefix": lambda frame: frame[:9],
    "truncated": lambda frame: frame[:-1],
    "trailing byte": lambda frame: frame + b"\x00",
    "huge length": lambda frame: frame[:6] + b"\xff\xff\xff\xff" + frame[10:],
    "no msgpack": lambda frame: frame[:10] + b"\xc1" + frame[11:],
    "unknown kind": put(KIND, len(KINDS)),
    "unknown run": put(RUN_NAME, bytes(8)),
    "the whole run": put(RUN_NAME, bytes.fromhex(RUN)),
    "number as text": put(ROUND_NUMBER, "2"),
    "path as a phase": put(PHASE_NAME, "../../ab"),
    "a field too many": change_head(lambda head: head.append(0)),
    "a field of the body too many": change_head(lambda head: head[BODY].append(0)),
    "digest as text": change_head(lambda head: head[BODY].__setitem__(3, TRANSCRIPT)),
    "modulus of 1": change_head(lambda head: head[BODY][1][0].__setitem__(2, 1)),
    "an integer, spelt longer": spell_round_longer,
    "no signature": lambda _: resigned(lambda _: b""),
    "half a signature": lambda _: resigned(lambda signature: signature[:32]),
    "signature with another s": lambda _: resigned(add_order),
    "signed by another party": lambda _: resigned(lambda _: signature_of("client-2", "message")),
    "signed for another purpose": lambda _: resigned(lambda _: signature_of("client-1", "receipt")),
    "sender not in the roster": put(SENDER, len(ROLES)),
    "recipient not in the roster": put(RECIPIENT, len(ROLES)),
    "another sender": put(SENDER, DIRECTORY.number(PartyId("client-2"))),
    "another recipient": put(RECIPIENT, DIRECTORY.number(PartyId("aggregator-2"))),
    "another round": put(ROUND_NUMBER, 3),
    "another transcript": change_head(lambda head: head[BODY].__setitem__(3, bytes(32))),
    "flipped payload": lambda frame: frame[:-65] + bytes([frame[-65] ^ 1]) + frame[-64:],
}

# Order of Ed25519's group (RFC 8032).
ORDER = 2**252 + 27742317777372353535851937790883648493


def resigned(change: Callable[[bytes], bytes]) -> bytes:
    """Return the share chunk's frame with a changed signature."""
    envelope = make_envelope("share-chunk")
    return encode(replace(envelope, signature=change(envelope.signature)), DIRECTORY)


def add_order(signature: bytes) -> bytes:
    """Write the signature's number s as s + ORDER, which satisfies the same equation."""
    number = int.from_bytes(signature[32:], "little") + ORDER
    return signature[:32] + number.to_bytes(32, "little")


def signature_of(name: str, domain: str) -> bytes:
    """Return a party's signature of the share chunk under some domain."""
    return IDENTITIES[name].key.sign(domain, signed_part(make_envelope("share-chunk"), DIRECTORY))


def bad_case(fault: str) -> Json:
    """Corrupt the frame of a share chunk in one way, and return it with the reason why it is refused."""
    frame = FAULTS[fault](encode(make_envelope("share-chunk"), DIRECTORY))
    try:
        authenticate(ROSTER, decode(frame, DIRECTORY), frame)
    except PeerError as error:
        return {"fault": fault, "frame": frame.hex(), "reason": error.reason.value}
    raise AssertionError(f"a frame with {fault} was taken for a message")


def message_files() -> dict[str, Json]:
    """Return the content of the files about messages, by name."""
    return {
        "roster_0": roster_vector(),
        "manifest_0": manifest_vector(),
        "manifest_1": successor_vector(),
        "message_0": {"cases": [message_case(kind) for kind in BODIES]},
        "message_bad": {"cases": [bad_case(fault) for fault in FAULTS]},
    }
