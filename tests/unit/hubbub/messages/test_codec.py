import copy
import hashlib
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.sealing import ChunkKey, Kem, SealingKey, seal
from hubbub.errors import MalformedMessage, RejectReason
from hubbub.ids import PARTY_ID_PATTERN, PartyId, RunId
from hubbub.messages.codec import (
    KINDS,
    MAGIC,
    MAX_JSON_BYTES,
    PREFIX,
    covered,
    decode,
    encode,
    encode_signed,
    signed_part,
)
from hubbub.messages.envelope import FORMAT_VERSION, Envelope
from hubbub.messages.runs import RunEnded
from hubbub.messages.shares import ShareChunk
from support.builders import make_bodies, make_envelope, make_manifest
from support.parties import COORDINATOR

BODIES = make_bodies()
SAMPLES: dict[str, Any] = {body.kind: body.model_dump(mode="json") for body in BODIES}
CLIENT = make_manifest().clients[0]
PARTIES = st.from_regex(PARTY_ID_PATTERN, fullmatch=True).map(PartyId)


def hexadecimal(digits: int) -> st.SearchStrategy[str]:
    return st.text("0123456789abcdef", min_size=digits, max_size=digits)


ENVELOPES = st.builds(
    Envelope,
    run=hexadecimal(64).map(RunId),
    round=st.integers(0, 2**31 - 1),
    phase=st.text("abcdefghijklmnopqrstuvwxyz-", max_size=32),
    sender=PARTIES,
    recipient=PARTIES,
    message_id=hexadecimal(32),
    body=st.sampled_from(BODIES) | st.builds(RunEnded, reason=st.text()),
    payload=st.binary(max_size=200),
    signature=st.binary(max_size=100),
)


def small_envelope(payload: bytes = b"\x01\x02", signature: bytes = b"") -> Envelope:
    body = next(body for body in BODIES if isinstance(body, ShareChunk))
    return make_envelope(
        body,
        sender=CLIENT,
        recipient=PartyId("aggregator-1"),
        phase="signs",
        payload=payload,
        signature=signature,
    )


FRAME = encode(small_envelope())


def frame_of(header: bytes, body: bytes = b"{}", payload: bytes = b"", version: int = FORMAT_VERSION) -> bytes:
    """Put a frame together by hand."""
    prefix = PREFIX.pack(MAGIC, version, len(header), len(body), len(payload), 0)
    return prefix + header + body + payload


def header_with(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "kind": "run-joined",
        "run": "0" * 64,
        "round": 0,
        "phase": "",
        "sender": "client-1",
        "recipient": "coordinator",
        "message_id": "0" * 32,
    }
    changed = {**fields, **changes}
    return json.dumps({name: value for name, value in changed.items() if value is not None}).encode()


def refusal_of(frame: bytes) -> MalformedMessage:
    with pytest.raises(MalformedMessage) as caught:
        decode(frame)
    return caught.value


def test_every_kind_comes_back_as_it_was() -> None:
    assert {body.kind for body in BODIES} == set(KINDS)
    for body in BODIES:
        envelope = make_envelope(body, sender=CLIENT, recipient=COORDINATOR)

        assert decode(encode(envelope)) == envelope
        assert type(decode(encode(envelope)).body) is type(body)


@given(envelope=ENVELOPES)
def test_any_envelope_comes_back_as_it_was_and_its_signature_covers_all_but_itself(envelope: Envelope) -> None:
    def sign(text: bytes) -> bytes:
        assert text == signed_part(envelope)
        return envelope.signature

    frame, unsigned = encode(envelope), encode(replace(envelope, signature=b""))

    assert decode(frame) == envelope
    assert frame.endswith(envelope.payload + envelope.signature), "the payload travels as the bytes it is"
    assert encode_signed(envelope, sign) == frame
    without_payload = unsigned.removesuffix(envelope.payload)
    assert signed_part(envelope) == without_payload + hashlib.sha256(envelope.payload).digest()
    assert covered(frame) == covered(unsigned) == signed_part(envelope)


def test_the_signature_covers_the_bytes_of_a_frame_and_not_their_meaning() -> None:
    tight, loose = (frame_of(header_with(kind="run-ready"), body) for body in (b"{}", b"{ }"))

    assert decode(tight) == decode(loose)
    assert covered(tight) != covered(loose)


def test_what_the_signature_covers_says_where_each_part_ends() -> None:
    """Bytes cannot be moved from one part to the next under one signature, whatever the parts hold."""
    frames = [frame_of(b"ab", b"c", b""), frame_of(b"a", b"bc", b""), frame_of(b"a", b"b", b"c")]

    assert len({covered(frame) for frame in frames}) == len(frames)


def test_every_field_of_the_envelope_is_signed() -> None:
    envelope = small_envelope()
    changed = [
        replace(envelope, run=RunId("f" * 64)),
        replace(envelope, round=9),
        replace(envelope, phase="union"),
        replace(envelope, sender=PartyId("client-2")),
        replace(envelope, recipient=PartyId("aggregator-2")),
        replace(envelope, message_id="f" * 32),
        replace(envelope, body=BODIES[1]),
        replace(envelope, payload=b"\x01\x03"),
    ]

    assert len({signed_part(each) for each in (envelope, *changed)}) == 1 + len(changed)


# Frames that are none ---------------------------------------------------------------------------------


BAD_FRAMES: dict[str, tuple[bytes, str]] = {
    "a byte left over": (FRAME + b"\0", "1 bytes are left over"),
    "a frame left over": (FRAME + FRAME, f"{len(FRAME)} bytes are left over"),
    "other magic": (b"HTTP" + FRAME[4:], "magic"),
    "a huge header": (PREFIX.pack(MAGIC, FORMAT_VERSION, 2**32 - 1, 0, 0, 0), "truncated"),
    "a huge body": (PREFIX.pack(MAGIC, FORMAT_VERSION, 0, 2**32 - 1, 0, 0), "truncated"),
    "a huge payload": (PREFIX.pack(MAGIC, FORMAT_VERSION, 0, 0, 2**32 - 1, 2**16 - 1), "truncated"),
    "a long header": (frame_of(b" " * (MAX_JSON_BYTES + 1)), f"is over {MAX_JSON_BYTES}"),
    "a long body": (frame_of(header_with(), b" " * (MAX_JSON_BYTES + 1)), f"is over {MAX_JSON_BYTES}"),
    **{f"cut off after {length} bytes": (FRAME[:length], "") for length in range(len(FRAME))},
}


def test_bytes_that_are_not_one_frame_are_malformed(subtests: pytest.Subtests) -> None:
    for name, (frame, complaint) in BAD_FRAMES.items():
        with subtests.test(name):
            error = refusal_of(frame)

            assert error.reason is RejectReason.MALFORMED
            assert complaint in str(error)
            with pytest.raises(MalformedMessage):
                covered(frame)


@pytest.mark.parametrize("version", [0, 1, 3, 256, 2**16 - 1])
def test_unknown_version_says_which_and_what_to_do(version: int) -> None:
    error = refusal_of(MAGIC + version.to_bytes(2, "big") + FRAME[6:])

    assert error.reason is RejectReason.UNKNOWN_VERSION
    assert f"version {version}; this party speaks version {FORMAT_VERSION}: upgrade" in str(error)


def test_unknown_kind_has_a_reason_of_its_own() -> None:
    error = refusal_of(frame_of(header_with(kind="x" * 1000)))

    assert error.reason is RejectReason.UNKNOWN_KIND
    assert len(str(error)) < 100


BAD_HEADERS = {
    "unknown field": header_with(colour="red"),
    "missing field": header_with(sender=None),
    "number as text": header_with(round="1"),
    "fraction": header_with(round=1.5),
    "boolean": header_with(round=True),
    "negative round": header_with(round=-1),
    "round too large": header_with(round=2**31),
    "short run": header_with(run="0" * 63),
    "upper-case run": header_with(run="A" * 64),
    "run with newline": header_with(run="0" * 64 + "\n"),
    "path as sender": header_with(sender="../etc"),
    "empty sender": header_with(sender=""),
    "long recipient": header_with(recipient="a" * 41),
    "path as phase": header_with(phase="a/b"),
    "long phase": header_with(phase="a" * 33),
    "message id": header_with(message_id="0"),
    "list": b"[]",
    "null": b"null",
    "empty": b"",
    "not UTF-8": b'{"kind": "\xff"}',
    "lone surrogate": b'{"kind": "\\ud800"}',
    "nested too deep": b"[" * 100_000,
    "huge number": b'{"round": ' + b"9" * 5000 + b"}",
}


BAD_BODIES: dict[str, tuple[str, str]] = {
    "unknown field": ("run-ready", '{"colour": 1}'),
    "missing field": ("run-refused", "{}"),
    "wrong type": ("run-refused", '{"code": 1}'),
    "a sentence for a code": ("run-refused", '{"code": "the sum is 7"}'),
    "a sentence beside a code": ("party-failed", '{"code": "internal", "reason": "the sum is 7"}'),
    "a sentence for a vector": (
        "phase-released",
        '{"members": ["a"], "vectors": [{"name": "the sum is 7", "length": 1, "modulus": 2}], "traffic": []}',
    ),
    "unknown outcome": ("run-ended", '{"outcome": "won", "reason": ""}'),
    "unknown reject reason": ("order-refused", '{"reason": "mood"}'),
    "no members": ("close-phase", '{"members": [], "receipts": []}'),
    "member with a path": ("close-phase", '{"members": ["../x"], "receipts": []}'),
    "NaN": ("round-scored", '{"scores": [{"name": "loss", "value": NaN}], "traffic": []}'),
    "infinity": ("round-scored", '{"scores": [{"name": "loss", "value": Infinity}], "traffic": []}'),
    "a time": ("round-dropped", '{"training_s": 1, "traffic": []}'),
    "a sentence for a metric": ("round-scored", '{"scores": [{"name": "the sum\\n", "value": 1}], "traffic": []}'),
    "number that no float holds": (
        "round-scored",
        f'{{"scores": [{{"name": "loss", "value": {10**400}}}], "traffic": []}}',
    ),
    "broken JSON": ("run-ready", "{"),
    "a bad manifest": (
        "run-proposed",
        json.dumps({"manifest": {**SAMPLES["run-proposed"]["manifest"], "rho": 0}}),
    ),
}


def test_a_bad_header_or_body_is_malformed(subtests: pytest.Subtests) -> None:
    frames = {name: ("header", frame_of(header)) for name, header in BAD_HEADERS.items()}
    for name, (kind, body) in BAD_BODIES.items():
        frames[f"body: {name}"] = f"body of {kind}", frame_of(header_with(kind=kind), body.encode())
    for name, (part, frame) in frames.items():
        with subtests.test(name):
            error = refusal_of(frame)

            assert error.reason is RejectReason.MALFORMED
            assert str(error).startswith(f"the {part} is not valid: ")


def changed(kind: str, path: str, value: object) -> bytes:
    """The sample of a kind, well but for one field; `path` leads to it."""
    body = copy.deepcopy(SAMPLES[kind])
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
    inner: Any = body
    for step in steps:
        inner = inner[step]
    inner[last] = value
    return frame_of(header_with(kind=kind), json.dumps(body).encode())


VECTOR = {"name": "signs", "length": 1, "modulus": 11}
BAD_FIELDS: list[tuple[str, str, object]] = [
    ("share-chunk", "vectors", []),
    ("share-chunk", "vectors", [VECTOR] * 9),
    ("share-chunk", "set_id", "../x"),
    ("share-chunk", "index", -1),
    ("share-chunk", "weight", 0),
    ("share-chunk", "transcript", "7a" * 31),
    ("share-chunk", "transcript", "7A" * 32),
    ("share-chunk", "transcript", None),
    ("share-chunk", "vectors.0.length", -1),
    ("share-chunk", "vectors.0.length", 2**40),
    ("share-chunk", "vectors.0.modulus", 1),
    ("share-chunk", "vectors.0.modulus", 2**32 + 1),
    ("share-chunk", "vectors.0.modulus", 2**64 - 1),
    ("share-chunk", "vectors.0.modulus", 2**64 + 1),
    ("share-chunk", "vectors.0.modulus", 11.0),
    ("share-chunk", "vectors.0.colour", "red"),
    ("sum-chunk", "members", []),
    ("sum-chunk", "wrapped_key", "3b" * 47),
    ("sum-chunk", "wrapped_key", "3b" * 2049),
    ("sum-chunk", "wrapped_key", "3b" * 80 + "3"),
    ("sum-chunk", "wrapped_key", "3B" * 80),
    ("run-joined", "run_key.party", "../x"),
    ("run-joined", "run_key.public_key", "00" * 31),
    ("run-joined", "run_key.public_key", "00" * 1217),
    ("run-joined", "run_key.public_key", "0" * 65),
    ("run-joined", "run_key.signature", "00" * 63),
    ("run-joined", "run_key.signature", "0x" + "00" * 63),
    ("run-joined", "run_key.kem", "x25519"),
    ("run-keys", "keys.0.signature", ""),
    ("run-keys", "keys", [{"party": "a", "public_key": "00" * 32, "signature": "00" * 64}] * 4097),
    ("group-confirmed", "confirmation", "c0" * 33),
    ("group-contribution", "part", "00" * 32),
    ("close-phase", "receipts.0.signature", "00" * 65),
    ("close-phase", "receipts.0.receipt.transcript", ""),
    ("close-phase", "receipts.0.receipt.set_id", "5e"),
    ("set-received", "receipt.receipt.aggregator", "Aggregator"),
    ("set-received", "receipt.receipt.vectors", []),
    ("snapshot-requested", "after", -2),
    ("snapshot-requested", "giver", "../x"),
    ("model-vouched", "vouchers", []),
    ("model-vouched", "vouchers", [{"round": 1, "released": 0, "model_hmac": "4d" * 32}] * 65),
    ("model-vouched", "vouchers.0.round", 0),
    ("model-vouched", "vouchers.0.released", -1),
    ("model-vouched", "vouchers.0.model_hmac", "4d" * 16),
    ("snapshot-chunk", "index", -1),
]


def test_a_bad_field_is_malformed_and_named(subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        assert decode(frame_of(header_with(kind=kind), json.dumps(SAMPLES[kind]).encode())).kind == kind
    for kind, path, value in BAD_FIELDS:
        with subtests.test(kind=kind, path=path, value=value):
            error = refusal_of(changed(kind, path, value))

            assert error.reason is RejectReason.MALFORMED
            assert str(error).startswith(f"the body of {kind} is not valid: {path}: ")
    receipt = SAMPLES["set-received"]["receipt"]["receipt"]
    assert "signature" in str(refusal_of(changed("set-received", "receipt", receipt)))
    decode(changed("share-chunk", "vectors", [VECTOR] * 8))


@pytest.mark.parametrize("kem", Kem)
def test_keys_and_seals_of_either_kem_fit_into_their_fields(kem: Kem) -> None:
    public = SealingKey.generate(kem).public
    wrapped = seal(kem, public, ChunkKey.fresh().to_bytes(), b"")

    decode(changed("run-joined", "run_key.public_key", public.hex()))
    decode(changed("sum-chunk", "wrapped_key", wrapped.hex()))


def test_a_refusal_stays_one_short_line_whatever_the_sender_wrote() -> None:
    fields = {f"{'x' * 10_000}\n{number}": number for number in range(100)}

    text = str(refusal_of(frame_of(header_with(kind="run-ready"), json.dumps(fields).encode())))

    assert "\n" not in text
    assert len(text) < 1_000
    assert "and 95 more" in text


# Damage ---------------------------------------------------------------------------------------------------


def check_damaged(frame: bytes) -> None:
    """Damaged bytes are refused or are an envelope that can be sent; nothing else may happen."""
    try:
        envelope = decode(frame)
    except MalformedMessage:
        return
    assert decode(encode(envelope)) == envelope


def test_no_single_flipped_bit_does_more_than_refuse() -> None:
    for bit in range(8 * len(FRAME)):
        damaged = bytearray(FRAME)
        damaged[bit // 8] ^= 1 << bit % 8
        check_damaged(bytes(damaged))


def test_no_random_damage_does_more_than_refuse() -> None:
    chance = random.Random(0)
    frames = [encode(make_envelope(body, sender=CLIENT, recipient=COORDINATOR)) for body in BODIES]
    for _ in range(2_000):
        damaged = bytearray(chance.choice(frames))
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(damaged))
            match chance.randrange(4):
                case 0:
                    damaged[place] = chance.randrange(256)
                case 1:
                    del damaged[place : place + chance.randint(1, 8)]
                case 2:
                    damaged[place:place] = chance.randbytes(chance.randint(1, 8))
                case 3:
                    damaged[place:place] = damaged[chance.randrange(len(damaged)) :][:20]
            damaged = damaged or bytearray(b"\0")
        check_damaged(bytes(damaged))


@given(head=st.binary(max_size=100), body=st.binary(max_size=100))
def test_any_bytes_as_header_and_body_are_refused(head: bytes, body: bytes) -> None:
    refusal_of(frame_of(head, body))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_any_json_in_the_fields_of_a_body_is_refused_or_an_envelope(kind: str, data: st.DataObject) -> None:
    names = sorted(KINDS[kind].model_fields)
    body = {name: data.draw(JSON, label=name) for name in names}

    check_damaged(frame_of(header_with(kind=kind), json.dumps(body).encode()))


# Printing -------------------------------------------------------------------------------------------------


def test_payload_and_signature_are_never_printed() -> None:
    envelope = small_envelope(payload=b"PAYLOAD-SECRET", signature=b"SIGNATURE-BYTES")

    for text in (repr(envelope), str(envelope), f"{envelope}", f"{[envelope]}"):
        assert "SECRET" not in text
        assert "SIGNATURE" not in text
        assert "14 bytes of payload" in text
        assert "share-chunk client-1 -> aggregator-1" in text
