"""A run that is stopped or killed goes on where it was, and ends as one that never was."""

import io
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hubbub.errors import ConfigurationError
from hubbub_local.kept_run import open_kept_run
from hubbub_local.reproduce import runner
from hubbub_local.reproduce.records import open_results
from hubbub_local.reproduce.runner import UNFINISHED
from hubbub_trainer.learning.task import Task
from hubbub_trainer.task_runner import TaskRunner
from hubbub_trainer.workspace import RECORD, _load_json, _save_json
from support.fork_server import start_forked
from support.patience import HANG_S
from support.short_life import KILLED, PLAN
from support.watched_task import WatchedTask

Json = dict[str, Any]
FOLDER = f"{UNFINISHED}/sec-union-0"


@pytest.fixture(autouse=True)
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub_local.reproduce.report.draw_plot", lambda *_: "")


def reproduce(out: Path, *, resume: bool = False, task: Task | None = None) -> str:
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    runner.reproduce(PLAN, out=out, resume=resume, console=console, task=task or WatchedTask(300))
    return shown.getvalue()


def read(out: Path) -> Json:
    (only,) = json.loads((out / "results.json").read_text("utf-8"))["results"]
    assert isinstance(only, dict)
    return only


def without_times(run: Json) -> Json:
    rounds = [one | {"protocol_cpu_s": {}, "training_cpu_s": None} for one in run["by_round"]]
    return run | {"by_round": rounds}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Json:
    out = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hubbub_local.reproduce.report.draw_plot", lambda *_: "")
        reproduce(out)
    return without_times(read(out))


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once all trainers have been told to give up what they train."""
    event, original, told = threading.Event(), TaskRunner.give_up, list[TaskRunner]()

    def give_up(runner: TaskRunner) -> None:
        original(runner)
        told.append(runner)
        if len(told) == PLAN.settings.clients:
            event.set()

    monkeypatch.setattr(TaskRunner, "give_up", give_up)
    return event


def interrupted_in(training: int, number: signal.Signals, given_up: threading.Event) -> WatchedTask:
    """Make a task that sends this process a signal in one of its trainings, which then does not end."""

    def interrupt() -> None:
        if len(task.seeds) == training:
            os.kill(os.getpid(), number)
            assert given_up.wait(HANG_S)

    task = WatchedTask(300, before=interrupt)
    return task


def test_a_run_that_is_killed_again_and_again_ends_as_if_it_never_was(undisturbed: Json, tmp_path: Path) -> None:
    out, log, lives = tmp_path / "out", tmp_path / "log", 0
    code = KILLED
    while code == KILLED:
        lives += 1
        process = start_forked(["-m", "support.short_life", str(out), "31"], os.environ, log)
        code = process.wait(HANG_S)

    assert code == 0, log.read_text("utf-8")
    assert lives > 4
    assert without_times(read(out)) == undisturbed
    assert {path.name for path in out.iterdir()} == {"results.json", "report.md", "accuracy.svg"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_in_a_round_goes_on_there(
    number: signal.Signals, undisturbed: Json, tmp_path: Path, given_up: threading.Event
) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce(tmp_path, task=interrupted_in(4, number, given_up))
    cut_off = read(tmp_path)
    assert (tmp_path / FOLDER / ".gitignore").read_text("utf-8").endswith("\n*\n")
    tasks = list(tmp_path.glob(f"{FOLDER}/*/runs/*/{RECORD}"))
    for task in tasks:
        # As if it had been killed twice before in this training.
        _save_json(task, _load_json(task) | {"begun": 2})

    shown = reproduce(tmp_path, resume=True)

    resumed = read(tmp_path)
    assert len(tasks) == 2
    assert len(cut_off["by_round"]) == 1
    assert "sec-union, q = 1, seed 0: goes on after round 1" in shown
    assert without_times(resumed) == undisturbed
    assert resumed["by_round"][0] == cut_off["by_round"][0]
    assert [bool(one["protocol_cpu_s"]) for one in resumed["by_round"]] == [True, False, True]
    assert "server CPU" in (tmp_path / "report.md").read_text("utf-8")


def test_nothing_of_a_run_that_was_half_removed_is_left_in_the_next(tmp_path: Path, undisturbed: Json) -> None:
    (tmp_path / FOLDER / "client-1" / "tombstones").mkdir(parents=True)
    (tmp_path / FOLDER / "messages.sqlite").write_text("no database", "utf-8")
    open_results(tmp_path / "other", PLAN.settings, resume=False)
    (tmp_path / "other" / "results.json").rename(tmp_path / "results.json")

    reproduce(tmp_path, resume=True)

    assert without_times(read(tmp_path)) == undisturbed


def test_a_damaged_run_is_told_with_its_folder(tmp_path: Path, given_up: threading.Event) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce(tmp_path, task=interrupted_in(1, signal.SIGTERM, given_up))
    (tmp_path / FOLDER / "manifest.json").write_text("{", "utf-8")

    with pytest.raises(ConfigurationError, match=f"{FOLDER} is damaged: this is not a manifest.*Remove it"):
        reproduce(tmp_path, resume=True)


def test_one_process_at_a_time_goes_on_with_a_run(tmp_path: Path, given_up: threading.Event) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce(tmp_path, task=interrupted_in(1, signal.SIGTERM, given_up))

    with (
        open_kept_run(tmp_path / FOLDER, lambda: pytest.fail("it is there")),
        pytest.raises(ConfigurationError, match="another process is running in"),
    ):
        reproduce(tmp_path, resume=True)
