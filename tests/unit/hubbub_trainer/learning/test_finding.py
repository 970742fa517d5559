"""Where a task of one's own is found, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub_trainer.__main__ import TrainerSettings, _stock_shelf
from hubbub_trainer.learning.registry import Shelf, choose_task, find_task, is_place, try_task
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.learning.torch_learner import OwnTask

TORCH = """
from torch import nn
from hubbub_trainer.learning.torch_task import TorchTask

class {name}(TorchTask):
    def model(self):
        return nn.Linear(2, 2)
"""
PLAIN = """
from hubbub_trainer.learning.synthetic import SyntheticTask

class Other(SyntheticTask):
    name = "other"

task = Other(1000)
"""


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize("text", ["mine.py", "a/mine.py:Name", "package.module:Name", "module:task"])
def test_what_says_where_a_task_is(text: str) -> None:
    assert is_place(text)


@pytest.mark.parametrize("text", ["lenet", "synthetic", "synthetic:5003", "mine", "package.module"])
def test_what_is_a_name(text: str) -> None:
    assert not is_place(text)


def test_the_only_task_of_a_file_needs_no_name(tmp_path: Path) -> None:
    place = write(tmp_path, TORCH.format(name="TumourGrades"))

    task = find_task(place, data="")

    assert (task.name, task.count_parameters()) == ("tumour-grades", 6)


def test_a_task_in_a_file_is_found_by_its_name(tmp_path: Path) -> None:
    place = write(tmp_path, TORCH.format(name="One") + TORCH.format(name="Two"))

    assert find_task(f"{place}:Two", data="").name == "two"


def test_an_object_that_has_all_that_a_task_has_is_taken_as_it_is(tmp_path: Path) -> None:
    place = write(tmp_path, PLAIN)

    task = find_task(place, data="")

    assert (task.name, task.count_parameters()) == ("other", 1000)


def test_a_file_may_import_what_is_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "SIZE = 50", "beside_the_task.py")
    text = PLAIN.replace("1000", "SIZE").replace("\n\nclass", "\nfrom beside_the_task import SIZE\n\nclass")

    assert find_task(write(tmp_path, text), data="").count_parameters() == 50


def test_an_object_whose_metrics_have_one_name_twice_is_refused(tmp_path: Path) -> None:
    text = PLAIN.replace("Other(1000)", "Other(1000)\nOther.metrics = 2 * task.metrics")

    with pytest.raises(ConfigurationError, match="declared once"):
        find_task(write(tmp_path, text), data="")


def test_two_files_of_the_same_name_are_two(tmp_path: Path) -> None:
    names = []
    for folder in ("north", "south"):
        (tmp_path / folder).mkdir()
        names.append(find_task(write(tmp_path / folder, TORCH.format(name=folder.title())), data="").name)

    assert names == ["north", "south"]


def test_a_module_is_found_from_where_the_command_is_given(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, "my_module.py")
    program = (
        "from hubbub_trainer.learning import registry; print(registry.find_task('my_module:task', data='').name)"
    )
    command = [sys.executable, "-c", program]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "other\n"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("raise RuntimeError('broken')", "", "could not be imported: RuntimeError: broken"),
        ("def (", "", "could not be imported: SyntaxError"),
        ("import no_such_package", "", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("SIZE = 1", "", "has no class that has TorchTask as its base"),
        ("SIZE = 1", ":SIZE", "is no task"),
        ("class Task:\n    pass", "", "is no task"),
        ("class Task:\n    def __init__(self, folder):\n        pass", "", "could not be made: TypeError"),
        (TORCH.format(name="One"), ":Two", "does not exist: the module has One"),
        (TORCH.format(name="One") + TORCH.format(name="Two"), "", "has several tasks: say which"),
    ],
    ids=["raises", "syntax", "import", "nothing", "number", "no-task", "arguments", "other-name", "several"],
)
def test_what_is_no_task_is_refused(tmp_path: Path, text: str, name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        find_task(write(tmp_path, text) + name, data="")


@pytest.mark.parametrize(
    ("place", "said"), [("nowhere.py", "there is no file nowhere.py"), ("no_such_module:Task", "No module named")]
)
def test_a_place_that_does_not_exist_is_refused(place: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        find_task(place, data="")


# The shelf ------------------------------------------------------------------------------------------------


def load_ours(name: str) -> Task:
    if name == "synthetic":
        return SyntheticTask()
    raise ConfigurationError(f"there is no task {name!r}")


class Named(SyntheticTask):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    @property
    def name(self) -> str:
        return self._name


def test_a_manifest_may_name_a_task_of_ours_or_of_the_operators() -> None:
    own = Named("grades")
    shelf = Shelf([own], load_ours)

    assert shelf("grades") is own
    assert shelf("synthetic").name == "synthetic"


def test_nothing_in_a_manifest_is_taken_for_a_place(tmp_path: Path) -> None:
    place = write(tmp_path, f"open({str(tmp_path / 'was-run')!r}, 'w').close()")
    shelf = Shelf([], load_ours)

    for name in (place, f"{place}:Task", "os:system"):
        with pytest.raises(ConfigurationError, match="there is no task"):
            shelf(name)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("names", "said"),
    [(["grades", "grades"], "have the same name"), (["synthetic"], "in Hubbub itself: give yours another name")],
)
def test_names_that_are_taken_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Shelf([Named(name) for name in names], load_ours)


def test_an_operator_may_give_a_name_or_a_place(tmp_path: Path) -> None:
    wanted = ["synthetic:50", write(tmp_path, PLAIN)]

    found = [choose_task(each, data="", cache_folder=tmp_path, announce=print).name for each in wanted]

    assert found == ["synthetic:50", "other"]


# Trying a task ----------------------------------------------------------------------------------------------

TRIED = """
import torch
from torch import nn
from hubbub_trainer.learning.torch_task import Data, TorchTask

class Mine(TorchTask):
    batch_size, evaluation_batch_size = 4, 3
    scored = []

    def model(self):
        return nn.Linear(2, 2)

    def data(self, site):
        inputs, labels = torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)
        return Data(train=(inputs, labels), test=(inputs, labels))

    def evaluate(self, model, batch):
        self.scored.append(len(batch[0]))
        return super().evaluate(model, batch)
"""
FLAWS = {
    "data": ("    def data(self, site):\n        return torch.load('nowhere')", "while it got its data"),
    "loss": ("    def loss(self, model, batch):\n        return batch[2]", "in training"),
    "nan": (
        "    def loss(self, model, batch):\n        return model(batch[0]).sum() * float('nan')",
        "in training",
    ),
    "evaluate": ("    def evaluate(self, model, batch):\n        return 1", "in its evaluation"),
    "nothing": ("    def evaluate(self, model, batch):\n        return {}", "does not return 'accuracy', 'loss'"),
    "means": (
        "    def evaluate(self, model, batch):\n        return {'accuracy': (90, 1), 'loss': (0.1, 1)}",
        "'accuracy' is outside its bounds, 0 and 1",
    ),
    "no test": (
        """
    def data(self, site):
        inputs, labels = torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)
        return Data(train=(inputs, labels), test=(inputs[:0], labels[:0]))
""",
        "there are no test samples",
    ),
}


def stock(tmp_path: Path, text: str) -> Shelf:
    """As a trainer does when it starts."""
    settings = TrainerSettings.model_construct(task=write(tmp_path, text), data="", cache_folder=tmp_path)
    return _stock_shelf(settings)


def test_a_task_is_tried_on_one_batch_when_the_trainer_starts(tmp_path: Path) -> None:
    task = stock(tmp_path, TRIED)("mine")

    assert isinstance(task, OwnTask)
    assert task._task.scored == [3]  # type: ignore[attr-defined]  # Of the class above.


@pytest.mark.parametrize(("flaw", "said"), FLAWS.values(), ids=FLAWS.keys())
def test_a_task_that_fails_when_it_is_tried_stops_the_start(tmp_path: Path, flaw: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the task 'mine' was tried on one batch, and failed: .*{said}"):
        stock(tmp_path, f"{TRIED}\n{flaw}\n")


@pytest.mark.parametrize(("method", "said"), [("train", "KeyError: 'no'"), ("evaluate", "KeyError: 'no'")])
def test_a_task_without_torch_is_tried_too(method: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try_task(SyntheticTask(50))

    def fail(*_: object, **__: object) -> None:
        raise KeyError("no")

    monkeypatch.setattr(SyntheticLearner, method, fail)
    with pytest.raises(ConfigurationError, match=said):
        try_task(SyntheticTask(50))


def test_a_wrong_score_of_a_task_without_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyntheticLearner, "evaluate", lambda *_, **__: {"accuracy": (5, 10)})

    with pytest.raises(ConfigurationError, match=r"tried on one batch, and failed: .* does not return 'loss'"):
        try_task(SyntheticTask(50))
