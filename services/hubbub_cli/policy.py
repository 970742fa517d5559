"""`hubbub policy`: writes the policy of a data owner or an aggregator, tries it on a manifest, approves a run."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hubbub.disk import replacing
from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub_cli.formatting import AsJson, explain_value, print_json

if TYPE_CHECKING:
    from hubbub.ids import PartyId, RunId
    from hubbub.messages.manifest import Manifest
    from hubbub.policy import PartyPolicy
    from hubbub.trust.roster import Roster

EXIT_REFUSED = 1

policies = typer.Typer(help="Policies: what a data owner or an aggregator takes part in.", no_args_is_help=True)

ManifestFile = Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest of the run, a JSON file.")]
PolicyFile = Annotated[Path, typer.Option("--policy", help="The policy of the data owner, or of the aggregator.")]
RosterFile = Annotated[Path, typer.Option("--roster", help="The roster that all parties hold.")]
PolicyRole = Annotated[
    Literal["client", "aggregator"],
    typer.Option("--role", help="Whose policy it is: a data owner's, or an aggregator's."),
]


@policies.command("init")
def write_policy(
    roster: RosterFile,
    role: PolicyRole = "client",
    out: Annotated[Path, typer.Option(help="Write to this file, which must not be there yet.")] = Path(
        "policy.toml"
    ),
) -> None:
    """Write a policy with all limits at their defaults, which pins the roster."""
    from hubbub.trust.roster import read_roster, show_fingerprint  # noqa: PLC0415  (Help should not wait.)

    digest = read_roster(roster).digest
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(explain_policy(policy_model_for(role)(roster_sha256=digest)))
    except FileExistsError:
        raise ConfigurationError(f"{out} is there already and is never overwritten: choose another name") from None
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}") from None
    typer.echo(
        f"written to {out}: edit it to your needs\n"
        f"it pins the roster {show_fingerprint(digest)}\n"
        "compare this digest with the other parties over a second channel, for example by phone"
    )


def policy_model_for(role: str | None) -> type[PartyPolicy]:
    """Return the policy model of a role."""
    from hubbub_aggregator.policy import AggregatorPolicy  # noqa: PLC0415
    from hubbub_trainer.policy import Policy  # noqa: PLC0415

    return AggregatorPolicy if role == Role.AGGREGATOR else Policy


def explain_policy(policy: PartyPolicy) -> str:
    """Return the policy as TOML, each value under its explanation."""
    lines = [f"# Policy of a Hubbub {policy.party}: it takes part in nothing beyond these limits, whoever asks.\n"]
    for name, field in type(policy).model_fields.items():
        lines += explain_value(name, getattr(policy, name), field.description)
    return "\n".join(lines)


@policies.command("check")
def check_manifest(
    manifest: ManifestFile,
    policy: PolicyFile,
    roster: RosterFile,
    role: PolicyRole = "client",
    runs: Annotated[int, typer.Option(min=0, help="Runs that the party has joined before.")] = 0,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Say whether the trainer or the aggregator would join a run, and if not, all that stands against it."""
    question = _read_question(manifest, policy, roster, role)
    objections = question.find_objections(runs)
    if as_json:
        answer = {
            "run": question.manifest.run_id,
            "joins": question.is_approved and not objections,
            "approved": question.is_approved,
            "objections": list(objections),
            "manifest": question.manifest.model_dump(mode="json"),
        }
        print_json(answer)
        raise typer.Exit(0 if answer["joins"] else EXIT_REFUSED)
    console = Console()
    _show_manifest(question, console)
    _show_objections(objections, console)
    if not question.is_approved:
        lead = (
            "It is not approved either; once the rest is settled:" if objections else "Only approval is missing:"
        )
        files = [str(manifest), "--policy", str(policy), "--roster", str(roster)]
        files += ["--role", role] if role == "aggregator" else []
        _say(f"{lead}\n  {shlex.join(['hubbub', 'policy', 'approve', *files])}", console)
    if objections or not question.is_approved:
        raise typer.Exit(EXIT_REFUSED)
    _say(f"The {question.policy.party} joins this run.", console)


@policies.command("approve")
def approve_manifest(
    manifest: ManifestFile,
    policy: PolicyFile,
    roster: RosterFile,
    role: PolicyRole = "client",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002  (A flag.)
) -> None:
    """Show a run, ask, and write its id into the policy; what breaks another limit cannot be approved."""
    question = _read_question(manifest, policy, roster, role)
    console = Console()
    _show_manifest(question, console)
    objections = question.find_objections(runs_before=0)
    _show_objections(objections, console)
    if objections:
        _say("Approval does not lift these limits; nothing was changed.", console)
        raise typer.Exit(EXIT_REFUSED)
    if question.manifest.run_id in question.policy.approved:
        _say("This run is approved already; nothing was changed.", console)
        return
    if not yes:
        typer.confirm("Approve this run?", abort=True)
    _add_approval(policy, question.manifest.run_id)
    _say(f"Approved; written to {policy}", console)


@dataclass(frozen=True, slots=True)
class _Question:
    """A manifest, with the policy and the roster that judge it."""

    manifest: Manifest
    policy: PartyPolicy
    roster: Roster

    @property
    def is_approved(self) -> bool:
        return self.policy.approves(self.manifest)

    def find_objections(self, runs_before: int) -> tuple[str, ...]:
        """Return all objections but a missing approval."""
        policy = self.policy.with_approval_of(self.manifest.run_id)
        found = policy.objections(self.manifest, roster=self.roster, runs_before=runs_before)
        return tuple(map(str, found))

    def name_parties(self, names: Iterable[PartyId]) -> str:
        """Format parties with the organisations that the roster, not the manifest, gives them."""
        known = {party.name: party.organisation for party in self.roster.parties}
        return ", ".join(f"{name} ({known.get(name, 'not in the roster')})" for name in names)


def _read_question(manifest: Path, policy: Path, roster: Path, role: str) -> _Question:
    from hubbub.messages.manifest import read_manifest  # noqa: PLC0415
    from hubbub.trust.roster import read_roster  # noqa: PLC0415

    try:
        read = read_manifest(manifest.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{manifest} cannot be read: {error.strerror}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{manifest}: {error}") from None
    return _Question(read, policy_model_for(role).read(policy), read_roster(roster))


def _show_manifest(question: _Question, console: Console) -> None:
    """Print the manifest for review; its free texts are escaped, since their author is not trusted."""
    from hubbub.policy import tell_strategy  # noqa: PLC0415
    from hubbub.strategies.shared_mask import ONE_BIT  # noqa: PLC0415
    from hubbub.strategies.unions import REVEALS  # noqa: PLC0415

    manifest, predecessor = question.manifest, list[tuple[str, str]]()
    rate = manifest.learning_rate
    if manifest.predecessor is not None:
        endorsers = question.name_parties(each.client for each in manifest.predecessor.endorsements)
        predecessor = [("goes on from", manifest.predecessor.run), ("endorsed by", endorsers)]
    grid = Table.grid(padding=(0, 2))
    for label, value in (
        ("run", manifest.run_id),
        ("task", repr(manifest.task)),
        ("rounds", f"{manifest.rounds:,}, each of {manifest.local_steps:,} local steps"),
        *([] if rate is None else [("learning rate", f"{rate:g} instead of the task's own")]),
        *([("server momentum", f"{manifest.server_momentum:g}")] if manifest.server_momentum else []),
        ("strategy", tell_strategy(manifest.strategy)),
        *([("block", f"{manifest.block} indices: {REVEALS}")] if manifest.block > 1 else []),
        *([("bits", f"1: {ONE_BIT}")] if manifest.bits == 1 else []),
        *(
            []
            if manifest.weights == "equal"
            else [("weights", "samples: clients learn how many all have together")]
        ),
        ("cohort", question.name_parties(manifest.clients)),
        ("min_clients", f"{manifest.min_clients} of {manifest.organisations} organisations"),
        ("aggregators", question.name_parties(manifest.aggregators)),
        ("coordinator", question.name_parties([manifest.coordinator])),
        *predecessor,
    ):
        grid.add_row(label, Text(value))
    console.print(grid, "")


def _show_objections(objections: Sequence[str], console: Console) -> None:
    if not objections:
        return
    _say("The policy is against it:", console)
    grid = Table.grid(padding=(0, 1))
    for sentence in objections:
        grid.add_row("-", Text(sentence))
    console.print(grid)


def _say(line: str, console: Console) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _add_approval(path: Path, run: RunId) -> None:
    """Add a run id to the policy file, atomically."""
    path = path.resolve()  # Keep a symbolic link.
    try:
        edited = _insert_approval(path.read_bytes().decode("utf-8"), run)
        with replacing(path, like=path.stat()) as file:
            file.write(edited.encode("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be changed: {error.strerror}") from None
    except ValueError:
        raise ConfigurationError(
            f"{path} is written in a way that cannot be edited safely: add {run} to its approved by hand"
        ) from None


def _insert_approval(text: str, run: RunId) -> str:
    """Add a run id to `approved`, and leave all else, comments too; raise `ValueError` if that fails."""
    import tomlkit  # noqa: PLC0415  (Help should not wait for it.)

    document = tomlkit.parse(text)
    approved = document.setdefault("approved", tomlkit.array())
    approved.add_line(run)
    if not approved.as_string().endswith("\n]"):
        approved.add_line(indent="")
    edited = tomlkit.dumps(document)
    # TOML editors have had bugs where commas and comments mix: no limit may change or be lost.
    before = tomllib.loads(text)
    if tomllib.loads(edited) != {**before, "approved": [*before.get("approved", ()), run]}:
        raise ValueError("the edit changed more than the approvals")
    return edited
