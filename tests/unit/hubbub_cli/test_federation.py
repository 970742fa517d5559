"""`hubbub federation new`: all that a trial needs, each party's secrets apart, written once."""

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.disk import create_file
from hubbub.ids import Role
from hubbub.messages.manifest import Manifest, read_manifest
from hubbub.trust.identity import read_identity
from hubbub.trust.roster import Roster, read_roster
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_cli import federation_folder
from hubbub_coordinator.api.access import read_tokens
from hubbub_trainer.policy import Policy
from support.command_line import Ended, Hubbub
from support.program import run_program

PARTIES = ("coordinator", "aggregator-1", "aggregator-2", "trainer-1", "trainer-2", "trainer-3")
SMALL = ("--clients", 3, "--task", "synthetic", "--rounds", 2, "--local-steps", 5)
Make = Callable[..., Ended]


@pytest.fixture
def make(hubbub: Hubbub, tmp_path: Path) -> Make:
    """Make a small federation in `federation`, and expect a code."""

    def run(*options: str | int, code: int = 0) -> Ended:
        ended = hubbub("federation", "new", tmp_path / "federation", *SMALL, *options)
        assert ended.code == code, ended
        return ended

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "federation"


def roster_in(folder: Path) -> Roster:
    return read_roster(folder / "public" / "roster.json")


def manifest_in(folder: Path) -> Manifest:
    return read_manifest((folder / "public" / "manifest.json").read_bytes())


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# What is made --------------------------------------------------------------------------------------------------


def test_every_party_has_its_identity_and_the_broker_knows_it_and_everybody_would_join(
    make: Make, folder: Path
) -> None:
    said = make("--strategy", "sec-union", "--rho", 0.2, "--phase-timeout", 30)

    roster, manifest = roster_in(folder), manifest_in(folder)
    identities = [read_identity(folder / name / "identity.json") for name in PARTIES]
    assert [identity.name for identity in identities] == list(PARTIES)
    assert {identity.public() for identity in identities} == set(roster.parties)
    assert len({identity.organisation for identity in identities}) == len(PARTIES)
    definitions = json.loads((folder / "public" / "definitions.json").read_text(encoding="utf-8"))
    hashes = {party.name: party.broker_password_hash for party in roster.parties}
    assert {user["name"]: user["password_hash"] for user in definitions["users"]} == hashes
    # The coordinator, which has no policy, pins the roster in its settings.
    settings = tomllib.loads((folder / "coordinator" / "settings.toml").read_text(encoding="utf-8"))
    assert settings == {"roster_sha256": roster.digest}
    assert (manifest.strategy, manifest.rounds, manifest.local_steps) == ("sec-union", 2, 5)
    assert (manifest.rho, manifest.phase_timeout_s) == (0.2, 30.0)
    for kind, role in ((Policy, Role.CLIENT), (AggregatorPolicy, Role.AGGREGATOR)):
        for party in roster.named(role):
            policy = kind.read(folder / party.name / "policy.toml")
            assert policy.approved == (manifest.run_id,)
            assert policy.objections(manifest, roster=roster, runs_before=0) == ()
    assert "no claim of privacy holds" in said.joined
    assert manifest.run_id in said.out


@pytest.mark.parametrize(
    "options",
    [
        ("--strategy", "fedavg"),
        ("--clients", 2),
        ("--rounds", 500),
        ("--strategy", "sec-union", "--block", 4),
        ("--strategy", "sec-union", "--q", 32, "--local-steps", 2000),
        ("--learning-rate", 2.5),
        ("--server-momentum", 0.95),
    ],
    ids=["plaintext", "two", "long", "blocks", "slow", "fast", "lasting"],
)
def test_what_a_policy_forbids_by_default_is_allowed_where_it_is_asked_for(
    make: Make, folder: Path, options: tuple[str | int, ...]
) -> None:
    make(*options)

    roster, manifest = roster_in(folder), manifest_in(folder)
    policy = Policy.read(folder / "trainer-1" / "policy.toml")
    assert policy.objections(manifest, roster=roster, runs_before=0) == ()
    assert policy.approve_tasks == ()
    serving = AggregatorPolicy.read(folder / "aggregator-1" / "policy.toml")
    assert serving.objections(manifest, roster=roster, runs_before=0) == ()


def test_a_run_that_loses_many_indices_is_warned_about_and_one_that_loses_nearly_all_is_not_made(
    make: Make, folder: Path
) -> None:
    refused = make("--strategy", "sec-union", "--clients", 4, "--rho", 1, "--q", 1, code=2)
    assert "nearly all marks cancel" in refused.err
    assert not folder.exists()

    told = make("--strategy", "sec-union", "--rho", 0.5, "--q", 1, "--json")
    assert "warning: sec-union with q = 1, rho = 0.5 and 3 clients loses 43% of the indices" in told.err
    assert told.json["run"] == manifest_in(folder).run_id


def test_secrets_are_for_their_owner_alone_and_the_rest_is_for_everybody(make: Make, folder: Path) -> None:
    said = make()

    modes = {
        path.relative_to(folder).parts[0] + ("/" if path.is_dir() else ""): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
    }
    assert (modes.pop("public/"), modes.pop("public")) == (0o755, 0o644)
    assert modes.pop(".gitignore") == 0o644
    assert {mode for name, mode in modes.items() if name.endswith("/")} == {0o700}
    assert {mode for name, mode in modes.items() if not name.endswith("/")} == {0o600}
    for name in PARTIES:
        identity = read_identity(folder / name / "identity.json")
        elsewhere = [content for path, content in snapshot(folder).items() if path.parent.name != name]
        for secret in (identity.key.to_bytes().hex(), identity.broker_password):
            assert not any(secret.encode() in content for content in elsewhere)
    # The operator has both tokens, and who watches has one.
    tokens = read_tokens(folder / "coordinator" / "read.token", folder / "coordinator" / "change.token")
    assert read_tokens(folder / "operator" / "read.token", folder / "operator" / "change.token") == tokens
    assert (folder / "monitor" / "read.token").read_text(encoding="ascii").strip() == tokens.read
    assert [path.name for path in (folder / "monitor").iterdir()] == ["read.token"]
    assert tokens.change not in said.out


def test_git_takes_nothing_of_it(make: Make, tmp_path: Path) -> None:
    assert run_program("git", "init", "--quiet", tmp_path).returncode == 0

    make()

    assert run_program("git", "-C", tmp_path, "status", "--porcelain").stdout == ""
    assert "nothing was changed" in make().joined


def test_it_speaks_to_programs(make: Make, folder: Path) -> None:
    first, second = (make("--json").json for _ in range(2))

    assert first["run"] == manifest_in(folder).run_id
    assert set(first["parties"]) == set(PARTIES)
    assert (first.pop("made"), second.pop("made")) == (True, False)
    assert first == second


# What is there already -----------------------------------------------------------------------------------------


def test_folders_that_are_there_and_empty_are_filled(make: Make, folder: Path) -> None:
    for name in ("public", "broker", "operator", "monitor", *PARTIES):
        (folder / name).mkdir(parents=True)
    (folder / "trainer-1" / "lost+found").mkdir()

    make()
    assert not (folder / ".gitignore").exists(), "whose folder this is may have a repository around it"

    assert {party.name for party in roster_in(folder).parties} == set(PARTIES)


def test_a_second_time_changes_nothing_and_says_what_it_did_not_heed(make: Make, folder: Path) -> None:
    make()
    before = snapshot(folder)

    said = make("--rounds", 9)

    assert snapshot(folder) == before
    assert "complete already: nothing was changed" in said.joined
    assert "rounds is 2, not 9" in said.joined


def test_an_interrupted_attempt_is_made_anew(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, budget = create_file, iter(range(7))

    def give_up(path: Path, content: bytes, mode: int) -> None:
        if next(budget, None) is None:
            raise KeyboardInterrupt
        create(path, content, mode)

    with monkeypatch.context() as patched:
        patched.setattr(federation_folder, "create_file", give_up)
        make(code=130)
    assert (folder / "operator" / "change.token").exists()

    make()

    identities = {read_identity(folder / name / "identity.json").public() for name in PARTIES}
    assert identities == set(roster_in(folder).parties)
    assert "nothing was changed" in make().joined


def test_what_is_not_ours_is_never_touched(make: Make, folder: Path) -> None:
    own = folder / "trainer-2" / "thesis.txt"
    own.parent.mkdir(parents=True)
    own.write_text("years of work", encoding="utf-8")

    make(code=2).check_refused(f"{own} is of no such federation")
    assert snapshot(folder) == {own: b"years of work"}


def test_a_federation_that_lost_a_part_is_refused(make: Make, folder: Path) -> None:
    make()
    (folder / "trainer-3" / "policy.toml").unlink()
    before = snapshot(folder)

    make(code=2).check_refused(f"{folder / 'trainer-3' / 'policy.toml'} is missing")
    assert snapshot(folder) == before


@pytest.mark.parametrize("clients", [2, 4])
def test_a_federation_of_other_parties_is_refused(make: Make, clients: int) -> None:
    make()

    assert "holds a federation of 3 clients and 2 aggregators" in make("--clients", clients, code=2).err


def test_parts_of_two_federations_are_refused(make: Make, folder: Path, hubbub: Hubbub, tmp_path: Path) -> None:
    make()
    assert hubbub("federation", "new", tmp_path / "other", *SMALL).code == 0
    (tmp_path / "other" / "trainer-1" / "identity.json").replace(folder / "trainer-1" / "identity.json")

    assert "parts of different federations" in make(code=2).err


def test_a_folder_that_cannot_be_written_is_named(hubbub: Hubbub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    below = tmp_path / "file" / "below"

    hubbub("federation", "new", below, *SMALL).check_refused(str(below))


def test_a_run_that_cannot_be_is_refused_before_anything_is_written(make: Make, folder: Path) -> None:
    make("--min-clients", 7, code=2).check_refused("min_clients is 7")
    assert not folder.exists()
