"""Identities and their files: who may read them, what they prove, and what is never shown."""

from __future__ import annotations

import json
import os
import stat
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import TracebackException

import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.trust.identity import (
    Identity,
    hash_password,
    new_identity,
    read_identity,
    read_public_identity,
    write_identity,
)
from hubbub.trust.roster import PublicIdentity

OTHER = new_identity("north", Role.AGGREGATOR, "university").public()
OTHER_VALUES = {
    "format": 2,
    "name": "south",
    "role": "client",
    "organisation": "lab",
    "public_key": OTHER.public_key,
    "broker_password_hash": OTHER.broker_password_hash,
    "proof": OTHER.proof,
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
def test_the_private_file_was_never_open_to_others(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(mode_of(tmp_path / "north.identity.json")))
    with umask(mask):
        private, public = write_identity(north(), tmp_path)

    assert [*seen, mode_of(private)] == [0o600] * 4
    assert mode_of(public) == 0o644 & ~mask


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

    assert [path.name for path in tmp_path.iterdir()] == [".gitignore"]


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
    ("field", "value"),
    [
        *(("format", 2), ("name", "North"), ("role", "auditor"), ("organisation", ""), ("private_key", "00")),
        *(("broker_password", "guessable"), ("surprise", 1)),
    ],
)
def test_a_wrong_private_file_is_told_without_its_contents(field: str, value: object, tmp_path: Path) -> None:
    identity = north()
    private, _ = write_identity(identity, tmp_path)
    change(private, **{field: value})

    with pytest.raises(ConfigurationError, match=rf"{private} is not an identity file: {field}: ") as info:
        read_identity(private)

    told = [str(info.value), *TracebackException.from_exception(info.value, capture_locals=True).format()]
    assert not [text for text in told for secret in secrets_of(identity) if secret in text]
    assert "guessable" not in f"{info.value} {info.value.__context__}"


def test_what_is_missing_or_no_json_is_no_identity_and_what_is_private_no_public_one(tmp_path: Path) -> None:
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
    with pytest.raises(ConfigurationError, match=str(path / "keys")):
        write_identity(north(), path / "keys")
    private, _ = write_identity(north(), tmp_path)
    with pytest.raises(ConfigurationError, match=r"is a private file, never to be sent"):
        read_public_identity(private)


@pytest.mark.parametrize("field", PublicIdentity.model_fields)
def test_a_public_file_with_any_field_changed_is_refused(field: str, tmp_path: Path) -> None:
    _, public = write_identity(north(), tmp_path)
    assert json.loads(public.read_text("utf-8"))[field] != OTHER_VALUES[field]
    change(public, **{field: OTHER_VALUES[field]})

    with pytest.raises(ConfigurationError, match=str(public)):
        read_public_identity(public)


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
