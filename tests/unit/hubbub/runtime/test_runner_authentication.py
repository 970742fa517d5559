"""Nothing reaches a service that its sender, as the roster knows it, has not signed, byte for byte."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.codec import PREFIX, decode, encode, signed_part
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.rounds import PhaseReleased
from hubbub.messages.runs import RunRefused
from hubbub.runtime.publisher import sign
from hubbub.runtime.runner import KeyedEvent
from support.builders import make_bodies, make_claims, make_manifest
from support.parties import COORDINATOR, identity_of, make_identity
from support.probe import CLIENT, MANIFEST, ProbeShell, State, frame_of, probe

OTHER_CLIENT = MANIFEST.clients[1]
MALLORY = PartyId("mallory")
FOR_COORDINATOR = [body for body in make_bodies(MANIFEST) if Role.COORDINATOR in body.recipients]
FRAME = frame_of(payload=b"payload")
SIGNED = decode(FRAME)


FENCE = b"not a frame at all"
"""Sent after what is tried: when this one is a dead letter, that one has been judged."""


async def refusal_of(frame: bytes) -> str:
    """Send a frame; it must be put aside without reaching the shell, counted and recorded. The reason is given."""
    let_in: list[Envelope] = []

    def note(envelope: Envelope) -> Sequence[KeyedEvent]:
        let_in.append(envelope)
        return []

    async with probe(ProbeShell(events=note)) as service:
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
    "signed for another purpose": with_signature(KEY.sign("receipt", signed_part(SIGNED))),
    "signed without a purpose": with_signature(KEY.sign("", signed_part(SIGNED))),
    "with the first half of the signature": with_signature(SIGNED.signature[:32]),
    "with a byte after the signature": with_signature(SIGNED.signature + b"\0"),
    "with zeros for a signature": with_signature(bytes(64)),
    "moved to another run": encode(replace(SIGNED, run=make_manifest(seed=8).run_id)),
    "moved to another round": encode(replace(SIGNED, round=2)),
    "moved to another phase": encode(replace(SIGNED, phase="union")),
    "with another sender": encode(replace(SIGNED, sender=OTHER_CLIENT)),
    "with another recipient": encode(replace(SIGNED, recipient=MANIFEST.aggregators[0])),
    "with another number": encode(replace(SIGNED, message_id="0" * 32)),
    "with another body": encode(replace(SIGNED, body=RunRefused(code=Code.INTERNAL))),
    "with another payload": encode(replace(SIGNED, payload=b"payment")),
    "without its payload": encode(replace(SIGNED, payload=b"")),
}
REFUSED = [
    *((name, frame, "not-in-roster") for name, frame in STRANGERS.items()),
    *((name, frame, "bad-signature") for name, frame in FORGERIES.items()),
    # A message for another party stays its own when the broker moves it.
    ("for another party", frame_of(recipient=MANIFEST.aggregators[0]), "wrong-recipient"),
]


@pytest.mark.parametrize(("name", "frame", "reason"), REFUSED, ids=[name for name, *_ in REFUSED])
async def test_what_its_sender_in_the_roster_did_not_sign_as_it_is_for_us_is_refused(
    name: str, frame: bytes, reason: str
) -> None:
    assert await refusal_of(frame) == reason, name


# Other bytes of the same meaning ------------------------------------------------------------------------


Spell = Callable[[object], str]


def respell(frame: bytes, *, header: Spell | None, body: Spell | None) -> bytes:
    """Write the JSON of a frame anew and keep all else, the signature too."""
    magic, version, *lengths = PREFIX.unpack_from(frame)
    head, middle = frame[PREFIX.size :][: lengths[0]], frame[PREFIX.size + lengths[0] :][: lengths[1]]
    rest = frame[PREFIX.size + lengths[0] + lengths[1] :]
    new_head = header(json.loads(head)).encode() if header else head
    new_body = body(json.loads(middle)).encode() if body else middle
    prefix = PREFIX.pack(magic, version, len(new_head), len(new_body), *lengths[2:])
    return prefix + new_head + new_body + rest


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def turned_round(value: object) -> str:
    assert isinstance(value, dict)
    return compact(dict(reversed(value.items())))


@pytest.mark.parametrize("part", ["header", "body"])
@pytest.mark.parametrize("spell", [json.dumps, turned_round], ids=["spaces", "other order"])
async def test_json_that_is_spelt_otherwise_needs_another_signature(part: str, spell: Spell) -> None:
    body = PhaseReleased(members=(CLIENT,), vectors=make_claims(MANIFEST), traffic=())
    frame = frame_of(body)
    assert respell(frame, header=compact, body=compact) == frame

    respelt = respell(frame, **{"header": None, "body": None, part: spell})

    assert respelt != frame
    assert decode(respelt) == decode(frame)
    assert await refusal_of(respelt) == "bad-signature"


# Damage -------------------------------------------------------------------------------------------------


REFUSALS = {"malformed", "unknown-version", "unknown-kind", "not-in-roster", "bad-signature"}


@given(body=st.sampled_from(FOR_COORDINATOR), payload=st.binary(max_size=40), data=st.data())
@settings(max_examples=60)
def test_no_flipped_bit_of_any_frame_is_let_in(body: Message, payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(frame_of(body, payload=payload))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1), label="bit")
    frame[bit // 8] ^= 1 << bit % 8

    assert asyncio.run(refusal_of(bytes(frame))) in REFUSALS
