"""Token bucket: bounds a rate and lets a burst pass."""

from __future__ import annotations


class TokenBucket:
    """Holds `burst` tokens when it is full, and gets `per_s` of them back each second."""

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._filled_at_s = 0.0

    def take(self, amount: float, now_s: float) -> bool:
        """Take so many tokens and return True, or return False if there are too few."""
        self._left = min(self._left + self._per_s * (now_s - self._filled_at_s), self._burst)
        self._filled_at_s = now_s
        if self._left < amount:
            return False
        self._left -= amount
        return True
