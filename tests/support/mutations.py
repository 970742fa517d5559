"""Messages that somebody has tampered with: at random, and the same again for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from hubbub.ids import PartyId
from hubbub.messages.codec import MAGIC, PREFIX, covered
from hubbub.messages.envelope import FORMAT_VERSION
from hubbub.runtime.publisher import DOMAIN
from hubbub_local.federation import Parties

STRANGE_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308)
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
        start = self._random.choice((4, 6, 10, 14, 18))
        changed[start : start + 2] = self._random.randbytes(2)

    # What a party of the roster could say ---------------------------------------------------------------

    def rephrase(self, frame: bytes, parties: Parties) -> bytes:
        """Change values of header, body or payload, and sign the result as the sender that it names."""
        head, body, payload = _take_apart(frame)
        for _ in range(self._random.choice((1, 1, 2, 3))):
            choice = self._random.random()
            if choice < 0.55:
                body = self._change_value(body)
            elif choice < 0.8:
                head = self._change_value(head)
            else:
                payload = self.damage(payload) if payload else self._random.randbytes(40)
        return _sign(head, body, payload, parties)

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
        if isinstance(value, str) and value and self._random.random() < 0.5:
            place = self._random.randrange(len(value))
            return value[:place] + self._random.choice("0a9f-z ") + value[place + 1 :]
        return self._random.choice((*STRANGE_TEXTS, None, [], {}, True, 3))


def _take_apart(frame: bytes) -> tuple[Any, Any, bytes]:
    _, _, *lengths = PREFIX.unpack_from(frame)
    head_end = PREFIX.size + lengths[0]
    body_end = head_end + lengths[1]
    payload = frame[body_end : body_end + lengths[2]]
    return json.loads(frame[PREFIX.size : head_end]), json.loads(frame[head_end:body_end]), payload


def _sign(head: Any, body: Any, payload: bytes, parties: Parties) -> bytes:
    head_text, body_text = json.dumps(head).encode(), json.dumps(body).encode()
    lengths = (len(head_text), len(body_text), len(payload))
    rest = b"".join((head_text, body_text, payload))
    unsigned = PREFIX.pack(MAGIC, FORMAT_VERSION, *lengths, 0) + rest
    sender = head.get("sender") if isinstance(head, dict) else None
    identity = parties.identities.get(PartyId(sender)) if isinstance(sender, str) else None
    signature = identity.key.sign(DOMAIN, covered(unsigned)) if identity else bytes(64)
    return PREFIX.pack(MAGIC, FORMAT_VERSION, *lengths, len(signature)) + rest + signature
