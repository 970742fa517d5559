"""A service that cannot start says why and what to do, in one line, and ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hubbub.ids import Role
from support.processes import MODULES, environment_of, prefix_of
from support.twins import new_party

PASSWORD = "sesame"
ROLES = list(Role)
# Nothing in these tests gets as far as to use it.
NOWHERE = f"amqp://guest:{PASSWORD}@127.0.0.1:1/"


def start(role: Role, settings: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", MODULES[role]],
        env=environment_of(role, settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_out(process: subprocess.Popen[str]) -> str:
    """Everything that it writes until it ends; it does not outlive this."""
    with process:
        try:
            return process.communicate(timeout=60)[0]
        finally:
            process.kill()


def find_complaint(output: str) -> str:
    """The one line with which it ended; all other lines are ordinary log lines."""
    assert "Traceback" not in output
    assert PASSWORD not in output
    *before, last = output.splitlines()
    assert {json.loads(line)["level"] for line in before} <= {"info"}, output
    if not last.startswith("{"):
        return last
    record = json.loads(last)
    assert record["level"] == "error"
    assert "traceback" not in record
    return str(record["message"])


def complain_all(settings: dict[Role, dict[str, str]]) -> dict[Role, str]:
    """Start these services, all at once, and return with which words each of them ended."""
    processes = {role: start(role, each) for role, each in settings.items()}
    outputs = {role: read_out(process) for role, process in processes.items()}
    assert all(process.returncode for process in processes.values()), outputs
    return {role: find_complaint(output) for role, output in outputs.items()}


def complain(role: Role, settings: dict[str, str]) -> str:
    return complain_all({role: settings})[role]


def settings_for(folder: Path, url: str = NOWHERE) -> dict[str, str]:
    return {"name": new_party(), "amqp_url": url, "folder": str(folder / "folder")}


@contextmanager
def nobody_listens() -> Iterator[int]:
    """A port that is ours and on which nobody can connect: it is bound but does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_broker_that_is_not_there_is_named_and_the_password_is_not(tmp_path: Path) -> None:
    with nobody_listens() as port:
        url = f"amqp://guest:{PASSWORD}@127.0.0.1:{port}/"
        complaints = complain_all({role: settings_for(tmp_path / role, url) for role in ROLES})

    for complaint in complaints.values():
        assert f"no RabbitMQ answers at 127.0.0.1:{port}" in complaint
        assert "Check that the broker runs" in complaint


@pytest.mark.broker
def test_wrong_credentials_are_refused_with_what_to_check(amqp_url: str, tmp_path: Path) -> None:
    parts = urlsplit(amqp_url)
    url = parts._replace(netloc=f"guest:{PASSWORD}@{parts.hostname}:{parts.port}").geturl()

    complaints = complain_all({role: settings_for(tmp_path / role, url) for role in ROLES})

    for complaint in complaints.values():
        assert f"{parts.hostname}:{parts.port} refuses the connection" in complaint
        assert "Check user, password and virtual host" in complaint


@pytest.mark.parametrize("url", [f"http://guest:{PASSWORD}@localhost/", f"{PASSWORD}", f"amqp://:{PASSWORD}@:x/"])
def test_url_that_is_none_is_refused_without_repeating_it(tmp_path: Path, url: str) -> None:
    complaint = complain(Role.AGGREGATOR, settings_for(tmp_path, url))

    assert "must look like amqp://user:password@host:5672/vhost" in complaint


def test_every_missing_setting_is_named() -> None:
    for role, complaint in complain_all({role: {} for role in ROLES}).items():
        for setting in ("NAME", "AMQP_URL", "FOLDER"):
            assert f"{prefix_of(role)}{setting}: Field required" in complaint


def test_misspelt_setting_is_named_beside_those_that_there_are(tmp_path: Path) -> None:
    misspelt = {role: {**settings_for(tmp_path), "amqp_urll": NOWHERE} for role in ROLES}

    for role, complaint in complain_all(misspelt).items():
        assert f"{prefix_of(role)}AMQP_URLL: no such setting" in complaint
        assert f"{prefix_of(role)}AMQP_URL," in complaint


def test_name_that_cannot_name_a_party_is_refused(tmp_path: Path) -> None:
    complaint = complain(Role.AGGREGATOR, {**settings_for(tmp_path), "name": "No Name"})

    assert complaint.startswith("aggregator: HUBBUB_AGGREGATOR_NAME: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read: No such file"),
        ("name = ", "is not TOML"),
        ("amqp_urll = 'x'", "AMQP_URLL"),
        ("log_level = 'loud'", "LOG_LEVEL: Input should be 'debug', 'info'"),
    ],
    ids=["missing", "not TOML", "unknown key", "wrong value"],
)
def test_bad_settings_file_is_refused(tmp_path: Path, content: str | None, expected: str) -> None:
    file = tmp_path / "settings.toml"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    complaint = complain(Role.AGGREGATOR, {**settings_for(tmp_path), "config_file": str(file)})

    assert expected in complaint


@pytest.mark.broker
def test_port_that_is_taken_is_named_with_the_setting_to_change(amqp_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        complaint = complain(Role.COORDINATOR, {**settings_for(tmp_path, amqp_url), "port": str(port)})

    assert f"cannot listen on 127.0.0.1:{port}" in complaint
    assert "set HUBBUB_COORDINATOR_PORT to a free port" in complaint


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file is in the way", encoding="utf-8")

    for role, complaint in complain_all({role: settings_for(tmp_path) for role in ROLES}).items():
        assert f"{prefix_of(role)}FOLDER: {tmp_path / 'folder'} cannot be used" in complaint
