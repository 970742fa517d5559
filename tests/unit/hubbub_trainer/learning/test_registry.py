import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from hubbub.errors import ConfigurationError, DataError
from hubbub_cli.run_options import TaskName
from hubbub_trainer.learning.registry import KNOWN_TASKS, load_task
from hubbub_trainer.learning.task import Task
from support.colour_files import pack_batches
from support.image_files import pack_image_files, write_image_folder
from support.patience import HANG_S


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
        ("lenet", "minst", "auto, mnist, digits or a folder of IDX files"),
        ("lenet", "cifar10", "auto, mnist, digits or a folder of IDX files"),
        ("alexnet", "mnist", "auto, cifar10 or a folder that holds cifar-10-batches-bin"),
        ("alexnet", "digits", "auto, cifar10 or a folder that holds cifar-10-batches-bin"),
    ],
)
def test_data_that_the_task_has_no_use_for_are_refused_before_anything_is_loaded(
    tmp_path: Path, name: str, data: str, choice: str
) -> None:
    with pytest.raises(DataError, match=f"{data}.*choose {choice}"):
        load_task(name, data=data, cache_folder=tmp_path)


def write_grey_folder(folder: Path) -> Path:
    return write_image_folder(folder, pack_image_files(train=600))


def write_colour_folder(folder: Path) -> Path:
    return write_image_folder(folder, pack_batches(train=600))


@pytest.mark.parametrize(
    ("name", "write", "even"), [("lenet", write_grey_folder, 250), ("alexnet", write_colour_folder, 240)]
)
def test_partition_reaches_the_clients(
    tmp_path: Path, name: str, write: Callable[[Path], Path], even: int
) -> None:
    load = partial(load_task, name, data=str(write(tmp_path)), cache_folder=tmp_path)

    def count_samples(task: Task) -> list[int]:
        return [task.learner(index=index, clients=2, seed=7).samples for index in range(2)]

    skewed = count_samples(load(partition="dirichlet:1"))

    assert count_samples(load()) == count_samples(load(partition="iid")) == [even, even]
    assert skewed != [even, even]
    assert sum(skewed) == 2 * even


@pytest.mark.parametrize("name", ["lenet", "alexnet", "synthetic"])
def test_unknown_partition_is_refused_with_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="no partition 'even': choose iid, or dirichlet:A"):
        load_task(name, data="auto", cache_folder=tmp_path, partition="even")


def test_generated_data_know_one_partition(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="synthetic:50 generates each client's data"):
        load_task("synthetic:50", data="auto", cache_folder=tmp_path, partition="dirichlet:0.5")


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
