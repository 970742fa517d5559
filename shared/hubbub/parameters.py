"""The parameters of a run, checked together: a combination that can overflow cannot be built."""

import math
from dataclasses import dataclass

from hubbub.errors import ConfigurationError
from hubbub.ids import AlphaRule, Feedback, WireMode
from hubbub.protocol import masks, signs, unions
from hubbub.protocol.aggregate import FactorBounds
from hubbub.protocol.compression import count_kept
from hubbub.protocol.fixed_point import (
    LONG_MODULUS_BITS,
    MAX_MODULUS_BITS,
    FixedPoint,
    SignedFixedPoint,
)
from hubbub.protocol.sharing import check_servers
from hubbub.protocol.unions import check_q

MIN_CLIENTS = 2

KAPPA, FIRST_FACTOR_BOUND, FACTOR_FLOOR = 4.0, 0.1, 1e-3
"""Defaults of the bounds on a round's mean factor."""

# The sum of the factors is applied to the model in float32.
LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """N, C, S, ρ, q and the fixed point, in the letters of Beguier et al.

    `alpha_max` bounds a client's scaling factor (the clipped part stays in its error accumulator); where numbers
    are added as they are, it bounds each of them. `factor_bits` is λ. `q` is for SecUnion alone. `feedback` says
    what leaves the accumulator of a client whose indices SecUnion lost: everything that it sent (`paper`, Alg. 2
    to the letter) or only what arrived (`lost`, so that what was lost is sent again). `wire` is the encoding of
    shares and sums. `block`, also for SecUnion alone, is the number of neighbouring indices that are chosen
    together; if it is above 1, every client sends a sign for every index of V. `kappa`, `first_factor_bound` and
    `factor_floor` bound the mean factor of a round, and so how far its members can move the model. With
    `verified`, clients send tags, with which they verify sums. `bits` is for shared-mask alone: a client gives the
    change of a coordinate in so many bits. `number_bits`, 32 or 64, is for numbers that are added as they are.
    `ranges` are for these, too: a count of numbers and their largest magnitude, then the same of the next ones,
    and so on. Without ranges it is alpha_max for all.
    """

    model_size: int
    clients: int
    servers: int
    rho: float
    alpha_max: float = 16.0
    factor_bits: int = 32
    q: int = 1
    alpha_rule: AlphaRule = "norm"
    feedback: Feedback = "lost"
    wire: WireMode = "paper"
    block: int = 1
    kappa: float = KAPPA
    first_factor_bound: float = FIRST_FACTOR_BOUND
    factor_floor: float = FACTOR_FLOOR
    verified: bool = True
    bits: int = masks.DEFAULT_BITS
    number_bits: int = 32
    ranges: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if self.model_size < 1:
            raise ConfigurationError(f"a model has at least one parameter, not {self.model_size}")
        if self.clients < MIN_CLIENTS:
            raise ConfigurationError(
                f"{self.clients} clients: at least {MIN_CLIENTS} are needed; the sum over one hides nothing"
            )
        check_servers(self.servers)
        if self.number_bits not in (MAX_MODULUS_BITS, LONG_MODULUS_BITS):
            raise ConfigurationError(
                f"number_bits is {self.number_bits}; choose {MAX_MODULUS_BITS} or {LONG_MODULUS_BITS}"
            )
        if not math.isfinite(self.clients * self.alpha_max) or self.clients * self.alpha_max > LARGEST_FLOAT32:
            raise ConfigurationError(
                f"{self.clients} factors of up to {self.alpha_max} overflow a 32-bit float; lower alpha_max"
            )
        check_q(self.q)
        masks.check_bits(self.bits)
        # Each refuses what it cannot represent: k = 0, a ring above 2^32, factors whose sum overflows, no bounds.
        _ = self.kept, self.signs_modulus, self.levels_modulus, self.fixed_point, self.factor_bounds
        _ = self.range_fixed_point
        self._check_ranges()
        unions.check_block(self.block, self.kept)
        if self.block > 1 and self.feedback == "paper":
            raise ConfigurationError(
                "with blocks nothing is said outside of V, so that feedback = paper means nothing: choose lost"
            )

    def _check_ranges(self) -> None:
        given = sum(count for count, _ in self.ranges)
        if self.ranges and given != self.model_size:
            raise ConfigurationError(f"the ranges are of {given} numbers, and there are {self.model_size}")
        if any(largest > self.alpha_max for _, largest in self.ranges):
            raise ConfigurationError(f"a range is above alpha_max, which is {self.alpha_max:g}")

    @property
    def kept(self) -> int:
        """The signs that a client keeps, k = ⌊ρ·N⌋."""
        return count_kept(self.model_size, self.rho)

    @property
    def blocks(self) -> int:
        """The blocks that SecUnion's marks are for, ⌈N/b⌉; N where indices are chosen one by one."""
        return unions.count_blocks(self.model_size, self.block)

    @property
    def kept_blocks(self) -> int:
        """The blocks that a client chooses, ⌊k/b⌋."""
        return self.kept // self.block

    @property
    def most_chosen(self) -> int:
        """The largest |V| that the whole cohort can choose one by one."""
        return min(self.model_size, self.clients * self.kept)

    @property
    def most_active(self) -> int:
        """The largest |V| that the whole cohort can choose in blocks."""
        return min(self.model_size, self.clients * self.kept_blocks * self.block)

    @property
    def pluses_modulus(self) -> int:
        """C + 1, the ring in which signs are added where every client sends one for every index of V."""
        return unions.modulus(self.clients)

    @property
    def signs_modulus(self) -> int:
        """2C + 1, the ring in which signs are added."""
        return signs.modulus(self.clients)

    @property
    def levels_modulus(self) -> int:
        """C·(2^b - 1) + 1, the ring in which levels on a shared mask are added."""
        return masks.modulus(self.clients, self.bits)

    @property
    def factors_modulus(self) -> int:
        """2^λ, the ring in which factors are added."""
        return self.fixed_point.modulus

    @property
    def fixed_point(self) -> FixedPoint:
        """Q and its inverse, with the largest a that cannot overflow."""
        return FixedPoint.for_cohort(self.clients, self.alpha_max, self.factor_bits)

    @property
    def factor_bounds(self) -> FactorBounds:
        """Bounds on the mean factor of a round."""
        return FactorBounds(self.kappa, self.first_factor_bound, self.factor_floor)

    @property
    def mean_fixed_point(self) -> SignedFixedPoint:
        """The fixed point for weighted numbers whose weights add up to 1, with a bit to spare for rounding."""
        return SignedFixedPoint.for_cohort(2, self.alpha_max, self.factor_bits)

    @property
    def signed_fixed_point(self) -> SignedFixedPoint:
        """The fixed point for numbers of either sign, each up to its range; sums of numbers use it."""
        return self.range_fixed_point.repeat([count for count, _ in self.ranges])

    @property
    def range_fixed_point(self) -> SignedFixedPoint:
        """The same, with one value for each of `ranges`: it takes no memory for each number."""
        largest = [largest for _, largest in self.ranges] or self.alpha_max
        return SignedFixedPoint.for_cohort(self.clients, largest, self.number_bits)
