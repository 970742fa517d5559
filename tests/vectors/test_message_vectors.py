"""Manifests and messages of the vector files, beside frames that are put together by hand."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from hubbub.errors import MalformedMessage, RejectReason
from hubbub.messages.codec import KINDS, decode, encode
from hubbub.messages.manifest import read_manifest

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class MessageCase:
    header: dict[str, object]
    body: dict[str, object]
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


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def plain_frame(case: MessageCase) -> bytes:
    """The format as its description says it, without Hubbub."""
    parts = [compact(case.header), compact(case.body), bytes.fromhex(case.payload), bytes.fromhex(case.signature)]
    widths = (4, 4, 4, 2)
    lengths = b"".join(len(part).to_bytes(width, "big") for part, width in zip(parts, widths, strict=True))
    return b"HBUB" + (1).to_bytes(2, "big") + lengths + b"".join(parts)


@pytest.mark.parametrize("case", MESSAGES, ids=str)
def test_message(case: MessageCase) -> None:
    frame = bytes.fromhex(case.frame)

    envelope = decode(frame)

    assert plain_frame(case) == frame
    assert encode(envelope) == frame
    fields = ("kind", "run", "round", "phase", "sender", "recipient", "message_id")
    assert {name: getattr(envelope, name) for name in fields} == case.header
    assert envelope.body.model_dump(mode="json") == case.body
    assert envelope.payload.hex() == case.payload
    assert envelope.signature.hex() == case.signature


def test_every_kind_has_a_vector() -> None:
    assert [str(case) for case in MESSAGES] == list(KINDS)


REASONS = {
    "unknown version": RejectReason.UNKNOWN_VERSION,
    "unknown kind": RejectReason.UNKNOWN_KIND,
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_message_is_refused(case: BadCase) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode(bytes.fromhex(case.frame))

    assert caught.value.reason is REASONS.get(case.fault, RejectReason.MALFORMED)
    assert caught.value.reason.value == case.reason


def test_every_bad_frame_is_bad_in_its_own_way() -> None:
    good = next(case.frame for case in MESSAGES if str(case) == "share-chunk")

    assert len({good, *(case.frame for case in BAD)}) == len(BAD) + 1
    assert {"flipped magic", "unknown version", "truncated", "trailing byte", "unknown kind", "unknown field"} <= {
        case.fault for case in BAD
    }


def test_manifest() -> None:
    vector = json.loads((FOLDER / "manifest_0.json").read_text())

    manifest = read_manifest(json.dumps(vector["manifest"]))

    assert manifest.canonical == vector["canonical"].encode()
    assert manifest.run_id == vector["run_id"]
    # The second implementation: sorted keys, no spaces, ASCII, SHA-256.
    plain = json.dumps(vector["manifest"], sort_keys=True, separators=(",", ":"))
    assert plain == vector["canonical"]
    assert hashlib.sha256(plain.encode("ascii")).hexdigest() == vector["run_id"]
