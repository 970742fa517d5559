"""Secrets and counts that a client fixes once in a run, stored before use so that a restart finds the same."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, ClientSecret, GroupSecret
from hubbub.crypto.stream import KEY_BYTES, AesCtrStream
from hubbub.errors import LocalError
from hubbub.ids import RunId, SetId
from hubbub.protocol import weights
from hubbub.store.state_file import Vault
from hubbub_trainer.learning.source import Source

CLIENT_SECRET_BYTES = 32
_SAMPLES, _COHORT_SAMPLES = "samples", "cohort samples"
_SAMPLE_SHARES = "sample shares"
SET_ID_BYTES = 16


class RunSecrets:
    """A run's part of the vault."""

    def __init__(self, vault: Vault, run: RunId) -> None:
        self._vault = vault
        self._run = run

    def together(self) -> AbstractContextManager[object]:
        """Open one transaction for all changes inside."""
        return self._vault.together()

    def client_secret(self) -> ClientSecret:
        """Return the secret that this client's own random choices derive from."""
        return ClientSecret.from_bytes(
            self._get_or_create("client secret", lambda: secrets.token_bytes(CLIENT_SECRET_BYTES))
        )

    def contribution(self) -> bytes:
        """Return our part of the group secret."""
        return self._get_or_create("contribution", lambda: secrets.token_bytes(CONTRIBUTION_BYTES))

    def fix_examples(self, examples: int) -> int:
        """Return the number of examples that we score a model on; it stays as it was when we joined."""
        return int(self._get_or_create("examples", lambda: str(examples).encode()))

    def fix_samples(self, samples: int) -> int:
        """Return the number of samples that our updates are weighed by; it stays as it was when we joined."""
        return int(self._get_or_create(_SAMPLES, lambda: str(samples).encode()))

    def samples(self) -> int:
        """Return that number."""
        return self._get_number(_SAMPLES)

    def sample_shares(self, clients: int) -> tuple[int, ...]:
        """Return the shares of that number, one for each client in manifest order; always the same."""

        def draw() -> bytes:
            return json.dumps(weights.deal(self.samples(), clients, AesCtrStream.from_os())).encode()

        return tuple(json.loads(self._get_or_create(_SAMPLE_SHARES, draw)))

    def cohort_samples(self) -> int:
        """Return the number of samples that all clients have together."""
        return self._get_number(_COHORT_SAMPLES)

    def keep_cohort_samples(self, total: int) -> None:
        """Keep the number of samples that all clients have together."""
        self._vault.put(self._run, _COHORT_SAMPLES, str(total).encode())

    def source(self) -> Source | None:
        """Return the task's source when we joined, or when its owner was last told of a change."""
        kept = self._vault.get(self._run, "task source")
        return None if kept is None else json.loads(kept)

    def keep_source(self, source: Source) -> None:
        """Keep the task's present source."""
        self._vault.put(self._run, "task source", json.dumps(dict(source)).encode())

    def group(self) -> GroupSecret | None:
        """Return the group secret as it was kept last; None before it is agreed on."""
        kept = self._vault.get(self._run, "group")
        return None if kept is None else GroupSecret.from_bytes(kept)

    def keep_group(self, group: GroupSecret) -> None:
        """Replace the group secret on disk: nobody can derive the keys of earlier rounds again."""
        self._vault.put(self._run, "group", group.to_bytes())

    def get_or_create_outbox(self, number: int, phase: str, content: bytes) -> tuple[SetId, bytes]:
        """Return a share set's id and the secret of its shares and keys: a resent set is the same.

        They belong to the content with this digest, and never to another: the same randomness and the same nonces
        over other values would give away the difference.
        """
        drawn = self._get_or_create(
            _name_outbox(number, phase), lambda: content + secrets.token_bytes(SET_ID_BYTES + KEY_BYTES)
        )
        if drawn[: len(content)] != content:
            raise LocalError(
                f"the share set of {phase} in round {number} was begun with other values: it is not sent again"
            )
        return SetId(drawn[len(content) : -KEY_BYTES].hex()), drawn[-KEY_BYTES:]

    def find_set(self, number: int, phase: str) -> SetId | None:
        """Return the id of the set that we send in a phase; None if it was not begun."""
        kept = self._vault.get(self._run, _name_outbox(number, phase))
        return None if kept is None else SetId(kept[-SET_ID_BYTES - KEY_BYTES : -KEY_BYTES].hex())

    def drop_outboxes(self, number: int, phases: Iterable[str], *, has_verdict: bool) -> None:
        """Delete the ids and the randomness of a round's share sets.

        When a round has its verdict, our part of the group secret is deleted too: all parts together would give
        the group secret as it was at first, and with it the clients' sums of shares.
        """
        parts = ["contribution", _SAMPLE_SHARES] if has_verdict else []
        self._vault.delete(self._run, *(_name_outbox(number, phase) for phase in phases), *parts)

    def _get_number(self, name: str) -> int:
        kept = self._vault.get(self._run, name)
        if kept is None:
            raise LocalError(f"the number of {name} is not known")
        return int(kept)

    def _get_or_create(self, name: str, create: Callable[[], bytes]) -> bytes:
        kept = self._vault.get(self._run, name)
        if kept is None:
            kept = create()
            self._vault.put(self._run, name, kept)
        return kept


def _name_outbox(number: int, phase: str) -> str:
    return f"outbox {number} {phase}"
