"""`hubbub manifest new`: a manifest that a coordinator takes, drawn up where the task is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.errors import ConfigurationError
from hubbub.messages.manifest import read_manifest
from hubbub_cli.main import app
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.workspace import digest

NAMES = ("--clients", "clinic-a, clinic-b,clinic-c", "--aggregators", "north,south")


def draw_up(*options: str) -> str:
    result = CliRunner().invoke(app, ["manifest", "new", *NAMES, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_it_knows_n_and_the_initial_model_of_the_task() -> None:
    manifest = read_manifest(
        draw_up("--task", "synthetic:300", "--seed", "3", "--strategy", "sec-union", "--q", "4")
    )

    task = SyntheticTask(300)
    assert manifest.parameters == 300
    assert manifest.initial_model_sha256 == digest(task.initial_model(3))
    assert manifest.clients == ("clinic-a", "clinic-b", "clinic-c")
    assert manifest.aggregators == ("north", "south")
    assert (manifest.strategy, manifest.q, manifest.min_clients) == ("sec-union", 4, 3)


def test_two_manifests_alike_are_two_runs() -> None:
    first, second = (read_manifest(draw_up("--task", "synthetic")) for _ in range(2))

    assert first.run_id != second.run_id
    assert first.model_copy(update={"nonce": second.nonce}) == second


def test_it_is_written_to_a_file_and_its_run_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    said = draw_up("--task", "synthetic", "--out", str(file))

    assert read_manifest(file.read_bytes()).run_id in said


def test_lenet_needs_neither_torch_nor_data() -> None:
    assert read_manifest(draw_up("--task", "lenet")).parameters == 61_706


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--clients", "alone"), "at least 2 clients"),
        (("--clients", "north,clinic"), "north stands for several"),
        (("--clients", "Not a name,clinic"), "'Not a name' cannot name a party"),
        (("--min-clients", "9"), "min_clients is 9"),
        (("--out", "/nowhere/run.json"), "/nowhere/run.json cannot be written"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        draw_up("--task", "synthetic", *options)
