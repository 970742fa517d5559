"""The group secret at one client: put together from everybody's parts, and a step further with every round."""

from __future__ import annotations

from contextlib import nullcontext

from hubbub.crypto.group import GroupSecret
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.runtime.spool import ChunkRef, Spool
from hubbub.store.vault import Vault
from hubbub.trust.seals import RunSeals
from hubbub_trainer.drawn import recall_contribution
from hubbub_trainer.workspace import Workspace


def name_part(client: PartyId) -> ChunkRef:
    """Where a client's part of the group secret is spooled."""
    return ChunkRef(client, "part", 0)


def agree(
    vault: Vault, spool: Spool, seals: RunSeals, *, me: PartyId, run: Key, manifest: Manifest
) -> GroupSecret:
    """Open all parts, put them together, and keep the secret."""

    def part_of(client: PartyId) -> bytes:
        if client == me:
            return recall_contribution(vault, run.run)
        return seals.open_contribution(client, spool.read(run, name_part(client)))

    contributions = [part_of(client) for client in manifest.clients]
    run_keys = [seals.public(client) for client in manifest.clients]
    group = GroupSecret.agree(contributions, run=run.run, run_keys=run_keys)
    vault.put(run.run, "group", group.to_bytes())
    return group


def recall(vault: Vault, run: RunId) -> GroupSecret | None:
    """The group secret as it was kept last, once it is agreed on."""
    kept = vault.get(run, "group")
    return None if kept is None else GroupSecret.from_bytes(kept)


def step(vault: Vault, run: RunId, number: int, space: Workspace | None) -> None:
    """Go on to the keys of a round, on disk too: nobody derives those before it again."""
    with space.lock if space else nullcontext():
        kept = vault.get(run, "group")
        if kept is None:
            return
        group = space.group_secret if space else GroupSecret.from_bytes(kept)
        if group.round < number:
            group.advance_to(number)
            vault.put(run, "group", group.to_bytes())
