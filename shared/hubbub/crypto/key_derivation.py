"""Keys derived from secrets: the group secret of a run's clients, transcripts under its keys, and a client's own.

No server has the group secret. Every client gives 32 random bytes to every other; the secret is derived from all
of them, so one honest client is enough to make it random. It is a ratchet: it steps from round to round and never
back, so that whoever takes over a client later finds no key of a finished round.

A client's own secret seeds its random choices. Batch order must not follow from anything public: whoever can
predict the batches of two runs can make them differ in one. So the client draws the secret from the operating
system when it joins, and forgets it with the run. The demo and the tests derive it from a seed instead, so that
runs can be compared bit for bit; then nothing is secret.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Any, NoReturn

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from hubbub.crypto.signing import bind
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import RunId

CONTRIBUTION_BYTES = 32

_KEY_BYTES = 32
_FEWEST = 2
_KEPT_BYTES = 8 + _KEY_BYTES + 32


class GroupSecret:
    """The secret of a run's clients in the current round. Not thread-safe."""

    __slots__ = ("_chain", "_confirmation", "_round")

    def __init__(self, chain: bytearray, confirmation: str) -> None:
        self._chain = chain
        self._confirmation = confirmation
        self._round = 1

    @classmethod
    def agree(cls, contributions: Sequence[bytes], *, run: RunId, run_keys: Sequence[bytes]) -> GroupSecret:
        """Derive the secret from all clients' contributions and run keys, both in the manifest's order."""
        if len(contributions) < _FEWEST or len(contributions) != len(run_keys):
            raise LocalError(
                f"{len(contributions)} contributions and {len(run_keys)} run keys make no group secret: "
                f"it takes one of each from all clients, at least {_FEWEST}"
            )
        if any(len(contribution) != CONTRIBUTION_BYTES for contribution in contributions):
            raise PeerError(
                RejectReason.MALFORMED, f"a contribution to the group secret has not {CONTRIBUTION_BYTES} bytes"
            )
        chain = bytearray(_KEY_BYTES)
        info = bind("hubbub/1 group secret", run, *run_keys)
        HKDF(SHA256(), _KEY_BYTES, salt=None, info=info).derive_into(bind(*contributions), chain)
        confirmation_key = _expand(chain, bind("confirmation"))
        return cls(chain, hmac.digest(confirmation_key, bind(run), "sha256").hex())

    @classmethod
    def from_bytes(cls, kept: bytes) -> GroupSecret:
        """Restore a secret as it was before a restart."""
        if len(kept) != _KEPT_BYTES:
            raise LocalError(f"a kept group secret has {_KEPT_BYTES} bytes, not {len(kept)}")
        secret = cls(bytearray(kept[8 : 8 + _KEY_BYTES]), kept[8 + _KEY_BYTES :].hex())
        secret._round = int.from_bytes(kept[:8], "big")
        return secret

    def to_bytes(self) -> bytes:
        """Serialise the secret of the current round, to be stored until the next step."""
        self._refuse_if_erased()
        return self._round.to_bytes(8, "big") + bytes(self._chain) + bytes.fromhex(self._confirmation)

    def advance_to(self, number: int) -> None:
        """Step to a round; the secret never goes back."""
        if number < self._round:
            raise LocalError(f"the group secret stands at round {self._round}; that of round {number} is erased")
        while self._round < number:
            self.step()

    @property
    def round(self) -> int:
        """The round whose keys can be derived; the first is 1."""
        return self._round

    def confirmation(self) -> str:
        """Return a tag that is equal at all clients only if their secrets are; it reveals nothing of them."""
        self._refuse_if_erased()
        return self._confirmation

    def key_for(self, purpose: str) -> bytes:
        """Derive 32 bytes for one purpose in the current round."""
        self._refuse_if_erased()
        return bytes(_expand(self._chain, bind("key", self._round, purpose)))

    def step(self) -> None:
        """Step to the next round; keys of this one can no longer be derived."""
        self._refuse_if_erased()
        self._round += 1
        following = _expand(self._chain, bind("step", self._round))
        self._chain[:] = following
        _overwrite(following)

    def erase(self) -> None:
        """Overwrite the secret, for example when the run ends."""
        _overwrite(self._chain)
        self._confirmation = ""

    def _refuse_if_erased(self) -> None:
        if not any(self._chain):
            raise LocalError("the group secret is used after it was erased")

    def __repr__(self) -> str:
        return "<GroupSecret>"

    def __reduce__(self) -> NoReturn:
        raise LocalError(
            "the group secret cannot be copied or pickled: the copy would stay when a round is erased"
        )


class Transcript:
    """Running HMAC-SHA-256 of everything that others sent and that later messages depend on.

    Two clients have equal digests only if they noted the same parts in the same order. A server, which has no
    key, learns whether digests are equal and nothing else.
    """

    __slots__ = ("_mac",)

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise LocalError(f"the key of a transcript has {_KEY_BYTES} bytes, not {len(key)}")
        self._mac = hmac.new(key, digestmod="sha256")

    def note(self, *parts: bytes | str | int | memoryview | NDArray[Any]) -> None:
        """Append parts, framed as in `bind`; arrays are read in place, as their bytes in memory."""
        for part in parts:
            match part:
                case str() | int():
                    self._mac.update(bind(part))
                case bytes() | memoryview():
                    self._note_buffer(memoryview(part))
                case _:
                    self._note_buffer(part.data)

    def copy(self) -> Transcript:
        """Return an independent copy."""
        other = object.__new__(Transcript)
        other._mac = self._mac.copy()
        return other

    def digest(self, phase: str) -> str:
        """Return the digest so far for one phase; more parts may be noted afterwards."""
        finished = self._mac.copy()
        finished.update(bind(phase))
        return finished.hexdigest()

    def _note_buffer(self, part: memoryview) -> None:
        if not part.c_contiguous:
            raise LocalError("a transcript notes contiguous arrays only")
        self._mac.update(part.nbytes.to_bytes(8, "big"))
        if part.nbytes:
            self._mac.update(part.cast("B"))


def _expand(key: bytearray, info: bytes) -> bytearray:
    """Derive a key into memory that can be overwritten, unlike `bytes`."""
    out = bytearray(_KEY_BYTES)
    HKDFExpand(SHA256(), _KEY_BYTES, info).derive_into(key, out)
    return out


def _overwrite(secret: bytearray) -> None:
    secret[:] = bytes(len(secret))


SEED_BYTES = 16


class ClientSecret:
    """A client's secret, which derives the seeds of its random choices in a round."""

    __slots__ = ("_bind_run", "_key")

    def __init__(self, key: bytes, *, bind_run: bool) -> None:
        self._key = key
        self._bind_run = bind_run

    @classmethod
    def from_os(cls) -> ClientSecret:
        """Draw a secret; what is derived from it differs from run to run."""
        return cls(secrets.token_bytes(32), bind_run=True)

    @classmethod
    def from_bytes(cls, key: bytes) -> ClientSecret:
        """Restore a secret that was drawn before a restart."""
        return cls(key, bind_run=True)

    def to_bytes(self) -> bytes:
        """Return the secret itself, to be stored as long as the run lasts."""
        return self._key

    @classmethod
    def for_demo(cls, seed: int, index: int | None) -> ClientSecret:
        """Return a stand-in that is not secret: seeds follow from (seed, client index, round) alone.

        Without an index it is the same at all clients.
        """
        return cls(f"hubbub demo {seed} {'all' if index is None else index}".encode(), bind_run=False)

    def seed_for(self, purpose: str, *, run: RunId, round_number: int) -> int:
        """Derive a seed for one purpose in one round."""
        key = self.key_for(purpose, run=run, round_number=round_number)
        return int.from_bytes(key[:SEED_BYTES], "big")

    def key_for(self, purpose: str, *, run: RunId, round_number: int) -> bytes:
        """Derive 32 bytes for one purpose in one round, to key a stream with."""
        parts = [part.encode() for part in (purpose, run if self._bind_run else "", str(round_number))]
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, message, "sha256")

    def __repr__(self) -> str:
        return "<ClientSecret>"
