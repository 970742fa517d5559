"""`hubbub keys` as a user sees it; the files themselves are tested with the library."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.errors import ConfigurationError
from hubbub.trust.identity import read_identity, read_public_identity
from hubbub.trust.roster import show_fingerprint
from hubbub_cli.main import app, main

NORTH = ("new", "--role", "aggregator", "--name", "north", "--organisation", "university")


def run_keys(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_new_tells_both_paths_the_key_and_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    said = run_keys(*NORTH, "--out", str(folder))

    identity = read_identity(folder / "north.identity.json")
    assert (identity.name, identity.role, identity.organisation) == ("north", "aggregator", "university")
    assert f"private  {folder}/north.identity.json\npublic   {folder}/north.public.json\n" in said
    assert f"key      {show_fingerprint(identity.public().public_key)}\n" in said
    assert "Keep the private file" in said
    assert "Send the public file" in said


@pytest.mark.parametrize("role", ["client", "aggregator", "coordinator"])
def test_every_role_can_be_made(role: str, tmp_path: Path) -> None:
    run_keys("new", "--role", role, "--name", "x", "--organisation", "y", "--out", str(tmp_path))

    assert read_public_identity(tmp_path / "x.public.json").role == role


def test_show_says_the_same_of_either_file(tmp_path: Path) -> None:
    run_keys(*NORTH, "--out", str(tmp_path))

    said = run_keys("show", str(tmp_path / "north.public.json"))

    assert said == run_keys("show", str(tmp_path / "north.identity.json"))
    key = show_fingerprint(read_public_identity(tmp_path / "north.public.json").public_key)
    assert [line.split(maxsplit=1) for line in said.splitlines()] == [
        ["name", "north"],
        ["role", "aggregator"],
        ["organisation", "university"],
        ["key", key],
    ]


def test_no_secret_is_printed(tmp_path: Path) -> None:
    said = run_keys(*NORTH, "--out", str(tmp_path))
    said += run_keys("show", str(tmp_path / "north.identity.json"))

    private = json.loads((tmp_path / "north.identity.json").read_text("utf-8"))
    assert private["private_key"] not in said.replace(" ", "")
    assert private["broker_password"] not in said


def test_a_private_file_that_others_can_read_is_not_shown(tmp_path: Path) -> None:
    run_keys(*NORTH, "--out", str(tmp_path))
    private = tmp_path / "north.identity.json"
    private.chmod(0o640)

    with pytest.raises(ConfigurationError, match=f"chmod 600 {private}"):
        run_keys("show", str(private))


def test_an_identity_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_keys(*NORTH, "--out", str(tmp_path))
    before = (tmp_path / "north.identity.json").read_bytes()
    monkeypatch.setattr(sys, "argv", ["hubbub", "keys", *NORTH, "--out", str(tmp_path)])

    with pytest.raises(SystemExit) as info:
        main()

    assert info.value.code == 2
    said = capsys.readouterr().err
    assert "north.identity.json is there already" in said
    assert said.count("\n") == 1
    assert (tmp_path / "north.identity.json").read_bytes() == before


def test_a_role_that_is_none_is_refused(tmp_path: Path) -> None:
    arguments = ["keys", "new", "--role", "judge", "--name", "x", "--organisation", "y", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 2
    assert "judge" in result.output
    assert list(tmp_path.iterdir()) == []
