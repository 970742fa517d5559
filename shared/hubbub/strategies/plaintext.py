"""Plaintext baselines, which hide nothing from the server (Beguier et al., sections 2.2.2, 3.1 and 3.3).

`fedavg` sends whole updates as 32-bit floats. `topbinary-direct` and `topbinary-sep` send TopBinary's factor, a
bit for each parameter that says whether it is chosen, and a bit for the sign of each that is. One server averages
and sends the result back, so that measured traffic is what Table 2 counts. They are here for comparison.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import Weights
from hubbub.parameters import Parameters
from hubbub.protocol import compression, costs, signs
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import (
    NOTHING,
    ClientInput,
    ClientRound,
    Conclusion,
    Exposure,
    GatheringPhase,
    Release,
    Strategy,
    Theta,
    add_up,
    admit_exactly,
    admit_up_to,
    require,
    speak,
)

FLOATS = 2**32
"""A 32-bit float travels as its bits, a residue of this ring."""
REVEALS = "the first aggregator sees every client's update"


def _to_bits(values: NDArray[np.float32]) -> Residues:
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)


def _from_bits(residues: Digits) -> NDArray[np.float32]:
    return np.ascontiguousarray(residues).view(np.float32)


def _read_floats(residues: Digits) -> NDArray[np.float32]:
    """Read a client's floats; raise `PeerError` if one is not finite."""
    if not _are_finite(residues):
        raise PeerError(RejectReason.RESIDUE_OUT_OF_RANGE, "a float that was sent is NaN or infinite")
    return _from_bits(residues)


def _are_finite(residues: Digits) -> bool:
    return bool(np.isfinite(_from_bits(residues)).all())


class SameForAll(ABC):
    """A computation whose result goes to all clients alike."""

    def finish(self, client: int) -> Release:
        """Return the result."""
        del client
        return self._result

    @cached_property
    def _result(self) -> Release:
        return self._compute()

    @abstractmethod
    def _compute(self) -> Release: ...


# FedAvg -------------------------------------------------------------------------------------------------


class _Averaging(SameForAll):
    """Weighted mean Σ|D_i|·U_i / Σ|D_i| (Eq. 2), in double precision."""

    def __init__(self, parameters: Parameters) -> None:
        self._vector = _update_vector(parameters)
        self._total = np.zeros(parameters.model_size, dtype=np.float64)
        self._weight = 0

    def add(self, values: Sequence[Digits], weight: int) -> None:
        self._total += np.multiply(_read_floats(values[0]), weight, dtype=np.float64)
        self._weight += weight

    def _compute(self) -> Release:
        return Release((self._vector,), (_to_bits((self._total / self._weight).astype(np.float32)),))


def _update_vector(parameters: Parameters) -> Vector:
    return Vector("update", parameters.model_size, FLOATS)


class FedAvgRound(ClientRound):
    """One client's side of a round of federated averaging."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        self.weight = mine.samples  # The server divides by the members' total, which it sees anyway.
        self._parameters = parameters
        self._theta = mine.theta
        self._wanted = add_up(parameters, replace(mine, weight=None))
        self._spoken = speak(mine, self._wanted)
        compression.check_finite(self._spoken)
        self._next: Theta | None = None

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe N floats."""
        del phase
        return (_update_vector(self._parameters),)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return U_i."""
        del phase
        return (_to_bits(self._spoken),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether all numbers are finite."""
        del phase, members
        return _are_finite(release.values[0])

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Compute θ + average."""
        del phase, members
        self._next = self._theta + _from_bits(release.values[0])

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Empty the accumulator, unless this client was left out or silent."""
        kept = self._wanted - self._spoken if took_part else self._wanted
        return Conclusion(require(self._next), kept, self._parameters.model_size)

    def __repr__(self) -> str:
        return f"<FedAvgRound of {self._parameters.model_size} parameters>"


class FedAvg(Strategy):
    """Federated averaging: whole updates, in the clear."""

    name = "fedavg"
    phases = (GatheringPhase("update", begin=_Averaging),)
    reveals = REVEALS
    usual_weights: Weights = "samples"
    support = "dense"
    uses_rho = False

    def exposure(self, parameters: Parameters) -> Exposure:
        """The server sees everything, and everybody the mean."""
        del parameters
        return Exposure(updates=True, indices=True, sums=True, clients_learn="the mean update")

    def begin(self, parameters: Parameters, mine: ClientInput) -> FedAvgRound:
        """Take the update as it is."""
        return FedAvgRound(parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit N floats."""
        del phase
        admit_exactly((_update_vector(parameters),), vectors)

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute Table 2, first row."""
        del union_size
        return {"update": costs.fedavg_update_bits(parameters.model_size, heads)}


# TopBinary ----------------------------------------------------------------------------------------------


def _sent_vectors(parameters: Parameters) -> tuple[Vector, ...]:
    return (
        Vector("update.factor", 1, FLOATS),
        Vector("update.indices", parameters.model_size, 2),
        Vector("update.signs", parameters.kept, 2),
    )


def _read_sent(
    parameters: Parameters, values: Sequence[Digits]
) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
    """Read a client's α, its indices and its signs; raise `PeerError` unless it marked k indices."""
    indices = np.flatnonzero(values[1])
    if indices.size != parameters.kept:
        raise PeerError(
            RejectReason.WRONG_LENGTH, f"{indices.size} indices are marked where {parameters.kept} signs are sent"
        )
    return float(_read_floats(values[0])[0]), indices, values[2].astype(np.int64) * 2 - 1


class _DirectSum(SameForAll):
    """Sum (1/M)·Σ α_i·D_i (DirectAgg), sent as V and a float for each of its indices."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._total = np.zeros(parameters.model_size, dtype=np.float64)
        self._chosen = np.zeros(parameters.model_size, dtype=np.bool_)
        self._members = 0

    def add(self, values: Sequence[Digits], weight: int) -> None:
        del weight
        alpha, indices, directions = _read_sent(self._parameters, values)
        self._total[indices] += alpha * directions
        self._chosen[indices] = True
        self._members += 1

    def _compute(self) -> Release:
        support = np.flatnonzero(self._chosen)
        mean = (self._total[support] / self._members).astype(np.float32)
        vectors = _direct_vectors(self._parameters, support.size)
        return Release(vectors, (self._chosen.astype(np.uint32), _to_bits(mean)))


def _direct_vectors(parameters: Parameters, union_size: int) -> tuple[Vector, ...]:
    return (
        Vector("update.indices", parameters.model_size, 2),
        Vector("update.coefficients", union_size, FLOATS),
    )


class _SeparateSum(SameForAll):
    """Sums Σ α_i and Σ D_i (SepAgg), the latter sent as V and a residue mod 2C + 1 for each of its indices."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._alpha = 0.0
        self._directions = np.zeros(parameters.model_size, dtype=np.int64)
        self._chosen = np.zeros(parameters.model_size, dtype=np.bool_)

    def add(self, values: Sequence[Digits], weight: int) -> None:
        del weight
        alpha, indices, directions = _read_sent(self._parameters, values)
        self._alpha += alpha
        self._directions[indices] += directions
        self._chosen[indices] = True

    def _compute(self) -> Release:
        support = np.flatnonzero(self._chosen)
        summed = np.mod(self._directions[support], self._parameters.signs_modulus).astype(np.uint32)
        values = (_to_bits(np.array([self._alpha])), self._chosen.astype(np.uint32), summed)
        return Release(_separate_vectors(self._parameters, support.size), values)


def _separate_vectors(parameters: Parameters, union_size: int) -> tuple[Vector, ...]:
    return (
        Vector("update.factor", 1, FLOATS),
        Vector("update.indices", parameters.model_size, 2),
        Vector("update.signs", union_size, parameters.signs_modulus),
    )


class TopBinaryRound(ClientRound):
    """One client's side of FedAvg with TopBinary. It sends exactly k signs; that of a zero is +1."""

    def __init__(self, parameters: Parameters, mine: ClientInput) -> None:
        self._parameters = parameters
        self._theta = mine.theta
        self._wanted = add_up(parameters, mine)
        spoken = speak(mine, self._wanted)
        self._indices = compression.top_k(spoken, parameters.kept)
        self._positive = spoken[self._indices] >= 0
        self._alpha = np.float32(compression.scaling_factor(spoken, self._indices, rule=parameters.alpha_rule))
        self._next: Theta | None = None
        self._size = 0

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe a float, N bits and k bits."""
        del phase
        return _sent_vectors(self._parameters)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return α_i, V_i and the signs on it."""
        del phase
        chosen = np.zeros(self._parameters.model_size, dtype=np.uint32)
        chosen[self._indices] = 1
        return _to_bits(np.array([self._alpha])), chosen, self._positive.astype(np.uint32)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether each marked index has one coefficient, finite or a possible sum of the members' signs."""
        del phase
        as_many = self._read_support(release).size == release.vectors[-1].length
        if release.vectors[-1].name == "update.coefficients":
            return as_many & _are_finite(release.values[-1])
        directions = signs.from_ring(release.values[-1], self._parameters.clients)
        return as_many & _are_finite(release.values[0]) & (int(np.abs(directions).max(initial=0)) <= members)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Compute θ + U, where U is what the server sent, or follows from it."""
        del phase
        support = self._read_support(release)
        self._size = support.size
        self._next = self._theta.copy()
        self._next[support] += self._read_step(release, members)

    @staticmethod
    def _read_support(release: Release) -> NDArray[np.int64]:
        names = [vector.name for vector in release.vectors]
        return np.flatnonzero(release.values[names.index("update.indices")])

    def _read_step(self, release: Release, members: int) -> NDArray[np.float32]:
        if release.vectors[-1].name == "update.coefficients":
            return _from_bits(release.values[-1])
        alpha = float(_from_bits(release.values[0])[0])
        step = signs.from_ring(release.values[-1], self._parameters.clients).astype(np.float32)
        step /= np.float32(members)
        step *= np.float32(alpha / members)
        return step

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Remove what was sent from the accumulator."""
        kept = self._wanted
        if took_part:
            kept = self._wanted.copy()
            kept[self._indices] -= self._alpha * np.where(self._positive, np.float32(1), np.float32(-1))
        return Conclusion(require(self._next), kept, self._size)

    def __repr__(self) -> str:
        return f"<TopBinaryRound of {self._parameters.model_size} parameters>"


class TopBinary(Strategy):
    """TopBinary: k signs and a factor, in the clear; the server averages directly or separately."""

    reveals = REVEALS
    support = "union"

    def __init__(self, name: str, *, direct: bool) -> None:
        self.name, self.direct = name, direct
        self.phases = (GatheringPhase("update", begin=_DirectSum if direct else _SeparateSum),)

    def exposure(self, parameters: Parameters) -> Exposure:
        """The server sees everything; direct means show clients some factors."""
        del parameters
        # Where one client alone chose an index, the mean shows its factor, and so which indices are its own.
        learnt = "single factors" if self.direct else NOTHING
        return Exposure(updates=True, indices=True, sums=True, clients_learn=learnt)

    def begin(self, parameters: Parameters, mine: ClientInput) -> TopBinaryRound:
        """Compress the update."""
        return TopBinaryRound(parameters, mine)

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit a float, N bits and k bits."""
        del phase
        admit_exactly(_sent_vectors(parameters), vectors)

    def admit_release(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Admit N bits and a value for each chosen index; with SepAgg also the sum of the factors."""
        del phase
        describe = _direct_vectors if self.direct else _separate_vectors
        admit_up_to(describe(parameters, parameters.most_chosen), vectors)

    def union_size(self, released: Sequence[Vector]) -> int:
        """Return the number of coefficients or sums of signs."""
        return released[-1].length

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute Table 2, second or third row."""
        formula = costs.top_binary_direct_bits if self.direct else costs.top_binary_sep_bits
        return {"update": formula(parameters.model_size, parameters.kept, union_size, heads)}


STRATEGIES = (FedAvg(), TopBinary("topbinary-direct", direct=True), TopBinary("topbinary-sep", direct=False))
