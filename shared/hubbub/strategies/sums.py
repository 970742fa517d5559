"""Sums of the clients' numbers as they are: federated statistics, without any learning.

A client's update, the task's result minus the model it was given, is a vector of numbers: counts, totals, a
histogram. A round releases their sum, which replaces the model; nothing is compressed, averaged or carried over.
`sum` adds all N numbers. `sparse-sum` first agrees on V, the indices where any client has a non-zero number, and
adds the numbers on V alone.

Numbers are fixed point mod 2^λ (`hubbub.protocol.fixed_point`), from -alpha_max to alpha_max or in ranges of their
own, and what was sent is added exactly. The model holds the sum as the nearest 32-bit float, which has 24 binary
digits: every whole number up to 16,777,216. For more digits, put the high and the low ones of a number at two
indices.

No refusal may depend on a client's own numbers, because it would reveal something of them. So a number out of
range is clipped, NaN becomes 0, and of more than k = ⌊ρ·N⌋ non-zeros `sparse-sum` keeps the k largest. The
conclusion counts the changed numbers, for the client alone.

The union is PartialSecUnion's, which counts in Z_{C+1} the clients that have an index and so never loses one.
SecUnion's marks cancel with a chance of about 2^-q, and a lost index here is a wrong statistic. Clients learn the
counts, which are sums over the members like the rest, and check that the sums fit them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hubbub.parameters import Parameters
from hubbub.protocol import compression, costs, unions
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.fixed_point import Units
from hubbub.protocol.layout import Vector
from hubbub.protocol.packing import MAX_MODULUS, residue_type
from hubbub.protocol.tags import Kind
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    Phase,
    Release,
    Restriction,
    Strategy,
    Theta,
    admit_exactly,
    admit_up_to,
    check_length,
    require,
)
from hubbub.strategies.unions import Found, PartialSecUnion

UNION = PartialSecUnion()


@dataclass(frozen=True, slots=True)
class ValuesPhase(Phase):
    """Phase in which numbers are added, in rings up to Z_(2^64)."""

    def tags_in(self, parameters: Parameters) -> Kind | None:
        """Return the kind of tags that the ring needs."""
        kind = Phase.tags_in(self, parameters)
        return "wide" if kind and _modulus(parameters) > MAX_MODULUS else kind


VALUES = ValuesPhase("values", tagged="integers")


class SumRound(ClientRound):
    """One client's side of a sum of numbers."""

    def __init__(self, parameters: Parameters, mine: ClientInput, *, sparse: bool) -> None:
        check_length(parameters, mine)
        self._parameters = parameters
        self._sparse = sparse
        self._numbers = self._summed = parameters.signed_fixed_point
        self._units, self._changed = self._take(mine.update)
        self._found: Found | None = None
        self._next: Theta | None = None

    def _take(self, update: Theta) -> tuple[Units, int]:
        """Return the units to send, and the count of numbers that had to be changed."""
        changed, units = self._numbers.outside(update), self._numbers.to_units(update)
        if self._sparse and np.count_nonzero(units) > self._parameters.kept:
            surplus = units != 0
            surplus[compression.top_k(np.nan_to_num(update), self._parameters.kept)] = False
            units[surplus] = 0
            changed |= surplus
        return units, int(np.count_nonzero(changed))

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe N marks; or the numbers, on V if there is one."""
        if phase == UNION.phase.name:
            return (UNION.vector(self._parameters, self._parameters.model_size),)
        length = self._parameters.model_size if self._found is None else self._found.support.size
        return (_values_vector(self._parameters, length),)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return 1 at every non-zero number; or the numbers."""
        if phase == UNION.phase.name:
            return (unions.mark(np.sign(self._units).astype(np.int8)),)
        return (self._numbers.to_ring(self._units if self._found is None else self._units[self._found.support]),)

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """Return V, if numbers are added on it alone."""
        return () if phase != VALUES.name or self._found is None else (Restriction(self._found.support),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether V is possible; or the sums are, given the counts, and none is zero where one client adds."""
        total = release.values[0]
        if phase == UNION.phase.name:
            return UNION.is_possible(total, members, self._parameters.kept)
        sums = self._decode(total)
        if self._found is None:
            return self._summed.are_sums_possible(sums, members)
        counts = self._found.sums.astype(np.uint32, copy=False)
        idle = bool(((counts == 1) & (sums == 0)).any())
        return self._summed.are_sums_possible(sums, counts) & (not idle)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Store V; or the sum, which is the next model."""
        del members
        if phase == UNION.phase.name:
            self._found = Found.of(release.values[0])
            self._summed = self._numbers.at(self._found.support)
            return
        sums = self._summed.to_reals(self._decode(release.values[0]))
        if self._found is None:
            self._next = sums.astype(np.float32)
            return
        self._next = np.zeros(self._parameters.model_size, dtype=np.float32)
        self._next[self._found.support] = sums

    def _decode(self, total: Digits) -> Units:
        return self._numbers.from_ring(total.astype(residue_type(self._numbers.modulus), copy=False))

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Return the sum as the model. A client that was left out carries nothing over, either."""
        theta = require(self._next)
        nothing = np.zeros_like(theta)
        changed = self._changed if took_part else 0
        if self._found is None:
            return Conclusion(theta, nothing, self._parameters.model_size, changed=changed)
        alone = UNION.alone_share(self._parameters, self._found, self._found.sums, self._parameters.clients)
        return Conclusion(theta, nothing, self._found.support.size, alone, changed=changed)

    def __repr__(self) -> str:
        return f"<SumRound of {self._parameters.model_size} numbers>"


def _values_vector(parameters: Parameters, length: int) -> Vector:
    return Vector(VALUES.name, length, _modulus(parameters), signed=True)


def _modulus(parameters: Parameters) -> int:
    return int(2**parameters.number_bits)


class SumStrategy(Strategy):
    """Sum of numbers as they are, of all or on a union."""

    repeats = True

    def __init__(self, name: str, *, sparse: bool) -> None:
        self.name = name
        self.sparse = sparse
        self.phases = (UNION.phase, VALUES) if sparse else (VALUES,)
        self.support = UNION.support if sparse else "dense"
        self.uses_rho = sparse

    def exposure(self, parameters: Parameters) -> Exposure:
        """Clients learn the sum itself, and on a union how many chose each index."""
        del parameters
        return Exposure(clients_learn="the sum, counts" if self.sparse else "the sum")

    def begin(self, parameters: Parameters, mine: ClientInput) -> SumRound:
        """Take the numbers as they are."""
        return SumRound(parameters, mine, sparse=self.sparse)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit N marks; N numbers, or as many as the cohort can have indices."""
        if phase == UNION.phase.name:
            admit_exactly((UNION.vector(parameters, parameters.model_size),), vectors)
        elif self.sparse:
            admit_up_to((_values_vector(parameters, parameters.most_chosen),), vectors)
        else:
            admit_exactly((_values_vector(parameters, parameters.model_size),), vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute Eq. 3 for each phase."""
        length = union_size if self.sparse else parameters.model_size
        values = {VALUES.name: costs.numbers_bits(length, heads, parameters.number_bits, parameters.wire)}
        return {"union": UNION.predict_bits(parameters, heads), **values} if self.sparse else values


STRATEGIES = (SumStrategy("sum", sparse=False), SumStrategy("sparse-sum", sparse=True))
