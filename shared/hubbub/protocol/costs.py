"""Communication costs in payload bits, both directions, all parties (Beguier et al., Eq. 3 and Table 2).

The paper's C has several meanings once clients drop out, so formulas take a `Headcount`: rings are fixed by
the cohort, uploads count who sent, downloads count who received. Without dropout they are the paper's
formulas. A row of Table 2 is the sum of its phases, and a phase is a secure sum of n elements mod m, or a
plain transfer.
"""

from dataclasses import dataclass

from hubbub.errors import ConfigurationError
from hubbub.protocol import signs
from hubbub.protocol.residues import element_bits

FLOAT_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Headcount:
    """How many parties take which part in a phase."""

    cohort: int
    senders: int
    recipients: int
    servers: int

    def __post_init__(self) -> None:
        if not (0 <= self.senders <= self.cohort and 0 <= self.recipients <= self.cohort):
            raise ConfigurationError(
                f"{self.senders} senders and {self.recipients} recipients cannot be of {self.cohort} clients"
            )

    @classmethod
    def complete(cls, clients: int, servers: int) -> "Headcount":
        """Nobody drops out: the paper's setting."""
        return cls(cohort=clients, senders=clients, recipients=clients, servers=servers)


def secure_sum_bits(n: int, m: int, heads: Headcount) -> int:
    """Eq. 3: 2·S·C·n·⌈log2 m⌉, half of it up and half down."""
    up = heads.servers * heads.senders * n * element_bits(m)
    down = heads.servers * heads.recipients * n * element_bits(m)
    return up + down


def signs_bits(n: int, heads: Headcount) -> int:
    """Sum of Signs over n indices: 2·S·C·n·⌈log2(2C + 1)⌉."""
    return secure_sum_bits(n, signs.modulus(heads.cohort), heads)


def factors_bits(heads: Headcount, factor_bits: int = 32) -> int:
    """Sum of Factors: 2·S·C·32."""
    return secure_sum_bits(1, int(2**factor_bits), heads)


def no_union_bits(parameters: int, heads: Headcount, factor_bits: int = 32) -> int:
    """One round with NoUnion: signs of all N parameters, and factors."""
    return signs_bits(parameters, heads) + factors_bits(heads, factor_bits)


def fedavg_bits(parameters: int, clients: int) -> int:
    """One round of uncompressed FedAvg: 2·C·32·N."""
    return 2 * clients * FLOAT_BITS * parameters
