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
from hubbub.protocol.fixed_point import MAX_MODULUS_BITS, SignedFixedPoint
from hubbub.protocol.ring import RandomStream, Residues


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

    `largest` bounds the magnitude of every entry of a client's vector. Entries are rounded to multiples of `unit`,
    the finest in which the sum of all `clients` fits `modulus_bits`, and these are added exactly.
    """

    clients: int
    servers: int
    length: int
    largest: float
    modulus_bits: int = MAX_MODULUS_BITS
    indices: tuple[int, ...] | None = None
    """The entries that are shared, ascending; None for all."""

    def __post_init__(self) -> None:
        sharing.check_servers(self.servers)
        if self.length < 1:
            raise ConfigurationError(f"a vector has at least one entry, not {self.length}")
        inside = self.indices is None or all(0 <= index < self.length for index in self.indices)
        if not inside or (self.indices is not None and sorted(set(self.indices)) != list(self.indices)):
            raise ConfigurationError(f"the indices must ascend and lie between 0 and {self.length - 1}")
        _ = self._numbers  # Refuses a range that cannot be added in so many bits.

    @property
    def _numbers(self) -> SignedFixedPoint:
        return SignedFixedPoint.for_cohort(self.clients, self.largest, self.modulus_bits)

    @property
    def unit(self) -> float:
        """The step between two representable numbers; a power of two."""
        return self._numbers.unit

    def restricted_to(self, indices: Sequence[int] | NDArray[np.int64]) -> SecureSum:
        """Return the same sum over these entries alone; all others must be zero, and are zero in the sum."""
        return replace(self, indices=tuple(sorted({int(index) for index in indices})))

    def share(self, values: ArrayLike, stream: RandomStream | None = None) -> list[Share]:
        """Split a client's vector into one share for each server (Alg. 1, first block).

        The stream must be secret and fresh; without one, randomness comes from the operating system.
        """
        numbers = self._numbers
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
        total = np.zeros(self._shared, dtype=np.uint32)
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
        numbers = self._numbers
        sums = numbers.from_ring(sharing.recombine([total.residues for total in totals], numbers.modulus))
        if not numbers.are_sums_possible(sums, totals[0].clients):
            raise FalseSum
        opened = np.zeros(self.length)
        opened[slice(None) if self.indices is None else list(self.indices)] = numbers.to_reals(sums)
        return opened

    @property
    def _shared(self) -> int:
        return self.length if self.indices is None else len(self.indices)

    def _check(self, values: ArrayLike) -> NDArray[np.float64]:
        """Raise `DataError` for a vector that would be added wrongly; the message counts entries, shows none."""
        vector = np.asarray(values, dtype=np.float64)
        if vector.shape != (self.length,):
            raise DataError(f"the vector has shape {vector.shape} where {self.length} entries were agreed on")
        outside = int(np.count_nonzero(self._numbers.outside(vector)))
        if outside:
            raise DataError(
                f"{outside} of {self.length} entries are not between -{self.largest} and {self.largest}: agree on "
                "a larger range, or clip them"
            )
        if np.count_nonzero(vector) > np.count_nonzero(self._pick(vector)):
            raise DataError("an entry outside of the declared indices is not zero, and would be lost")
        return vector

    def _pick(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        return vector if self.indices is None else vector[list(self.indices)]

    def _check_share(self, share: Share) -> None:
        if share.residues.size != self._shared:
            raise DataError(f"a share has {share.residues.size} elements where {self._shared} are shared")
