"""`hubbub federation`: makes a federation for a trial, with all keys on one machine."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub_cli.roster import KeyAgreement, define_broker
from hubbub_cli.run_options import Block, LocalSteps, Q, Rho, Rounds, Seed, Strategy, TaskName

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hubbub.messages.manifest import Manifest
    from hubbub.policy import PartyPolicy
    from hubbub.trust.identity import Identity
    from hubbub.trust.roster import Roster
    from hubbub_cli.federation_folder import Contents
    from hubbub_trainer.learning.task import Task

P = TypeVar("P", bound="PartyPolicy")

MOST_CLIENTS, MOST_AGGREGATORS = 100, 10
SECRET_BYTES = 32
TRIAL = (
    "This is a trial: whoever has this folder holds all keys, so no claim of privacy holds here. In earnest each"
    " party makes its own keys on its own machine."
)

federations = typer.Typer(help="A federation for a trial, with all keys in one hand.", no_args_is_help=True)


@federations.callback()
def _group() -> None:
    """Keep `new` a subcommand: Typer would merge an only command into the group."""


@federations.command("new")
def new_federation(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Its folder; in it a folder for each party, which may be there, empty."
        ),
    ],
    clients: Annotated[int, typer.Option(min=2, max=MOST_CLIENTS, help="Trainers.")] = 5,
    aggregators: Annotated[int, typer.Option(min=2, max=MOST_AGGREGATORS, help="Aggregators.")] = 2,
    task: TaskName = "lenet",
    strategy: Strategy = "no-union",
    rounds: Rounds = 20,
    local_steps: LocalSteps = 100,
    rho: Rho = 0.1,
    q: Q = 1,
    block: Block = 1,
    seed: Seed = None,
    min_clients: Annotated[int | None, typer.Option(help="Fewest organisations in a released sum.")] = None,
    phase_timeout: Annotated[
        float | None, typer.Option(help="Seconds that a phase may take before it closes without the late.")
    ] = None,
    kem: Annotated[KeyAgreement, typer.Option(help="How run keys are agreed on.")] = "x25519",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Make keys, roster, broker definitions, policies and a manifest for a trial on one machine.

    Where all is there already, nothing is changed.
    """
    from hubbub_cli import federation_folder as kept  # noqa: PLC0415  (Help should not wait for it.)

    choices: dict[str, object] = {
        "strategy": strategy,
        "rounds": rounds,
        "local_steps": local_steps,
        "rho": rho,
        "q": q,
        "block": block,
        "seed": seed,
        "min_clients": min_clients,
        "phase_timeout_s": phase_timeout,
    }
    chosen = _choose_task(task)
    wanted = kept.list_files(clients=clients, aggregators=aggregators)
    _check_size(folder, clients=clients, aggregators=aggregators)
    found = kept.look_into(folder, wanted)
    if found is kept.Found.ALL:
        roster, manifest = _read_back(folder)
        differing = _compare(manifest, {**choices, "task": chosen.name})
    else:
        identities, roster = _make_parties(clients, aggregators, kem)
        manifest, differing = _draw_up(chosen, roster, choices), []
        kept.write_contents(folder, _put_together(identities, roster, manifest))
    if as_json:
        _print_json(folder, roster, manifest, made=found is not kept.Found.ALL)
    else:
        _tell(folder, roster, manifest, made=found is not kept.Found.ALL, differing=differing)


def _choose_task(name: str) -> Task:
    from hubbub_trainer.learning.datasets import default_cache_folder  # noqa: PLC0415
    from hubbub_trainer.learning.registry import choose_task  # noqa: PLC0415

    return choose_task(name, data="auto", cache_folder=default_cache_folder(), announce=lambda _: None)


def _name_parties(clients: int, aggregators: int) -> dict[str, Role]:
    from hubbub_cli import federation_folder as kept  # noqa: PLC0415

    return {
        kept.COORDINATOR: Role.COORDINATOR,
        **dict.fromkeys(kept.name_aggregators(aggregators), Role.AGGREGATOR),
        **dict.fromkeys(kept.name_trainers(clients), Role.CLIENT),
    }


def _make_parties(clients: int, aggregators: int, kem: str) -> tuple[list[Identity], Roster]:
    """Make the identities, each an organisation of its own, and their roster."""
    from hubbub.crypto.sealing import Kem  # noqa: PLC0415
    from hubbub.trust.identity import new_identity  # noqa: PLC0415
    from hubbub.trust.roster import build_roster  # noqa: PLC0415
    from hubbub_cli.federation_folder import BROKER  # noqa: PLC0415

    parties = _name_parties(clients, aggregators)
    identities = [new_identity(name, role, name) for name, role in parties.items()]
    return identities, build_roster([each.public() for each in identities], kem=Kem(kem), broker=BROKER)


def _draw_up(task: Task, roster: Roster, choices: Mapping[str, Any]) -> Manifest:
    from hubbub_trainer.planning import draw_up_manifest  # noqa: PLC0415

    return draw_up_manifest(task, roster=roster, **choices)


def _put_together(identities: Sequence[Identity], roster: Roster, manifest: Manifest) -> Contents:
    """Return the files of every folder."""
    from hubbub.trust.identity import dump_identity  # noqa: PLC0415
    from hubbub_cli import federation_folder as kept  # noqa: PLC0415

    pin = f'roster_sha256 = "{roster.digest}"\n'.encode()
    reading = {kept.READ_TOKEN_FILE: _new_secret()}
    tokens = {**reading, kept.CHANGE_TOKEN_FILE: _new_secret()}
    of_role: dict[Role, dict[str, bytes]] = {
        Role.COORDINATOR: {kept.SETTINGS_FILE: pin, **tokens},
        Role.AGGREGATOR: {kept.POLICY_FILE: _write_aggregator_policy(roster, manifest)},
        Role.CLIENT: {kept.POLICY_FILE: _write_trainer_policy(roster, manifest)},
    }
    return {
        kept.PUBLIC: {
            kept.ROSTER_FILE: _as_json(roster),
            kept.DEFINITIONS_FILE: define_broker(roster).encode(),
            kept.MANIFEST_FILE: _as_json(manifest),
        },
        kept.OPERATOR: tokens,
        kept.MONITOR: reading,
        kept.BROKER: {kept.COOKIE_FILE: _new_secret().strip()},
        **{each.name: {kept.IDENTITY_FILE: dump_identity(each), **of_role[each.role]} for each in identities},
    }


def _as_json(model: BaseModel) -> bytes:
    return f"{model.model_dump_json(indent=2)}\n".encode()


def _new_secret() -> bytes:
    return f"{secrets.token_urlsafe(SECRET_BYTES)}\n".encode()


def _write_trainer_policy(roster: Roster, manifest: Manifest) -> bytes:
    """Return a data owner's policy that allows this run."""
    from hubbub_trainer.policy import Policy  # noqa: PLC0415

    default = Policy(roster_sha256=roster.digest)
    own = {
        "max_block": manifest.block,
        "max_local_steps": max(default.max_local_steps, manifest.local_steps),
        "max_q": max(default.max_q, manifest.q),
        "max_scored_rounds": max(default.max_scored_rounds, manifest.rounds),
    }
    return _explain(_widen(default, manifest).model_copy(update=own), roster, manifest)


def _write_aggregator_policy(roster: Roster, manifest: Manifest) -> bytes:
    """Return an aggregator's policy that allows this run."""
    from hubbub_aggregator.policy import AggregatorPolicy  # noqa: PLC0415

    default = AggregatorPolicy(roster_sha256=roster.digest)
    size = {"max_parameters": max(default.max_parameters, manifest.parameters)}
    return _explain(_widen(default, manifest).model_copy(update=size), roster, manifest)


def _widen(default: P, manifest: Manifest) -> P:
    """Return the default policy, widened by what the user asked for by name."""
    wider = {
        "strategies": tuple(dict.fromkeys((*default.strategies, manifest.strategy))),
        "min_clients": min(default.min_clients, manifest.min_clients),
        "max_rounds": max(default.max_rounds, manifest.rounds),
        "approved": (manifest.run_id,),
    }
    return default.model_copy(update=wider)


def _explain(policy: PartyPolicy, roster: Roster, manifest: Manifest) -> bytes:
    from hubbub_cli.policy import explain_policy  # noqa: PLC0415

    objections = policy.objections(manifest, roster=roster, runs_before=0)
    if objections:
        why = "; ".join(map(str, objections))
        raise ConfigurationError(f"no {policy.party} would take part in this run: {why}")
    return explain_policy(policy).encode()


def _check_size(folder: Path, *, clients: int, aggregators: int) -> None:
    """Raise `ConfigurationError` if the folder holds a federation of another size."""
    from hubbub.trust.roster import read_roster  # noqa: PLC0415
    from hubbub_cli import federation_folder as kept  # noqa: PLC0415

    file = folder / kept.PUBLIC / kept.ROSTER_FILE
    if kept.is_unfinished(folder) or not file.exists():
        return
    roster = read_roster(file)
    if {party.name: party.role for party in roster.parties} != _name_parties(clients, aggregators):
        there = f"{len(roster.named(Role.CLIENT))} clients and {len(roster.named(Role.AGGREGATOR))} aggregators"
        raise ConfigurationError(f"{folder} holds a federation of {there}: name another folder")


def _read_back(folder: Path) -> tuple[Roster, Manifest]:
    """Read the roster and the manifest of a folder, and check that they belong together."""
    from hubbub.messages.manifest import read_manifest  # noqa: PLC0415
    from hubbub.trust.identity import read_identity  # noqa: PLC0415
    from hubbub.trust.roster import read_roster  # noqa: PLC0415
    from hubbub_cli import federation_folder as kept  # noqa: PLC0415

    roster = read_roster(folder / kept.PUBLIC / kept.ROSTER_FILE)
    manifest = read_manifest((folder / kept.PUBLIC / kept.MANIFEST_FILE).read_bytes())
    own = [read_identity(folder / party.name / kept.IDENTITY_FILE).public() for party in roster.parties]
    if manifest.roster_sha256 != roster.digest or own != list(roster.parties):
        raise ConfigurationError(f"{folder} holds parts of different federations: name another folder")
    return roster, manifest


def _compare(manifest: Manifest, choices: Mapping[str, object]) -> list[str]:
    """Return the differences between the existing run and the user's choices."""
    return [
        f"{name} is {getattr(manifest, name)}, not {value}"
        for name, value in choices.items()
        if value is not None and getattr(manifest, name) != value
    ]


def _print_json(folder: Path, roster: Roster, manifest: Manifest, *, made: bool) -> None:
    told = {
        "folder": str(folder),
        "made": made,
        "run": manifest.run_id,
        "roster_sha256": roster.digest,
        "parties": {party.name: party.role.value for party in roster.parties},
    }
    typer.echo(json.dumps(told, indent=2))


def _tell(folder: Path, roster: Roster, manifest: Manifest, *, made: bool, differing: Sequence[str]) -> None:
    state = "written" if made else "is complete already: nothing was changed"
    typer.echo(f"{folder} {state}")
    typer.echo(f"parties  {', '.join(party.name for party in roster.parties)}")
    typer.echo(f"roster   {roster.digest}")
    typer.echo(f"run      {manifest.run_id}: {manifest.task}, {manifest.strategy}, {manifest.rounds} rounds")
    if differing:
        typer.echo(f"The run stays as it was drawn up ({'; '.join(differing)}): another takes a new folder.")
    typer.echo(f"\n{TRIAL}")
