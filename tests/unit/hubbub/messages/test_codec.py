import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import MalformedMessage, RejectReason
from hubbub.ids import PARTY_ID_PATTERN, PartyId, RunId
from hubbub.messages.base import Message
from hubbub.messages.codec import KINDS, MAGIC, MAX_JSON_BYTES, PREFIX, decode, encode, signed_part
from hubbub.messages.envelope import FORMAT_VERSION, Envelope
from hubbub.messages.runs import RunRefused
from hubbub.messages.shares import ShareChunk
from support.builders import COORDINATOR, make_bodies, make_envelope, make_manifest

BODIES = make_bodies()
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
    body=st.sampled_from(BODIES) | st.builds(RunRefused, reason=st.text()),
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


def test_there_is_a_sample_of_every_kind() -> None:
    assert {body.kind for body in BODIES} == set(KINDS)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.kind)
def test_every_kind_comes_back_as_it_was(body: Message) -> None:
    envelope = make_envelope(body, sender=CLIENT, recipient=COORDINATOR)

    assert decode(encode(envelope)) == envelope
    assert type(decode(encode(envelope)).body) is type(body)


@given(envelope=ENVELOPES)
def test_any_envelope_comes_back_as_it_was(envelope: Envelope) -> None:
    assert decode(encode(envelope)) == envelope


@given(envelope=ENVELOPES)
def test_payload_travels_as_the_bytes_it_is(envelope: Envelope) -> None:
    unsigned = replace(envelope, signature=b"")

    assert encode(unsigned).endswith(envelope.payload)
    without = encode(replace(unsigned, payload=b""))
    assert len(encode(unsigned)) == len(without) + len(envelope.payload)


@given(envelope=ENVELOPES)
def test_signature_covers_all_but_itself(envelope: Envelope) -> None:
    covered = signed_part(envelope)

    assert covered == signed_part(replace(envelope, signature=b"another"))
    assert covered == encode(replace(envelope, signature=b""))
    assert len(encode(envelope)) == len(covered) + len(envelope.signature)


def test_what_is_decoded_has_the_bytes_that_were_signed() -> None:
    envelope = small_envelope(signature=b"s" * 64)

    assert signed_part(decode(encode(envelope))) == signed_part(envelope)


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


def test_every_truncation_is_malformed() -> None:
    for length in range(len(FRAME)):
        assert refusal_of(FRAME[:length]).reason is RejectReason.MALFORMED


@pytest.mark.parametrize("rest", [b"\0", b"HBUB", FRAME])
def test_bytes_left_over_are_malformed(rest: bytes) -> None:
    error = refusal_of(FRAME + rest)

    assert error.reason is RejectReason.MALFORMED
    assert f"{len(rest)} bytes are left over" in str(error)


@pytest.mark.parametrize("version", [0, 2, 256, 2**16 - 1])
def test_unknown_version_says_which_and_what_to_do(version: int) -> None:
    error = refusal_of(MAGIC + version.to_bytes(2, "big") + FRAME[6:])

    assert error.reason is RejectReason.UNKNOWN_VERSION
    assert f"version {version}; this party speaks version {FORMAT_VERSION}: upgrade" in str(error)


def test_other_magic_is_malformed_whatever_the_version() -> None:
    error = refusal_of(b"HTTP" + FRAME[4:])

    assert error.reason is RejectReason.MALFORMED
    assert "magic" in str(error)


@pytest.mark.parametrize("lengths", [(2**32 - 1, 0, 0, 0), (0, 2**32 - 1, 0, 0), (0, 0, 2**32 - 1, 2**16 - 1)])
def test_huge_lengths_are_refused_before_anything_is_allocated(lengths: tuple[int, int, int, int]) -> None:
    error = refusal_of(PREFIX.pack(MAGIC, FORMAT_VERSION, *lengths))

    assert error.reason is RejectReason.MALFORMED
    assert "truncated" in str(error)


@pytest.mark.parametrize("part", ["header", "body"])
def test_json_over_the_limit_is_refused_unread(part: str) -> None:
    spaces = b" " * (MAX_JSON_BYTES + 1)
    frame = frame_of(spaces) if part == "header" else frame_of(header_with(), spaces)

    assert f"is over {MAX_JSON_BYTES}" in str(refusal_of(frame))


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


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_bad_header_is_malformed(header: bytes) -> None:
    error = refusal_of(frame_of(header))

    assert error.reason is RejectReason.MALFORMED
    assert str(error).startswith("the header is not valid: ")


BAD_BODIES: dict[str, tuple[str, str]] = {
    "unknown field": ("run-joined", '{"colour": 1}'),
    "missing field": ("run-refused", "{}"),
    "wrong type": ("run-refused", '{"reason": 1}'),
    "unknown outcome": ("run-ended", '{"outcome": "won", "reason": ""}'),
    "unknown reject reason": ("order-refused", '{"reason": "mood", "explanation": ""}'),
    "no members": ("close-phase", '{"members": [], "receipts": []}'),
    "member with a path": ("close-phase", '{"members": ["../x"], "receipts": []}'),
    "set id with a path": ("share-chunk", '{"set_id": "../x", "vectors": [], "index": 0}'),
    "NaN": (
        "round-applied",
        '{"correct": 0, "total": 0, "loss": NaN, "training_s": 0, "evaluation_s": 0, "traffic": []}',
    ),
    "infinity": ("round-dropped", '{"training_s": Infinity, "traffic": []}'),
    "negative time": ("round-dropped", '{"training_s": -1, "traffic": []}'),
    "more right than there are": (
        "round-applied",
        '{"correct": 2, "total": 1, "loss": 0, "training_s": 0, "evaluation_s": 0, "traffic": []}',
    ),
    "number that no float holds": (
        "round-applied",
        f'{{"correct": 0, "total": {10**400}, "loss": 0, "training_s": 0, "evaluation_s": 0, "traffic": []}}',
    ),
    "broken JSON": ("run-joined", "{"),
}


@pytest.mark.parametrize(("kind", "body"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_bad_body_is_malformed(kind: str, body: str) -> None:
    error = refusal_of(frame_of(header_with(kind=kind), body.encode()))

    assert error.reason is RejectReason.MALFORMED
    assert str(error).startswith(f"the body of {kind} is not valid: ")


@pytest.mark.parametrize(
    "change",
    [
        {"length": -1},
        {"length": 2**40},
        {"modulus": 1},
        {"modulus": 2**32 + 1},
        {"modulus": 11.0},
        {"colour": "red"},
    ],
    ids=str,
)
def test_bad_vector_is_malformed(change: dict[str, object]) -> None:
    vector = {"name": "signs", "length": 1, "modulus": 11, **change}
    body = {"set_id": "0" * 32, "vectors": [vector], "index": 0}

    error = refusal_of(frame_of(header_with(kind="share-chunk"), json.dumps(body).encode()))

    assert "vectors.0" in str(error)


@pytest.mark.parametrize("count", [0, 9])
def test_a_set_has_one_to_eight_vectors(count: int) -> None:
    vector = {"name": "signs", "length": 1, "modulus": 11}
    body = {"set_id": "0" * 32, "vectors": [vector] * count, "index": 0}

    refusal_of(frame_of(header_with(kind="share-chunk"), json.dumps(body).encode()))


def test_a_refusal_stays_one_short_line_whatever_the_sender_wrote() -> None:
    fields = {f"{'x' * 10_000}\n{number}": number for number in range(100)}

    text = str(refusal_of(frame_of(header_with(), json.dumps(fields).encode())))

    assert "\n" not in text
    assert len(text) < 1_000
    assert "and 95 more" in text


def test_a_proposal_with_a_bad_manifest_is_malformed() -> None:
    manifest = json.loads(make_manifest().canonical)
    body = json.dumps({"manifest": {**manifest, "rho": 0}}).encode()

    error = refusal_of(frame_of(header_with(kind="run-proposed"), body))

    assert "rho is 0" in str(error)


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
