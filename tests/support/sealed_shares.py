"""Single chunks of a share, sealed and opened, each under a key of its own."""

from hubbub.crypto.sealing import ChunkKey
from hubbub.ids import PartyId, SetId
from hubbub.trust.seals import RunSeals, Stage


def seal_share(seals: RunSeals, stage: Stage, to: PartyId, set_id: SetId, chunk: int, share: bytes) -> bytes:
    return seals.make_share_key(stage, to, set_id, ChunkKey.fresh()).seal(chunk, share)


def open_share(seals: RunSeals, stage: Stage, sender: PartyId, set_id: SetId, chunk: int, payload: bytes) -> bytes:
    return bytes(seals.open_share_key(stage, sender, set_id, payload).open(chunk, payload))
