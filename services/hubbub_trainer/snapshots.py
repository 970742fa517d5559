"""Snapshots: sends our model to a peer that has lost sums or lacks it, and checks and takes over a peer's.

A snapshot is the model with the history of mean factors and, in a run with momentum, the velocity: the next step
depends on all of them. It is cut into chunks and sealed. The model that a run begins with is the snapshot after
round 0. It is sent only if a predecessor run left it. Then every chunk begins with the salt of its commitment,
which is sent in no other way.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hubbub.crypto.key_derivation import GroupSecret
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.messages.snapshots import (
    MEAN_BYTES,
    SnapshotChunk,
    Voucher,
    count_chunks,
    has_velocity,
    snapshot_bytes,
)
from hubbub.protocol import aggregate
from hubbub.protocol.aggregate import History
from hubbub.runtime.spool import ChunkRef
from hubbub.strategies.base import Theta
from hubbub_trainer.events import SnapshotSent, SnapshotTaken
from hubbub_trainer.phases.catchup import TakeSnapshot
from hubbub_trainer.phases.participation import SendSnapshot
from hubbub_trainer.run_context import RunContext
from hubbub_trainer.saved_model import SALT_BYTES, commit
from hubbub_trainer.workspace import Workspace, digest, model_hmac

FLOAT = np.dtype("<f4")


def chunk_size(manifest: Manifest, number: int, index: int) -> int:
    """Return the size of a chunk of the snapshot after a round, in bytes; refuse an index out of range."""
    if index >= count_chunks(manifest, number):
        raise PeerError(RejectReason.WRONG_LENGTH, f"a snapshot has no chunk {index}")
    part = min(manifest.chunk_bytes, snapshot_bytes(manifest, number) - index * manifest.chunk_bytes)
    return part if number else SALT_BYTES + part


def cut(
    manifest: Manifest, theta: Theta, history: History, velocity: Theta | None = None, *, number: int
) -> Iterator[bytes]:
    """Cut the state after a round into chunks."""
    vectors = [theta] if velocity is None or not has_velocity(manifest, number) else [theta, velocity]
    content = b"".join(np.ascontiguousarray(each, dtype=FLOAT).tobytes() for each in vectors)
    content += aggregate.pack(history, number)
    for start in range(0, len(content), manifest.chunk_bytes):
        yield content[start : start + manifest.chunk_bytes]


def join(manifest: Manifest, chunks: Iterable[bytes], *, number: int) -> tuple[Theta, History, Theta | None]:
    """Join chunks into model, history and velocity."""
    content = b"".join(chunks)
    if len(content) != snapshot_bytes(manifest, number):
        raise PeerError(RejectReason.WRONG_LENGTH, f"a snapshot has {len(content)} bytes")
    vectors = np.frombuffer(content[: len(content) - number * MEAN_BYTES], dtype=FLOAT).astype(np.float32)
    theta, velocity = np.split(vectors, [manifest.parameters])
    history = aggregate.unpack(content[len(content) - number * MEAN_BYTES :])
    return theta, history, velocity if has_velocity(manifest, number) else None


def place_of(key: Key) -> Key:
    """Return the spool's key for the chunks of snapshots: beside the phases of a round."""
    return replace(key, phase="catchup")


def name_chunk(client: PartyId, number: int, index: int) -> ChunkRef:
    """Return the spool's name for a chunk of a client's model after a round."""
    return ChunkRef(client, f"after-{number}", index)


async def send(
    run: RunContext, theta: Theta, history: History, velocity: Theta | None = None, *, number: int, to: PartyId
) -> None:
    """Seal the state after a round for one client and send it, chunk by chunk."""
    salt = b""
    if number == 0:
        left = run.recall_predecessor()
        if left is None:
            raise LocalError("there is no predecessor's model here to send")
        salt, _ = left
    place, seals = Key("round", run.run, number), run.seals
    for index, part in enumerate(cut(run.manifest, theta, history, velocity, number=number)):
        sealed = await asyncio.to_thread(seals.seal_snapshot, number, to, index, salt + part)
        await run.runner.post.send(place, to=to, role=Role.CLIENT, body=SnapshotChunk(index=index), payload=sealed)


def read(run: RunContext, key: Key, *, client: PartyId, number: int) -> list[bytes]:
    """Open the chunks that a client has sent."""
    place, indices = place_of(key), range(count_chunks(run.manifest, number))
    sealed = ((index, run.spool.read(place, name_chunk(client, number, index))) for index in indices)
    return [run.seals.open_snapshot(number, client, index, part) for index, part in sealed]


def check_initial(manifest: Manifest, chunks: Sequence[bytes]) -> Theta:
    """Return the model that a run begins with; refuse one that the manifest does not commit to."""
    salts = {chunk[:SALT_BYTES] for chunk in chunks}
    theta, _, _ = join(manifest, (chunk[SALT_BYTES:] for chunk in chunks), number=0)
    if len(salts) != 1 or commit(salts.pop(), theta) != manifest.initial_model_sha256:
        raise PeerError(RejectReason.DIFFERENT_MODEL, "the snapshot is not the model that the manifest commits to")
    return theta


def take(
    space: Workspace, theta: Theta, history: History, voucher: Voucher, velocity: Theta | None = None
) -> None:
    """Continue from a peer's state if it was vouched for; what we have not sent yet is lost."""
    ahead = GroupSecret.from_bytes(space.group_secret.to_bytes())
    ahead.advance_to(voucher.round)
    found = model_hmac(ahead, digest(theta), history, velocity)
    ahead.erase()
    if not hmac.compare_digest(found, voucher.model_hmac):
        raise PeerError(RejectReason.DIFFERENT_MODEL, "the snapshot is not the model that was vouched for")
    local = space.recall_local_state()
    space.advance(voucher.round, theta, np.zeros_like(theta), local, history, velocity=velocity)


# Jobs ---------------------------------------------------------------------------------------------------


async def send_snapshot(run: RunContext, job: SendSnapshot) -> SnapshotSent:
    """Send the model of a round, unless it has moved on since: then the client will ask again."""
    left = job.again
    space = await asyncio.to_thread(run.open)
    theta, history, velocity = space.theta, space.history, space.velocity
    # Read `applied` after these: it goes up before they change.
    if space.applied <= job.number:
        await send(run, theta, history, velocity, number=job.number, to=job.client)
        left = True
    return SnapshotSent(client=job.client, left=left)


def take_snapshot(run: RunContext, key: Key, job: TakeSnapshot) -> SnapshotTaken:
    """Make a peer's model ours, if it is the one that was vouched for or committed to."""
    if job.voucher is None:
        run.begin_with(check_initial(run.manifest, read(run, key, client=job.client, number=0)))
        return SnapshotTaken(initial=run.claim_model())
    space, number = run.open(), job.voucher.round
    with space.lock:
        # We may be past its round by now.
        if space.applied < number and space.group_secret.round <= number:
            chunks = read(run, key, client=job.client, number=number)
            theta, history, velocity = join(run.manifest, chunks, number=number)
            take(space, theta, history, job.voucher, velocity)
        run.step_group(number + 1)
    return SnapshotTaken(held=run.describe_held(number))
