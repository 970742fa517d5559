"""Communication costs in payload bits of all parties (Beguier et al., Eq. 3 and Table 2).

The paper's C has several meanings once clients drop out, so formulas take a `Headcount`: the cohort fixes the
rings, senders count for uploads, recipients for downloads. Without dropout they are the paper's formulas. A row
of Table 2 is the sum of its phases, and a phase is a secure sum of n elements mod m, or a plain transfer.

On the compact wire a secure sum has other terms: one full share from each sender, S - 1 sums between servers,
one masked sum to each recipient, all dense; and S - 1 seeds from each sender, which count with the first vector
of their phase.

Tags are not in the paper. They are counted apart from the vectors that they verify.
"""

from dataclasses import dataclass

from hubbub.errors import ConfigurationError
from hubbub.ids import WireMode
from hubbub.protocol import masks, paillier, signs, tags, unions
from hubbub.protocol.layout import DENSE
from hubbub.protocol.packing import element_bits

FLOAT_BITS = 32
SEED_BITS = 256
"""Size of a share that is sent as its seed, however long the share is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headcount:
    """Numbers of parties that take part in a phase, by their part."""

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
        """Count a phase from which nobody drops out, as in the paper."""
        return cls(cohort=clients, senders=clients, recipients=clients, servers=servers)


def secure_sum_bits(n: int, m: int, heads: Headcount, wire: WireMode = "paper") -> int:
    """Eq. 3: 2·S·C·n·⌈log2 m⌉, half of it up and half down; compact, (2·C + S - 1)·⌈n/g⌉·w."""
    if wire == "compact":
        return (heads.senders + heads.recipients + heads.servers - 1) * DENSE.bits(n, m)
    up = heads.servers * heads.senders * n * element_bits(m)
    down = heads.servers * heads.recipients * n * element_bits(m)
    return up + down


def seeds_bits(heads: Headcount, wire: WireMode) -> int:
    """Seeds of one phase: S - 1 of 256 bits from each sender on the compact wire, none on the paper's."""
    return (heads.servers - 1) * heads.senders * SEED_BITS if wire == "compact" else 0


def signs_bits(n: int, heads: Headcount, wire: WireMode = "paper") -> int:
    """Sum of Signs over n indices: 2·S·C·n·⌈log2(2C + 1)⌉."""
    return secure_sum_bits(n, signs.modulus(heads.cohort), heads, wire) + seeds_bits(heads, wire)


def factors_bits(heads: Headcount, factor_bits: int = 32, wire: WireMode = "paper") -> int:
    """Sum of Factors, in the messages of the signs: 2·S·C·32."""
    return secure_sum_bits(1, int(2**factor_bits), heads, wire)


def numbers_bits(n: int, heads: Headcount, number_bits: int = 32, wire: WireMode = "paper") -> int:
    """Sum of n numbers as they are, not in the paper's tables: Eq. 3 with m = 2^λ, 2·S·C·n·32."""
    return secure_sum_bits(n, int(2**number_bits), heads, wire) + seeds_bits(heads, wire)


def sec_union_bits(parameters: int, q: int, heads: Headcount, wire: WireMode = "paper") -> int:
    """SecUnion: 2·S·C·N·q; over blocks of b indices, ⌈N/b⌉ marks instead of N."""
    return secure_sum_bits(parameters, 2**q, heads, wire) + seeds_bits(heads, wire)


def tags_bits(kind: tags.Kind, q: int, heads: Headcount, wire: WireMode = "paper") -> int:
    """Tags of one phase: 2·S·C·3·64 for integers, 2·S·C·84·64 for wide ones, 2·S·C·128·q for marks."""
    vector = tags.describe_for(kind, q)
    return secure_sum_bits(vector.length, vector.modulus, heads, wire)


def pluses_bits(n: int, heads: Headcount, wire: WireMode = "paper") -> int:
    """Sum of Signs where every client sends a sign for all n indices: 2·S·C·n·⌈log2(C + 1)⌉."""
    return secure_sum_bits(n, unions.modulus(heads.cohort), heads, wire) + seeds_bits(heads, wire)


def levels_bits(n: int, bits: int, heads: Headcount, wire: WireMode = "paper") -> int:
    """Sum of n levels of b bits over a shared mask: 2·S·C·n·⌈log2(C·(2^b - 1) + 1)⌉."""
    return secure_sum_bits(n, masks.modulus(heads.cohort, bits), heads, wire) + seeds_bits(heads, wire)


def partial_sec_union_bits(parameters: int, heads: Headcount, wire: WireMode = "paper") -> int:
    """PartialSecUnion: 2·S·C·N·⌈log2(C + 1)⌉."""
    return secure_sum_bits(parameters, heads.cohort + 1, heads, wire) + seeds_bits(heads, wire)


def plaintext_union_bits(parameters: int, heads: Headcount) -> int:
    """PlaintextUnion: 2·C·N, to and from the first server alone."""
    return (heads.senders + heads.recipients) * parameters


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


def masking_bits(parameters: int, heads: Headcount) -> dict[str, int]:
    """The same by what it counts as, and as it is sent: what a client seals to another has a tag of 128 bits.

    All lengths are those of the whole cohort; missing clients have zeros.
    """
    key_bits = share_bits = 256
    peers = heads.cohort - 1
    return {
        "advertise": (heads.senders + peers * heads.recipients) * 2 * key_bits,
        "share-keys": (heads.senders + heads.recipients) * peers * (2 * share_bits + 128),
        "masked": heads.senders * parameters * FLOAT_BITS,
        "unmask": heads.senders * heads.cohort * share_bits,
        "update": heads.recipients * parameters * FLOAT_BITS,
    }


def eastly_tss_bits(parameters: int, clients: int, servers: int) -> int:
    """EaSTLy with threshold secret sharing: 2·S·C·N·⌈log2(2C + 1)⌉."""
    return 2 * servers * clients * parameters * element_bits(signs.modulus(clients))


def eastly_he_bits(parameters: int, clients: int, *, precision_bits: int = 24, padding_bits: int = 8) -> int:
    """EaSTLy with homomorphic encryption: 4·C·N·(prec + pad).

    The paper's text gives C·N·(prec + pad); its Table 2 has the factor 4, and so have the numbers of Table 3.
    """
    return 4 * clients * parameters * (precision_bits + padding_bits)


def paillier_bits(parameters: int, heads: Headcount) -> int:
    """The same as it is sent: whole ciphertexts of 64 parameters, which count as much as that many."""
    ciphertexts = paillier.count_plaintexts(parameters)
    return (heads.senders + heads.recipients) * ciphertexts * paillier.CIPHERTEXT_WORDS * paillier.SLOT_BITS
