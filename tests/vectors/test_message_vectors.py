"""Rosters, manifests and messages of the vector files, beside what is put together and signed by hand."""

import hashlib
import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hubbub.errors import PeerError, RejectReason
from hubbub.messages.codec import KINDS, decode, encode
from hubbub.messages.manifest import read_manifest
from hubbub.messages.rounds import ReleaseClaim
from hubbub.messages.runs import RunKeys
from hubbub.messages.shares import SignedReceipt
from hubbub.runtime.publisher import authenticate
from hubbub.trust.roster import Roster, verify_roster
from hubbub.trust.signed import check_receipt, check_release, check_run_keys
from hubbub.trust.succession import find_unendorsed
from support.plain_group import frame as bind
from support.plain_msgpack import pack

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class MessageCase:
    header: dict[str, Any]
    body: dict[str, Any]
    payload: str
    signature: str
    frame: str

    def __str__(self) -> str:
        return str(self.header["kind"])


@dataclass(frozen=True)
class BadCase:
    fault: str
    frame: str
    reason: str

    def __str__(self) -> str:
        return self.fault


def load(name: str) -> list[dict[str, str]]:
    cases: list[dict[str, str]] = json.loads((FOLDER / f"{name}.json").read_text())["cases"]
    return cases


MESSAGES = [MessageCase(**case) for case in load("message_0")]  # type: ignore[arg-type] # fields of both kinds
BAD = [BadCase(**case) for case in load("message_bad")]


ROSTER_VECTOR = json.loads((FOLDER / "roster_0.json").read_text())
MANIFEST_VECTOR = json.loads((FOLDER / "manifest_0.json").read_text())
ROSTER = Roster.model_validate_json(json.dumps(ROSTER_VECTOR["roster"]))
MANIFEST = read_manifest(json.dumps(MANIFEST_VECTOR["manifest"]))
DIRECTORY = ROSTER.directory(MANIFEST.run_id)
SUCCESSOR_VECTOR = json.loads((FOLDER / "manifest_1.json").read_text())


def derived(name: str) -> bytes:
    """A key as the README says that it follows from a name."""
    return hashlib.sha256(f"hubbub test vector: {name}".encode()).digest()


def private_key(party: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(derived(f"identity of {party}"))


def plain_signature(party: str, domain: str, content: bytes) -> str:
    """Ed25519 without Hubbub; there is one signature of a key over a message."""
    return private_key(party).sign(bind(b"hubbub/1", domain.encode(), content)).hex()


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


NUMBERS = {party.name: number for number, party in enumerate(ROSTER.parties)}
HEXADECIMAL = {
    *("set_id", "transcript", "signature", "signatures", "wrapped_key"),
    *("public_key", "confirmation", "model_hmac"),
}
NAMES = {"members", "client", "aggregator", "party", "giver"}
OF_COORDINATOR = {"run-proposed", "run-keys", "run-ended", "round-opened", "close-phase", "void-phase"}


def plain_form(name: str, value: Any) -> Any:
    """A field as it travels, by the rules of docs/protocol.md."""
    if name == "manifest":
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    if name == "receipts":
        rows = [[*(row["receipt"].items()), ("signature", row["signature"])] for row in value]
        first, *columns = ([plain_form(*each) for each in column] for column in zip(*rows, strict=True))
        return [first, *(each[:1] if all(one == each[0] for one in each) else each for each in columns)]
    if isinstance(value, list):
        return [plain_form(name, each) for each in value]
    if isinstance(value, dict):
        return [plain_form(field, each) for field, each in value.items()]
    if name in HEXADECIMAL:
        return bytes.fromhex(value)
    if name in NAMES:
        return NUMBERS[value]
    return value % 2**64 if name == "modulus" else value


def plain_head(case: MessageCase) -> bytes:
    """Prefix and head as their description says it, without Hubbub."""
    header, run = case.header, bytes.fromhex(case.header["run"])
    fields = [
        list(KINDS).index(header["kind"]),
        run if header["kind"] in OF_COORDINATOR else run[:8],
        *(header["round"], header["phase"]),
        *(NUMBERS[name] if header["round"] else name for name in (header["sender"], header["recipient"])),
        len(case.payload) // 2,
        plain_form("", case.body),
    ]
    packed = pack(fields)
    return b"HBUB" + (4).to_bytes(2, "big") + len(packed).to_bytes(4, "big") + packed


def plainly_covered(case: MessageCase) -> bytes:
    """What is signed: prefix and head, the payload by its digest, the whole id of the run, and the names."""
    names = f"{case.header['run']}{case.header['sender']}\0{case.header['recipient']}"
    return plain_head(case) + hashlib.sha256(bytes.fromhex(case.payload)).digest() + names.encode()


@pytest.mark.parametrize("case", MESSAGES, ids=str)
def test_message(case: MessageCase) -> None:
    frame = bytes.fromhex(case.frame)

    envelope = decode(frame, DIRECTORY)

    assert plain_head(case) + bytes.fromhex(case.payload + case.signature) == frame
    assert encode(envelope, DIRECTORY) == frame
    fields = ("kind", "run", "round", "phase", "sender", "recipient")
    assert {name: getattr(envelope, name) for name in fields} == case.header
    assert envelope.body.model_dump(mode="json") == case.body
    assert envelope.payload.hex() == case.payload
    assert envelope.signature.hex() == case.signature


@pytest.mark.parametrize("case", MESSAGES, ids=str)
def test_message_is_signed_by_its_sender(case: MessageCase) -> None:
    frame = bytes.fromhex(case.frame)

    authenticate(ROSTER, decode(frame, DIRECTORY), frame)

    assert case.signature == plain_signature(case.header["sender"], "message", plainly_covered(case))


@pytest.mark.parametrize("case", MESSAGES, ids=str)
def test_message_goes_from_one_who_may_send_it_to_one_who_may_receive_it(case: MessageCase) -> None:
    sender, recipient = ROSTER.find(case.header["sender"]), ROSTER.find(case.header["recipient"])

    assert sender
    assert recipient
    assert sender != recipient
    assert sender.role in KINDS[str(case)].senders
    assert recipient.role in KINDS[str(case)].recipients


def body_of(kind: str) -> dict[str, Any]:
    return next(case.body for case in MESSAGES if str(case) == kind)


def test_run_keys_are_signed_by_their_owners() -> None:
    keys = body_of("run-keys")["keys"]

    check_run_keys(ROSTER, MANIFEST, RunKeys.model_validate_json(json.dumps(body_of("run-keys"))))

    assert keys[0] == body_of("run-joined")["run_key"]
    for key in keys:
        party = key["party"]
        public = (
            X25519PrivateKey.from_private_bytes(derived(f"run key of {party}")).public_key().public_bytes_raw()
        )
        content = bind(MANIFEST.run_id.encode(), b"x25519", party.encode(), public)
        assert key["public_key"] == public.hex()
        assert key["signature"] == plain_signature(party, "run key", content)


def test_receipts_are_signed_by_their_aggregators() -> None:
    signed = body_of("set-received")["receipt"]
    check_receipt(ROSTER, MANIFEST.run_id, 2, "signs", SignedReceipt.model_validate_json(json.dumps(signed)))

    content = bind(MANIFEST.run_id.encode(), (2).to_bytes(8, "big"), b"signs", compact(signed["receipt"]))
    assert signed["signature"] == plain_signature("aggregator-1", "receipt", content)
    assert body_of("close-phase")["receipts"] == [signed]


def test_releases_are_signed_by_their_aggregators() -> None:
    masked, partial = body_of("masked-chunk"), body_of("partial-chunk")
    for aggregator, signature in zip(("aggregator-1", "aggregator-2"), masked["signatures"], strict=True):
        release = {
            "aggregator": aggregator,
            **{name: masked[name] for name in ("members", "vectors", "transcript")},
        }
        claim = ReleaseClaim.model_validate_json(json.dumps(release))
        check_release(ROSTER, MANIFEST.run_id, 2, "signs", claim, signature)

        content = bind(MANIFEST.run_id.encode(), (2).to_bytes(8, "big"), b"signs", compact(release))
        assert signature == plain_signature(aggregator, "release", content)
    assert partial["signature"] == masked["signatures"][0]


def test_every_kind_has_a_vector() -> None:
    assert [str(case) for case in MESSAGES] == list(KINDS)


REASONS = {
    "unknown version": RejectReason.UNKNOWN_VERSION,
    "unknown kind": RejectReason.UNKNOWN_KIND,
    "sender not in the roster": RejectReason.NOT_IN_ROSTER,
    "recipient not in the roster": RejectReason.WRONG_RECIPIENT,
    "unknown run": RejectReason.UNKNOWN_RUN,
    **dict.fromkeys(
        (
            *("no signature", "signature with another s"),
            *("signed by another party", "signed for another purpose"),
            *("another sender", "another recipient", "another round", "another transcript"),
            "flipped payload",
        ),
        RejectReason.BAD_SIGNATURE,
    ),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_message_is_refused(case: BadCase) -> None:
    frame = bytes.fromhex(case.frame)

    with pytest.raises(PeerError) as caught:
        authenticate(ROSTER, decode(frame, DIRECTORY), frame)

    assert caught.value.reason is REASONS.get(case.fault, RejectReason.MALFORMED)
    assert caught.value.reason.value == case.reason


def test_every_bad_frame_is_bad_in_its_own_way() -> None:
    good = next(case.frame for case in MESSAGES if str(case) == "share-chunk")

    assert len({good, *(case.frame for case in BAD)}) == len(BAD) + 1
    assert {
        "flipped magic",
        "unknown version",
        "truncated",
        "trailing byte",
        "unknown kind",
        "a field too many",
    } <= {case.fault for case in BAD}


@pytest.mark.parametrize("vector", [MANIFEST_VECTOR, SUCCESSOR_VECTOR], ids=["manifest_0", "manifest_1"])
def test_manifest(vector: dict[str, Any]) -> None:
    canonical, run_id = vector["canonical"], vector["run_id"]
    manifest = read_manifest(json.dumps(vector["manifest"]))

    assert manifest.canonical == canonical.encode()
    assert manifest.run_id == run_id
    assert manifest.roster_sha256 == ROSTER_VECTOR["digest"]
    # The second implementation: sorted keys, no spaces, ASCII, SHA-256.
    plain = json.dumps(vector["manifest"], sort_keys=True, separators=(",", ":"))
    assert plain == canonical
    assert hashlib.sha256(plain.encode("ascii")).hexdigest() == run_id


def test_a_successor_commits_to_salt_and_model_and_its_predecessors_clients_sign_that() -> None:
    said, made_of = SUCCESSOR_VECTOR["manifest"], SUCCESSOR_VECTOR["commitment"]
    before = said["predecessor"]
    members = [member[field].encode() for member in before["cohort"] for field in ("name", "organisation")]
    numbers = [number.to_bytes(8, "big") for number in (before["min_clients"], len(before["cohort"]))]
    content = bind(before["run"].encode(), said["initial_model_sha256"].encode(), *numbers, *members)

    assert before["run"] == MANIFEST.run_id
    assert made_of["salt"] == derived("salt of the successor").hex()
    committed = hashlib.sha256(bytes.fromhex(made_of["salt"] + made_of["model"])).hexdigest()
    assert said["initial_model_sha256"] == committed
    for endorsement in before["endorsements"]:
        assert endorsement["signature"] == plain_signature(endorsement["client"], "succession", content)
    assert find_unendorsed(read_manifest(json.dumps(said)), ROSTER) == ()


def test_roster() -> None:
    verify_roster(ROSTER)

    assert ROSTER.canonical == ROSTER_VECTOR["canonical"].encode()
    assert ROSTER.digest == ROSTER_VECTOR["digest"]
    plain = json.dumps(ROSTER_VECTOR["roster"], sort_keys=True, separators=(",", ":"))
    assert plain == ROSTER_VECTOR["canonical"]
    assert hashlib.sha256(plain.encode("ascii")).hexdigest() == ROSTER_VECTOR["digest"]


@pytest.mark.parametrize("party", ROSTER_VECTOR["roster"]["parties"], ids=lambda party: party["name"])
def test_public_identity(party: dict[str, Any]) -> None:
    name, private = party["name"], ROSTER_VECTOR["identities"][party["name"]]

    assert private["private_key"] == derived(f"identity of {name}").hex()
    assert party["public_key"] == private_key(name).public_key().public_bytes_raw().hex()
    password = private["broker_password"].encode()
    salt = hashlib.sha256(bind(b"salt of the broker password", password)).digest()[:4]
    hashed = b64encode(salt + hashlib.sha256(salt + password).digest()).decode()
    assert party["broker_password_hash"] == hashed
    said = [party[field].encode() for field in ("name", "role", "organisation", "public_key")]
    proven = bind((1).to_bytes(8, "big"), *said, hashed.encode())
    assert party["proof"] == plain_signature(name, "public identity", proven)
