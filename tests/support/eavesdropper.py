"""Somebody who recorded everything that crossed the broker, holds keys, and tries all that can be tried.

An `Eavesdropper` opens what its keys open and adds up what fits together. A `Search` looks for plaintexts in
whatever else there is to read: raw, as digits of several kinds, and as numbers in a text.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubbub.crypto.sealing import CHUNK_KEY_BYTES, ChunkKey, Kem, SealingKey, seal_overhead
from hubbub.errors import PeerError
from hubbub.ids import PartyId
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import MaskedChunk, PartialChunk, SumChunk
from hubbub.messages.runs import GroupContribution, RunProposed
from hubbub.messages.shares import ShareChunk, ShareSeed
from hubbub.protocol.layout import Vector, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.trust.identity import Identity
from hubbub.trust.seals import (
    Stage,
    _contribution_info,
    _partial_info,
    _seed_info,
    _share_info,
    _share_key_info,
    _sum_info,
    _sum_key_info,
)
from hubbub_aggregator.spooled_shares import assemble
from support.frames import decode
from support.recorder import EVERYBODY, Place, add_residues

SEALED_KEY_BYTES = seal_overhead(Kem.X25519) + CHUNK_KEY_BYTES
SEALED_TO_RUN_KEYS = ("share_keys", "sum_keys", "seeds", "partials", "contributions")
"""Shares and sums are not: their keys are."""
Parts = tuple[Residues, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A ciphertext, and what the rules of the protocol say is bound to it at this place."""

    place: Place
    ciphertext: bytes = field(repr=False)
    info: bytes = field(repr=False)


@dataclass(slots=True)
class ByKind(Generic[T]):
    """Messages of both wires, or what is in them, by kind and place."""

    shares: dict[Place, T] = field(default_factory=dict)
    """Sealed, each comes after its sealed key."""
    share_keys: dict[Place, T] = field(default_factory=dict, compare=False)
    """Whoever has one has the shares too, and these are compared."""
    sum_keys: dict[Place, T] = field(default_factory=dict)
    sums: dict[Place, T] = field(default_factory=dict)
    seeds: dict[Place, T] = field(default_factory=dict)
    partials: dict[Place, T] = field(default_factory=dict)
    contributions: dict[Place, T] = field(default_factory=dict)


@dataclass(slots=True)
class Loot(ByKind[bytes]):
    """What was opened."""

    elsewhere: list[Place] = field(default_factory=list)
    """Where something opened with what is bound to another place."""

    def everything(self) -> Iterator[bytes]:
        kinds = (self.shares, self.sum_keys, self.sums, self.seeds, self.partials, self.contributions)
        for opened in kinds:
            yield from opened.values()


def open_shares(
    shares: Collection[Sealed], keys: Collection[bytes], opened: dict[Place, bytes]
) -> Iterator[Place]:
    """Try keys on chunks of shares, each where it belongs; say which of them open at another place too."""
    for key, sealed in product([ChunkKey.from_bytes(key) for key in keys], shares):
        encrypted = sealed.ciphertext[SEALED_KEY_BYTES:]
        with suppress(PeerError):
            opened[sealed.place] = bytes(key.decrypt(sealed.place.chunk, encrypted, sealed.info))
            yield from _open_at_others(key, sealed, shares)


def _open_at_others(key: ChunkKey, sealed: Sealed, shares: Iterable[Sealed]) -> Iterator[Place]:
    """With the number of either place: it is the nonce, and what is bound to the place holds it too."""
    for other in shares:
        for number in {sealed.place.chunk, other.place.chunk} if other is not sealed else ():
            with suppress(PeerError):
                key.decrypt(number, sealed.ciphertext[SEALED_KEY_BYTES:], other.info)
                yield sealed.place


class BaseEavesdropper:
    """Reads a recording of either wire, and opens what the given keys open."""

    def __init__(
        self, frames: Iterable[bytes], *, run_keys: Sequence[SealingKey], identities: Sequence[Identity] = ()
    ) -> None:
        self._run_keys = run_keys
        self._identities = identities
        envelopes = [decode(frame) for frame in frames]
        self.manifest: Manifest = next(
            each.body.manifest for each in envelopes if isinstance(each.body, RunProposed)
        )
        self.declared: dict[tuple[PartyId, int, str], tuple[Vector, ...]] = {}
        """What each client sends in each phase, by its own words."""
        self.sealed = ByKind[Sealed]()
        self.masked: dict[Place, bytes] = {}
        """Readable to everybody."""
        for envelope in envelopes:
            self._read(envelope)

    def _read(self, envelope: Envelope) -> None:
        body, sender, to, payload = envelope.body, envelope.sender, envelope.recipient, envelope.payload
        stage = Stage(envelope.run, envelope.round, envelope.phase)
        place = Place(stage.round, stage.phase, sender, to, getattr(body, "index", 0))
        everybodys = replace(place, recipient=EVERYBODY)
        match body:
            case ShareChunk():
                self.declared[sender, stage.round, stage.phase] = tuple(claim.vector for claim in body.vectors)
                self._keep("shares", place, payload, _share_info(stage, sender, to, body.set_id, body.index))
                key_info = _share_key_info(stage, sender, to, body.set_id)
                self._keep("share_keys", place, payload[:SEALED_KEY_BYTES], key_info)
            case SumChunk():
                wrapped, key_info = bytes.fromhex(body.wrapped_key), _sum_key_info(stage, sender, to)
                self._keep("sum_keys", replace(place, chunk=0), wrapped, key_info)
                self._keep("sums", everybodys, payload, _sum_info(stage, sender, body.index))
            case ShareSeed():
                self._keep("seeds", place, payload, _seed_info(stage, sender, to, body.set_id))
            case PartialChunk():
                self._keep("partials", place, payload, _partial_info(stage, sender, to, body.index))
            case GroupContribution():
                info = _contribution_info(envelope.run, sender, to)
                self._keep("contributions", Place(0, "", sender, to), payload, info)
            case MaskedChunk():
                assert self.masked.setdefault(everybodys, payload) == payload, "one sum to all"

    def _keep(self, kind: str, place: Place, ciphertext: bytes, info: bytes) -> None:
        getattr(self.sealed, kind)[place] = Sealed(place, ciphertext, info)

    # Opening ------------------------------------------------------------------------------------------------

    def open_all(self) -> Loot:
        """Try every key on everything, first where it belongs and then at every other place."""
        loot = Loot()
        for kind in SEALED_TO_RUN_KEYS:
            for each in getattr(self.sealed, kind).values():
                for key in (*self._run_keys, *self._misuse_identities()):
                    with suppress(PeerError):
                        getattr(loot, kind)[each.place] = key.open(each.ciphertext, each.info)
        loot.elsewhere += self._open_elsewhere()
        share_keys = {*loot.share_keys.values(), *self._guess_keys(self.sealed.share_keys)}
        loot.elsewhere += open_shares(self.sealed.shares.values(), share_keys, loot.shares)
        for each in self.sealed.sums.values():
            self._try_sum(each, [*loot.everything(), *self._guess_keys(self.sealed.sum_keys)], loot.sums)
        return loot

    def _misuse_identities(self) -> Iterator[SealingKey]:
        """An identity key signs on one form of the curve that seals use; try it on the other."""
        for identity in self._identities:
            seed = identity.key.to_bytes()
            yield SealingKey.from_bytes(Kem.X25519, seed)
            yield SealingKey.from_bytes(Kem.X25519, hashlib.sha512(seed).digest()[:32])

    def _open_elsewhere(self) -> Iterator[Place]:
        everything = [each for kind in SEALED_TO_RUN_KEYS for each in getattr(self.sealed, kind).values()]
        for one, other in product(everything, everything):
            for key in self._run_keys if one.info != other.info else ():
                with suppress(PeerError):
                    key.open(one.ciphertext, other.info)
                    yield one.place

    def _guess_keys(self, wrapped: Mapping[Place, Sealed]) -> set[bytes]:
        """Return keys that may be worth a try."""
        del wrapped
        return set()

    @staticmethod
    def _try_sum(sealed: Sealed, keys: Iterable[bytes], opened: dict[Place, bytes]) -> None:
        for key in keys:
            with suppress(PeerError):
                sum_key = ChunkKey.from_bytes(key)
                opened[sealed.place] = bytes(sum_key.decrypt(sealed.place.chunk, sealed.ciphertext, sealed.info))


class Eavesdropper(BaseEavesdropper):
    """Adds up what fits together on the paper's wire."""

    def _guess_keys(self, wrapped: Mapping[Place, Sealed]) -> set[bytes]:
        """Every run of bytes of a wrapped key that is as long as the key in it, and the keys that we have."""
        windows = {
            sealed.ciphertext[start : start + CHUNK_KEY_BYTES]
            for sealed in wrapped.values()
            for start in range(len(sealed.ciphertext) - CHUNK_KEY_BYTES + 1)
        }
        ours = {key.to_bytes() for key in self._run_keys} | {each.key.to_bytes() for each in self._identities}
        return windows | ours

    # Adding up ----------------------------------------------------------------------------------------------

    def read_shares(self, loot: Loot, client: PartyId, number: int, phase: str) -> dict[PartyId, Parts]:
        """A client's opened shares of a phase, by aggregator, where every chunk is there."""
        return self._put_together(
            self.declared[client, number, phase],
            {server: Place(number, phase, client, server) for server in self.manifest.aggregators},
            loot.shares,
        )

    def rebuild_inputs(self, loot: Loot) -> dict[tuple[PartyId, int, str], Parts]:
        """What clients said, where all their shares are there."""
        rebuilt = {key: self._add_up(self.declared[key], self.read_shares(loot, *key)) for key in self.declared}
        return {key: parts for key, parts in rebuilt.items() if parts}

    def rebuild_sums(self, loot: Loot) -> dict[tuple[int, str], Parts]:
        """What the clients are told, where the sums of all aggregators are there."""
        rebuilt: dict[tuple[int, str], Parts] = {}
        for (_, number, phase), vectors in self.declared.items():
            homes = {server: Place(number, phase, server, EVERYBODY) for server in self.manifest.aggregators}
            parts = self._add_up(vectors, self._put_together(vectors, homes, loot.sums))
            if parts:
                rebuilt[number, phase] = parts
        return rebuilt

    def _put_together(
        self, vectors: tuple[Vector, ...], homes: Mapping[PartyId, Place], opened: Mapping[Place, bytes]
    ) -> dict[PartyId, Parts]:
        plan = plan_chunks(vectors, self.manifest.chunk_bytes)
        found: dict[PartyId, Parts] = {}
        for server, home in homes.items():
            places = [Place(home.round, home.phase, home.sender, home.recipient, i) for i in range(len(plan))]
            if all(place in opened for place in places):
                reads = [partial(opened.__getitem__, place) for place in places]
                found[server] = tuple(assemble(plan, vectors, reads))
        return found

    def _add_up(self, vectors: tuple[Vector, ...], parts: Mapping[PartyId, Parts]) -> Parts:
        if len(parts) < len(self.manifest.aggregators):
            return ()
        return tuple(
            add_residues([each[place] for each in parts.values()], vector.modulus)
            for place, vector in enumerate(vectors)
        )


# Looking for plaintexts ---------------------------------------------------------------------------------

WINDOWS = (16, 64, 256)
"""Bytes. What is looked for is cut into windows; any piece of twice this length has a whole one in it."""
TELLING = 8
"""A short window with fewer different bytes, or a long one with fewer changes, may stand anywhere."""
FLOATS_IN_A_ROW, INTEGERS_IN_A_ROW = 3, 16
TELLING_NUMBERS = 3

_WORD = 8
_FACTORS = np.random.default_rng(0).integers(2**63, size=WINDOWS[-1] // _WORD, dtype="<u8") | np.uint64(1)
_NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d*)?(?:e[+-]?\d+)?(?!\w)")
_HEX = re.compile(rb"[0-9a-fA-F]{32,}")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,}")
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})|\\u00([0-9a-f]{2})|\\([nrt])")
_BREAKS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class Search:
    """Plaintexts by name, and whether something holds a piece of one."""

    def __init__(self) -> None:
        self._windows: dict[bytes, str] = {}
        self._summed = 0
        self._sums: dict[int, NDArray[np.uint64]] = {}
        self._rows: dict[tuple[bytes, ...], str] = {}
        self._numbers: dict[bytes, str] = {}
        self._words: dict[bytes, str] = {}

    def add_bytes(self, name: str, data: bytes) -> None:
        """Look for any piece of this, and for its plain digest."""
        for each, size in product((data, hashlib.sha256(data).digest()), WINDOWS):
            for start in range(0, len(each) - size + 1, size):
                window = each[start : start + size]
                if _tells(window):
                    self._windows[window] = name

    def add_vector(self, name: str, vector: NDArray[Any], *types: str) -> None:
        """Look for a vector in memory, as it is and in these types, and printed."""
        for form in (vector, *(vector.astype(kind) for kind in types)):
            self.add_bytes(name, form.tobytes())
        whole = np.array2string(vector, threshold=vector.size + 1)
        for text in (whole, str(vector.tolist()), " ".join(map(str, vector))):
            self._add_row(name, text, FLOATS_IN_A_ROW if vector.dtype.kind == "f" else INTEGERS_IN_A_ROW)

    def _add_row(self, name: str, text: str, length: int) -> None:
        numbers = _NUMBER.findall(text.encode())
        for start in range(0, len(numbers) - length + 1, length):
            row = tuple(numbers[start : start + length])
            if sum(float(number) != 0 for number in row) >= TELLING_NUMBERS:
                self._rows[row] = name

    def add_number(self, name: str, number: float) -> None:
        """Look for a single number; it must have so many digits that it stands nowhere by chance."""
        self._numbers[str(number).encode()] = name

    def add_word(self, name: str, word: str) -> None:
        """Look for a text."""
        self._words[word.encode()] = name

    def find(self, *haystacks: bytes) -> set[str]:
        """Name everything that there is a piece of."""
        return {name for haystack in haystacks for name in self._find(haystack)}

    def _find_places(self, view: bytes) -> Iterator[tuple[int, int]]:
        """Where a window of which size may be: the only places at which it is worth while to look."""
        for size, shift in product(self._sums_of_windows(), range(_WORD)):
            words = np.frombuffer(view[shift : shift + max(0, len(view) - shift) // _WORD * _WORD], "<u8")
            if len(words) * _WORD >= size:
                sums, wanted = _add_up(words, size), self._sums[size]
                found = wanted[np.minimum(np.searchsorted(wanted, sums), len(wanted) - 1)] == sums
                yield from ((shift + _WORD * int(place), size) for place in np.flatnonzero(found))

    def _sums_of_windows(self) -> Iterable[int]:
        """Have the sums of all windows, by their sizes."""
        if self._summed != len(self._windows):
            self._summed = len(self._windows)
            for size in WINDOWS:
                every = np.frombuffer(b"".join(each for each in self._windows if len(each) == size), "<u8")
                if every.size:
                    self._sums[size] = np.sort(_add_up(every, size)[:: size // _WORD])
        return self._sums

    def _find(self, haystack: bytes) -> Iterator[str]:
        for view in _unfold(haystack):
            for start, size in self._find_places(view):
                if (window := view[start : start + size]) in self._windows:
                    yield self._windows[window]
        numbers = _NUMBER.findall(haystack)
        yield from (self._numbers[number] for number in numbers if number in self._numbers)
        for length in (FLOATS_IN_A_ROW, INTEGERS_IN_A_ROW):
            for start in range(len(numbers) - length + 1):
                if (row := tuple(numbers[start : start + length])) in self._rows:
                    yield self._rows[row]
        yield from (name for word, name in self._words.items() if word in haystack)


def _add_up(words: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """A number for the window of this size that begins at each word; others have other numbers, nearly always."""
    count = len(words) - size // _WORD + 1
    sums = np.zeros(count, dtype="<u8")
    for place, factor in enumerate(_FACTORS[: size // _WORD]):
        sums += words[place : place + count] * factor
    return sums


def _tells(window: bytes) -> bool:
    """Whether a window is too special to stand anywhere by chance: random, or at least varied."""
    if len(window) == WINDOWS[0]:
        return len(set(window)) >= TELLING
    return sum(before != after for before, after in pairwise(window)) >= TELLING


def _unfold(haystack: bytes) -> Iterator[bytes]:
    """The bytes themselves, and those that are written out in them."""
    if not haystack.isascii():
        yield haystack
    for run in set(_HEX.findall(haystack)):
        for digits in (run, run[1:]):
            yield bytes.fromhex(digits[: len(digits) // 2 * 2].decode())
    for run in set(_BASE64.findall(haystack)):
        for start in range(4):
            yield b64decode(run[start : start + (len(run) - start) // 4 * 4], altchars=b"-_")
    if _ESCAPE.search(haystack):
        yield _ESCAPE.sub(_unescape, haystack.replace(rb"\\", b"\\"))


def _unescape(match: re.Match[bytes]) -> bytes:
    digits = match[1] or match[2]
    return bytes.fromhex(digits.decode()) if digits else _BREAKS[match[3]]
