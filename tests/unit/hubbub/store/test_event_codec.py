"""Events to JSON and back: what is read is what was written, or it is refused when it is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from hubbub.errors import LocalError
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Failed, Key
from hubbub.messages.manifest import Manifest
from hubbub.store.event_codec import EventCodec
from support.builders import make_manifest


class Colour(Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True, slots=True)
class Inner:
    blob: bytes
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Same:
    blob: bytes
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    key: Key
    colour: Colour = Colour.RED
    inner: tuple[Inner, ...] = ()
    members: frozenset[PartyId] = frozenset()
    sums: Mapping[str, Mapping[int, Inner]] = field(default_factory=dict)
    manifest: Manifest | None = None
    either: Inner | Same | None = None
    number: int = 0


KEY = Key("phase", RunId("a" * 64), 1, "signs")
NOISE = bytes(range(256))


def test_all_codecs_of_a_process_share_what_they_make_of_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    EventCodec([Event])
    monkeypatch.setattr("hubbub.store.event_codec.TypeAdapter", None)

    again = EventCodec([Event])

    assert again.load("Event", again.dump(Event(KEY))) == Event(KEY)


@pytest.fixture(scope="module")
def shapes() -> EventCodec:
    return EventCodec([Event, Failed, Key, Failed])


@pytest.mark.parametrize(
    "value",
    [
        Failed('Grüße, 世界 🩺 \x00 " \\'),
        KEY,
        Event(KEY),
        Event(KEY, colour=Colour.BLUE, number=-(2**70)),
        Event(KEY, inner=(Inner(NOISE), Inner(b"", 0.1 + 0.2), Inner(b"\x00", math.inf), Inner(b"", -math.inf))),
        Event(KEY, members=frozenset({PartyId("client-1"), PartyId("client-2")})),
        Event(KEY, sums={"union": {7: Inner(NOISE, 1e-320)}, "": {}}),
        Event(KEY, manifest=make_manifest()),
        Event(KEY, either=Inner(b"x")),
    ],
    ids=["text", "key", "defaults", "enum", "floats", "sets", "mappings", "message", "union"],
)
def test_a_value_is_read_as_it_was_written(shapes: EventCodec, value: object) -> None:
    assert shapes.load(shapes.name_of(value), shapes.dump(value)) == value


WRONG: Any = "open-sesame"
ANOTHER, NOT_OF_ITS_TYPE = "it would be read back as another value", "a field holds what its type does not say"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Event(KEY, either=Same(b"x")), ANOTHER),
        (Event(KEY, inner=(Inner(b"", math.nan),)), ANOTHER),
        (Event(KEY, number=WRONG), NOT_OF_ITS_TYPE),
        (Event(WRONG), NOT_OF_ITS_TYPE),
        (Event(KEY, inner=[WRONG]), NOT_OF_ITS_TYPE),  # type: ignore[arg-type]
        (Failed("\ud800"), NOT_OF_ITS_TYPE),
        (Inner(b""), "Inner cannot be kept: its type is not among those that are"),
    ],
    ids=["ambiguous-union", "nan", "wrong-number", "wrong-type", "wrong-container", "no-text", "unknown-type"],
)
def test_what_would_not_come_back_is_not_written(shapes: EventCodec, value: object, why: str) -> None:
    with pytest.raises(LocalError, match=why) as caught:
        shapes.dump(value)
    assert WRONG not in str(caught.value)


def test_types_are_known_by_their_names_and_no_stranger_is_mistaken_for_one(shapes: EventCodec) -> None:
    stranger = type("Failed", (), {"why": "x"})
    with pytest.raises(LocalError, match="two types are called Failed"):
        EventCodec([Failed, stranger])
    with pytest.raises(LocalError, match="Failed cannot be kept"):
        shapes.name_of(stranger())
    with pytest.raises(LocalError, match="the store holds a Vanished, which this version does not know"):
        shapes.load("Vanished", "[{}]")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[{"key": {"kind": "phase", "run": 7}}]', r"cannot be read: key\.run$"),
        ('[{"key": {"kind": "phase"}, "number": "open-sesame"}]', r"cannot be read: key\.run; number$"),
        ("[{", "cannot be read: all of it$"),
    ],
)
def test_what_cannot_be_read_is_named_and_not_shown(shapes: EventCodec, text: str, where: str) -> None:
    with pytest.raises(LocalError, match=where):
        shapes.load("Event", text)
