"""Nothing reaches a service that its sender, as the roster knows it, has not signed, byte for byte."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.codec import MAGIC, PREFIX, digest_payload, signed_part
from hubbub.messages.envelope import FORMAT_VERSION, Envelope, Message
from hubbub.messages.runs import RunProposed, RunRefused
from hubbub.messages.wire_form import shorten
from hubbub.runtime.message_checks import Refusal, admit
from hubbub.runtime.publisher import DOMAIN
from hubbub.runtime.runner import KeyedEvent
from support.builders import make_bodies, make_envelope, make_manifest
from support.frames import decode, directory_of, encode, read_head, sign
from support.parties import COORDINATOR, identity_of, make_identity, roster_of
from support.probe import CLIENT, MANIFEST, ProbeShell, State, frame_of, probe

OTHER_CLIENT = MANIFEST.clients[1]
MALLORY = PartyId("mallory")
FOR_COORDINATOR = [body for body in make_bodies(MANIFEST) if Role.COORDINATOR in body.recipients]
FRAME = frame_of(payload=b"payload")
SIGNED = decode(FRAME)
KEY = identity_of(MANIFEST, CLIENT).key
CONTENT = signed_part(SIGNED, directory_of(MANIFEST.run_id))


OTHER_RUN = make_manifest(seed=8).run_id
FENCE = b"not a frame at all"
"""Sent after what is tried: when this one is a dead letter, that one has been judged."""


async def refusal_of(frame: bytes) -> str:
    """Send a frame; it must be put aside without reaching the shell, counted and recorded. The reason is given."""
    let_in: list[Envelope] = []

    def note(envelope: Envelope) -> Sequence[KeyedEvent]:
        let_in.append(envelope)
        return []

    async with probe(ProbeShell(events=note)) as service:
        service.runner.directory.add_run(OTHER_RUN)
        await service.send_bytes(frame)
        await service.send_bytes(FENCE)
        letters = await service.dead_letters_up_to(FENCE)

        assert let_in == []
        assert [letter.body for letter in letters] == [frame, FENCE]
        reason = letters[0].reason
        assert service.recorded("refused")[0].fields["reason"] == reason
        assert service.counters.rejections(RejectReason(reason)) >= 1
    return reason


def signed_by(name: PartyId, envelope: Envelope = SIGNED) -> bytes:
    return encode(sign(make_identity(name, Role.CLIENT, name), envelope))


def with_signature(signature: bytes) -> bytes:
    return encode(replace(SIGNED, signature=signature))


async def test_what_its_sender_signed_is_let_in() -> None:
    async with probe() as service:
        await service.send_bytes(FRAME)

        assert (await service.moments.get()).after is State.BUSY


KEY = identity_of(MANIFEST, CLIENT).key
STRANGERS = {
    "a name that is not in the roster": signed_by(MALLORY, replace(SIGNED, sender=MALLORY)),
    "unsigned, too": encode(replace(SIGNED, sender=MALLORY, signature=b"")),
}
FORGERIES = {
    "not signed": with_signature(b""),
    "signed by another party of the roster": signed_by(OTHER_CLIENT),
    "signed by the recipient": signed_by(COORDINATOR),
    "signed by a party of another role": signed_by(MANIFEST.aggregators[0]),
    "signed by a stranger": signed_by(MALLORY),
    "signed for another purpose": with_signature(KEY.sign("receipt", CONTENT)),
    "signed without a purpose": with_signature(KEY.sign("", CONTENT)),
    "with zeros for a signature": with_signature(bytes(64)),
    "moved to another run": encode(replace(SIGNED, run=OTHER_RUN)),
    "moved to another round": encode(replace(SIGNED, round=2)),
    "moved to another phase": encode(replace(SIGNED, phase="union")),
    "with another sender": encode(replace(SIGNED, sender=OTHER_CLIENT)),
    "with another recipient": encode(replace(SIGNED, recipient=MANIFEST.aggregators[0])),
    "with another body": encode(replace(SIGNED, body=RunRefused(code=Code.INTERNAL))),
    "with another payload": encode(replace(SIGNED, payload=b"payment")),
    "without its payload": encode(replace(SIGNED, payload=b"")),
}
REFUSED = [
    *((name, frame, "not-in-roster") for name, frame in STRANGERS.items()),
    *((name, frame, "bad-signature") for name, frame in FORGERIES.items()),
    ("with half a signature", with_signature(SIGNED.signature[:32]), "malformed"),
    ("with a byte after the signature", with_signature(SIGNED.signature + b"\0"), "malformed"),
    # A message for another party stays its own when the broker moves it.
    ("for another party", frame_of(recipient=MANIFEST.aggregators[0]), "wrong-recipient"),
]


@pytest.mark.parametrize(("name", "frame", "reason"), REFUSED, ids=[name for name, *_ in REFUSED])
async def test_what_its_sender_in_the_roster_did_not_sign_as_it_is_for_us_is_refused(
    name: str, frame: bytes, reason: str
) -> None:
    assert await refusal_of(frame) == reason, name


# Other bytes of the same meaning ------------------------------------------------------------------------


def respell(frame: bytes, field: int, spelling: bytes) -> bytes:
    """Encode one field of a frame's head otherwise, and have the sender sign the bytes that result."""
    fields = [msgspec.msgpack.encode(each) for each in read_head(frame)]
    fields[field] = spelling
    head = bytes([0x90 + len(fields)]) + b"".join(fields)
    unsigned = PREFIX.pack(MAGIC, FORMAT_VERSION, len(head)) + head
    names = f"{MANIFEST.run_id}{CLIENT}\0{COORDINATOR}".encode()
    content = unsigned + digest_payload(b"") + names
    return unsigned + KEY.sign(DOMAIN, content)


ROUND, PHASE, PAYLOAD_BYTES = 2, 3, 6
SPELLINGS = {
    "a longer integer": (ROUND, b"\xcc\x01"),
    "the longest integer": (ROUND, b"\xcf" + (1).to_bytes(8, "big")),
    "a signed integer": (ROUND, b"\xd0\x01"),
    "a float": (ROUND, b"\xcb\x3f\xf0" + bytes(6)),
    "a longer string": (PHASE, b"\xd9\x05signs"),
    "bytes for a string": (PHASE, b"\xc4\x05signs"),
    "true for 1": (ROUND, b"\xc3"),
    "nil for 0": (PAYLOAD_BYTES, b"\xc0"),
}


@pytest.mark.parametrize(("field", "spelling"), SPELLINGS.values(), ids=SPELLINGS)
async def test_a_head_has_one_encoding_even_if_its_sender_signs_another(field: int, spelling: bytes) -> None:
    frame = frame_of()
    as_it_was = msgspec.msgpack.encode(read_head(frame)[field])
    assert respell(frame, field, as_it_was) == frame

    assert await refusal_of(respell(frame, field, spelling)) == "malformed"


def test_a_run_whose_short_name_is_taken_is_not_proposed_with_success() -> None:
    """A coordinator that finds two manifests of one short name gains nothing: the second run cannot begin."""
    proposal = make_envelope(
        RunProposed(manifest=MANIFEST), sender=COORDINATOR, recipient=CLIENT, manifest=MANIFEST, round_number=0
    )
    frame = encode(sign(identity_of(MANIFEST, COORDINATOR), proposal))
    roster = roster_of(MANIFEST)
    free, taken = roster.directory(), roster.directory(RunId(MANIFEST.run_id[:16] + "0" * 48))

    admitted, refused = (admit(identity_of(MANIFEST, CLIENT), roster, each, frame) for each in (free, taken))

    assert isinstance(admitted, Envelope)
    assert free.find_run(shorten(MANIFEST.run_id)) == MANIFEST.run_id
    assert isinstance(refused, Refusal)
    assert refused.reason is RejectReason.CONTRADICTION


# Damage -------------------------------------------------------------------------------------------------


REFUSALS = {
    *("malformed", "unknown-version", "unknown-kind", "unknown-run"),
    *("not-in-roster", "wrong-recipient", "bad-signature"),
}


@given(body=st.sampled_from(FOR_COORDINATOR), payload=st.binary(max_size=40), data=st.data())
@settings(max_examples=60)
def test_no_flipped_bit_of_any_frame_is_let_in(body: Message, payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(frame_of(body, payload=payload))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1), label="bit")
    frame[bit // 8] ^= 1 << bit % 8

    assert asyncio.run(refusal_of(bytes(frame))) in REFUSALS
