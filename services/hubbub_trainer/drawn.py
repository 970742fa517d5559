"""What a client draws once in a run: kept before it is used, so that a restart brings the same back."""

from __future__ import annotations

import secrets

from hubbub.crypto.group import CONTRIBUTION_BYTES
from hubbub.crypto.secret import ClientSecret
from hubbub.crypto.stream import KEY_BYTES, AesCtrStream
from hubbub.ids import RunId, SetId
from hubbub.machine.effects import Key
from hubbub.store.vault import Vault

CLIENT_SECRET_BYTES = 32
SET_ID_BYTES = 16


def recall_client_secret(vault: Vault, run: RunId) -> ClientSecret:
    """What this client's own random choices follow from."""
    return ClientSecret.from_bytes(_recall(vault, run, "client secret", CLIENT_SECRET_BYTES))


def recall_contribution(vault: Vault, run: RunId) -> bytes:
    """Our part of the group secret."""
    return _recall(vault, run, "contribution", CONTRIBUTION_BYTES)


def drop_contribution(vault: Vault, run: RunId) -> None:
    """Forget our part of the group secret."""
    vault.delete(run, "contribution")


def recall_outbox(vault: Vault, key: Key, phase: str) -> tuple[SetId, AesCtrStream]:
    """A set's name and its randomness, on disk before the first chunk leaves: sent again, it is the same."""
    kept = _recall(vault, key.run, _name_outbox(key, phase), SET_ID_BYTES + KEY_BYTES)
    return SetId(kept[:SET_ID_BYTES].hex()), AesCtrStream(kept[SET_ID_BYTES:])


def drop_outbox(vault: Vault, key: Key, phase: str) -> None:
    """Forget a set's name and its randomness."""
    vault.delete(key.run, _name_outbox(key, phase))


def _name_outbox(key: Key, phase: str) -> str:
    return f"outbox {key.round} {phase}"


def _recall(vault: Vault, run: RunId, name: str, size: int) -> bytes:
    kept = vault.get(run, name)
    if kept is None:
        kept = secrets.token_bytes(size)
        vault.put(run, name, kept)
    return kept
