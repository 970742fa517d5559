"""Weights by numbers of samples, which no party sees.

Client i has n_i samples and scales its update by w_i = n_i/Σn. The cohort learns Σn alone, once, before the first
round, when all C clients have to be present anyway. No server takes part:

    client i    n_i = Σ_j s_ij mod 2^64, the s_ij uniform; s_ij goes to client j, sealed              deal
    client j    t_j = Σ_i s_ij, sent to all clients under a mask from the group secret                add
    everybody   Σn = Σ_j t_j, between C and C·max_samples                                             total

Any C - 1 clients together learn Σn, and so what the last one has; fewer learn the sum over the others. Weights
stay as they are in every round, and a sum over fewer members is not scaled up: both would tell the number of a
client that is missing.

A client can lie about its number, or send a false t_j, and so choose Σn: a total beyond what the cohort can have
counts as the nearest that it can have. A high one makes all weights small, a low one lets each be up to 1, and the
bound of a round's step holds for either. Its own weight binds it no more than anything else in its update.

Whoever sends different t_j to different clients splits the transcripts, which hold Σn, and nothing of clients with
different totals is ever added up.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hubbub.protocol import sharing
from hubbub.protocol.packing import WORD_MODULUS
from hubbub.protocol.ring import RandomStream

SHARE_BYTES = 8
"""Bytes of a share, and of a masked sum of shares."""


def cap(samples: int, max_samples: int) -> int:
    """Return the number of samples that a client counts as: at least one."""
    return min(max(samples, 1), max_samples)


def deal(samples: int, clients: int, stream: RandomStream) -> list[int]:
    """Split a number of samples into one share for each client; the stream must be secret and fresh."""
    shares = sharing.split(np.array([samples], dtype=np.uint64), WORD_MODULUS, clients, stream)
    return [int(share[0]) for share in shares]


def add(shares: Iterable[int]) -> int:
    """Add shares, or the clients' sums of shares, mod 2^64."""
    return sum(shares) % WORD_MODULUS


def total(sums: Iterable[int], *, clients: int, max_samples: int) -> int:
    """Return Σn from the clients' sums of shares."""
    return min(max(add(sums), clients), clients * max_samples)


def weight_of(samples: int, cohort_samples: int) -> float:
    """Return w_i; 1 if a false total is below the client's own number."""
    return min(1.0, samples / cohort_samples)
