"""The command as a whole: help that is quick, suggestions for slips, JSON, completion, exit codes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hubbub.ids import PartyId, Role
from hubbub.strategies.registry import STRATEGIES
from support.builders import make_manifest
from support.command_line import COMMANDS, Hubbub, list_below
from support.live_coordinator import LiveCoordinator, make_run
from support.parties import roster_of
from support.party_files import PartyFiles, write_party_files, write_policy
from support.program import run_python

HEAVY = ("numpy", "torch", "pydantic", "httpx", "fastapi", "uvicorn", "aio_pika", "asyncio", "prometheus_client")


# Help ------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    code = "import sys\nfrom hubbub_cli.main import main\ntry: main()\nfinally: print(*sys.modules)"

    done = run_python("-c", code, "--help")

    assert done.returncode == 0, done.stderr
    assert set(HEAVY) & set(done.stdout.split()) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(hubbub: Hubbub, name: str) -> None:
    ended = hubbub(*name.split(), "--help", columns=80)

    assert ended.code == 0
    assert f"Usage: hubbub {name}".strip() in ended.out
    assert max(len(line) for line in ended.out.splitlines()) <= 80


def test_help_documents_the_exit_codes(hubbub: Hubbub) -> None:
    told = hubbub("--help").joined

    for each in ("0 all went well", "1 it did not", "2 what was asked for cannot be", "130 interrupted"):
        assert each in told


# Slips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("rnu",), "Did you mean 'run'?"),
        (("run", "wach"), "Did you mean 'watch'?"),
        (("run", "list", "--limt", "3"), "--limit"),
        (("run", "list", "--state", "runing"), "did you mean 'running'?"),
        (("run", "export", "latest", "--format", "cvs"), "did you mean 'csv'?"),
        (("keys", "new", "--role", "clint"), "did you mean 'client'?"),
        (("doctor", "--role", "cordinator"), "did you mean 'coordinator'?"),
        (("plan", "--params", "9", "--servers-learn", "indicies"), "did you mean 'indices'?"),
        (("demo", "--strategy", "SecUnion"), "did you mean 'sec-union'?"),
        (("demo", "--round", "3"), "--rounds"),
        (("manifest", "new", "--roster", "x", "--strategy", "no_union"), "did you mean 'no-union'?"),
    ],
)
def test_a_slip_gets_a_suggestion(hubbub: Hubbub, words: Sequence[str], suggestion: str) -> None:
    ended = hubbub(*words)

    assert ended.code == 2
    assert suggestion in " ".join(ended.err.replace("│", " ").split())
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_a_value_that_resembles_nothing_gets_all_that_there_are(hubbub: Hubbub) -> None:
    ended = hubbub("doctor", "--role", "xyz")

    assert ended.code == 2
    assert "choose one of: client, aggregator, coordinator" in " ".join(ended.err.replace("│", " ").split())
    assert "did you mean" not in ended.err


# JSON ------------------------------------------------------------------------------------------------------

PRINTS_NO_DATA = {
    *("coordinator", "aggregator", "trainer", "bench"),
    # JSON already; `run export` says so with --format.
    *("manifest new", "run export"),
    # It writes `results.json` into its folder.
    "reproduce",
    # They start and end processes, of which `federation status` tells.
    *("federation up", "federation down"),
    # They write a file, or ask before they do.
    *("policy init", "policy approve", "roster broker-config", "model export", "ledger allow", "new"),
    "run forget",
}


def test_every_command_that_prints_data_has_json() -> None:
    options = {
        name: {word for option in getattr(each, "params", []) for word in option.opts}
        for name, each in COMMANDS.items()
        if not list_below(each)
    }

    assert {name for name, known in options.items() if "--json" not in known} == PRINTS_NO_DATA


@pytest.fixture
def files(tmp_path: Path) -> PartyFiles:
    roles = {PartyId("anna"): Role.CLIENT, PartyId("bert"): Role.CLIENT, PartyId("ada"): Role.AGGREGATOR}
    return write_party_files(tmp_path, roles)


def test_keys_as_json_are_public(hubbub: Hubbub, tmp_path: Path) -> None:
    whose = ("--role", "client", "--name", "c", "--organisation", "o")
    new = hubbub("keys", "new", *whose, "--out", tmp_path, "--json")
    shown = hubbub("keys", "show", new.json["private"], "--json")

    made, seen = new.json, shown.json
    assert made == {**seen, "private": made["private"], "public": made["public"]}
    assert seen.keys() == {"name", "role", "organisation", "public_key"}
    private = json.loads(Path(made["private"]).read_text("utf-8"))
    assert private["private_key"] not in new.out + shown.out


def test_a_roster_as_json(files: PartyFiles, hubbub: Hubbub) -> None:
    shown = hubbub("roster", "show", files.roster, "--json").json
    verified = hubbub("roster", "verify", files.roster, "--sha256", shown["sha256"], "--json").json

    assert shown["sha256"] == files.parties.roster.digest
    assert [party["name"] for party in shown["parties"]] == ["ada", "anna", "bert"]
    assert any("at least 2 aggregators" in warning for warning in shown["warnings"])
    assert verified == {**shown, "compared": True}


@pytest.mark.parametrize(
    ("limits", "joins", "approved"),
    [({}, True, True), ({"approve_tasks": []}, False, False), ({"max_rounds": 1}, False, True)],
)
def test_a_policys_verdict_as_json(
    hubbub: Hubbub, tmp_path: Path, limits: dict[str, object], *, joins: bool, approved: bool
) -> None:
    manifest = make_manifest()
    roster = roster_of(manifest)
    (tmp_path / "roster.json").write_text(roster.model_dump_json(), encoding="utf-8")
    (tmp_path / "run.json").write_text(manifest.model_dump_json(), encoding="utf-8")
    write_policy(tmp_path / "policy.toml", roster_sha256=roster.digest, **limits)
    names = ("--policy", tmp_path / "policy.toml", "--roster", tmp_path / "roster.json")

    ended = hubbub("policy", "check", tmp_path / "run.json", *names, "--json")

    answer = ended.json
    assert (answer["joins"], answer["approved"], ended.code) == (joins, approved, 0 if joins else 1)
    assert answer["run"] == manifest.run_id
    assert bool(answer["objections"]) is (approved and not joins)


# Completion ------------------------------------------------------------------------------------------------


Complete = Callable[..., list[str]]


@pytest.fixture
def complete(hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Ask as a shell does for the words that may follow a line."""

    def ask(line: str, **environment: str) -> list[str]:
        told = {"_HUBBUB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        for name, value in {**told, **environment}.items():
            monkeypatch.setenv(name, value)
        ended = hubbub()
        assert ended.err == ""
        return ended.out.split()

    return ask


def test_strategies_states_and_commands_complete(complete: Complete) -> None:
    assert complete("hubbub demo --strategy ") == list(STRATEGIES)
    assert complete("hubbub run list --state c") == ["completed", "cancelled"]
    assert complete("hubbub dead") == ["dead-letters"]


def test_runs_complete_where_the_coordinator_can_be_asked(live: LiveCoordinator, complete: Complete) -> None:
    run = live.submit(make_run())
    access = {"HUBBUB_URL": live.url, "HUBBUB_TOKEN_FILE": str(live.token_file("read"))}

    assert complete("hubbub run watch ", **access) == ["latest", run[:12]]
    assert complete(f"hubbub run pause {run[:2]}", **access) == [run[:12]]
    assert complete("hubbub run watch ", **access | {"HUBBUB_URL": "http://127.0.0.1:1"}) == ["latest"]
