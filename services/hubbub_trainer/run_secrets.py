"""Secrets and counts that a client fixes once in a run, stored before use so that a restart finds the same."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable

from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, ClientSecret
from hubbub.crypto.stream import KEY_BYTES
from hubbub.errors import LocalError
from hubbub.ids import RunId, SetId
from hubbub.machine.effects import Key
from hubbub.store.state_file import Vault
from hubbub_trainer.learning.source import Source

CLIENT_SECRET_BYTES = 32
SET_ID_BYTES = 16
_CONTRIBUTION = "contribution"
_EXAMPLES = "examples"
_SOURCE = "task source"


def get_or_create_client_secret(vault: Vault, run: RunId) -> ClientSecret:
    """Return the secret that this client's own random choices derive from."""
    return ClientSecret.from_bytes(_recall(vault, run, "client secret", CLIENT_SECRET_BYTES))


def get_or_create_contribution(vault: Vault, run: RunId) -> bytes:
    """Return our part of the group secret."""
    return _recall(vault, run, _CONTRIBUTION, CONTRIBUTION_BYTES)


def fix_examples(vault: Vault, run: RunId, examples: int) -> int:
    """Return the number of examples that we score a model on in a run; it stays as it was when we joined."""
    kept = vault.get(run, _EXAMPLES)
    if kept is None:
        kept = str(examples).encode()
        vault.put(run, _EXAMPLES, kept)
    return int(kept)


def get_source(vault: Vault, run: RunId) -> Source | None:
    """Return the task's source when we joined, or when its owner was last told of a change."""
    kept = vault.get(run, _SOURCE)
    return None if kept is None else json.loads(kept)


def keep_source(vault: Vault, run: RunId, source: Source) -> None:
    """Keep the task's present source."""
    vault.put(run, _SOURCE, json.dumps(dict(source)).encode())


def get_or_create_outbox(vault: Vault, key: Key, phase: str, content: bytes) -> tuple[SetId, bytes]:
    """Return a share set's id and the secret of its shares and keys, stored before use: a resent set is the same.

    They belong to the content with this digest, and never to another: the same randomness and the same nonces over
    other values would give away the difference.
    """
    name = _name_outbox(key, phase)
    kept = vault.get(key.run, name)
    if kept is None:
        kept = content + secrets.token_bytes(SET_ID_BYTES + KEY_BYTES)
        vault.put(key.run, name, kept)
    noted, drawn = kept[: len(content)], kept[len(content) :]
    if noted != content:
        raise LocalError(f"the share set of {phase} in {key} was begun with other values: it is not sent again")
    return SetId(drawn[:SET_ID_BYTES].hex()), drawn[SET_ID_BYTES:]


def find_set(vault: Vault, key: Key, phase: str) -> SetId | None:
    """Return the id of the set that we send in a phase; None if it was not begun."""
    kept = vault.get(key.run, _name_outbox(key, phase))
    return None if kept is None else SetId(kept[-SET_ID_BYTES - KEY_BYTES : -KEY_BYTES].hex())


def drop_outboxes(vault: Vault, key: Key, phases: Iterable[str], *, has_verdict: bool) -> None:
    """Delete the ids and the randomness of a round's share sets.

    When a round has its verdict, our part of the group secret is deleted too: all parts together would give the
    group secret as it was at first.
    """
    parts = [_CONTRIBUTION] if has_verdict else []
    vault.delete(key.run, *(_name_outbox(key, phase) for phase in phases), *parts)


def _name_outbox(key: Key, phase: str) -> str:
    return f"outbox {key.round} {phase}"


def _recall(vault: Vault, run: RunId, name: str, size: int) -> bytes:
    kept = vault.get(run, name)
    if kept is None:
        kept = secrets.token_bytes(size)
        vault.put(run, name, kept)
    return kept
