"""`hubbub new`: a project that passes its own test, and whose files fit the services that read them."""

from pathlib import Path

import pytest

from hubbub import __version__
from hubbub_trainer.__main__ import TrainerSettings
from hubbub_trainer.policy import Policy
from support.command_line import Hubbub
from support.compose_file import MissingVariable, check_compose_specification, read_services
from support.dockerfile import read_targets
from support.program import run_python


def test_the_project_passes_its_own_test(hubbub: Hubbub, tmp_path: Path) -> None:
    said = hubbub("new", tmp_path / "Tumour grades").check_done()

    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", ".", cwd=tmp_path / "Tumour grades")

    assert "2 passed" in done.stdout, done.stdout
    assert "task.py" in said


def test_its_files_are_what_the_trainer_and_its_image_expect_with_nothing_left_to_fill_in(
    hubbub: Hubbub, tmp_path: Path
) -> None:
    hubbub("new", tmp_path / "x", "--task", "Tumour grades").check_done()

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


def test_its_compose_file_keeps_to_the_specification_and_asks_where_the_broker_is(
    hubbub: Hubbub, tmp_path: Path
) -> None:
    hubbub("new", tmp_path / "x").check_done()
    file = tmp_path / "x" / "docker-compose.yml"

    check_compose_specification(file)
    with pytest.raises(MissingVariable, match="say where the broker is"):
        read_services(path=file)


def test_a_folder_in_which_something_is_stays_as_it_is(hubbub: Hubbub, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("precious", encoding="utf-8")

    hubbub("new", tmp_path).check_refused("is not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["task.py"]


def test_a_name_without_letters_is_refused(hubbub: Hubbub, tmp_path: Path) -> None:
    hubbub("new", tmp_path / "___").check_refused("give --task")
