"""What the clients of a run share and no server has: the group secret, and transcripts under its keys.

Every client gives 32 random bytes to every other; the secret follows from all of them, so one honest client is
enough to make it random. It steps from round to round and never back: who takes a client over later finds no key
of a round that is done.

A client's secret, and what is derived from it.

Batch order must not follow from anything public: who can predict the batches of two runs can make them differ
in one. So it comes from a secret that the client draws from the operating system when it joins and that dies with
the run. The demo and the tests replace it by one that follows from a seed, so that runs can be compared bit for
bit; then nothing is secret.
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
    """The secret of a run's clients in its present round; for one thread at a time."""

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
        """Take a secret up again where it stood before a restart."""
        if len(kept) != _KEPT_BYTES:
            raise LocalError(f"a kept group secret has {_KEPT_BYTES} bytes, not {len(kept)}")
        secret = cls(bytearray(kept[8 : 8 + _KEY_BYTES]), kept[8 + _KEY_BYTES :].hex())
        secret._round = int.from_bytes(kept[:8], "big")
        return secret

    def to_bytes(self) -> bytes:
        """Where the secret stands now, to be kept until it steps."""
        self._refuse_if_erased()
        return self._round.to_bytes(8, "big") + bytes(self._chain) + bytes.fromhex(self._confirmation)

    def advance_to(self, number: int) -> None:
        """Step until the secret stands at a round; it never goes back."""
        if number < self._round:
            raise LocalError(f"the group secret stands at round {self._round}; that of round {number} is erased")
        while self._round < number:
            self.step()

    @property
    def round(self) -> int:
        """The round whose keys can be derived; the first is 1."""
        return self._round

    def confirmation(self) -> str:
        """A tag that is equal at all clients only if their secrets are, and that gives nothing of them away."""
        self._refuse_if_erased()
        return self._confirmation

    def key_for(self, purpose: str) -> bytes:
        """32 bytes for one purpose in the present round."""
        self._refuse_if_erased()
        return bytes(_expand(self._chain, bind("key", self._round, purpose)))

    def step(self) -> None:
        """Go to the next round; keys of this one cannot be derived any more."""
        self._refuse_if_erased()
        self._round += 1
        following = _expand(self._chain, bind("step", self._round))
        self._chain[:] = following
        _overwrite(following)

    def erase(self) -> None:
        """Forget the secret for good, as when the run ends."""
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
    """A running HMAC-SHA-256 of everything that others sent and that what follows depends on.

    Two clients have equal digests only if they noted the same parts in the same order; a server, which has no
    key, learns whether digests are equal and nothing else.
    """

    __slots__ = ("_mac",)

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise LocalError(f"the key of a transcript has {_KEY_BYTES} bytes, not {len(key)}")
        self._mac = hmac.new(key, digestmod="sha256")

    def note(self, *parts: bytes | str | int | memoryview | NDArray[Any]) -> None:
        """Add parts, framed as `bind` frames them; arrays are read in place, as their bytes in memory."""
        for part in parts:
            match part:
                case str() | int():
                    self._mac.update(bind(part))
                case bytes() | memoryview():
                    self._note_buffer(memoryview(part))
                case _:
                    self._note_buffer(part.data)

    def copy(self) -> Transcript:
        """Begin another transcript that stands where this one does."""
        other = object.__new__(Transcript)
        other._mac = self._mac.copy()
        return other

    def digest(self, phase: str) -> str:
        """Give the transcript as it stands for one phase; noting goes on afterwards."""
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
    """Derive into memory that can be overwritten, which bytes cannot."""
    out = bytearray(_KEY_BYTES)
    HKDFExpand(SHA256(), _KEY_BYTES, info).derive_into(key, out)
    return out


def _overwrite(secret: bytearray) -> None:
    secret[:] = bytes(len(secret))


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
