"""The scores phase: a secure sum of a model's scores on the clients' data, so that no single score is revealed.

It follows a released round with any strategy, and is additive over all aggregators. All scores phases of a run are
released over one member set: sums of nearly the same scores over sets that differ by one client would subtract to
that client's.
"""

from __future__ import annotations

from dataclasses import dataclass

from hubbub.errors import LocalError
from hubbub.ids import WireMode
from hubbub.protocol import costs, metrics
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.metrics import Scores, ScoreSheet
from hubbub.strategies.base import ClientRound, Conclusion, Phase, Release

SCORES = Phase(metrics.NAME, tagged="integers")


def predict_bits(sheet: ScoreSheet, heads: Headcount, wire: WireMode) -> int:
    """Compute the payload of a scores phase: Eq. 3 for one vector, or its compact form."""
    vector = sheet.vector
    return costs.secure_sum_bits(vector.length, vector.modulus, heads, wire) + costs.seeds_bits(heads, wire)


@dataclass(eq=False)
class ScoreRound(ClientRound):
    """One client's side of a scores phase. Its scores are secret, so it does not print them."""

    sheet: ScoreSheet
    mine: Scores
    examples: int
    totals: dict[str, float] | None = None
    """Metrics of all members, once the sum is absorbed."""

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe the one vector of all metrics."""
        del phase
        return (self.sheet.vector,)

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Encode this client's scores."""
        del phase
        return (self.sheet.encode(self.mine, self.examples),)

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether `members` clients can have such scores."""
        del phase
        return self.sheet.plausible(release.values[0], members)

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Compute the metrics from the sum."""
        del phase
        self.totals = self.sheet.decode(release.values[0], members)

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Raise `LocalError`: scores change no model."""
        del took_part
        raise LocalError("a scores phase concludes no round")

    def __repr__(self) -> str:
        return f"<ScoreRound of {len(self.sheet.metrics)} metrics>"
