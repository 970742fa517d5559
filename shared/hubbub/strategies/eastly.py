"""`eastly-tss` and `eastly-he`: ternary updates, added without showing them to a server (Dong et al., 2020).

A round has one phase, in which the clients' ternary vectors are added. Factors are sent to nobody. Each client
scales the sum by its own, and so keeps a model of its own:

    client i    T_i, s_i = TernGrad(U_i + δ_i)              θ_i' = θ_i + s_i·(Σ T)/M

M is the number of members. δ_i is zero, except in the round after one that client i was left out of. Sums carry no
tags, so a server can shift them.

`eastly-tss`
    A client sends a Shamir share over a prime field to every server; the servers add them, and clients
    interpolate the sum. As many servers as the threshold, ⌈(S + 1)/2⌉, a majority, can put their shares together
    and read every client's ternary vector; fewer learn nothing. A round goes on with as many, and waits a while
    for the others.

`eastly-he`
    A client encrypts by Paillier's scheme and sends the ciphertexts to the first server, which multiplies them;
    clients decrypt the product. All clients hold the same secret key, and no server does. So whoever has the key
    and sees what a client sent can read it: the server with the help of any one client, or a client that gets at
    what the server received. The key is drawn anew in each round, from the group secret, and erased with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import costs, paillier, shamir, signs, terngrad
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    GatheringPhase,
    Phase,
    Release,
    Strategy,
    add_up,
    admit_exactly,
    require,
    speak,
)
from hubbub.strategies.plaintext import SameForAll


def find_threshold(servers: int) -> int:
    """Return ⌈(S + 1)/2⌉, the servers whose shares make up a vector."""
    return servers // 2 + 1


@dataclass(frozen=True, slots=True)
class ThresholdPhase(Phase):
    """Phase in which shares are values of a polynomial."""

    def quorum(self, servers: int) -> int:
        """Return the threshold."""
        return find_threshold(servers)

    def deal(self, values: Digits, modulus: int, servers: int, stream: RandomStream) -> list[Residues]:
        """Share each value among the servers."""
        return shamir.deal(values, modulus, servers, find_threshold(servers), stream)

    def recombine(self, totals: Mapping[int, Residues], modulus: int) -> Residues:
        """Interpolate the sum."""
        return shamir.recover({place + 1: total for place, total in totals.items()}, modulus)


UPDATE = ThresholdPhase("update")


class TernaryRound(ClientRound):
    """One client's side of a round of ternary updates."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        self._parameters, self._theta = parameters, mine.theta
        self._wanted = add_up(parameters, mine)
        self._spoken = speak(mine, self._wanted)
        self._ternary = terngrad.ternarise(self._spoken, mine.stream)
        self._sum: tuple[Digits, int] | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe N signs."""
        del phase
        return _describe(self._parameters)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return T_i."""
        del phase
        return (signs.to_digits(self._ternary.signs, self._parameters.clients),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether the members' signs can add up to this."""
        del phase
        return int(release.values[0].max()) <= 2 * members

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store the sum."""
        del phase
        self._sum = release.values[0], members

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply the sum to this client's own model."""
        total, members = require(self._sum)
        step = (total.astype(np.int64) - members) * (self._ternary.factor / members)
        return Conclusion(
            self._theta + step.astype(np.float32),
            self._wanted - self._spoken if took_part else self._wanted,
            self._parameters.model_size,
        )

    def __repr__(self) -> str:
        return f"<TernaryRound of {self._parameters.model_size} parameters>"


def _find_field(parameters: Parameters) -> int:
    """Return the smallest prime above twice the clients, for the sums, and above the servers, for their points."""
    return shamir.find_prime(max(parameters.signs_modulus, parameters.servers + 1))


def _describe(parameters: Parameters) -> tuple[Vector, ...]:
    return (Vector(UPDATE.name, parameters.model_size, _find_field(parameters)),)


class EastlyThreshold(Strategy):
    """Ternary updates by threshold sharing; every client has a model of its own."""

    name = "eastly-tss"
    phases = (UPDATE,)
    support = "dense"
    uses_rho = False
    own_models = True
    reveals = "any majority of the aggregators, together, can read every client's signs"

    def exposure(self, parameters: Parameters) -> Exposure:
        """With more than two servers, fewer than all but one can read what a client sent."""
        few = find_threshold(parameters.servers) < parameters.servers
        return Exposure(updates=few, indices=few)

    def begin(self, parameters: Parameters, mine: ClientInput) -> TernaryRound:
        """Draw the signs."""
        return TernaryRound(parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit N signs."""
        del phase
        admit_exactly(_describe(parameters), vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute 2·S·C·N bits of the field."""
        del union_size
        bits = costs.secure_sum_bits(parameters.model_size, _find_field(parameters), heads)
        return {UPDATE.name: bits}


# Paillier -----------------------------------------------------------------------------------------------


class Multiplying(SameForAll):
    """Product of the members' ciphertexts, all modulo the n that each of them sends along."""

    def __init__(self, parameters: Parameters) -> None:
        self._released = _describe_encrypted(parameters)[:1]
        self._n = 0
        self._products: list[int] = []

    def add(self, values: Sequence[Digits], weight: int) -> None:
        """Multiply one member's ciphertexts in; raise `PeerError` for another n, or what is no ciphertext."""
        del weight
        ciphertexts = paillier.from_words(values[0], paillier.CIPHERTEXT_WORDS)
        (n,) = paillier.from_words(values[1], paillier.KEY_WORDS)
        paillier.check_modulus(n)
        paillier.check_ciphertexts(ciphertexts, n)
        if self._n not in {0, n}:
            raise PeerError(RejectReason.DIFFERENT_GROUP, "members encrypt with different keys")
        self._products = paillier.add(self._products, ciphertexts, n) if self._n else ciphertexts
        self._n = n

    def _compute(self) -> Release:
        return Release(self._released, (paillier.to_words(self._products, paillier.CIPHERTEXT_WORDS),))


class PaillierRound(TernaryRound):
    """One client's side of a round of ternary updates that are encrypted."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        super().__init__(parameters, mine)
        if mine.shared is None:
            raise LocalError("a round of eastly-he begins with randomness that the clients share")
        self._key = paillier.make_key(mine.shared)
        self._progress = mine.progress
        # The client's stream is the same after a restart, and so are the update, these and the ciphertexts.
        count = paillier.count_plaintexts(parameters.model_size)
        self._blinds = paillier.draw_blinds(mine.stream, self._key.n, count)
        self._sent: tuple[Digits, ...] | None = None
        self._opened: tuple[Digits, Release] | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe the ciphertexts and n."""
        del phase
        return _describe_encrypted(self._parameters)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return the ciphertexts of T_i, and n; they are computed once."""
        if self._sent is None:
            plaintexts = paillier.pack(*super().contribute(phase))
            report = partial(self._progress, "encrypting")
            ciphertexts = paillier.encrypt(self._key, plaintexts, self._blinds, report)
            self._sent = (
                paillier.to_words(ciphertexts, paillier.CIPHERTEXT_WORDS),
                paillier.to_words([self._key.n], paillier.KEY_WORDS),
            )
        return self._sent

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether the members' signs can add up to what is encrypted."""
        return super().plausible(phase, self._open(release), members)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store the sum."""
        super().absorb(phase, self._open(release), members)

    def _open(self, release: Release) -> Release:
        """Decrypt a release, once."""
        (product,) = release.values
        if self._opened is None or self._opened[0] is not product:
            ciphertexts = paillier.from_words(product, paillier.CIPHERTEXT_WORDS)
            plaintexts = paillier.decrypt(self._key, ciphertexts, partial(self._progress, "decrypting"))
            total = paillier.unpack(plaintexts, self._parameters.model_size)
            self._opened = product, Release(_describe(self._parameters), (total,))
        return self._opened[1]

    def __repr__(self) -> str:
        return f"<PaillierRound of {self._parameters.model_size} parameters>"


def _describe_encrypted(parameters: Parameters) -> tuple[Vector, ...]:
    words = paillier.count_plaintexts(parameters.model_size) * paillier.CIPHERTEXT_WORDS
    return (
        Vector(UPDATE.name, words, paillier.WORDS),
        Vector("modulus", paillier.KEY_WORDS, paillier.WORDS),
    )


class EastlyPaillier(Strategy):
    """Ternary updates that one server adds encrypted; every client has a model of its own."""

    name = "eastly-he"
    phases = (GatheringPhase(UPDATE.name, begin=Multiplying),)
    support = "dense"
    uses_rho = False
    own_models = True
    needs = ("phe", "eastly")
    reveals = "the first aggregator and any one client, together, can read every client's signs"

    def exposure(self, parameters: Parameters) -> Exposure:
        """Servers alone learn nothing; every client could decrypt every update."""
        del parameters
        return Exposure(clients_learn="the key of all updates")

    def begin(self, parameters: Parameters, mine: ClientInput) -> PaillierRound:
        """Draw the signs and the key."""
        return PaillierRound(parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit ciphertexts and n."""
        del phase
        admit_exactly(_describe_encrypted(parameters), vectors)

    def admit_release(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit ciphertexts."""
        del phase
        admit_exactly(_describe_encrypted(parameters)[:1], vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute 4·C·N·32 bits, of whole ciphertexts, and n once from every member."""
        del union_size
        return {
            UPDATE.name: costs.paillier_bits(parameters.model_size, heads),
            "modulus": heads.senders * paillier.KEY_BITS,
        }


STRATEGIES = (EastlyThreshold(), EastlyPaillier())
