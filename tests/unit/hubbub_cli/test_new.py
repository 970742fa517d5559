"""`hubbub new`: a project that passes its own test, and whose files fit the services that read them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub import __version__
from hubbub.errors import ConfigurationError
from hubbub_cli.main import app
from hubbub_trainer.__main__ import TrainerSettings
from hubbub_trainer.policy import Policy
from support.compose_file import MissingVariable, read_services
from support.dockerfile import read_targets


def new(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["new", *map(str, arguments)])
    if isinstance(result.exception, ConfigurationError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_project_passes_its_own_test(tmp_path: Path) -> None:
    said = new(tmp_path / "Tumour grades")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path / "Tumour grades",
        capture_output=True,
        text=True,
        check=False,
    )

    assert "2 passed" in done.stdout, done.stdout
    assert "task.py" in said


def test_its_files_are_what_the_trainer_and_its_image_expect_with_nothing_left_to_fill_in(tmp_path: Path) -> None:
    new(tmp_path / "x", "--task", "Tumour grades")

    policy = Policy.read(tmp_path / "x" / "policy.toml")
    service = read_services({"HUBBUB_BROKER": "amqps://b/"}, path=tmp_path / "x" / "docker-compose.yml")["trainer"]
    given = {name.removeprefix("HUBBUB_TRAINER_").lower() for name in service.environment}
    required = {name for name, field in TrainerSettings.model_fields.items() if field.is_required()}
    image = read_targets()["trainer"]
    assert policy.approve_tasks == ("tumour-grades",)
    assert required <= given <= set(TrainerSettings.model_fields)
    assert service.content["image"] == f"hubbub-trainer:{__version__}"
    assert [service.content["user"]] == image.user
    assert {name: service.environment.get(name, value) for name, value in image.environment.items()} == {
        **image.environment
    }
    writable = {mount.target for mount in service.mounts if not mount.read_only}
    assert writable == {service.environment[f"HUBBUB_TRAINER_{name}"] for name in ("FOLDER", "CACHE_FOLDER")}
    assert not [path for path in (tmp_path / "x").iterdir() if "{{" in path.read_text("utf-8")]


def test_its_compose_file_keeps_to_the_specification_and_asks_where_the_broker_is(tmp_path: Path) -> None:
    new(tmp_path / "x")
    file = tmp_path / "x" / "docker-compose.yml"

    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    with pytest.raises(MissingVariable, match="say where the broker is"):
        read_services(path=file)


def test_a_folder_in_which_something_is_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("precious", encoding="utf-8")

    with pytest.raises(ConfigurationError, match="is not empty"):
        new(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["task.py"]


def test_a_name_without_letters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give --task"):
        new(tmp_path / "___")
