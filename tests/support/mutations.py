"""Messages that somebody has tampered with: at random, and the same again for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from hubbub.errors import PeerError
from hubbub.messages import codec
from hubbub.messages.codec import MAGIC, PREFIX, covered
from hubbub.messages.envelope import FORMAT_VERSION
from hubbub.messages.wire_form import Directory
from hubbub.runtime.publisher import DOMAIN
from hubbub_local.federation import Parties
from support.frames import decode, directory_of, read_head

PAYLOAD_BYTES, BODY = 6, 7
"""Places in a frame's head."""
STRANGE_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**53, 2**63, 2**64 - 1, 0.5, -0.0, 1e308)
STRANGE_TEXTS = (
    *("", "-", "client-1", "aggregator-1", "coordinator", "signs", "union"),
    *("0" * 64, "ff" * 16, "\x00", "é" * 50),
)


class Mutator:
    """Changes frames; `corpus` is what it takes parts of other messages from."""

    def __init__(self, seed: int, corpus: Sequence[bytes]) -> None:
        self._random = random.Random(seed)
        self._corpus = corpus
        self._real = frozenset(corpus)

    def pick(self) -> bytes:
        return self._random.choice(self._corpus)

    # Bytes ----------------------------------------------------------------------------------------------

    def damage(self, frame: bytes) -> bytes:
        """Change some bytes; the result is never a message that was really sent."""
        ways: tuple[Callable[[bytearray], None], ...] = (
            *(self._flip_a_bit,) * 4,
            self._overwrite,
            self._insert,
            self._delete,
            self._truncate,
            self._splice,
            self._change_a_length,
        )
        changed = bytearray(frame)
        while bytes(changed) == frame or bytes(changed) in self._real:
            for _ in range(self._random.choice((1, 1, 1, 2, 5))):
                self._random.choice(ways)(changed)
        return bytes(changed)

    def _place(self, changed: bytearray) -> int:
        """Anywhere, but half of the time in the part that is parsed."""
        end = len(changed) if self._random.random() < 0.5 else min(len(changed), 600)
        return self._random.randrange(max(1, end))

    def _flip_a_bit(self, changed: bytearray) -> None:
        if changed:
            changed[self._place(changed)] ^= 1 << self._random.randrange(8)

    def _overwrite(self, changed: bytearray) -> None:
        start = self._place(changed)
        changed[start : start + 4] = self._random.randbytes(4)

    def _insert(self, changed: bytearray) -> None:
        start = self._place(changed)
        changed[start:start] = self._random.randbytes(self._random.randrange(1, 9))

    def _delete(self, changed: bytearray) -> None:
        start = self._place(changed)
        del changed[start : start + self._random.randrange(1, 9)]

    def _truncate(self, changed: bytearray) -> None:
        del changed[self._random.randrange(len(changed) + 1) :]

    def _splice(self, changed: bytearray) -> None:
        other, cut = self.pick(), self._place(changed)
        changed[cut:] = other[cut:]

    def _change_a_length(self, changed: bytearray) -> None:
        start = self._random.choice((4, 6, 8))
        changed[start : start + 2] = self._random.randbytes(2)

    # What a party of the roster could say ---------------------------------------------------------------

    def rephrase(self, frame: bytes, parties: Parties) -> bytes:
        """Change values of header, body or payload, and sign the result as the sender that it names."""
        original = decode(frame)
        head, payload = read_head(frame), original.payload
        for _ in range(self._random.choice((1, 1, 2, 3))):
            choice = self._random.random()
            if choice < 0.55:
                head[BODY] = self._change_value(head[BODY])
            elif choice < 0.8:
                place = self._random.randrange(BODY)
                head[place] = self._change_value(head[place])
            else:
                payload = self.damage(payload) if payload else self._random.randbytes(40)
                head[PAYLOAD_BYTES] = len(payload)
        return _sign(head, payload, parties, directory_of(original.run))

    def _change_value(self, value: Any) -> Any:
        """Change one leaf, or drop, repeat or add something on the way to it."""
        if isinstance(value, dict) and value:
            name = self._random.choice(sorted(value))
            if self._random.random() < 0.1:
                return {key: each for key, each in value.items() if key != name}
            return {**value, name: self._change_value(value[name])}
        if isinstance(value, list) and value:
            place = self._random.randrange(len(value))
            if self._random.random() < 0.3:
                return self._random.choice((value[:place], value + value[:1], value[::-1], []))
            return [*value[:place], self._change_value(value[place]), *value[place + 1 :]]
        return self._make_strange(value)

    def _make_strange(self, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._random.choice((*STRANGE_NUMBERS, value + 1, value - 1))
        if isinstance(value, bytes) and value:
            return self.damage(value)
        if isinstance(value, str) and value and self._random.random() < 0.5:
            place = self._random.randrange(len(value))
            return value[:place] + self._random.choice("0a9f-z ") + value[place + 1 :]
        return self._random.choice((*STRANGE_TEXTS, None, [], {}, True, 3))


def _sign(head: Any, payload: bytes, parties: Parties, directory: Directory) -> bytes:
    """Write a frame with this head, signed by the party whose number it gives for its sender."""
    encoded = msgspec.msgpack.encode(head)
    unsigned = PREFIX.pack(MAGIC, FORMAT_VERSION, len(encoded)) + encoded
    signature = bytes(64)
    with suppress(PeerError):
        envelope = codec.decode(unsigned + payload, directory)
        if envelope.sender in parties.identities:
            signature = parties.identities[envelope.sender].key.sign(DOMAIN, covered(unsigned, envelope))
    return unsigned + payload + signature
