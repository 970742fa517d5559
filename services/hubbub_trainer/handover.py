"""Models that pass between clients: ours to a peer that has lost sums or lacks it, and a peer's to us."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hubbub.errors import LocalError
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.messages.snapshots import Voucher
from hubbub.runtime.post import Post
from hubbub.runtime.spool import Spool
from hubbub.store.vault import Vault
from hubbub.trust.seals import RunSeals, Stage
from hubbub_trainer import group, snapshots
from hubbub_trainer.events import SnapshotSent
from hubbub_trainer.phases.catchup import TakeSnapshot
from hubbub_trainer.phases.standing import SendSnapshot
from hubbub_trainer.workspaces import Workspaces


class Handover:
    """Sends snapshots, and takes them."""

    def __init__(
        self,
        *,
        spaces: Workspaces,
        spool: Spool,
        vault: Vault,
        post: Post,
        manifest_of: Callable[[RunId], Manifest],
        seal_of: Callable[[Key], tuple[RunSeals, Stage]],
    ) -> None:
        self._spaces = spaces
        self._spool = spool
        self._vault = vault
        self._post = post
        self._manifest_of = manifest_of
        self._seal_of = seal_of

    async def send(self, run: Key, job: SendSnapshot) -> SnapshotSent:
        """Send the model of a round, unless it has moved on since: then the client will ask again."""
        left = job.again
        space, manifest = await asyncio.to_thread(self._spaces.open, run.run), self._manifest_of(run.run)
        theta, history = space.theta, space.history
        # In this order: the number goes up before model and history change.
        if space.applied <= job.number:
            salt = b"" if job.number else self._recall_salt(manifest)
            seals, _ = self._seal_of(run)
            await snapshots.send(
                self._post, seals, manifest, theta, history, number=job.number, to=job.client, salt=salt
            )
            left = True
        return SnapshotSent(client=job.client, left=left)

    def _recall_salt(self, manifest: Manifest) -> bytes:
        left = self._spaces.recall_left(manifest)
        if left is None:
            raise LocalError("there is no predecessor's model here to send")
        return left[0]

    def take(self, key: Key, job: TakeSnapshot) -> None:
        """Make a peer's model ours, if it is the one that was vouched for or committed to."""
        if job.voucher is None:
            self._inherit(key, job.client)
        else:
            self._catch_up(key, job.client, job.voucher)

    def _inherit(self, key: Key, client: PartyId) -> None:
        """Begin with the model that a predecessor's client has sent us."""
        manifest = self._manifest_of(key.run)
        self._spaces.begin_with(manifest, snapshots.check_initial(manifest, self._read(key, client, 0)))

    def _catch_up(self, key: Key, client: PartyId, voucher: Voucher) -> None:
        """Make a peer's model ours; one that we have come past meanwhile is left alone."""
        space, number = self._spaces.open(key.run), voucher.round
        with space.lock:
            if space.applied < number and space.group_secret.round <= number:
                chunks = self._read(key, client, number)
                theta, history = snapshots.join(self._manifest_of(key.run), chunks, number=number)
                snapshots.take(space, theta, history, voucher)
            group.step(self._vault, key.run, number + 1, space)

    def _read(self, key: Key, client: PartyId, number: int) -> list[bytes]:
        manifest = self._manifest_of(key.run)
        seals, _ = self._seal_of(key)
        place = snapshots.place_of(key)
        return snapshots.read(self._spool, place, seals, manifest, client=client, number=number)
