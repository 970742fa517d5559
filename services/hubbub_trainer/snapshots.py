"""Snapshots: a model cut into chunks and sealed for a peer, and a peer's model checked and taken.

What a run begins with is the snapshot after round 0. It is sent only where a predecessor left it, and then every
chunk begins with the salt of its commitment, which travels in no other way.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hubbub.crypto.group import GroupSecret
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.messages.snapshots import SnapshotChunk, Voucher
from hubbub.runtime.post import Post
from hubbub.runtime.spool import ChunkRef, Spool
from hubbub.strategies.base import Theta
from hubbub.trust.seals import RunSeals
from hubbub_trainer.succession import SALT_BYTES, commit
from hubbub_trainer.workspace import Workspace, digest, model_hmac

FLOAT = np.dtype("<f4")


def count_chunks(manifest: Manifest) -> int:
    """How many chunks a model of this run makes."""
    return -(-manifest.parameters * FLOAT.itemsize // manifest.chunk_bytes)


def chunk_size(manifest: Manifest, number: int, index: int) -> int:
    """How many bytes a chunk of the snapshot after a round has; refuse one that there is none of."""
    if index >= count_chunks(manifest):
        raise PeerError(RejectReason.WRONG_LENGTH, f"a snapshot has no chunk {index}")
    part = min(manifest.chunk_bytes, manifest.parameters * FLOAT.itemsize - index * manifest.chunk_bytes)
    return part if number else SALT_BYTES + part


def cut(manifest: Manifest, theta: Theta) -> Iterator[bytes]:
    """A model as chunks."""
    values = np.ascontiguousarray(theta, dtype=FLOAT).data.cast("B")
    for start in range(0, len(values), manifest.chunk_bytes):
        yield bytes(values[start : start + manifest.chunk_bytes])


def join(manifest: Manifest, chunks: Iterable[bytes]) -> Theta:
    """The model that chunks make."""
    values = np.frombuffer(b"".join(chunks), dtype=FLOAT).astype(np.float32)
    if values.size != manifest.parameters:
        raise PeerError(RejectReason.WRONG_LENGTH, f"a snapshot holds {values.size} parameters")
    return values


def place_of(key: Key) -> Key:
    """Where the chunks of snapshots are spooled: beside the phases of a round."""
    return replace(key, phase="catchup")


def name_chunk(client: PartyId, number: int, index: int) -> ChunkRef:
    """Where a chunk of a client's model after a round is spooled."""
    return ChunkRef(client, f"after-{number}", index)


async def send(
    post: Post,
    seals: RunSeals,
    manifest: Manifest,
    theta: Theta,
    *,
    number: int,
    to: PartyId,
    salt: bytes = b"",
) -> None:
    """Seal the model that a round left to one client, chunk by chunk."""
    place = Key("round", manifest.run_id, number)
    for index, part in enumerate(cut(manifest, theta)):
        sealed = await asyncio.to_thread(seals.seal_snapshot, number, to, index, salt + part)
        await post.send(place, to=to, role=Role.CLIENT, body=SnapshotChunk(index=index), payload=sealed)


def read(
    spool: Spool, place: Key, seals: RunSeals, manifest: Manifest, *, client: PartyId, number: int
) -> list[bytes]:
    """Open the chunks that a client has sent."""
    indices = range(count_chunks(manifest))
    sealed = ((index, spool.read(place, name_chunk(client, number, index))) for index in indices)
    return [seals.open_snapshot(number, client, index, part) for index, part in sealed]


def check_initial(manifest: Manifest, chunks: Sequence[bytes]) -> Theta:
    """The model that a run begins with, if it is the one that the manifest commits to."""
    salts = {chunk[:SALT_BYTES] for chunk in chunks}
    theta = join(manifest, (chunk[SALT_BYTES:] for chunk in chunks))
    if len(salts) != 1 or commit(salts.pop(), theta) != manifest.initial_model_sha256:
        raise PeerError(RejectReason.DIFFERENT_MODEL, "the snapshot is not the model that the manifest commits to")
    return theta


def take(space: Workspace, theta: Theta, voucher: Voucher) -> None:
    """Go on from a peer's model if it is the one that was vouched for; what was not sent yet is lost."""
    ahead = GroupSecret.from_bytes(space.group_secret.to_bytes())
    ahead.advance_to(voucher.round)
    found = model_hmac(ahead, digest(theta))
    ahead.erase()
    if not hmac.compare_digest(found, voucher.model_hmac):
        raise PeerError(RejectReason.DIFFERENT_MODEL, "the snapshot is not the model that was vouched for")
    space.advance(voucher.round, theta, np.zeros_like(theta), None)
