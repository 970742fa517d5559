"""SecureSum's three local steps: split, accumulate, recombine (Beguier et al., Alg. 1).

    client i    R_{i,j} ∈_R Z_m^n for j < S, and R_{i,S} = X_i - Σ_{j<S} R_{i,j} mod m       split
    server j    R_j = Σ_i R_{i,j} mod m                                                     accumulate
    client      Z = Σ_j R_j = Σ_i X_i mod m                                                 recombine

Any S - 1 of a client's shares are independent and uniform, whatever X_i is (lemma 1 of the paper's appendix):
they tell nothing. Each step treats every element alone, so a vector may be split, accumulated and recombined
chunk by chunk.
"""

from collections.abc import Sequence

from hubbub.errors import ConfigurationError
from hubbub.protocol.dense import Digits, check_digits
from hubbub.protocol.ring import RandomStream, Residues, add_into, residue_type, sample, subtract_into

MIN_SERVERS = 2


def split(x: Digits, m: int, servers: int, stream: RandomStream) -> list[Residues]:
    """Make one share of `x` for each server (Alg. 1, first block); `x` is left as it is.

    The stream must be secret and fresh: whoever knows its bytes reads `x` from the last share. For a long
    vector, slices of some 2^16 elements are fastest: getting fresh memory costs more than the arithmetic.
    """
    check_servers(servers)
    check_digits(x, m)
    shares = [sample(stream, x.size, m) for _ in range(servers - 1)]
    last = x.astype(residue_type(m))
    for share in shares:
        subtract_into(last, share, m)
    return [*shares, last]


def accumulate(total: Residues, share: Residues, m: int) -> None:
    """Add one client's share to a server's running sum R_j, in place (Alg. 1, second block)."""
    add_into(total, share, m)


def recombine(sums: Sequence[Residues], m: int) -> Residues:
    """Add the servers' sums: Z = Σ_j R_j mod m (Alg. 1, third block)."""
    check_servers(len(sums))
    total = sums[0].copy()
    for other in sums[1:]:
        add_into(total, other, m)
    return total


def check_servers(servers: int) -> None:
    """Refuse S < 2: a single server would be given the secret itself."""
    if servers < MIN_SERVERS:
        raise ConfigurationError(f"secret sharing needs at least {MIN_SERVERS} servers, not {servers}")
