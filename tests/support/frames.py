"""Frames, read and written without a roster at hand: the run tells which parties the numbers in them stand for.

Every manifest that `make_manifest` makes is known here, and every one that a proposal here holds. Whoever is not
in a run's roster gets a number beyond it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hubbub.ids import PartyId, RunId
from hubbub.messages import codec
from hubbub.messages.codec import KINDS, PREFIX
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest, read_manifest
from hubbub.messages.runs import RunProposed
from hubbub.messages.wire_form import RUN_PREFIX_BYTES, Directory, shorten
from hubbub.runtime import publisher
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster

_KNOWN: dict[bytes, tuple[RunId, str]] = {}
"""Runs and the digests of their rosters, by the runs' short names."""
_ROSTERS: dict[str, tuple[PartyId, ...]] = {}
"""Parties by the digest of their roster; by default those of the first manifest for it."""


class _WithStrangers(Directory):
    """Directory that also numbers parties that are not in the roster."""

    def number(self, party: PartyId) -> int:
        return self._numbers.setdefault(party, len(self._numbers))


def know(manifest: Manifest) -> Manifest:
    """Make a manifest's run known."""
    # Zeros stand for no roster, so that manifests of several have them.
    digest = manifest.roster_sha256 if manifest.roster_sha256.strip("0") else manifest.run_id
    _KNOWN[shorten(manifest.run_id)] = manifest.run_id, digest
    own = (*manifest.clients, *manifest.aggregators, manifest.coordinator)
    _ROSTERS.setdefault(digest, tuple(sorted(own)))
    return manifest


def know_roster(roster: Roster) -> None:
    """Make a roster known that has more parties than the manifests for it."""
    _ROSTERS[roster.digest] = tuple(party.name for party in roster.parties)


def directory_of(run: RunId | bytes) -> Directory:
    """Names and numbers of the parties of a known run; for an unknown one, of nobody."""
    prefix = run[:RUN_PREFIX_BYTES] if isinstance(run, bytes) else shorten(run)
    if prefix not in _KNOWN:
        return _WithStrangers(())
    known, digest = _KNOWN[prefix]
    return _WithStrangers(_ROSTERS[digest], [known])


def encode(envelope: Envelope) -> bytes:
    return codec.encode(envelope, _directory_for(envelope))


def sign(identity: Identity, envelope: Envelope) -> Envelope:
    return publisher.sign(identity, envelope, _directory_for(envelope))


def _directory_for(envelope: Envelope) -> Directory:
    if isinstance(envelope.body, RunProposed):
        know(envelope.body.manifest)
    return directory_of(envelope.run)


def decode(frame: bytes) -> Envelope:
    _, run, *_, body = read_head(frame)
    if kind_of(frame) == RunProposed.kind:
        know(read_manifest(body[0]))
    return codec.decode(frame, directory_of(run))


def read_head(frame: bytes) -> list[Any]:
    """The fields of a frame's head, as they were sent."""
    *_, length = PREFIX.unpack_from(frame)
    head: list[Any] = msgspec.msgpack.decode(frame[PREFIX.size : PREFIX.size + length])
    return head


def kind_of(frame: bytes) -> str:
    """The kind of a frame, whoever sent it."""
    number: int = read_head(frame)[0]
    return list(KINDS)[number]
