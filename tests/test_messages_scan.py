"""No message of a client or an aggregator has room for a sentence, or for a duration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from hubbub.errors import Code
from hubbub.ids import Role
from hubbub.messages.codec import KINDS
from hubbub.messages.envelope import Claim, Message
from hubbub.messages.manifest import Digest
from hubbub_coordinator.reasons import MEANINGS

PROJECT = Path(__file__).parents[1]
SAID = [kind for kind in KINDS.values() if kind.senders & {Role.CLIENT, Role.AGGREGATOR}]
TOTALS = {("round-scored", "scores.value")}
"""Numbers that are computed from a sum over the members, the same at all clients."""

SENTENCE = "the sum was 7"
DURATION = re.compile(r"_(s|ms|ns|seconds|time)$")

Schema = dict[str, Any]


def find_room(model: type[BaseModel]) -> set[str]:
    """The fields, by name, that can hold words or a duration, of this model and of all that it holds."""
    schema = model.model_json_schema()
    return {path for path, part in walk(schema, schema, "") if has_room(path, part)}


def walk(whole: Schema, part: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Every part of a schema that is no mere frame for others, with the names that lead to it."""
    if "$ref" in part:
        part = whole["$defs"][part["$ref"].rpartition("/")[2]]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for each in part.get(key, ()):
            yield from walk(whole, each, path)
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from walk(whole, part[key], path)
    for name, each in part.get("properties", {}).items():
        yield from walk(whole, each, f"{path}.{name}".lstrip("."))
    if not {"anyOf", "oneOf", "allOf", "prefixItems", "items", "properties"} & part.keys():
        yield path, part


def has_room(path: str, part: Schema) -> bool:
    """Whether words or a duration fit in here; what is not known for certain counts as room."""
    match part.get("type"):
        case "string":
            return not ({"enum", "const"} & part.keys() or refuses_words(part.get("pattern")))
        case "integer":
            return DURATION.search(path) is not None
        case "boolean" | "null":
            return False
        case "object":
            return part.get("additionalProperties") is not False
    return True


def refuses_words(pattern: str | None) -> bool:
    return pattern is not None and re.search(pattern, SENTENCE) is None


def test_no_message_of_clients_or_aggregators_has_room_for_words_or_durations() -> None:
    found = {(message.kind, path) for message in SAID for path in find_room(message)}

    assert found == TOTALS


class Inner(Claim):
    """What a message may hold."""

    name: Digest
    remark: str


class Talkative(Message):
    """Everything that must not be said."""

    kind: ClassVar[str] = "talkative"

    code: Code
    count: int
    reason: str
    anything: Any
    long: str = Field(max_length=9)
    any_words: str = Field(pattern="^.*$")
    inner: tuple[Inner, ...]
    maybe: Inner | None
    notes: dict[str, str]
    loss: float
    training_s: int


def test_the_scan_finds_words_and_durations_wherever_they_are() -> None:
    assert find_room(Talkative) == {
        *(
            "reason",
            "anything",
            "long",
            "any_words",
            "inner.remark",
            "maybe.remark",
            "notes",
            "loss",
            "training_s",
        ),
    }


def test_every_code_tells_whose_matter_it_is_and_has_a_sentence() -> None:
    assert {code.partition("-")[0] for code in Code} == {"policy", "disk", "protocol", "internal"}
    assert MEANINGS.keys() == set(Code)


def test_every_code_is_sent_by_somebody() -> None:
    sources = [path for root in ("shared", "services") for path in (PROJECT / root).rglob("*.py")]
    said = "".join(path.read_text("utf-8") for path in sources if path.name not in {"codes.py", "wording.py"})

    assert [code for code in Code if f"Code.{code.name}" not in said] == []
