"""`hubbub doctor`: a party's settings, the tasks of its own and its data."""

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
    settings = {**files.settings_for(party), "amqp_url": NOBODY_THERE, "folder": str(path.parent / party), **more}
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()), "utf-8")
    return path


# Settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("party", "options", "more", "well"),
    [
        (ADA, ("--role", "aggregator"), {}, ("versions", "settings", "identity", "roster", "folder")),
        (ANNA, (), {"data": "digits"}, ("settings", "identity", "roster", "folder", "data")),
    ],
)
def test_settings_are_taken_from_the_file_that_the_service_reads_which_tells_whose_they_are(
    files: PartyFiles,
    hubbub: Hubbub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    party: PartyId,
    options: tuple[str, ...],
    more: dict[str, str],
    well: tuple[str, ...],
) -> None:
    monkeypatch.setattr(doctor_checks, "CONNECT_S", 0.5)
    config = write_config(tmp_path / "settings.toml", files, party, **more)

    ended = hubbub("doctor", *options, "--config", config, "--json")

    found = verdicts(ended)
    assert found | dict.fromkeys(well, "ok") == found
    assert "no RabbitMQ answers at 127.0.0.1:1" in find(ended, "broker")["what"]
    assert (ended.code, ended.err) == (1, "")


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


def test_data_are_for_a_task_of_ones_own_to_say(files: PartyFiles, hubbub: Hubbub, own_task: Path) -> None:
    folder, nowhere = own_task.parent, own_task.parent / "nowhere"

    there, missing, elsewhere = (
        hubbub("doctor", *client_options(files), "--data", data, "--json")
        for data in (folder, nowhere, "postgresql://anna:hush@db/scans")
    )

    assert find(there, "task", "ok")["what"] == "scans (accuracy, loss)"
    assert find(there, "data", "ok")["what"].startswith(f"{folder} can be read")
    assert f"{nowhere} is not there" in find(missing, "data")["what"]
    assert "--data (HUBBUB_TRAINER_DATA)" in find(missing, "data")["mend"]
    assert find(elsewhere, "data", "skipped")
    assert "hush" not in elsewhere.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("x = 1", "no class that has TorchTask or NumpyTask as its base"),
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
