"""Encoded messages for tests/vectors: one of every kind, a manifest with its run id, and frames that are none."""

import json
from collections.abc import Callable

from hubbub.errors import MalformedMessage
from hubbub.ids import PartyId, RunId
from hubbub.messages.codec import KINDS, decode, encode
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import read_manifest

Json = dict[str, object]

SET_ID = "5e" * 16
MEMBERS = ["client-1", "client-2", "client-3"]
VECTORS = [
    {"name": "signs", "length": 100, "modulus": 7},
    {"name": "factors", "length": 1, "modulus": 2**32},
]
RECEIPT = {"aggregator": "aggregator-1", "client": "client-1", "set_id": SET_ID, "vectors": VECTORS}
TRAFFIC = [{"counts_as": "signs", "direction": "up", "payload_bits": 600, "wire_bytes": 512}]

# Fields in the order in which they are encoded; those with a default are all there.
MANIFEST: Json = {
    "format": 1,
    "cohort": [{"name": name, "organisation": f"org-{number}"} for number, name in enumerate(MEMBERS, 1)],
    "aggregators": ["aggregator-1", "aggregator-2"],
    "coordinator": "coordinator",
    "min_clients": 3,
    "strategy": "no-union",
    "rho": 0.1,
    "parameters": 100,
    "alpha_max": 16.0,
    "factor_bits": 32,
    "q": 1,
    "alpha_rule": "norm",
    "feedback": "lost",
    "wire": "paper",
    "chunk_bytes": 1048576,
    "task": "synthetic",
    "local_steps": 2,
    "rounds": 2,
    "seed": 7,
    "initial_model_sha256": "0" * 64,
    "phase_timeout_s": 3600.0,
    "max_void_rounds": 3,
    "roster_sha256": None,
    "nonce": "00112233445566778899aabbccddeeff",
}

BODIES: dict[str, Json] = {
    "run-proposed": {"manifest": MANIFEST},
    "run-joined": {},
    "run-refused": {"reason": "die Aufgabe ist hier nicht installiert – «lenet»"},
    "run-ended": {"outcome": "completed", "reason": ""},
    "party-failed": {"reason": "the disk is full"},
    "round-opened": {},
    "close-phase": {"members": MEMBERS, "receipts": [RECEIPT]},
    "void-phase": {"reason": "too few members"},
    "phase-released": {"members": MEMBERS, "vectors": VECTORS, "traffic": TRAFFIC},
    "phase-voided": {},
    "order-refused": {"reason": "too-few-members", "explanation": "1 of 3 organisations"},
    "round-applied": {
        "correct": 90,
        "total": 100,
        "loss": 0.25,
        "training_s": 1.5,
        "evaluation_s": 0.5,
        "traffic": TRAFFIC,
    },
    "round-dropped": {"training_s": 1.5, "traffic": []},
    "share-chunk": {"set_id": SET_ID, "vectors": VECTORS, "weight": 1, "index": 0},
    "set-received": {"receipt": RECEIPT},
    "set-refused": {"client": "client-1", "set_id": SET_ID, "reason": "wrong-length"},
    "sum-chunk": {"members": MEMBERS, "vectors": VECTORS, "index": 0},
    "void-notice": {"reason": "ordered by the coordinator"},
}


def manifest_vector() -> Json:
    """Record a manifest, its canonical form and the run id that follows."""
    manifest = read_manifest(json.dumps(MANIFEST))
    return {"manifest": MANIFEST, "canonical": manifest.canonical.decode("ascii"), "run_id": manifest.run_id}


def message_case(kind: str) -> Json:
    """Record one message, field by field, and its frame."""
    about_run = kind.startswith(("run-", "party-"))
    fields: Json = {
        "kind": kind,
        "run": read_manifest(json.dumps(MANIFEST)).run_id,
        "round": 0 if about_run else 2,
        "phase": "" if about_run else "signs",
        "sender": "a-sender",
        "recipient": "a-recipient",
        "message_id": f"{sorted(BODIES).index(kind):032x}",
    }
    payload = bytes(range(0, 250, 7)) if kind.endswith("-chunk") else b""
    signature = b"\xa5" * 64 if kind == "close-phase" else b""
    frame = encode(make_envelope(fields, payload, signature))
    return {
        "header": fields,
        "body": BODIES[kind],
        "payload": payload.hex(),
        "signature": signature.hex(),
        "frame": frame.hex(),
    }


def make_envelope(fields: Json, payload: bytes, signature: bytes) -> Envelope:
    """Make the envelope of a case."""
    kind = str(fields["kind"])
    return Envelope(
        run=RunId(str(fields["run"])),
        round=int(str(fields["round"])),
        phase=str(fields["phase"]),
        sender=PartyId(str(fields["sender"])),
        recipient=PartyId(str(fields["recipient"])),
        message_id=str(fields["message_id"]),
        body=KINDS[kind].model_validate_json(json.dumps(BODIES[kind])),
        payload=payload,
        signature=signature,
    )


def replace_once(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Change something in the JSON without changing any length."""
    if len(old) != len(new):
        raise AssertionError(f"{old!r} and {new!r} differ in length")
    return lambda frame: frame.replace(old, new, 1)


FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "flipped magic": lambda frame: bytes([frame[0] ^ 1]) + frame[1:],
    "unknown version": lambda frame: frame[:4] + b"\x00\x02" + frame[6:],
    "truncated prefix": lambda frame: frame[:19],
    "truncated": lambda frame: frame[:-1],
    "trailing byte": lambda frame: frame + b"\x00",
    "huge length": lambda frame: frame[:6] + b"\xff\xff\xff\xff" + frame[10:],
    "unknown kind": replace_once(b'"share-chunk"', b'"shore-chunk"'),
    "unknown field": replace_once(b'"sender"', b'"lender"'),
    "unknown field of the body": replace_once(b'"set_id"', b'"get_id"'),
    "number as text": replace_once(b'"round":2,"phase":"signs"', b'"round":"2","phase":"sig"'),
    "broken JSON": replace_once(b'{"kind"', b'["kind"'),
    "path as a name": replace_once(b'"a-sender"', b'"../../ab"'),
    "modulus of 1": replace_once(b'"modulus":7', b'"modulus":1'),
}


def bad_case(fault: str) -> Json:
    """Spoil the frame of a share chunk in one way, and record why it is refused."""
    frame = FAULTS[fault](bytes.fromhex(str(message_case("share-chunk")["frame"])))
    try:
        decode(frame)
    except MalformedMessage as error:
        return {"fault": fault, "frame": frame.hex(), "reason": error.reason.value}
    raise AssertionError(f"a frame with {fault} was taken for a message")


def message_files() -> dict[str, Json]:
    """Make the content of the files about messages, by name."""
    return {
        "manifest_0": manifest_vector(),
        "message_0": {"cases": [message_case(kind) for kind in BODIES]},
        "message_bad": {"cases": [bad_case(fault) for fault in FAULTS]},
    }
