import copy
import hashlib
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.sealing import ChunkKey, Kem, SealingKey, seal
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, RunId
from hubbub.messages.codec import (
    HEAD_FIELDS,
    KINDS,
    MAGIC,
    MAX_HEAD_BYTES,
    PREFIX,
    SIGNATURE_BYTES,
    covered,
    decode,
    encode,
    encode_signed,
    signed_part,
)
from hubbub.messages.envelope import COORDINATOR as COORDINATOR_ALONE
from hubbub.messages.envelope import FORMAT_VERSION, Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase
from hubbub.messages.runs import RunEnded
from hubbub.messages.shares import ShareChunk
from hubbub.messages.wire_form import Directory
from support.builders import SET_ID, TRANSCRIPT, make_bodies, make_envelope, make_manifest, make_receipt
from support.frames import read_head
from support.parties import COORDINATOR, roster_of, sign_receipts

MANIFEST = make_manifest()
BODIES = make_bodies(MANIFEST)
CLIENT, SERVERS = MANIFEST.clients[0], MANIFEST.aggregators
DIRECTORY = roster_of(MANIFEST).directory(MANIFEST.run_id)
PARTIES = [party.name for party in roster_of(MANIFEST).parties]
KIND, RUN, ROUND, PHASE, SENDER, RECIPIENT, PAYLOAD_BYTES, BODY = range(HEAD_FIELDS)

ENVELOPES = st.builds(
    Envelope,
    run=st.just(MANIFEST.run_id),
    round=st.integers(0, 2**31 - 1),
    phase=st.text("abcdefghijklmnopqrstuvwxyz-", max_size=32),
    sender=st.sampled_from(PARTIES),
    recipient=st.sampled_from(PARTIES),
    body=st.sampled_from(BODIES) | st.builds(RunEnded, reason=st.text()),
    payload=st.binary(max_size=200),
    signature=st.just(b"") | st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES),
)


def envelope_of(kind: str) -> Envelope:
    body = next(body for body in BODIES if body.kind == kind)
    return make_envelope(body, sender=CLIENT, recipient=COORDINATOR, manifest=MANIFEST)


def small_envelope(payload: bytes = b"\x01\x02", signature: bytes = b"") -> Envelope:
    body = next(body for body in BODIES if isinstance(body, ShareChunk))
    return make_envelope(
        body,
        sender=CLIENT,
        recipient=PartyId("aggregator-1"),
        manifest=MANIFEST,
        phase="signs",
        payload=payload,
        signature=signature,
    )


FRAME = encode(small_envelope(), DIRECTORY)


def frame_of(head: object, rest: bytes = b"", version: int = FORMAT_VERSION) -> bytes:
    """Put a frame together by hand; the head is encoded unless it is bytes."""
    encoded = head if isinstance(head, bytes) else msgspec.msgpack.encode(head)
    return PREFIX.pack(MAGIC, version, len(encoded)) + encoded + rest


def head_with(kind: str = "run-ready", **changes: object) -> list[Any]:
    """The head of a sample of this kind, with other values in some places."""
    head = read_head(encode(envelope_of(kind), DIRECTORY))
    for name, value in changes.items():
        head[globals()[name]] = value
    return head


def refusal_of(frame: bytes) -> PeerError:
    with pytest.raises(PeerError) as caught:
        decode(frame, DIRECTORY)
    return caught.value


def test_every_kind_comes_back_as_it_was() -> None:
    assert {body.kind for body in BODIES} == set(KINDS)
    for body in BODIES:
        envelope = make_envelope(body, sender=CLIENT, recipient=COORDINATOR, manifest=MANIFEST)

        again = decode(encode(envelope, DIRECTORY), DIRECTORY)

        assert again == envelope
        assert type(again.body) is type(body)


@given(envelope=ENVELOPES)
def test_any_envelope_comes_back_as_it_was_and_its_signature_covers_all_but_itself(envelope: Envelope) -> None:
    def sign(text: bytes) -> bytes:
        assert text == signed_part(envelope, DIRECTORY)
        return envelope.signature

    frame = encode(envelope, DIRECTORY)

    assert decode(frame, DIRECTORY) == envelope
    assert frame.endswith(envelope.payload + envelope.signature), "the payload travels as the bytes it is"
    assert encode_signed(envelope, DIRECTORY, sign) == frame
    head = frame.removesuffix(envelope.payload + envelope.signature)
    names = f"{envelope.run}{envelope.sender}\0{envelope.recipient}".encode()
    assert signed_part(envelope, DIRECTORY) == head + hashlib.sha256(envelope.payload).digest() + names
    assert covered(frame, envelope) == signed_part(envelope, DIRECTORY)


def test_every_field_of_the_envelope_is_signed() -> None:
    envelope = small_envelope()
    changed = [
        replace(envelope, run=RunId("f" * 64)),
        # The frame is the same: only what is signed holds the whole id.
        replace(envelope, run=RunId(envelope.run[:16] + "0" * 48)),
        replace(envelope, round=9),
        replace(envelope, phase="union"),
        replace(envelope, sender=PartyId("client-2")),
        replace(envelope, recipient=PartyId("aggregator-2")),
        replace(envelope, body=BODIES[1]),
        replace(envelope, payload=b"\x01\x03"),
    ]

    assert len({signed_part(each, DIRECTORY) for each in (envelope, *changed)}) == 1 + len(changed)


def test_before_the_first_round_parties_of_different_rosters_can_read_each_other() -> None:
    envelope = replace(envelope_of("run-refused"), round=0)

    read = decode(encode(envelope, DIRECTORY), Directory([], [MANIFEST.run_id]))

    assert read == envelope


@pytest.mark.parametrize("name", ["../etc", "", "a" * 41, "client-1\n", 2, None, b"client-1"], ids=str)
def test_before_the_first_round_a_name_that_is_none_is_malformed(name: object) -> None:
    for head in (
        head_with(ROUND=0, SENDER=name, RECIPIENT="coordinator"),
        head_with(ROUND=0, SENDER="client-1", RECIPIENT=name),
    ):
        assert refusal_of(frame_of(head)).reason is RejectReason.MALFORMED


def test_with_another_roster_a_frame_names_others_and_needs_another_signature() -> None:
    fewer = Directory(sorted({*PARTIES, PartyId("aaa")}), [MANIFEST.run_id])

    read = decode(FRAME, fewer)

    assert read.sender != CLIENT
    assert covered(FRAME, read) != covered(FRAME, small_envelope())


# Runs and parties by their short names --------------------------------------------------------------------


def test_a_coordinator_names_its_run_in_full_and_everybody_else_by_its_first_bytes() -> None:
    nobodys = Directory(PARTIES)
    for body in BODIES:
        frame = encode(make_envelope(body, sender=CLIENT, recipient=COORDINATOR, manifest=MANIFEST), DIRECTORY)
        if body.senders == COORDINATOR_ALONE:
            assert decode(frame, nobodys).run == MANIFEST.run_id
        else:
            with pytest.raises(PeerError, match=f"begins with {MANIFEST.run_id[:16]}") as caught:
                decode(frame, nobodys)
            assert caught.value.reason is RejectReason.UNKNOWN_RUN


def test_two_runs_of_one_short_name_are_not_both_known() -> None:
    directory = Directory(PARTIES, [MANIFEST.run_id, MANIFEST.run_id])

    with pytest.raises(PeerError, match="draw up another manifest") as caught:
        directory.add_run(RunId(MANIFEST.run_id[:16] + "0" * 48))

    assert caught.value.reason is RejectReason.CONTRADICTION
    assert directory.find_run(bytes.fromhex(MANIFEST.run_id[:16])) == MANIFEST.run_id


def test_nobody_can_write_to_or_of_a_party_that_is_not_in_the_roster() -> None:
    with pytest.raises(LocalError, match="mallory is not in the roster"):
        encode(replace(small_envelope(), recipient=PartyId("mallory")), DIRECTORY)


@pytest.mark.parametrize("number", [len(PARTIES), -1, 2**63, True, None, "client-1", 1.0, [], {}], ids=str)
def test_a_number_that_is_nobodys_is_refused(number: object) -> None:
    assert refusal_of(frame_of(head_with(SENDER=number))).reason is RejectReason.NOT_IN_ROSTER
    assert refusal_of(frame_of(head_with(RECIPIENT=number))).reason is RejectReason.WRONG_RECIPIENT
    members = head_with("phase-released")
    members[BODY][0] = [number]
    assert refusal_of(frame_of(members)).reason is RejectReason.NOT_IN_ROSTER


# Frames that are none ---------------------------------------------------------------------------------


BAD_FRAMES: dict[str, tuple[bytes, str]] = {
    "a byte left over": (FRAME + b"\0", "1 bytes follow the payload"),
    "a frame left over": (FRAME + FRAME, f"{len(FRAME)} bytes follow the payload"),
    "other magic": (b"HTTP" + FRAME[4:], "magic"),
    "a huge head": (PREFIX.pack(MAGIC, FORMAT_VERSION, 2**32 - 1), f"is over {MAX_HEAD_BYTES}"),
    "a long head": (frame_of(b" " * (MAX_HEAD_BYTES + 1)), f"is over {MAX_HEAD_BYTES}"),
    "a huge payload": (frame_of(head_with(PAYLOAD_BYTES=2**31 - 1)), "truncated"),
    **{f"cut off after {length} bytes": (FRAME[:length], "") for length in range(len(FRAME))},
}


def test_bytes_that_are_not_one_frame_are_malformed(subtests: pytest.Subtests) -> None:
    for name, (frame, complaint) in BAD_FRAMES.items():
        with subtests.test(name):
            error = refusal_of(frame)

            assert error.reason is RejectReason.MALFORMED
            assert complaint in str(error)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 5, 256, 2**16 - 1])
def test_unknown_version_says_which_and_what_to_do(version: int) -> None:
    error = refusal_of(MAGIC + version.to_bytes(2, "big") + FRAME[6:])

    assert error.reason is RejectReason.UNKNOWN_VERSION
    assert f"version {version}; this party speaks version {FORMAT_VERSION}: upgrade" in str(error)


@pytest.mark.parametrize("kind", [len(KINDS), -1, 2**63, True, None, "run-ready", "x" * 1000, [], {}])
def test_unknown_kind_has_a_reason_of_its_own(kind: object) -> None:
    error = refusal_of(frame_of(head_with(KIND=kind)))

    assert error.reason is RejectReason.UNKNOWN_KIND
    assert len(str(error)) < 100


HEAD = head_with()
BAD_HEADS: dict[str, object] = {
    "a field too many": [*HEAD, 0],
    "a field missing": HEAD[:-1],
    "round as text": head_with(ROUND="1"),
    "fraction": head_with(ROUND=1.5),
    "boolean": head_with(ROUND=True),
    "negative round": head_with(ROUND=-1),
    "round too large": head_with(ROUND=2**31),
    "short run": head_with(RUN=bytes(7)),
    "the whole run": head_with(RUN=bytes.fromhex(MANIFEST.run_id)),
    "a short run of a coordinator": head_with("run-ended", RUN=bytes.fromhex(MANIFEST.run_id[:16])),
    "run as text": head_with(RUN=MANIFEST.run_id[:8]),
    "path as phase": head_with(PHASE="a/b"),
    "long phase": head_with(PHASE="a" * 33),
    "phase with newline": head_with(PHASE="signs\n"),
    "negative payload": head_with(PAYLOAD_BYTES=-1),
    "map": {},
    "nil": None,
    "empty": b"",
    "not UTF-8": b"\x98\x00\xa1\xff",
    "a lone extension": b"\xd4\x05\x00",
    "nested too deep": b"\x91" * 100_000,
    "bytes behind the array": msgspec.msgpack.encode(HEAD) + b"\0",
}


def test_a_bad_head_is_malformed(subtests: pytest.Subtests) -> None:
    for name, head in BAD_HEADS.items():
        with subtests.test(name):
            assert refusal_of(frame_of(head)).reason is RejectReason.MALFORMED


def changed(kind: str, path: tuple[int, ...], value: object) -> bytes:
    """A frame of the kind's sample, well but for one field of its body; `path` leads to it."""
    head = copy.deepcopy(head_with(kind))
    *steps, last = path
    inner = head[BODY]
    for step in steps:
        inner = inner[step]
    inner[last] = value
    return frame_of(head)


VECTOR = ["signs", 1, 11]
BAD_FIELDS: list[tuple[str, tuple[int, ...], object, str]] = [
    ("run-refused", (0,), 1, "code"),
    ("run-refused", (0,), "the sum is 7", "code"),
    ("run-refused", (0,), [], "code"),
    ("run-ended", (0,), "won", "outcome"),
    ("order-refused", (0,), "mood", "reason"),
    ("close-phase", (0,), [], "members"),
    ("close-phase", (0,), 3, "members"),
    ("phase-released", (1, 0, 0), "the sum is 7", "vectors.0.name"),
    ("round-scored", (0, 0, 1), float("nan"), "scores.0.value"),
    ("round-scored", (0, 0, 1), float("inf"), "scores.0.value"),
    ("round-scored", (0, 0, 0), "the sum\n", "scores.0.name"),
    ("run-proposed", (0,), b'{"rho": 0}', ""),
    ("run-proposed", (0,), b"{", ""),
    ("run-proposed", (0,), 7, "manifest"),
    ("share-chunk", (1,), [], "vectors"),
    ("share-chunk", (1,), [VECTOR] * 9, "vectors"),
    ("share-chunk", (0,), bytes(15), "set_id"),
    ("share-chunk", (0,), "5e" * 16, "set_id"),
    ("share-chunk", (4,), -1, "index"),
    ("share-chunk", (2,), 0, "weight"),
    ("share-chunk", (3,), bytes(31), "transcript"),
    ("share-chunk", (3,), "7a" * 32, "transcript"),
    ("share-chunk", (3,), None, "transcript"),
    ("share-chunk", (1, 0, 1), -1, "vectors.0.length"),
    ("share-chunk", (1, 0, 1), 2**40, "vectors.0.length"),
    ("share-chunk", (1, 0, 2), 1, "vectors.0.modulus"),
    ("share-chunk", (1, 0, 2), 2**32 + 1, "vectors.0.modulus"),
    ("share-chunk", (1, 0, 2), 2**64 - 1, "vectors.0.modulus"),
    ("share-chunk", (1, 0, 2), 11.0, "vectors.0.modulus"),
    ("sum-chunk", (0,), [], "members"),
    ("sum-chunk", (4,), bytes(47), "wrapped_key"),
    ("sum-chunk", (4,), bytes(2049), "wrapped_key"),
    ("run-joined", (0, 1), bytes(31), "run_key.public_key"),
    ("run-joined", (0, 1), bytes(1217), "run_key.public_key"),
    ("run-joined", (0, 2), bytes(63), "run_key.signature"),
    ("run-keys", (0, 0, 2), b"", "keys.0.signature"),
    ("run-keys", (0,), [[0, bytes(32), bytes(64)]] * 4097, "keys"),
    ("group-confirmed", (0,), bytes(33), "confirmation"),
    ("close-phase", (1, 4, 0), bytes(65), "receipts.0.signature"),
    ("close-phase", (1, 3, 0), b"", "receipts.0.receipt.transcript"),
    ("close-phase", (1, 1, 0, 0, 1), bytes(1), "receipts.0.receipt.sets.0.set_id"),
    ("close-phase", (1, 1, 0), [[0, bytes(16)], [0, bytes(16)]], "receipts.0.receipt.sets"),
    ("set-received", (0, 0, 1), [], "receipt.receipt.sets"),
    ("set-received", (0, 0, 1), [[0, bytes(16)], [1, bytes(16)], [0, b"f" * 16]], "receipt.receipt.sets"),
    ("set-received", (0, 0, 2), [], "receipt.receipt.vectors"),
    ("snapshot-requested", (0,), -2, "after"),
    ("model-vouched", (0,), [], "vouchers"),
    ("model-vouched", (0,), [[1, 0, bytes(32)]] * 65, "vouchers"),
    ("model-vouched", (0, 0, 0), 0, "vouchers.0.round"),
    ("model-vouched", (0, 0, 1), -1, "vouchers.0.released"),
    ("model-vouched", (0, 0, 2), bytes(16), "vouchers.0.model_hmac"),
    ("snapshot-chunk", (0,), -1, "index"),
]


def test_a_bad_field_is_malformed_and_named(subtests: pytest.Subtests) -> None:
    for kind, path, value, name in BAD_FIELDS:
        with subtests.test(kind=kind, path=path, value=str(value)[:40]):
            error = refusal_of(changed(kind, path, value))

            assert error.reason is RejectReason.MALFORMED
            assert str(error).startswith(f"the body of {kind} is not valid: {name}")
    decode(changed("share-chunk", (1,), [VECTOR] * 8), DIRECTORY)


def test_a_body_has_exactly_the_fields_of_its_kind(subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        body = head_with(kind)[BODY]
        wrong_bodies: tuple[object, ...] = ([*body, "a sentence"], body[:-1], {}, None)
        for wrong in wrong_bodies:
            if wrong != body:
                with subtests.test(kind=kind, body=str(wrong)[:40]):
                    assert refusal_of(frame_of(head_with(kind, BODY=wrong))).reason is RejectReason.MALFORMED


def test_a_manifest_travels_in_its_canonical_form_alone() -> None:
    text = MANIFEST.canonical
    loose = text.replace(b'"task":', b'"task": ')
    assert Manifest.model_validate_json(loose) == MANIFEST

    decode(changed("run-proposed", (0,), text), DIRECTORY)
    assert "is not encoded as this version" in str(refusal_of(changed("run-proposed", (0,), loose)))


def test_an_order_sends_what_its_receipts_have_in_common_once() -> None:
    sets = dict.fromkeys(MANIFEST.clients, SET_ID)
    receipts = sign_receipts(MANIFEST, [make_receipt(MANIFEST, aggregator=each, sets=sets) for each in SERVERS])
    odd = sign_receipts(MANIFEST, [make_receipt(MANIFEST, transcript="0" * 64)])
    sizes = []
    for shown in ((), receipts[:1], receipts[:1] * 3, receipts, (*receipts, *odd)):
        body = ClosePhase(members=MANIFEST.clients, receipts=shown)
        envelope = make_envelope(body, sender=COORDINATOR, recipient=SERVERS[0], manifest=MANIFEST)

        frame = encode(envelope, DIRECTORY)

        assert decode(frame, DIRECTORY) == envelope
        sizes.append((frame.count(bytes.fromhex(TRANSCRIPT)), frame.count(bytes.fromhex(SET_ID))))
    count, clients = len(receipts), len(MANIFEST.clients)
    assert sizes == [(0, 0), *[(1, clients)] * 3, (count, count * clients + 1)]


COLUMNS = head_with("close-phase")[BODY][1]
BAD_TABLES: dict[str, object] = {
    "a column missing": COLUMNS[:-1],
    "a column too many": [*COLUMNS, [0]],
    "a column that is none": [7, *COLUMNS[1:]],
    "a short column": [COLUMNS[0] * 3, COLUMNS[1] * 2, *COLUMNS[2:]],
    "a longer column": [COLUMNS[0], COLUMNS[1] * 2, *COLUMNS[2:]],
    "an empty column": [COLUMNS[0], [], *COLUMNS[2:]],
    "no rows, and values": [[], *COLUMNS[1:]],
    "equal values, not as one": [COLUMNS[0] * 2, COLUMNS[1] * 2, *COLUMNS[2:]],
}


@pytest.mark.parametrize("table", BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_bad_table_of_receipts_is_malformed(table: object) -> None:
    assert refusal_of(changed("close-phase", (1,), table)).reason is RejectReason.MALFORMED


def test_the_ring_of_64_bit_words_fits_into_its_field() -> None:
    envelope = small_envelope()
    body = envelope.body.model_copy(update={"vectors": envelope.body.vectors[-1:]})  # type: ignore[attr-defined]
    assert body.vectors[0].modulus == 2**64  # type: ignore[attr-defined]

    assert decode(encode(replace(envelope, body=body), DIRECTORY), DIRECTORY).body == body


@pytest.mark.parametrize("kem", Kem)
def test_keys_and_seals_of_either_kem_fit_into_their_fields(kem: Kem) -> None:
    public = SealingKey.generate(kem).public
    wrapped = seal(kem, public, ChunkKey.fresh().to_bytes(), b"")

    decode(changed("run-joined", (0, 1), public), DIRECTORY)
    decode(changed("sum-chunk", (4,), wrapped), DIRECTORY)


def test_a_refusal_stays_one_short_line_whatever_the_sender_wrote() -> None:
    scores = [[f"{'x' * 10_000}\n{number}", "y" * 10_000] for number in range(16)]

    text = str(refusal_of(changed("round-scored", (0,), scores)))

    assert "and 27 more" in text
    for said in (
        text,
        *(str(refusal_of(frame_of(head_with(**{name: "a\n" * 999})))) for name in ("KIND", "SENDER")),
    ):
        assert "\n" not in said
        assert len(said) < 1_000


# Damage ---------------------------------------------------------------------------------------------------


def check_damaged(frame: bytes) -> None:
    """Damaged bytes are refused or are an envelope of just these bytes; nothing else may happen."""
    try:
        envelope = decode(frame, DIRECTORY)
    except PeerError:
        return
    assert encode(envelope, DIRECTORY) == frame


def test_no_single_flipped_bit_does_more_than_refuse() -> None:
    for bit in range(8 * len(FRAME)):
        damaged = bytearray(FRAME)
        damaged[bit // 8] ^= 1 << bit % 8
        check_damaged(bytes(damaged))


def test_no_random_damage_does_more_than_refuse() -> None:
    chance = random.Random(0)
    frames = [encode(envelope_of(kind), DIRECTORY) for kind in KINDS]
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


@given(head=st.binary(max_size=100))
def test_any_bytes_as_head_are_refused(head: bytes) -> None:
    refusal_of(frame_of(head))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=10)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_any_values_in_the_fields_of_a_body_are_refused_or_an_envelope(kind: str, data: st.DataObject) -> None:
    body = [data.draw(VALUES, label=name) for name in KINDS[kind].model_fields]

    check_damaged(frame_of(head_with(kind, BODY=body)))


# Printing -------------------------------------------------------------------------------------------------


def test_payload_and_signature_are_never_printed() -> None:
    envelope = small_envelope(payload=b"PAYLOAD-SECRET", signature=b"SIGNATURE-BYTES")

    for text in (repr(envelope), str(envelope), f"{envelope}", f"{[envelope]}"):
        assert "SECRET" not in text
        assert "SIGNATURE" not in text
        assert "14 bytes of payload" in text
        assert "share-chunk client-1 -> aggregator-1" in text
