"""Wire form of claims: what a message's fields look like in a frame, before msgpack encodes them.

A claim is the array of its fields in the order of their declaration. Digests, keys and signatures, which are
hexadecimal elsewhere, are bytes. A party is its number in the roster, and a run the first bytes of its id: the
`Directory` translates both. A manifest is its canonical JSON, whose digest is the run's id. Receipts in an order
are a table, since they have most values in common. Everything else is as msgpack has it.

The form of a field follows from its annotation, so a new message needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, NewType, get_args, get_origin, get_type_hints

from hubbub.errors import LocalError, MalformedMessage, PeerError, RejectReason
from hubbub.ids import PartyId, RunId
from hubbub.messages.envelope import Claim, WireMark
from hubbub.messages.manifest import Manifest

RUN_PREFIX_BYTES: Final = 8
WORD_VALUES: Final = 2**64


class Directory:
    """Short names in frames: parties by their number in the roster, runs by the first bytes of their id.

    A signature covers the names and the whole id, so a frame that is read with another roster or run is refused.
    """

    def __init__(self, parties: Iterable[PartyId], runs: Iterable[RunId] = ()) -> None:
        self._parties = tuple(parties)
        self._numbers = {name: number for number, name in enumerate(self._parties)}
        self._runs: dict[bytes, RunId] = {}
        for run in runs:
            self.add_run(run)

    def add_run(self, run: RunId) -> None:
        """Make a run known; raise `PeerError` if its short name stands for another one."""
        if self._runs.setdefault(shorten(run), run) != run:
            raise PeerError(
                RejectReason.CONTRADICTION,
                f"the ids of two runs begin with the same {RUN_PREFIX_BYTES} bytes: draw up another manifest",
            )

    def find_run(self, prefix: bytes) -> RunId | None:
        """Return the known run whose id begins with these bytes."""
        return self._runs.get(prefix)

    def number(self, party: PartyId) -> int:
        """Return a party's number."""
        try:
            return self._numbers[party]
        except KeyError:
            raise LocalError(f"{party} is not in the roster, so no message can name it") from None

    def party(self, number: object) -> PartyId | None:
        """Return the party with this number, or None if there is none."""
        if type(number) is int and 0 <= number < len(self._parties):
            return self._parties[number]
        return None


def shorten(run: RunId) -> bytes:
    """Return the bytes that stand for a run in a frame."""
    return bytes.fromhex(run[: 2 * RUN_PREFIX_BYTES])


Translate = Callable[[Any, Directory], Any]


@dataclass(frozen=True, slots=True)
class _Form:
    """Translation of one type: `pack` to its wire form, and `unpack` from it.

    `unpack` leaves most values of a wrong type as they are, and makes a digest None, so that pydantic names the
    field and says what it expects. It raises `PeerError` for a party that is not in the roster, and for a claim or
    a table that is no array of the right form.
    """

    pack: Translate
    unpack: Translate


def pack(claim: Claim, directory: Directory) -> Any:
    """Return the wire form of a claim."""
    return _form_of(type(claim)).pack(claim, directory)


def unpack(kind: type[Claim], value: object, directory: Directory) -> Any:
    """Return the fields that a wire form gives a claim, for pydantic to validate."""
    return _form_of(kind).unpack(value, directory)


def _is_same(value: Any, directory: Directory) -> Any:
    del directory
    return value


_PLAIN = _Form(_is_same, _is_same)
_HEX = _Form(
    lambda text, _: bytes.fromhex(text),
    lambda value, _: value.hex() if isinstance(value, bytes) else None,
)
_WORD = _Form(
    lambda number, _: number % WORD_VALUES,
    lambda value, _: WORD_VALUES if type(value) is int and value == 0 else value,
)
_MANIFEST = _Form(
    lambda manifest, _: manifest.canonical,
    lambda value, _: Manifest.model_validate_json(value) if isinstance(value, bytes) else value,
)


def _find_party(number: object, directory: Directory) -> PartyId:
    party = directory.party(number)
    if party is None:
        raise PeerError(RejectReason.NOT_IN_ROSTER, "the message names a party that is not in the roster")
    return party


_PARTY = _Form(lambda name, directory: directory.number(name), _find_party)
_MARKED: Final = {WireMark.HEX: _HEX, WireMark.PARTY: _PARTY, WireMark.WORD: _WORD}


@cache
def _form_of(annotation: Any) -> _Form:
    if annotation is Manifest:
        return _MANIFEST
    if isinstance(annotation, type) and issubclass(annotation, Claim):
        return _form_of_claim(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _form_of_enum(annotation)
    if isinstance(annotation, NewType):
        return _form_of(annotation.__supertype__)
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        if WireMark.TABLE in marks:
            return _form_of_table(get_args(inner)[0])
        return next((_MARKED[mark] for mark in marks if isinstance(mark, WireMark)), None) or _form_of(inner)
    if get_origin(annotation) is tuple:
        return _form_of_tuple(_form_of(get_args(annotation)[0]))
    return _PLAIN


def _form_of_claim(kind: type[Claim]) -> _Form:
    forms = _forms_in(kind)

    def pack_fields(claim: Claim, directory: Directory) -> list[Any]:
        return [form.pack(getattr(claim, name), directory) for name, form in forms.items()]

    def unpack_fields(value: Any, directory: Directory) -> Any:
        if not isinstance(value, list) or len(value) != len(forms):
            raise MalformedMessage(f"the fields of {kind.__name__} are not an array of {len(forms)}")
        return {
            name: form.unpack(each, directory) for each, (name, form) in zip(value, forms.items(), strict=True)
        }

    return _Form(pack_fields, unpack_fields)


def _forms_in(kind: type[Claim]) -> dict[str, _Form]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: _form_of(hints[name]) for name in kind.model_fields}


def _form_of_table(kind: type[Claim]) -> _Form:
    """Return the form of many claims of a kind: a column for each field, claims inside claims taken apart.

    The first column has a value for each claim. Any other has one value if all claims agree in it.
    """
    leaves = list(_leaves_of(kind))

    def pack_table(claims: Sequence[Claim], directory: Directory) -> list[Any]:
        first, *others = (
            [form.pack(attrgetter(path)(claim), directory) for claim in claims] for path, form in leaves
        )
        return [first, *(column[:1] if _is_constant(column) else column for column in others)]

    def unpack_table(value: Any, directory: Directory) -> Any:
        if not isinstance(value, list) or len(value) != len(leaves) or not all(isinstance(x, list) for x in value):
            raise MalformedMessage(f"a table of {kind.__name__} is not {len(leaves)} columns")
        count = len(value[0])
        if not all(len(column) in {count, min(count, 1)} for column in value):
            raise MalformedMessage(f"a column of a table of {kind.__name__} is of the wrong length")
        columns = (column if len(column) == count else column * count for column in value)
        return tuple(_build(leaves, row, directory) for row in zip(*columns, strict=True))

    return _Form(pack_table, unpack_table)


def _leaves_of(kind: type[Claim]) -> Iterator[tuple[str, _Form]]:
    """Yield the path and the form of every field that is no claim itself."""
    for name, form in _forms_in(kind).items():
        inner = kind.model_fields[name].annotation
        if isinstance(inner, type) and issubclass(inner, Claim):
            yield from ((f"{name}.{path}", leaf) for path, leaf in _leaves_of(inner))
        else:
            yield name, form


def _build(leaves: list[tuple[str, _Form]], row: tuple[Any, ...], directory: Directory) -> dict[str, Any]:
    """Return the fields of one claim of a table, in dictionaries as deep as the claim is."""
    fields: dict[str, Any] = {}
    for (path, form), value in zip(leaves, row, strict=True):
        *outer, name = path.split(".")
        place = fields
        for step in outer:
            place = place.setdefault(step, {})
        place[name] = form.unpack(value, directory)
    return fields


def _is_constant(column: list[Any]) -> bool:
    return all(value == column[0] for value in column[1:])


def _form_of_enum(kind: type[Enum]) -> _Form:
    known: dict[object, Enum] = {member.value: member for member in kind}
    return _Form(
        lambda member, _: member.value,
        lambda value, _: known.get(value, value) if isinstance(value, str) else value,
    )


def _form_of_tuple(form: _Form) -> _Form:
    def pack_items(items: Sequence[Any], directory: Directory) -> list[Any]:
        return [form.pack(each, directory) for each in items]

    def unpack_items(value: Any, directory: Directory) -> Any:
        return tuple(form.unpack(each, directory) for each in value) if isinstance(value, list) else value

    return _Form(pack_items, unpack_items)
