"""Identities and their files: who may read them, what they prove, and what is never shown."""

from __future__ import annotations

import json
import os
import pprint
import stat
import traceback
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.trust.identity import (
    Identity,
    _PrivateFile,
    hash_password,
    new_identity,
    read_identity,
    read_public_identity,
    write_identity,
)
from hubbub.trust.roster import PublicIdentity

OTHER_VALUES = {
    "format": 2,
    "name": "south",
    "role": "client",
    "organisation": "lab",
    "public_key": new_identity("other", Role.CLIENT, "lab").public().public_key,
    "broker_password_hash": new_identity("other", Role.CLIENT, "lab").public().broker_password_hash,
    "proof": new_identity("north", Role.AGGREGATOR, "university").public().proof,
}


def north() -> Identity:
    return new_identity("north", Role.AGGREGATOR, "university")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def secrets_of(identity: Identity) -> tuple[str, ...]:
    raw = identity.key.to_bytes()
    return raw.hex(), repr(raw), repr(list(raw)), identity.broker_password


def change(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(content | changes), "utf-8")


def test_an_identity_survives_being_written(tmp_path: Path) -> None:
    identity = north()
    private, public = write_identity(identity, tmp_path / "not" / "there" / "yet")

    again = read_identity(private)

    assert (private.name, public.name) == ("north.identity.json", "north.public.json")
    assert (again.name, again.role, again.organisation) == ("north", Role.AGGREGATOR, "university")
    assert secrets_of(again) == secrets_of(identity)
    assert read_public_identity(public) == again.public() == identity.public()
    assert public.read_bytes() == write_identity(again, tmp_path / "second")[1].read_bytes()
    assert not set(secrets_of(identity)) & set(secrets_of(north())), "identities alike share no secret"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_only_the_owner_may_read_the_private_file(mask: int, tmp_path: Path) -> None:
    with umask(mask):
        private, public = write_identity(north(), tmp_path)

    assert mode_of(private) == 0o600
    assert mode_of(public) == 0o644 & ~mask


def test_the_private_file_was_never_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, int]] = []
    sync = os.fsync

    def look(handle: int) -> None:
        seen.append({path.name: mode_of(path) for path in tmp_path.iterdir()})
        sync(handle)

    monkeypatch.setattr(os, "fsync", look)
    with umask(0):
        write_identity(north(), tmp_path)

    assert [modes["north.identity.json"] for modes in seen] == [0o600] * 3


@pytest.mark.parametrize("there", ["north.identity.json", "north.public.json"])
def test_nothing_is_overwritten_and_nothing_is_written_beside_it(there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("precious", "utf-8")

    with pytest.raises(ConfigurationError, match=rf"{there} is there already and is never overwritten"):
        write_identity(north(), tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text("utf-8") == "precious"
    (tmp_path / there).unlink()
    (tmp_path / there).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is there already"):
        write_identity(north(), tmp_path)
    assert not (tmp_path / "elsewhere").exists(), "a link is not followed to where it points"


@pytest.mark.parametrize("failing", [1, 2, 3], ids=["private file", "public file", "folder"])
def test_a_failing_disk_leaves_no_identity(failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(handle: int) -> None:
        calls.append(handle)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(ConfigurationError, match="cannot be written: No space left on device"):
        write_identity(north(), tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match=str(tmp_path / "file" / "keys")):
        write_identity(north(), tmp_path / "file" / "keys")


def test_a_private_file_that_is_open_to_others_is_refused_also_behind_a_link(tmp_path: Path) -> None:
    private, _ = write_identity(north(), tmp_path)
    link = tmp_path / "link"
    link.symlink_to(private)
    assert read_identity(link).name == "north"
    for mode in (0o640, 0o620, 0o610, 0o604, 0o602, 0o601, 0o644, 0o777):
        private.chmod(mode)
        for path in (private, link):
            with pytest.raises(ConfigurationError, match=rf"chmod 600 {path}$"):
                read_identity(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"name": "North"},
        {"role": "auditor"},
        {"organisation": ""},
        {"private_key": "00"},
        {"broker_password": "guessable"},
        {"surprise": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_wrong_private_file_is_told_without_its_contents(changes: dict[str, object], tmp_path: Path) -> None:
    identity = north()
    private, _ = write_identity(identity, tmp_path)
    change(private, **changes)

    with pytest.raises(
        ConfigurationError, match=rf"{private} is not an identity file: {next(iter(changes))}: "
    ) as info:
        read_identity(private)

    assert_hidden(identity, str(info.value), *format_with_locals(info.value))
    assert "guessable" not in f"{info.value} {info.value.__context__}"


def test_what_is_missing_or_no_json_is_no_identity(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for read in (read_identity, read_public_identity):
        with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
            read(path)
    path.touch(mode=0o600)
    for content in (b"", b"\xff\xfe", b"[]", b"-----BEGIN PRIVATE KEY-----"):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match="is not an identity file"):
            read_identity(path)
        with pytest.raises(ConfigurationError, match="is not a public identity"):
            read_public_identity(path)


@pytest.mark.parametrize("field", PublicIdentity.model_fields)
def test_a_public_file_with_any_field_changed_is_refused(field: str, tmp_path: Path) -> None:
    _, public = write_identity(north(), tmp_path)
    assert json.loads(public.read_text("utf-8"))[field] != OTHER_VALUES[field]
    change(public, **{field: OTHER_VALUES[field]})

    with pytest.raises(ConfigurationError, match=str(public)):
        read_public_identity(public)


def test_a_private_file_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    private, _ = write_identity(north(), tmp_path)

    with pytest.raises(ConfigurationError, match=r"is a private file, never to be sent"):
        read_public_identity(private)


@pytest.mark.parametrize("name", ["", "North", "north pole", "-north", "north-", "n" * 41, "../north", "north\n"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a party"):
        new_identity(name, Role.CLIENT, "university")
    with pytest.raises(ConfigurationError, match="cannot name an organisation"):
        new_identity("north", Role.CLIENT, name)


def test_a_password_is_hashed_as_rabbitmq_documents_it() -> None:
    expected = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    identity = north()
    published = identity.public().broker_password_hash

    assert hash_password("test12", bytes.fromhex("908dc60a")) == expected
    assert hash_password(identity.broker_password, b64decode(published)[:4]) == published


def format_with_locals(error: BaseException) -> list[str]:
    return list(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def assert_hidden(identity: Identity, *texts: str) -> None:
    for secret in secrets_of(identity):
        assert not [text for text in texts if secret in text]


def test_secrets_are_in_no_text() -> None:
    identity = north()

    for holder in (identity, _PrivateFile.of(identity), identity.public()):
        texts = [repr(holder), str(holder), f"{[holder]}", pprint.pformat(holder)]
        assert_hidden(identity, *texts, *format_with_locals(RuntimeError(holder)))
