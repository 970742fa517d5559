"""A client's secret, and what is derived from it.

Batch order must not follow from anything public: who can predict the batches of two runs can make them differ
in one. So it comes from a secret that the client draws from the operating system when it joins and that dies with
the run. The demo and the tests replace it by one that follows from a seed, so that runs can be compared bit for
bit; then nothing is secret.
"""

from __future__ import annotations

import hmac
import secrets

from hubbub.ids import RunId

SEED_BYTES = 16


class ClientSecret:
    """Derives seeds for what a client does at random in a round."""

    __slots__ = ("_bind_run", "_key")

    def __init__(self, key: bytes, *, bind_run: bool) -> None:
        self._key = key
        self._bind_run = bind_run

    @classmethod
    def from_os(cls) -> ClientSecret:
        """Draw a secret; what is derived differs from run to run."""
        return cls(secrets.token_bytes(32), bind_run=True)

    @classmethod
    def from_bytes(cls, key: bytes) -> ClientSecret:
        """Take a secret up again that was drawn before a restart."""
        return cls(key, bind_run=True)

    def to_bytes(self) -> bytes:
        """The secret itself, to be kept as long as the run lasts."""
        return self._key

    @classmethod
    def for_demo(cls, seed: int, index: int) -> ClientSecret:
        """No secret at all: seeds follow from (seed, client index, round) alone."""
        return cls(f"hubbub demo {seed} {index}".encode(), bind_run=False)

    def seed_for(self, purpose: str, *, run: RunId, round_number: int) -> int:
        """A seed for one purpose in one round."""
        key = self.key_for(purpose, run=run, round_number=round_number)
        return int.from_bytes(key[:SEED_BYTES], "big")

    def key_for(self, purpose: str, *, run: RunId, round_number: int) -> bytes:
        """32 bytes for one purpose in one round, to key a stream with."""
        parts = [part.encode() for part in (purpose, run if self._bind_run else "", str(round_number))]
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, message, "sha256")

    def __repr__(self) -> str:
        return "<ClientSecret>"
