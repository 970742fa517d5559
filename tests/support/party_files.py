"""What the parties of a federation are given before they are started: identities, a roster, policies, tokens."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hubbub.ids import PartyId, Role
from hubbub.policy import NO_LIMIT
from hubbub.strategies.registry import STRATEGIES
from hubbub.trust.identity import new_identity, write_identity
from hubbub_coordinator.api.access import Tokens
from hubbub_local.federation import Parties, gather


@dataclass(frozen=True, slots=True)
class PartyFiles:
    """A federation's files in one folder, and the settings that name them."""

    folder: Path
    parties: Parties
    tokens: Tokens = field(repr=False)

    @property
    def roster(self) -> Path:
        return self.folder / "roster.json"

    def identity(self, name: PartyId) -> Path:
        return self.folder / f"{name}.identity.json"

    def policy(self, name: PartyId) -> Path:
        return self.folder / f"{name}.policy.toml"

    def token(self, right: str) -> Path:
        return self.folder / f"{right}.token"

    def settings_for(self, name: PartyId) -> dict[str, str]:
        """What a party's settings say about its files."""
        settings = {"identity": str(self.identity(name)), "roster": str(self.roster), "new_state": "true"}
        role = self.parties.identities[name].role
        if role is not Role.COORDINATOR:
            return settings | {"policy": str(self.policy(name))}
        settings |= {"roster_sha256": self.parties.roster.digest}
        return settings | {f"{right}_token_file": str(self.token(right)) for right in ("read", "change")}


def write_party_files(
    folder: Path, roles: Mapping[PartyId, Role], organisations: Mapping[PartyId, str] | None = None
) -> PartyFiles:
    """Make parties, each an organisation of its own unless told otherwise, and write all that they need."""
    whose = organisations or {}
    parties = gather([new_identity(name, role, whose.get(name, name)) for name, role in roles.items()])
    tokens = Tokens(read=secrets.token_urlsafe(32), change=secrets.token_urlsafe(32))
    files = PartyFiles(folder, parties, tokens)
    for identity in parties.identities.values():
        write_identity(identity, folder)
        if identity.role is not Role.COORDINATOR:
            write_policy(files.policy(identity.name), identity.role, roster_sha256=parties.roster.digest)
    files.roster.write_text(parties.roster.model_dump_json(), encoding="utf-8")
    write_private(files.token("read"), f"{tokens.read}\n")
    write_private(files.token("change"), f"{tokens.change}\n")
    return files


def write_policy(path: Path, role: Role = Role.CLIENT, /, **limits: object) -> None:
    """Write a policy for tests: any task, two organisations.

    A data owner's accepts the demo's seed and any number of runs from one model, an aggregator's any strategy.
    """
    client = {"demo_seed": True, "max_runs_per_model": NO_LIMIT}
    own = client if role is Role.CLIENT else {"strategies": list(STRATEGIES)}
    fields = {"approve_tasks": ["*"], "min_clients": 2, **own, **limits}
    # JSON's strings, numbers and lists are TOML's too.
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items()), encoding="utf-8")


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
