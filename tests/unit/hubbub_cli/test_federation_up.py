"""`hubbub federation up`: what it refuses before it starts anything, and what each party is given."""

import os
import signal
import socket
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub_cli import federation_broker
from hubbub_cli.background import Background
from hubbub_cli.federation_up import ending_like_ctrl_c
from hubbub_cli.rabbitmq_node import find_free_ports
from hubbub_cli.trial import Choices, Trial, open_trial
from support.command_line import Hubbub

TRAINERS = 11
URL = "amqp://broker.example/"
OWN_TASK = """
import torch
from hubbub_trainer.learning.torch_task import TorchTask


class Scans(TorchTask):
    def model(self):
        return torch.nn.Linear(30, 2)
"""
PARTIES = ("coordinator", "aggregator-1", "trainer-1", "trainer-2", "trainer-10")


@pytest.fixture
def folder(hubbub: Hubbub, tmp_path: Path) -> Path:
    hubbub("federation", "new", tmp_path / "trial", "--clients", TRAINERS, "--task", "synthetic").check_done()
    return tmp_path / "trial"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Mapping[str, str]]:
    """The environments of the processes that would have been started, by name."""
    environments: dict[str, Mapping[str, str]] = {}

    def start(_self: Background, name: str, _command: object, environment: Mapping[str, str]) -> None:
        environments[name] = environment

    monkeypatch.setattr(Background, "start", start)
    return environments


def begin(folder: Path, **choices: str | int) -> Trial:
    found = open_trial(folder)
    (port,) = find_free_ports(1)
    found.start(Choices(**{"broker": URL, "port": port, **choices}), lambda _stage: None)  # type: ignore[arg-type]
    return found


def read_settings(folder: Path, name: str) -> dict[str, object]:
    return tomllib.loads((folder / "settings" / f"{name}.toml").read_text(encoding="utf-8"))


# What each party is given ---------------------------------------------------------------------------------


def test_every_party_has_complete_settings_and_no_variable_of_somebody_elses(
    folder: Path, started: Mapping[str, Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBBUB_TRAINER_IDENTITY", "of-one.identity.json")

    begin(folder, data="digits")

    assert len(started) == 1 + 2 + TRAINERS
    for name in PARTIES:
        settings, file = read_settings(folder, name), folder / "settings" / f"{name}.toml"
        assert settings["amqp_url"] == URL
        assert settings["identity"] == str(folder / name / "identity.json")
        assert settings["folder"] == str(folder / "state" / name)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        own = {key: value for key, value in started[name].items() if key not in os.environ}
        assert list(own.values()) == [str(file)]
        assert "HUBBUB_TRAINER_IDENTITY" not in started[name]


def test_files_that_a_pattern_matches_are_dealt_by_number_and_task_and_data_are_remembered(
    folder: Path, started: Mapping[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del started
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospital.py").touch()
    for number in range(1, TRAINERS + 1):
        (tmp_path / f"patients-{number}.csv").touch()

    begin(folder, task="hospital.py", data="patients-*.csv")
    monkeypatch.chdir("/")
    begin(folder)

    dealt = {name: read_settings(folder, name)["data"] for name in ("trainer-1", "trainer-2", "trainer-11")}
    assert dealt == {
        "trainer-1": str(tmp_path / "patients-1.csv"),
        "trainer-2": str(tmp_path / "patients-2.csv"),
        "trainer-11": str(tmp_path / "patients-11.csv"),
    }
    assert read_settings(folder, "trainer-11")["task"] == str(tmp_path / "hospital.py")


def test_only_a_first_start_makes_a_folder_for_state(folder: Path, started: Mapping[str, object]) -> None:
    del started
    begin(folder)
    lost = folder / "state" / "trainer-1"
    (lost / "tombstones").rmdir()
    lost.rmdir()

    begin(folder)

    assert not lost.exists()


# What is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--data", "*.csv"), "--data *.csv matches 0 files, and there are 11 trainers: each takes one"),
        (("--task", "hospital.py"), "--task hospital.py: there is no such file"),
        (("--task", "lenet"), "--task lenet is no file, such as hospital.py, and no module:Name"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    folder: Path,
    started: Mapping[str, object],
    hubbub: Hubbub,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(folder)
    (port,) = find_free_ports(1)

    hubbub("federation", "up", folder, "--port", port, *options).check_refused(complaint)
    assert not started
    assert not (folder / "settings").exists()


def test_a_task_of_ones_own_has_to_be_named(hubbub: Hubbub, started: Mapping[str, object], tmp_path: Path) -> None:
    folder, task = tmp_path / "own", tmp_path / "scans.py"
    task.write_text(OWN_TASK, encoding="utf-8")
    said = hubbub("federation", "new", folder, "--clients", 3, "--task", task).check_done()
    (port,) = find_free_ports(1)

    ended = hubbub("federation", "up", folder, "--broker", URL, "--port", port)

    ended.check_refused("the run trains your own task 'scans': name its file with --task")
    assert not started
    assert f"Next: hubbub federation up {folder} --task {task}\n" in said


def test_a_port_that_is_taken_is_refused(folder: Path, hubbub: Hubbub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        hubbub("federation", "up", folder, "--port", port).check_refused("name a free port with --port")


def test_a_folder_without_a_federation_is_refused_and_told_how_to_make_one(hubbub: Hubbub, tmp_path: Path) -> None:
    for command in ("up", "status", "down"):
        ended = hubbub("federation", command, tmp_path / "none")
        ended.check_refused(f"make one with `hubbub federation new {tmp_path / 'none'}`")


def test_without_any_broker_all_ways_to_one_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_broker, "find_scripts", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigurationError, match=r"apt-get install rabbitmq-server.* start Docker.* --broker"):
        begin(folder, broker="")


def test_a_federation_that_never_ran_is_down(folder: Path, hubbub: Hubbub) -> None:
    ended = hubbub("federation", "status", folder, "--json")

    assert (ended.code, ended.json["up"], ended.json["run"]) == (1, False, None)
    assert set(ended.json["parties"]) == set(open_trial(folder).parties)
    assert hubbub("federation", "down", folder).check_done() == "nothing was running\n"


def test_a_request_to_end_counts_also_where_a_shell_ignores_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), ending_like_ctrl_c():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
