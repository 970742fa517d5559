"""`eastly-tss`: ternary updates, added by threshold sharing over a prime field (Dong et al., 2020).

A round has one phase. A client sends a Shamir share of its ternary vector to every server; the servers add them,
and clients interpolate the sum. Factors are sent to nobody. Each client scales the sum by its own, and so keeps a
model of its own:

    client i    T_i, s_i = TernGrad(U_i + δ_i)              θ_i' = θ_i + s_i·(Σ T)/M

M is the number of members. δ_i is zero, except in the round after one that client i was left out of.

As many servers as the threshold, ⌈(S + 1)/2⌉, a majority, can put their shares together and read every client's
ternary vector; fewer learn nothing. A round goes on with as many, and waits a while for the others. Sums carry no
tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hubbub.parameters import Parameters
from hubbub.protocol import costs, shamir, signs, terngrad
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    Phase,
    Release,
    Strategy,
    add_up,
    admit_exactly,
    require,
    speak,
)


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


STRATEGIES = (EastlyThreshold(),)
