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


def numbers_bits(n: int, heads: Headcount, number_bits: int = 32) -> int:
    """Sum of n numbers as they are, not in the paper's tables: Eq. 3 with m = 2^λ, 2·S·C·n·32."""
    return secure_sum_bits(n, int(2**number_bits), heads)


def sec_union_bits(parameters: int, q: int, heads: Headcount) -> int:
    """SecUnion: 2·S·C·N·q."""
    return secure_sum_bits(parameters, 2**q, heads)


def partial_sec_union_bits(parameters: int, heads: Headcount) -> int:
    """PartialSecUnion: 2·S·C·N·⌈log2(C + 1)⌉."""
    return secure_sum_bits(parameters, heads.cohort + 1, heads)


def plaintext_union_bits(parameters: int, heads: Headcount) -> int:
    """PlaintextUnion: 2·C·N, to and from the first server alone."""
    return (heads.senders + heads.recipients) * parameters


def no_union_bits(parameters: int, heads: Headcount, factor_bits: int = 32) -> int:
    """One round with NoUnion: signs of all N parameters, and factors."""
    return signs_bits(parameters, heads) + factors_bits(heads, factor_bits)


def fedavg_bits(parameters: int, clients: int) -> int:
    """One round of uncompressed FedAvg: 2·C·32·N."""
    return 2 * clients * FLOAT_BITS * parameters


def fedavg_update_bits(parameters: int, heads: Headcount) -> int:
    """The same with dropout: 32·N from every sender and to every recipient."""
    return (heads.senders + heads.recipients) * FLOAT_BITS * parameters


def top_binary_direct_bits(parameters: int, kept: int, union_size: int, heads: Headcount) -> int:
    """FedAvg with TopBinary and DirectAgg: C·(32·(1 + |V|) + 2·N + ⌊ρ·N⌋)."""
    up = FLOAT_BITS + parameters + kept
    down = parameters + FLOAT_BITS * union_size
    return heads.senders * up + heads.recipients * down


def top_binary_sep_bits(parameters: int, kept: int, union_size: int, heads: Headcount) -> int:
    """FedAvg with TopBinary and SepAgg: C·(2·32 + 2·N + ⌊ρ·N⌋ + |V|·⌈log2(2C + 1)⌉)."""
    up = FLOAT_BITS + parameters + kept
    down = FLOAT_BITS + parameters + union_size * element_bits(signs.modulus(heads.cohort))
    return heads.senders * up + heads.recipients * down


def bonawitz_bits(
    parameters: int, clients: int, *, key_bits: int = 256, share_bits: int = 256, modulus: int = 2**32
) -> int:
    """Practical Secure Aggregation: C·(2·C·a_K + (5·C - 4)·a_S + 2·N·⌈log2 T⌉)."""
    keys = 2 * clients * key_bits + (5 * clients - 4) * share_bits
    return clients * (keys + 2 * parameters * element_bits(modulus))


def eastly_tss_bits(parameters: int, clients: int, servers: int) -> int:
    """EaSTLy with threshold secret sharing: 2·S·C·N·⌈log2(2C + 1)⌉."""
    return 2 * servers * clients * parameters * element_bits(signs.modulus(clients))


def eastly_he_bits(parameters: int, clients: int, *, precision_bits: int = 24, padding_bits: int = 8) -> int:
    """EaSTLy with homomorphic encryption: 4·C·N·(prec + pad).

    The paper's text gives C·N·(prec + pad); its Table 2 has the factor 4, and so have the numbers of Table 3.
    """
    return 4 * clients * parameters * (precision_bits + padding_bits)
