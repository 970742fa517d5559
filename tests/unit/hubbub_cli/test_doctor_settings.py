"""`hubbub doctor`: a party's settings, the tasks of its own and its data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hubbub.ids import PartyId
from hubbub_cli import doctor_checks
from support.command_line import Hubbub
from support.doctor_scene import ADA, ANNA, client_options, find, verdicts
from support.party_files import PartyFiles

NOBODY_THERE = "amqp://127.0.0.1:1/"
TASK = """
import torch
from hubbub_trainer.learning.torch_task import TorchTask


class Scans(TorchTask):
    def model(self):
        return torch.nn.Linear(3, 2)
"""


def write_config(path: Path, files: PartyFiles, party: PartyId, **more: str) -> Path:
    """Write a settings file as an operator does; JSON's strings are TOML's too."""
    settings = {
        **files.settings_for(party),
        "amqp_url": NOBODY_THERE,
        "folder": str(path.parent / party),
        **more,
    }
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()), "utf-8")
    return path


# Settings --------------------------------------------------------------------------------------------------


def test_settings_are_taken_from_the_file_that_the_service_reads(
    files: PartyFiles, hubbub: Hubbub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "CONNECT_S", 0.5)
    config = write_config(tmp_path / "ada.toml", files, ADA)

    ended = hubbub("doctor", "--role", "aggregator", "--config", config, "--json")

    found = verdicts(ended)
    assert found | {"versions": "ok", "settings": "ok", "identity": "ok", "roster": "ok", "folder": "ok"} == found
    assert "no RabbitMQ answers at 127.0.0.1:1" in find(ended, "broker")["what"]
    assert ended.code == 1


def test_settings_that_are_misspelt_or_missing(
    files: PartyFiles, hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBBUB_TRAINER_POLCY", str(files.policy(ANNA)))
    misspelt = hubbub("doctor", *client_options(files), "--json")
    monkeypatch.delenv("HUBBUB_TRAINER_POLCY")
    monkeypatch.setenv("HUBBUB_TRAINER_LOG_LEVEL", "info")
    missing = hubbub("doctor", *client_options(files), "--json")

    assert "HUBBUB_TRAINER_POLCY: no such setting" in find(misspelt, "settings")["what"]
    assert "HUBBUB_TRAINER_AMQP_URL: Field required" in find(missing, "settings")["what"]


def test_settings_of_several_roles_need_a_choice(hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_TRAINER_LOG_LEVEL", "info")
    monkeypatch.setenv("HUBBUB_AGGREGATOR_LOG_LEVEL", "info")

    ended = hubbub("doctor")

    assert ended.code == 2
    assert "choose one with --role" in ended.err


def test_a_file_of_settings_tells_whose_they_are(
    files: PartyFiles, hubbub: Hubbub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "CONNECT_S", 0.5)
    config = write_config(tmp_path / "trainer.toml", files, ANNA, data="digits")

    ended = hubbub("doctor", "--config", config, "--json")

    found = verdicts(ended)
    assert found | dict.fromkeys(("settings", "identity", "roster", "folder", "data"), "ok") == found
    assert "no RabbitMQ answers at 127.0.0.1:1" in find(ended, "broker")["what"]
    assert ended.err == ""


@pytest.mark.parametrize("text", [None, "not TOML", 'roster = "roster.json"\n', 'identity = "nowhere.json"\n'])
def test_a_file_of_settings_that_tells_nothing_is_a_problem(
    hubbub: Hubbub, tmp_path: Path, text: str | None
) -> None:
    config = tmp_path / "trainer.toml"
    if text is not None:
        config.write_text(text, encoding="utf-8")

    ended = hubbub("doctor", "--config", config, "--json")

    assert ended.code == 1
    assert "names no identity that can be read" in find(ended, "settings")["what"]


# Tasks of its own, and data --------------------------------------------------------------------------------


def test_data_that_are_to_be_fetched_and_data_that_are_not_there(
    files: PartyFiles, hubbub: Hubbub, tmp_path: Path
) -> None:
    fetched = [hubbub("doctor", *client_options(files), "--data", name, "--json") for name in ("mnist", "cifar10")]
    missing = hubbub("doctor", *client_options(files), "--data", tmp_path, "--json")

    for name, ended in zip(("MNIST", "CIFAR-10"), fetched, strict=True):
        what = find(ended, "data", "warning")["what"]
        assert what.startswith(f"{name} is not in")
        assert "it is fetched when a run first needs it" in what
    assert "train-images-idx3-ubyte" in find(missing, "data")["what"]
    assert [ended.code for ended in (*fetched, missing)] == [0, 0, 1]


@pytest.fixture
def own_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "scans.py"
    path.write_text(TASK, encoding="utf-8")
    monkeypatch.setenv("HUBBUB_TRAINER_TASK", str(path))
    return path


def test_what_a_folder_holds_is_for_a_task_of_ones_own_to_say(
    files: PartyFiles, hubbub: Hubbub, own_task: Path
) -> None:
    ended = hubbub("doctor", *client_options(files), "--data", own_task.parent, "--json")

    assert find(ended, "task", "ok")["what"] == "scans (accuracy, loss)"
    assert find(ended, "data", "ok")["what"].startswith(f"{own_task.parent} can be read")


def test_data_of_ones_own_that_are_not_there(files: PartyFiles, hubbub: Hubbub, own_task: Path) -> None:
    ended = hubbub("doctor", *client_options(files), "--data", own_task.parent / "nowhere", "--json")

    assert f"{own_task.parent / 'nowhere'} is not there" in find(ended, "data")["what"]
    assert "--data (HUBBUB_TRAINER_DATA)" in find(ended, "data")["mend"]


@pytest.mark.usefixtures("own_task")
def test_data_that_are_no_place_are_not_shown(files: PartyFiles, hubbub: Hubbub) -> None:
    ended = hubbub("doctor", *client_options(files), "--data", "postgresql://anna:hush@db/scans", "--json")

    assert find(ended, "data", "skipped")
    assert "hush" not in ended.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("x = 1", "no class that has TorchTask as its base"),
        (f"{TASK}\n    metrics = 'regression'\n", "set `target_range`"),
    ],
)
def test_a_task_that_the_trainer_would_not_start_with(
    files: PartyFiles, hubbub: Hubbub, own_task: Path, text: str, said: str
) -> None:
    own_task.write_text(text, encoding="utf-8")

    ended = hubbub("doctor", *client_options(files), "--json")

    assert ended.code == 1
    assert said in find(ended, "task")["what"]
    assert "HUBBUB_TRAINER_TASK" in find(ended, "task")["mend"]
