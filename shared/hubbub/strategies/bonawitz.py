"""`bonawitz`: federated averaging under masks that cancel, with one server (Bonawitz et al., CCS 2017).

*Practical Secure Aggregation for Privacy-Preserving Machine Learning*, in its semi-honest version. Clients send
fixed-point numbers as in `secure-fedavg`, in Z_(2^32), under masks. The first aggregator adds them and takes off
what does not cancel:

    advertise    client u sends two public keys, C_u for seals and S_u for masks; the server passes them on
    share-keys   u deals its mask key s_u and a seed b_u among the clients, t of C, and seals a share of each to
                 every peer; the server passes them on
    masked       u sends y_u = x_u + PRG(b_u) + Σ_(v > u) PRG(s_u·S_v) - Σ_(v < u) PRG(s_u·S_v)
    unmask       of each client that sent y, those that are left send their share of b; of each that did not, their
                 share of s. The server recovers these, and sends everybody Σ x

A phase may lose members, down to t = ⌊C/2⌋ + 1; below, the round is void. Of one peer a client sends a share of b
or of s, never both: with both, the server reads that peer's update. All secrets and polynomials follow from the
client's stream, so after a restart it sends the same again.

Two things are not in that work. Seals between clients depend on the table of all keys and on the group secret, so
that a server cannot put other keys in place. And who is missing has zeros, so that lengths follow from C alone.

The server learns the sum. If it tells clients different lists of who is left, it can recover b of one client and s
of its few peers, and reads its update. The version for a malicious server has clients sign the list; this has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hubbub.errors import LocalError, PeerError
from hubbub.ids import Weights
from hubbub.parameters import Parameters
from hubbub.protocol import costs, shamir
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues, sample
from hubbub.strategies.base import (
    ClientInput,
    Conclusion,
    Exposure,
    Gathering,
    PeerCiphers,
    PlainPhase,
    Release,
    RoundSoFar,
    Strategy,
    admit_exactly,
)
from hubbub.strategies.plaintext import SameForAll
from hubbub.strategies.secure_fedavg import SecureFedAvgRound

WORDS = 2**32
KEY_BYTES = 32
KEY_WORDS = KEY_BYTES // 4
SEALED_WORDS = (2 * KEY_BYTES + 16) // 4
"""Two shares, and the tag that authenticates them."""


def find_threshold(clients: int) -> int:
    """Return t = ⌊C/2⌋ + 1."""
    return clients // 2 + 1


@dataclass(frozen=True, slots=True)
class MaskingPhase(PlainPhase):
    """Phase of the first server, which may lose members down to the threshold."""

    begin: Callable[[Parameters, RoundSoFar], Gathering] = field(kw_only=True)

    def threshold(self, clients: int) -> int | None:
        """Return t."""
        return find_threshold(clients)

    def gather(self, parameters: Parameters, so_far: RoundSoFar) -> Gathering:
        """Begin to compute."""
        return self.begin(parameters, so_far)


# Numbers, bytes and words -------------------------------------------------------------------------------


def _to_words(raw: bytes) -> Residues:
    return np.frombuffer(raw, dtype="<u4").astype(np.uint32)


def _to_bytes(words: Digits) -> bytes:
    return words.astype("<u4").tobytes()


def _write(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "little")


def _read(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def _draw_key(stream: RandomStream) -> bytes:
    """Draw 32 bytes, as a number below 2^255; the top bit has no effect on an X25519 key."""
    raw = np.empty(KEY_BYTES, dtype=np.uint8)
    stream.fill(raw)
    raw[-1] &= 0x7F
    return raw.tobytes()


def _list_others(place: int, clients: int) -> list[int]:
    return [other for other in range(clients) if other != place]


def _add_masks(total: Residues, ciphers: PeerCiphers, keys: Iterable[bytes], *, taken_off: bool = False) -> None:
    """Add PRG(key) for each key, or take it off, in place and mod 2^32."""
    for key in keys:
        mask = sample(ciphers.expand(key), total.size, WORDS)
        if taken_off:
            np.subtract(total, mask, out=total)
        else:
            np.add(total, mask, out=total)


def _add_pairwise(
    total: Residues, ciphers: PeerCiphers, place: int, private: bytes, publics: Mapping[int, bytes]
) -> None:
    """Add the masks between the owner of a mask key, at this place, and peers; they cancel the peers' own."""
    for peer, public in publics.items():
        _add_masks(total, ciphers, [ciphers.agree(private, public)], taken_off=peer < place)


# The client ---------------------------------------------------------------------------------------------


class MaskedRound(SecureFedAvgRound):
    """One client's side of a round of masked sums."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        super().__init__(parameters, mine)
        if mine.shared is None or mine.ciphers is None:
            raise LocalError("a round of bonawitz begins with ciphers and with randomness that the clients share")
        self._place, self._ciphers, self._group_key = mine.place, mine.ciphers, _draw_key(mine.shared)
        self._others = _list_others(mine.place, parameters.clients)
        self._seal_key, self._mask_key, self._seed = (_draw_key(mine.stream) for _ in range(3))
        # By place: the shares of our mask key and of our seed, and what we hold of each peer's.
        of_mask_key, of_seed = (self._deal(key, mine.stream) for key in (self._mask_key, self._seed))
        self._dealt = list(zip(of_mask_key, of_seed, strict=True))
        self._held = {self._place: self._dealt[self._place]}
        self._members: dict[str, tuple[int, ...]] = {}
        self._table = np.zeros((parameters.clients, 2 * KEY_WORDS), dtype=np.uint32)
        """Public keys of every client: for seals, then for masks."""

    def _deal(self, key: bytes, stream: RandomStream) -> list[bytes]:
        clients = self._parameters.clients
        return [_write(each) for each in shamir.deal_number(_read(key), clients, find_threshold(clients), stream)]

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe keys, seals, N masked numbers, or shares."""
        return _describe_sent(self._parameters, phase)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return what a phase needs; it follows from the client's stream and from what was absorbed."""
        match phase:
            case ADVERTISE.name:
                return (self._make_row(),)
            case SHARE_KEYS.name:
                return (np.concatenate([self._seal_to(peer) for peer in self._others]),)
            case MASKED.name:
                return (self._mask(super().contribute(phase)[0]),)
        return (np.concatenate([self._reveal(peer) for peer in range(self._parameters.clients)]),)

    def _make_row(self) -> Residues:
        return _to_words(b"".join(map(self._ciphers.public_key, (self._seal_key, self._mask_key))))

    def _public(self, peer: int, *, for_seals: bool) -> bytes:
        return _to_bytes(self._table[peer, :KEY_WORDS] if for_seals else self._table[peer, KEY_WORDS:])

    def _find_seal_key(self, peer: int) -> bytes:
        """Agree with a peer on a key; the group secret keeps out a server that knows one side of it."""
        return self._ciphers.agree(self._seal_key, self._public(peer, for_seals=True), self._group_key)

    def _seal_to(self, peer: int) -> Residues:
        """Seal a peer's shares, bound to all keys and both places."""
        if peer not in self._members[ADVERTISE.name]:
            return np.zeros(SEALED_WORDS, dtype=np.uint32)
        key, shares = self._find_seal_key(peer), b"".join(self._dealt[peer])
        return _to_words(self._ciphers.seal(key, shares, self._table.tobytes(), self._place, peer))

    def _open_from(self, peer: int, sealed: Digits) -> tuple[bytes, bytes]:
        context = (self._table.tobytes(), peer, self._place)
        shares = self._ciphers.open(self._find_seal_key(peer), _to_bytes(sealed), *context)
        return shares[:KEY_BYTES], shares[KEY_BYTES:]

    def _open_all(self, release: Release) -> dict[int, tuple[bytes, bytes]]:
        """Open what the members sealed to us, if we are one of them."""
        if self._place not in release.members:
            return {}
        rows = dict(zip(self._others, release.values[0].reshape(-1, SEALED_WORDS), strict=True))
        return {peer: self._open_from(peer, rows[peer]) for peer in release.members if peer != self._place}

    def _mask(self, units: Digits) -> Residues:
        total = units.astype(np.uint32)
        members = self._members[SHARE_KEYS.name]
        publics = {peer: self._public(peer, for_seals=False) for peer in members if peer != self._place}
        _add_masks(total, self._ciphers, [self._seed])
        _add_pairwise(total, self._ciphers, self._place, self._mask_key, publics)
        return total

    def _reveal(self, peer: int) -> Residues:
        """Return our share of the seed of a client whose input is in the sum, or of the mask key of another."""
        if peer not in self._held:
            return np.zeros(KEY_WORDS, dtype=np.uint32)
        of_mask_key, of_seed = self._held[peer]
        return _to_words(of_seed if peer in self._members[MASKED.name] else of_mask_key)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether seals open, and whether those who sent numbers can have the sum."""
        del members
        if phase == SHARE_KEYS.name:
            try:
                self._open_all(release)
            except PeerError:
                return False
        if phase == UNMASK.name:
            return super().plausible(phase, release, len(self._members[MASKED.name]))
        return True

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store keys, shares, who has sent numbers, or the sum; refuse a second list of who has."""
        if self._members.setdefault(phase, release.members) != release.members:
            raise LocalError(f"{phase} was absorbed over other members before")
        if phase == ADVERTISE.name:
            self._table[self._others] = release.values[0].reshape(-1, 2 * KEY_WORDS)
            self._table[self._place] = self._make_row()
        elif phase == SHARE_KEYS.name:
            self._held |= self._open_all(release)
        elif phase == UNMASK.name:
            super().absorb(phase, release, members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply the sum; a client is in it that has sent its numbers, also if it left before the end."""
        del took_part
        return super().conclude(took_part=self._place in self._members[MASKED.name])

    def __repr__(self) -> str:
        return f"<MaskedRound of {self._parameters.model_size} parameters>"


# The server ---------------------------------------------------------------------------------------------


class Relaying:
    """Collects a row of each member, and sends every client the parts for it; who is missing has zeros."""

    def __init__(self, phase: str, parameters: Parameters, so_far: RoundSoFar) -> None:
        self._released = _describe_released(parameters, phase)
        self._clients = parameters.clients
        self._places = iter(so_far.members[phase])
        self._rows: dict[int, Digits] = {}

    def add(self, values: Sequence[Digits], weight: int) -> None:
        """Keep the next member's row, unless nothing is released."""
        del weight
        if self._released[0].length:
            self._rows[next(self._places)] = values[0]

    def finish(self, client: int) -> Release:
        """Join the parts for a client, in the order of the cohort."""
        others = _list_others(client, self._clients)
        nothing = np.zeros(self._released[0].length // len(others), dtype=np.uint32)
        parts = [self._pick(self._rows[each], each, client) if each in self._rows else nothing for each in others]
        return Release(self._released, (np.concatenate(parts),))

    def _pick(self, row: Digits, sender: int, recipient: int) -> Digits:
        """Return what a row has for a client: all of it, or one of the parts for the sender's peers."""
        parts = row.reshape(self._clients - 1, -1) if self._released[0].name == SHARE_KEYS.name else None
        return row if parts is None else parts[_list_others(sender, self._clients).index(recipient)]


class Unmasking(SameForAll):
    """Adds the masked numbers, and takes off the masks that the members' shares give."""

    def __init__(self, parameters: Parameters, so_far: RoundSoFar) -> None:
        self._parameters, self._so_far = parameters, so_far
        self._places = iter(so_far.members[UNMASK.name])
        self._shares: dict[int, list[int]] = {}

    def add(self, values: Sequence[Digits], weight: int) -> None:
        """Keep the next member's shares."""
        del weight
        raw = _to_bytes(values[0])
        self._shares[next(self._places) + 1] = [
            _read(raw[start : start + KEY_BYTES]) for start in range(0, len(raw), KEY_BYTES)
        ]

    def _compute(self) -> Release:
        so_far, parameters = self._so_far, self._parameters
        needed = list(self._shares.items())[: find_threshold(parameters.clients)]
        secrets = [_write(each) for each in shamir.recover_numbers(dict(needed))]
        inside, masking = so_far.members[MASKED.name], so_far.members[SHARE_KEYS.name]
        total = np.zeros(parameters.model_size, dtype=np.uint32)
        for (numbers,) in so_far.read_again(MASKED.name, _describe_sent(parameters, MASKED.name)):
            np.add(total, numbers, out=total)
        _add_masks(total, so_far.ciphers, [secrets[each] for each in inside], taken_off=True)
        publics = self._read_publics()
        for gone in set(masking) - set(inside):
            _add_pairwise(total, so_far.ciphers, gone, secrets[gone], {each: publics[each] for each in inside})
        return Release(_describe_released(parameters, UNMASK.name), (total,))

    def _read_publics(self) -> dict[int, bytes]:
        """Return the public mask keys, by place."""
        rows = self._so_far.read_again(ADVERTISE.name, _describe_sent(self._parameters, ADVERTISE.name))
        keys = [_to_bytes(row[KEY_WORDS:]) for (row,) in rows]
        return dict(zip(self._so_far.members[ADVERTISE.name], keys, strict=True))


ADVERTISE = MaskingPhase("advertise", begin=partial(Relaying, "advertise"), kept=True, personal=True)
SHARE_KEYS = MaskingPhase("share-keys", begin=partial(Relaying, "share-keys"), personal=True)
MASKED = MaskingPhase("masked", begin=partial(Relaying, "masked"), kept=True)
UNMASK = MaskingPhase("unmask", begin=Unmasking)


# The strategy -------------------------------------------------------------------------------------------


def _describe_sent(parameters: Parameters, phase: str) -> tuple[Vector, ...]:
    clients = parameters.clients
    lengths = {
        ADVERTISE.name: 2 * KEY_WORDS,
        SHARE_KEYS.name: (clients - 1) * SEALED_WORDS,
        MASKED.name: parameters.model_size,
        UNMASK.name: clients * KEY_WORDS,
    }
    return (Vector(phase, lengths[phase], WORDS, signed=phase == MASKED.name),)


def _describe_released(parameters: Parameters, phase: str) -> tuple[Vector, ...]:
    match phase:
        case ADVERTISE.name:
            return (Vector(phase, (parameters.clients - 1) * 2 * KEY_WORDS, WORDS),)
        case SHARE_KEYS.name:
            return _describe_sent(parameters, phase)
        case UNMASK.name:
            return (Vector("update", parameters.model_size, WORDS, signed=True),)
    return (Vector(phase, 0, WORDS),)


class Bonawitz(Strategy):
    """Federated averaging by one server that sees the sum; clients may drop out of every phase."""

    name = "bonawitz"
    phases = (ADVERTISE, SHARE_KEYS, MASKED, UNMASK)
    support = "dense"
    usual_weights: Weights = "samples"
    uses_rho = False
    reveals = (
        "the first aggregator sees the sum of all updates, and the update of one client if it tells clients "
        "different lists of who is left"
    )

    def exposure(self, parameters: Parameters) -> Exposure:
        """The server learns the sum, and clients the mean update."""
        del parameters
        return Exposure(sums=True, clients_learn="the mean update")

    def begin(self, parameters: Parameters, mine: ClientInput) -> MaskedRound:
        """Weigh the update and draw the secrets."""
        return MaskedRound(parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit keys, seals, N masked numbers, or shares."""
        admit_exactly(_describe_sent(parameters, phase), vectors)

    def admit_release(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit keys, seals, nothing, or N numbers."""
        admit_exactly(_describe_released(parameters, phase), vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute C·(2·C·a_K + (5·C - 4)·a_S + 2·N·32) and the tags of seals, by phases."""
        del union_size
        return costs.masking_bits(parameters.model_size, heads)


STRATEGIES = (Bonawitz(),)
