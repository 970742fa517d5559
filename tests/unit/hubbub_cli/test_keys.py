"""`hubbub keys` as a user sees it; the files themselves are tested with the library."""

import json
import stat
from pathlib import Path

import pytest

from hubbub.trust.identity import read_identity, read_public_identity
from hubbub.trust.roster import show_fingerprint
from hubbub_coordinator.api.access import read_tokens
from support.command_line import Hubbub

NORTH = ("keys", "new", "--role", "aggregator", "--name", "north", "--organisation", "university")


def test_new_and_show_tell_paths_and_key_and_no_secret(hubbub: Hubbub, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made = hubbub(*NORTH, "--out", folder)
    shown, of_private = (hubbub("keys", "show", folder / f"north.{kind}.json") for kind in ("public", "identity"))

    identity = read_identity(folder / "north.identity.json")
    key = show_fingerprint(identity.public().public_key)
    assert (identity.name, identity.role, identity.organisation) == ("north", "aggregator", "university")
    assert f"private  {folder}/north.identity.json\npublic   {folder}/north.public.json\n" in made.out
    assert f"key      {key}\n" in made.out
    assert "Keep the private file" in made.out
    assert "Send the public file" in made.out
    assert shown == of_private
    assert [line.split(maxsplit=1) for line in shown.out.splitlines()] == [
        ["name", "north"],
        ["role", "aggregator"],
        ["organisation", "university"],
        ["key", key],
    ]
    private = json.loads((folder / "north.identity.json").read_text("utf-8"))
    assert private["private_key"] not in (made.out + of_private.out).replace(" ", "")
    assert private["broker_password"] not in made.out + of_private.out


def test_tokens_are_files_and_headers_for_their_owner_alone_and_git_takes_none(
    hubbub: Hubbub, tmp_path: Path
) -> None:
    folder = tmp_path / "keys"
    made = hubbub("keys", "tokens", "--out", folder)
    again = hubbub("keys", "tokens", "--out", folder)

    tokens = read_tokens(folder / "read.token", folder / "change.token")
    assert (folder / "read.header").read_text("ascii") == f"Authorization: Bearer {tokens.read}\n"
    assert (folder / "change.header").read_text("ascii") == f"Authorization: Bearer {tokens.change}\n"
    names = ("read.token", "read.header", "change.token", "change.header")
    assert [stat.S_IMODE((folder / name).stat().st_mode) for name in names] == [0o600] * 4
    assert made.check_done().splitlines()[:4] == [str(folder / name) for name in names]
    assert tokens.change not in made.out
    again.check_refused(f"{folder / 'read.token'} is there already and is never overwritten")
    assert (folder / ".gitignore").read_text("ascii").splitlines()[-1] == "*"


def test_a_folder_that_holds_something_is_not_hidden_from_git(hubbub: Hubbub, tmp_path: Path) -> None:
    (tmp_path / "paper.tex").touch()

    hubbub(*NORTH, "--out", tmp_path).check_done()

    assert not (tmp_path / ".gitignore").exists()


@pytest.mark.parametrize("role", ["client", "coordinator"])
def test_every_role_can_be_made(hubbub: Hubbub, role: str, tmp_path: Path) -> None:
    hubbub("keys", "new", "--role", role, "--name", "x", "--organisation", "y", "--out", tmp_path)

    assert read_public_identity(tmp_path / "x.public.json").role == role


def test_an_identity_is_made_once_and_not_shown_where_others_can_read_it(hubbub: Hubbub, tmp_path: Path) -> None:
    private = tmp_path / "north.identity.json"
    hubbub(*NORTH, "--out", tmp_path)
    before = private.read_bytes()

    hubbub(*NORTH, "--out", tmp_path).check_refused("north.identity.json is there already")
    assert private.read_bytes() == before
    private.chmod(0o640)
    hubbub("keys", "show", private).check_refused(f"chmod 600 {private}")


def test_a_role_that_is_none_is_refused(hubbub: Hubbub, tmp_path: Path) -> None:
    ended = hubbub("keys", "new", "--role", "judge", "--name", "x", "--organisation", "y", "--out", tmp_path)

    assert ended.code == 2
    assert "judge" in ended.err
    assert list(tmp_path.iterdir()) == []
