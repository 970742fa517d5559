"""Secure sums of real vectors as a library call, without any service (Beguier et al., Alg. 1).

Example with three clinics and two servers; the caller carries the shares from clinics to servers.

    >>> from hubbub.secure_sum import SecureSum
    >>> ask = SecureSum(clients=3, servers=2, length=4, largest=1000.0)
    >>> north, south, east = [120, 80.5, 0, -3], [40, 0, 12.25, 1], [1, 1, 1, 1]
    >>> dealt = [ask.share(north), ask.share(south), ask.share(east)]          # each clinic, at home
    >>> totals = [ask.add(shares) for shares in zip(*dealt)]                   # each server, of its shares
    >>> ask.open(totals)                                                       # whoever is given all totals
    array([161.  ,  81.5 ,  13.25,  -1.  ])
    >>> dealt[0][1], totals[0]
    (Share(<secret>, n=4, server 2, of 1 client), Share(<secret>, n=4, server 1, of 3 clients))

Entries of different sizes take a range each, and `error` bounds how far each entry of the sum may be off. Here are
a number of patients, the sum of their years of birth, and the sum of these squared. With the range of the third
for all, in 32 bits, all numbers would be multiples of 2,048; such parameters are refused.

    >>> ask = SecureSum(clients=3, servers=2, length=3, largest=[1e4, 1e8, 1e12], modulus_bits=64)
    >>> ask.error < [1e-11, 1e-7, 1e-3]
    array([ True,  True,  True])

Any S - 1 servers together learn nothing of a vector; all S can read it. This requires that shares travel over
secure channels, that servers add each client once and over one agreed set of clients, and that only those who may
know the sum get the totals. The services ensure all that (`hubbub.strategies.sums`); here it is up to the caller.

Where most entries are zero, `restricted_to` makes the same call over a declared set of indices. If these are not
known beforehand, first add marks, 1 at every non-zero entry, in a few bits: with `largest=1, modulus_bits=3` their
sum counts how many of three clients have an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import ConfigurationError, DataError, FalseSum
from hubbub.protocol import sharing
from hubbub.protocol.fixed_point import LONG_MODULUS_BITS, MAX_MODULUS_BITS, SignedFixedPoint
from hubbub.protocol.ring import RandomStream, Residues, residue_type


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One server's share of a client's vector, or of the sum of several clients' vectors. It does not print."""

    residues: Residues = field(repr=False)
    server: int
    """From 1 to S."""
    clients: int = 1
    """The number of clients whose shares are in it."""

    def __repr__(self) -> str:
        clients = f"{self.clients} client{'' if self.clients == 1 else 's'}"
        return f"Share(<secret>, n={self.residues.size}, server {self.server}, of {clients})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSum:
    """Parameters that clients and servers agree on beforehand, and the three steps that follow from them.

    `largest` bounds the magnitude of every entry of a client's vector; give one bound for all, or one for each.
    Entries are rounded to multiples of their `unit`, the finest in which the sum of all `clients` fits
    `modulus_bits` (2 to 32, or 64), and these are added exactly.

    No entry of a sum is further off than its `error`. If that is above `tolerance`, or one of its entries, the
    parameters are refused. Without a tolerance they are refused unless whole numbers are added exactly.
    """

    clients: int
    servers: int
    length: int
    largest: float | Sequence[float]
    modulus_bits: int = MAX_MODULUS_BITS
    tolerance: float | Sequence[float] | None = None
    """The most by which an entry of the sum may be off; None if all numbers are whole."""
    indices: tuple[int, ...] | None = None
    """The entries that are shared, ascending; None for all."""
    _numbers: SignedFixedPoint = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sharing.check_servers(self.servers)
        if self.length < 1:
            raise ConfigurationError(f"a vector has at least one entry, not {self.length}")
        inside = self.indices is None or all(0 <= index < self.length for index in self.indices)
        if not inside or (self.indices is not None and sorted(set(self.indices)) != list(self.indices)):
            raise ConfigurationError(f"the indices must ascend and lie between 0 and {self.length - 1}")
        # Tuples, so that equal parameters are equal.
        object.__setattr__(self, "largest", self._read(self.largest))
        object.__setattr__(self, "_numbers", self._fit(self.modulus_bits))
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", self._read(self.tolerance))
        self._check_precision()

    @property
    def unit(self) -> NDArray[np.float64]:
        """For each entry, the step between two representable numbers; a power of two."""
        return np.broadcast_to(self._numbers.unit, self.length)

    @property
    def error(self) -> NDArray[np.float64]:
        """For each entry, a bound on the difference between the opened sum and the sum of the clients' numbers.

        It covers each client's rounding, half a unit (a whole one if the range ends between two units), and the
        rounding of a sum of more than 53 bits to a double.
        """
        return np.broadcast_to(self._numbers.error, self.length)

    def restricted_to(self, indices: Sequence[int] | NDArray[np.int64]) -> SecureSum:
        """Return the same sum over these entries alone; all others must be zero, and are zero in the sum."""
        return replace(self, indices=tuple(sorted({int(index) for index in indices})))

    def share(self, values: ArrayLike, stream: RandomStream | None = None) -> list[Share]:
        """Split a client's vector into one share for each server (Alg. 1, first block).

        The stream must be secret and fresh; without one, randomness comes from the operating system.
        """
        numbers = self._shared_numbers
        units = numbers.to_units(self._pick(self._check(values)))
        source = AesCtrStream.from_os() if stream is None else stream
        shares = sharing.split(numbers.to_ring(units), numbers.modulus, self.servers, source)
        return [Share(residues, server) for server, residues in enumerate(shares, 1)]

    def add(self, shares: Sequence[Share]) -> Share:
        """Add the shares that a server was sent, one of each client (Alg. 1, second block)."""
        if not shares:
            raise DataError("there is no share to add")
        if len({share.server for share in shares}) > 1:
            raise DataError("these shares are for different servers: each adds its own alone")
        clients = sum(share.clients for share in shares)
        if clients > self.clients:
            raise DataError(f"these are shares of {clients} clients where {self.clients} were agreed on")
        total = np.zeros(self._shared, dtype=residue_type(self._numbers.modulus))
        for share in shares:
            self._check_share(share)
            sharing.accumulate(total, share.residues, self._numbers.modulus)
        return Share(total, shares[0].server, clients)

    def open(self, totals: Sequence[Share]) -> NDArray[np.float64]:
        """Recombine the servers' totals into the sum (Alg. 1, third block).

        The servers must agree on the clients in the totals. This checks only that all totals have equally many,
        and that so many clients can have such a sum.
        """
        if sorted(total.server for total in totals) != list(range(1, self.servers + 1)):
            raise DataError(f"to open a sum takes one total of each of the {self.servers} servers")
        if len({total.clients for total in totals}) > 1:
            raise DataError("the servers have added different numbers of clients: they must agree on whom to add")
        for total in totals:
            self._check_share(total)
        numbers = self._shared_numbers
        sums = numbers.from_ring(sharing.recombine([total.residues for total in totals], numbers.modulus))
        if not numbers.are_sums_possible(sums, totals[0].clients):
            raise FalseSum
        opened = np.zeros(self.length)
        opened[slice(None) if self.indices is None else list(self.indices)] = numbers.to_reals(sums)
        return opened

    @property
    def _shared(self) -> int:
        return self.length if self.indices is None else len(self.indices)

    @property
    def _shared_numbers(self) -> SignedFixedPoint:
        return self._numbers if self.indices is None else self._numbers.at(np.array(self.indices, np.int64))

    def _fit(self, modulus_bits: int) -> SignedFixedPoint:
        return SignedFixedPoint.for_cohort(self.clients, self.largest, modulus_bits)

    def _read(self, bounds: ArrayLike) -> float | tuple[float, ...]:
        """Return one bound for all entries, or a tuple of one for each."""
        read = np.asarray(bounds, dtype=np.float64)
        if read.shape not in {(), (self.length,)}:
            raise ConfigurationError(f"give one bound for all entries or {self.length}, one for each")
        return tuple(read.tolist()) if read.ndim else float(read)

    def _find_coarse(self, numbers: SignedFixedPoint) -> NDArray[np.int64]:
        """Return the entries whose sum may be further off than is wanted."""
        coarse = ~numbers.adds_whole_numbers
        if self.tolerance is not None:
            coarse = ~(numbers.error <= np.asarray(self.tolerance))
        return np.flatnonzero(np.broadcast_to(coarse, self.length))

    def _check_precision(self) -> None:
        """Raise `ConfigurationError` if fixed point cannot give the wanted precision; say what can."""
        coarse = self._find_coarse(self._numbers)
        if not coarse.size:
            return
        first = int(coarse[0])
        largest, tolerance = (
            float(np.broadcast_to(each, self.length)[first])
            for each in (self.largest, np.nan if self.tolerance is None else self.tolerance)
        )
        if self.tolerance is not None and not tolerance > 0:
            raise ConfigurationError(f"the tolerance of entry {first} is {tolerance:g}; choose a number above 0")
        wanted, unit = f"{tolerance:g} is wanted", tolerance / self.clients
        if self.tolerance is None:
            wanted, unit = "whole numbers are to be added exactly", 1.0
        limit = self._numbers.limit_for(unit)
        each = ", a range for each entry" if isinstance(self.largest, float) and self.length > 1 else ""
        longer = "" if self._find_coarse(self._fit(LONG_MODULUS_BITS)).size else ", modulus_bits=64"
        raise ConfigurationError(
            f"{coarse.size} of {self.length} entries lose precision: numbers up to {largest:g} are rounded to "
            f"multiples of {self.unit[first]:g}, so that the sum of entry {first} may be off by "
            f"{self.error[first]:g} where {wanted}. Choose a largest of at most {limit:.17g} there{each}{longer}, "
            f"or a tolerance of {self.error[first]:.17g}"
        )

    def _check(self, values: ArrayLike) -> NDArray[np.float64]:
        """Raise `DataError` for a vector that would be added wrongly; the message counts entries, shows none."""
        vector = np.asarray(values, dtype=np.float64)
        if vector.shape != (self.length,):
            raise DataError(f"the vector has shape {vector.shape} where {self.length} entries were agreed on")
        outside = int(np.count_nonzero(self._numbers.outside(vector)))
        if outside:
            bounds = "in their ranges"
            if isinstance(self.largest, float):
                bounds = f"between -{self.largest} and {self.largest}"
            raise DataError(
                f"{outside} of {self.length} entries are not {bounds}: agree on a larger range, or clip them"
            )
        if np.count_nonzero(vector) > np.count_nonzero(self._pick(vector)):
            raise DataError("an entry outside of the declared indices is not zero, and would be lost")
        return vector

    def _pick(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        return vector if self.indices is None else vector[list(self.indices)]

    def _check_share(self, share: Share) -> None:
        if share.residues.size != self._shared:
            raise DataError(f"a share has {share.residues.size} elements where {self._shared} are shared")
