"""Folder of a trial federation: keys, roster, definitions, policies and manifest, written once and completely.

`public` is for everybody; every other folder is for one party, the operator, the monitor or the broker. A
marker file in `public` exists while it is being written. Nobody has used what an interrupted attempt left, so it
is written again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel

from hubbub.crypto.sealing import Kem
from hubbub.disk import IGNORE_FILE, create_file, make_secret_folder, sync_folder
from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.messages.manifest import Manifest, read_manifest
from hubbub.policy import PartyPolicy
from hubbub.trust.identity import Identity, dump_identity, new_identity, read_identity
from hubbub.trust.roster import Roster, build_roster, read_roster
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_cli.policy import explain_policy
from hubbub_cli.roster import define_broker
from hubbub_trainer.policy import Policy

PUBLIC = "public"
OPERATOR = "operator"
MONITOR = "monitor"
BROKER = "broker"
COORDINATOR = "coordinator"

ROSTER_FILE = "roster.json"
DEFINITIONS_FILE = "definitions.json"
MANIFEST_FILE = "manifest.json"
IDENTITY_FILE = "identity.json"
SETTINGS_FILE = "settings.toml"
POLICY_FILE = "policy.toml"
READ_TOKEN_FILE = "read.token"  # noqa: S105  (A name.)
CHANGE_TOKEN_FILE = "change.token"  # noqa: S105  (A name.)
COOKIE_FILE = ".erlang.cookie"
"""Shared secret of RabbitMQ's nodes and tools; Erlang looks for this name in $HOME."""

SECRET_BYTES = 32

_MARK = ".unfinished"
_NOT_OURS = frozenset({"lost+found", IGNORE_FILE})
_SECRET_FOLDER, _SECRET_FILE = 0o700, 0o600
_PUBLIC_FOLDER, _PUBLIC_FILE = 0o755, 0o644

_SHARED_FILES = MappingProxyType(
    {
        PUBLIC: frozenset({ROSTER_FILE, DEFINITIONS_FILE, MANIFEST_FILE}),
        OPERATOR: frozenset({READ_TOKEN_FILE, CHANGE_TOKEN_FILE}),
        MONITOR: frozenset({READ_TOKEN_FILE}),
        BROKER: frozenset({COOKIE_FILE}),
    }
)
_PARTY_FILES = MappingProxyType(
    {
        Role.COORDINATOR: frozenset({IDENTITY_FILE, SETTINGS_FILE, READ_TOKEN_FILE, CHANGE_TOKEN_FILE}),
        Role.AGGREGATOR: frozenset({IDENTITY_FILE, POLICY_FILE}),
        Role.CLIENT: frozenset({IDENTITY_FILE, POLICY_FILE}),
    }
)

Contents = Mapping[str, Mapping[str, bytes]]
"""Content of the files, by folder and name."""


def name_parties(*, clients: int, aggregators: int) -> dict[str, Role]:
    """Return the names and roles of a trial's parties."""
    return {
        COORDINATOR: Role.COORDINATOR,
        **{f"aggregator-{number}": Role.AGGREGATOR for number in range(1, aggregators + 1)},
        **{f"trainer-{number}": Role.CLIENT for number in range(1, clients + 1)},
    }


def list_files(parties: Mapping[str, Role]) -> dict[str, frozenset[str]]:
    """Return the folders of a federation, and the files in each."""
    return {**_SHARED_FILES, **{name: _PARTY_FILES[role] for name, role in parties.items()}}


def make_parties(parties: Mapping[str, Role], kem: Kem) -> tuple[list[Identity], Roster]:
    """Make the identities, each an organisation of its own, and their roster."""
    identities = [new_identity(name, role, name) for name, role in parties.items()]
    return identities, build_roster([each.public() for each in identities], kem=kem, broker=BROKER)


# Reading --------------------------------------------------------------------------------------------------


def read_federation(folder: Path, parties: Mapping[str, Role]) -> tuple[Roster, Manifest] | None:
    """Read the roster and the manifest of these parties' federation; None if it is still to be written.

    Raises `ConfigurationError` if anything else is in the folder, or a part of the federation is missing. Folders
    may be there and empty, such as mount points.
    """
    unfinished, file = (folder / PUBLIC / _MARK).exists(), folder / PUBLIC / ROSTER_FILE
    if file.exists() and not unfinished:
        _check_size(folder, read_roster(file), parties)
    wanted = list_files(parties)
    with _told_in_a_line(folder, "read"):
        there = {name: _list_folder(folder / name) for name in wanted}
    strangers = [folder / name / each for name in wanted for each in sorted(there[name] - wanted[name] - {_MARK})]
    if strangers:
        raise ConfigurationError(
            f"{strangers[0]} is of no such federation, and nothing is overwritten: name another folder"
        )
    if unfinished or not any(there.values()):
        return None
    missing = [folder / name / each for name in wanted for each in sorted(wanted[name] - there[name])]
    if missing:
        raise ConfigurationError(
            f"{folder} holds part of a federation, and {missing[0]} is missing: put it back, or remove all of the "
            "federation, its services' state too, and make a new one"
        )
    roster, manifest = read_roster(file), read_manifest((folder / PUBLIC / MANIFEST_FILE).read_bytes())
    own = [read_identity(folder / party.name / IDENTITY_FILE).public() for party in roster.parties]
    if manifest.roster_sha256 != roster.digest or own != list(roster.parties):
        raise ConfigurationError(f"{folder} holds parts of different federations: name another folder")
    return roster, manifest


def _check_size(folder: Path, roster: Roster, parties: Mapping[str, Role]) -> None:
    if {party.name: party.role for party in roster.parties} != parties:
        there = f"{len(roster.named(Role.CLIENT))} clients and {len(roster.named(Role.AGGREGATOR))} aggregators"
        raise ConfigurationError(f"{folder} holds a federation of {there}: name another folder")


def _list_folder(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()} - _NOT_OURS if folder.exists() else set()


# Writing --------------------------------------------------------------------------------------------------


def write_federation(folder: Path, identities: Sequence[Identity], roster: Roster, manifest: Manifest) -> None:
    """Write a federation into a folder that holds none, or the rest of an interrupted attempt."""
    contents = _put_together(identities, roster, manifest)
    with _told_in_a_line(folder, "written"):
        make_secret_folder(folder)
        for name in contents:
            mode, path = _PUBLIC_FOLDER if name == PUBLIC else _SECRET_FOLDER, folder / name
            path.mkdir(mode=mode, parents=True, exist_ok=True)
            path.chmod(mode)
        mark = folder / PUBLIC / _MARK
        mark.touch()
        sync_folder(mark.parent)
        for name, files in contents.items():
            _fill(folder / name, files)
        mark.unlink()
        sync_folder(mark.parent)


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    mode = _PUBLIC_FILE if folder.name == PUBLIC else _SECRET_FILE
    for name, content in files.items():
        path = folder / name
        path.unlink(missing_ok=True)
        create_file(path, content, mode)
        path.chmod(mode)  # Whatever the umask: other users read public files.
    sync_folder(folder)


def _put_together(identities: Sequence[Identity], roster: Roster, manifest: Manifest) -> Contents:
    reading = {READ_TOKEN_FILE: _new_secret()}
    tokens = {**reading, CHANGE_TOKEN_FILE: _new_secret()}
    owner, server = Policy(roster_sha256=roster.digest), AggregatorPolicy(roster_sha256=roster.digest)
    owners_policy = _widen_policy(
        owner,
        roster,
        manifest,
        max_block=manifest.block,
        min_bits=min(owner.min_bits, manifest.bits),
        max_local_steps=max(owner.max_local_steps, manifest.local_steps),
        max_learning_rate=max(owner.max_learning_rate, manifest.learning_rate or 0.0),
        max_server_momentum=max(owner.max_server_momentum, manifest.server_momentum),
        max_q=max(owner.max_q, manifest.q),
        weights=tuple(dict.fromkeys((*owner.weights, manifest.weights))),
        max_samples=max(owner.max_samples, manifest.max_samples),
        max_scored_rounds=max(owner.max_scored_rounds, manifest.rounds),
    )
    servers_policy = _widen_policy(
        server, roster, manifest, max_parameters=max(server.max_parameters, manifest.parameters)
    )
    of_role: dict[Role, dict[str, bytes]] = {
        Role.COORDINATOR: {SETTINGS_FILE: f'roster_sha256 = "{roster.digest}"\n'.encode(), **tokens},
        Role.AGGREGATOR: {POLICY_FILE: servers_policy},
        Role.CLIENT: {POLICY_FILE: owners_policy},
    }
    return {
        PUBLIC: {
            ROSTER_FILE: _as_json(roster),
            DEFINITIONS_FILE: define_broker(roster).encode(),
            MANIFEST_FILE: _as_json(manifest),
        },
        OPERATOR: tokens,
        MONITOR: reading,
        BROKER: {COOKIE_FILE: _new_secret().strip()},
        **{each.name: {IDENTITY_FILE: dump_identity(each), **of_role[each.role]} for each in identities},
    }


def _widen_policy(default: PartyPolicy, roster: Roster, manifest: Manifest, **own: object) -> bytes:
    """Return the default policy as a file, widened by what the user asked for by name and by the role's `own`."""
    wider = {
        "strategies": tuple(dict.fromkeys((*default.strategies, manifest.strategy))),
        "min_clients": min(default.min_clients, manifest.min_clients),
        "max_rounds": max(default.max_rounds, manifest.rounds),
        "approved": (manifest.run_id,),
        **own,
    }
    policy = default.model_copy(update=wider)
    objections = policy.objections(manifest, roster=roster, runs_before=0)
    if objections:
        why = "; ".join(map(str, objections))
        raise ConfigurationError(f"no {policy.party} would take part in this run: {why}")
    return explain_policy(policy).encode()


def _as_json(model: BaseModel) -> bytes:
    return f"{model.model_dump_json(indent=2)}\n".encode()


def _new_secret() -> bytes:
    return f"{secrets.token_urlsafe(SECRET_BYTES)}\n".encode()


@contextmanager
def _told_in_a_line(folder: Path, done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder} cannot be {done}: {error.strerror}") from None
