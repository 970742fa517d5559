"""Registry of tasks: Hubbub's own by name, the operator's own by place; and their trial at the start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from hubbub.errors import ConfigurationError, DataError
from hubbub.run_options import TaskName
from hubbub_trainer.__main__ import TrainerSettings, _stock_shelf
from hubbub_trainer.learning.registry import (
    KNOWN_TASKS,
    TASKS_IN_TORCH,
    Shelf,
    choose_task,
    find_task,
    is_place,
    load_task,
    try_task,
)
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.learning.torch_learner import OwnTask
from support.colour_files import pack_batches
from support.image_files import pack_image_files, write_image_folder
from support.patience import HANG_S

TORCH = """
from torch import nn
from hubbub_trainer.learning.torch_task import TorchTask

class {name}(TorchTask):
    def model(self):
        return nn.Linear(2, 2)
"""
ONE, TWO = TORCH.format(name="One"), TORCH.format(name="Two")
PLAIN = """
from hubbub_trainer.learning.synthetic import SyntheticTask

class Other(SyntheticTask):
    name = "other"

task = Other(1000)
"""


Pack = Callable[..., dict[str, bytes]]


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


# Hubbub's own tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lenet", 61_706),
        ("alexnet", 1_756_426),
        ("synthetic", 5_003),
        ("synthetic:10", 10),
        ("synthetic:12345", 12_345),
    ],
)
def test_task_is_made_by_the_name_it_bears(tmp_path: Path, name: str, parameters: int) -> None:
    task = load_task(name, data="auto", cache_folder=tmp_path)

    assert task.name == name
    assert task.count_parameters() == parameters
    assert task.initial_model(1).size == parameters


@pytest.mark.parametrize(
    "name", ["resnet", "", "synthetic:", "synthetic:-5", "synthetic:1e6", "lenet:5", "synthetic:٣"]
)
def test_unknown_task_is_refused_with_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="there are: lenet, alexnet, synthetic, synthetic:N"):
        load_task(name, data="digits", cache_folder=tmp_path)


def test_help_names_every_task() -> None:
    (option,) = get_args(TaskName)[1:]

    for known in KNOWN_TASKS.split(", "):
        assert known.partition(" ")[0] in option.help


@pytest.mark.parametrize(
    ("name", "data", "choice"),
    [
        *(("lenet", data, "auto, mnist, digits or a folder of IDX files") for data in ("minst", "cifar10")),
        *(
            ("alexnet", data, "auto, cifar10 or a folder that holds cifar-10-batches-bin")
            for data in ("mnist", "digits")
        ),
    ],
)
def test_data_that_the_task_has_no_use_for_are_refused(tmp_path: Path, name: str, data: str, choice: str) -> None:
    with pytest.raises(DataError, match=f"{data}.*choose {choice}"):
        load_task(name, data=data, cache_folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "pack", "even"), [("lenet", pack_image_files, 250), ("alexnet", pack_batches, 240)]
)
def test_partition_reaches_clients(tmp_path: Path, name: str, pack: Pack, even: int) -> None:
    folder = write_image_folder(tmp_path, pack(train=600))
    load = partial(load_task, name, data=str(folder), cache_folder=tmp_path)

    def count_samples(task: Task) -> list[int]:
        return [task.learner(index=index, clients=2, seed=7).samples for index in range(2)]

    skewed = count_samples(load(partition="dirichlet:1"))

    assert count_samples(load()) == count_samples(load(partition="iid")) == [even, even]
    assert skewed != [even, even]
    assert sum(skewed) == 2 * even


def test_partition_that_does_not_exist_or_fit_is_refused(tmp_path: Path) -> None:
    for name in ("lenet", "alexnet", "synthetic"):
        with pytest.raises(ConfigurationError, match="no partition 'even': choose iid, or dirichlet:A"):
            load_task(name, data="auto", cache_folder=tmp_path, partition="even")
    with pytest.raises(ConfigurationError, match="synthetic:50 generates each client's data"):
        load_task("synthetic:50", data="auto", cache_folder=tmp_path, partition="dirichlet:0.5")


@pytest.mark.parametrize("name", sorted(TASKS_IN_TORCH))
def test_task_without_torch_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub_trainer.learning.task.find_spec", lambda _: None)
    task = load_task(name, data=str(tmp_path), cache_folder=tmp_path)

    with pytest.raises(ConfigurationError, match=rf"task {name} needs torch.*'hubbub\[trainer\]'"):
        task.learner(index=0, clients=2, seed=0)


def test_no_heavy_library_is_imported_until_a_network_is_trained(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from hubbub_trainer.learning import datasets, registry, synthetic, task
folder = Path({str(tmp_path)!r})
task = registry.load_task("synthetic", data="auto", cache_folder=folder)
learner = task.learner(index=0, clients=2, seed=1)
learner.evaluate(learner.train(task.initial_model(1), steps=2, seed=1, progress=print).theta)
for name in ("lenet", "alexnet"):
    registry.load_task(name, data="auto", cache_folder=folder).initial_model(1)
datasets.load_images("digits", folder, print)
heavy = {{"torch", "torchvision", "sklearn", "scipy", "PIL"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S, stdout=subprocess.DEVNULL)


# Tasks of the operator's own ------------------------------------------------------------------------------


def test_places_are_told_from_names() -> None:
    assert all(map(is_place, ["mine.py", "a/mine.py:Name", "package.module:Name", "module:task"]))
    assert not any(map(is_place, ["lenet", "synthetic", "synthetic:5003", "mine", "package.module"]))


def test_a_task_in_a_file_is_found_by_its_name_which_may_be_left_out_if_it_is_the_only_one(tmp_path: Path) -> None:
    names = []
    for folder in ("north", "south"):
        (tmp_path / folder).mkdir()
        # Two files may have the same name.
        names.append(find_task(write(tmp_path / folder, TORCH.format(name=f"{folder.title()}Side")), data="").name)
    two = f"{write(tmp_path, ONE + TWO)}:Two"
    first, again = (find_task(two, data="") for _ in range(2))  # The file is imported once.

    assert names == ["north-side", "south-side"]
    assert (first.name, again.count_parameters()) == ("two", 6)


def test_an_object_with_all_of_a_task_is_taken_as_it_is_and_may_import_files_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "SIZE = 50", "beside_the_task.py")
    text = PLAIN.replace("1000", "SIZE").replace("\n\nclass", "\nfrom beside_the_task import SIZE\n\nclass")

    task = find_task(write(tmp_path, text), data="")

    assert (task.name, task.count_parameters()) == ("other", 50)


def test_a_module_is_found_from_where_the_command_is_given(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, "my_module.py")
    find = (
        "from hubbub_trainer.learning import registry; print(registry.find_task('my_module:task', data='').name)"
    )

    done = subprocess.run([sys.executable, "-c", find], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "other\n"


NO_TASKS = {
    "raises": ("raise RuntimeError('broken')", "", "could not be imported: RuntimeError: broken"),
    "syntax": ("def (", "", "could not be imported: SyntaxError"),
    "import": ("import no_such_package", "", "ModuleNotFoundError: No module named 'no_such_package'"),
    # As `import torch` does where there is none.
    "no-torch": (
        "raise ModuleNotFoundError('none', name='torch')",
        "",
        r"mine.py needs torch.*'hubbub\[trainer\]'",
    ),
    "nothing": ("SIZE = 1", "", "has no class that has TorchTask or NumpyTask as its base"),
    "number": ("SIZE = 1", ":SIZE", "is no task"),
    "metrics-twice": (f"{PLAIN}\nOther.metrics = 2 * task.metrics", "", "declared once"),
    "no-task": ("class Task:\n    pass", "", "is no task"),
    "arguments": (
        "class Task:\n    def __init__(self, folder):\n        pass",
        "",
        "could not be made: TypeError",
    ),
    "other-name": (ONE, ":Two", "does not exist: the module has One"),
    "several": (ONE + TWO, "", "has several tasks: say which"),
}


@pytest.mark.parametrize(("text", "name", "said"), NO_TASKS.values(), ids=NO_TASKS)
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

    found = [choose_task(each, data="").name for each in wanted]

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
    "data": ("data(self, site)", "torch.load('nowhere')", "while it got its data"),
    "loss": ("loss(self, model, batch)", "batch[2]", "in training"),
    "nan": ("loss(self, model, batch)", "model(batch[0]).sum() * float('nan')", "in training"),
    "evaluate": ("evaluate(self, model, batch)", "1", "in its evaluation"),
    "nothing": ("evaluate(self, model, batch)", "{}", "does not return 'accuracy', 'loss'"),
    "means": (
        "evaluate(self, model, batch)",
        "{'accuracy': (90, 1), 'loss': (0.1, 1)}",
        "'accuracy' is outside its bounds, 0 and 1",
    ),
    "no test": (
        "data(self, site)",
        "Data(train=(torch.zeros(8, 2), torch.zeros(8).long()), test=(torch.zeros(0, 2), torch.zeros(0).long()))",
        "there are no test samples",
    ),
}


def stock(tmp_path: Path, text: str) -> Shelf:
    """As a trainer does when it starts."""
    return _stock_shelf(
        TrainerSettings.model_construct(task=write(tmp_path, text), data="", cache_folder=tmp_path)
    )


def test_a_task_is_tried_on_one_batch_when_the_trainer_starts(tmp_path: Path) -> None:
    task = stock(tmp_path, TRIED)("mine")

    assert isinstance(task, OwnTask)
    assert task._task.scored == [3]  # type: ignore[attr-defined]  # Of the class above.


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_task_that_fails_when_it_is_tried_stops_the_start(tmp_path: Path, flaw: str) -> None:
    method, returned, said = FLAWS[flaw]

    with pytest.raises(ConfigurationError, match=f"the task 'mine' was tried on one batch, and failed: .*{said}"):
        stock(tmp_path, f"{TRIED}\n    def {method}:\n        return {returned}\n")


def test_a_task_without_torch_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    try_task(SyntheticTask(50))

    def fail(*_: object, **__: object) -> None:
        raise KeyError("no")

    monkeypatch.setattr(SyntheticLearner, "evaluate", lambda *_, **__: {"accuracy": (5, 10)})
    with pytest.raises(ConfigurationError, match=r"tried on one batch, and failed: .* does not return 'loss'"):
        try_task(SyntheticTask(50))
    monkeypatch.setattr(SyntheticLearner, "train", fail)
    with pytest.raises(ConfigurationError, match="KeyError: 'no'"):
        try_task(SyntheticTask(50))
