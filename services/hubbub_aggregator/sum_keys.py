"""The keys that a phase's sum is sealed with on the paper's wire: the same as long as the phase is there."""

from __future__ import annotations

import json

from hubbub.crypto.sealing import ChunkKey
from hubbub.errors import LocalError
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.store.vault import Vault
from hubbub.strategies.wire import wire_of
from hubbub_aggregator.opening import SealOf
from hubbub_aggregator.phases.accumulation import Accumulation

SumKeys = dict[PartyId, tuple[ChunkKey, bytes]]
"""By client: the key, and the same sealed to that client."""


def fix_keys(vault: Vault, seal_of: SealOf, key: Key, data: Accumulation) -> None:
    """Draw the keys of a phase's sum, once: sent again after a crash, it is the same to the bit."""
    if vault.get(key.run, _name(key)) is None:
        vault.put(key.run, _name(key), _draw(seal_of, key, data))


def drop_keys(vault: Vault, key: Key) -> None:
    """Forget the keys of a phase's sum."""
    vault.delete(key.run, _name(key))


def recall_keys(vault: Vault, key: Key) -> SumKeys:
    """The keys that were drawn for a phase's sum."""
    kept = vault.get(key.run, _name(key))
    if kept is None:
        raise LocalError(f"there are no keys for the sum of {key}")
    return {
        client: (ChunkKey.from_bytes(bytes.fromhex(sum_key)), bytes.fromhex(wrapped))
        for client, (sum_key, wrapped) in json.loads(kept).items()
    }


def _draw(seal_of: SealOf, key: Key, data: Accumulation) -> bytes:
    seals, stage = seal_of(key)
    shared = ChunkKey.fresh()
    # Where clients may be sent different vectors, each has a key of its own.
    each_its_own = wire_of(data.manifest, key.phase).phase.gathers
    keys = {client: ChunkKey.fresh() if each_its_own else shared for client in data.manifest.clients}
    wrapped = {client: seals.wrap_sum_key(stage, client, sum_key) for client, sum_key in keys.items()}
    return json.dumps({name: (keys[name].to_bytes().hex(), wrapped[name].hex()) for name in keys}).encode()


def _name(key: Key) -> str:
    """What the vault calls the keys of a phase's sum."""
    return f"sum keys {key.round} {key.phase}"
