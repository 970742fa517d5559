import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError, DataError
from hubbub_trainer.learning.registry import load_task


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("lenet", 61_706), ("synthetic", 5_003), ("synthetic:10", 10), ("synthetic:12345", 12_345)],
)
def test_task_is_made_by_the_name_it_bears(tmp_path: Path, name: str, parameters: int) -> None:
    task = load_task(name, data="digits", cache_folder=tmp_path)

    assert task.name == name
    assert task.count_parameters() == parameters
    assert task.initial_model(1).size == parameters


@pytest.mark.parametrize(
    "name", ["resnet", "", "synthetic:", "synthetic:-5", "synthetic:1e6", "lenet:5", "synthetic:٣"]
)
def test_unknown_task_is_refused_with_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="there are: lenet, synthetic, synthetic:N"):
        load_task(name, data="digits", cache_folder=tmp_path)


def test_unknown_data_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="minst"):
        load_task("lenet", data="minst", cache_folder=tmp_path)


def test_no_heavy_library_is_imported_until_a_network_is_trained(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from hubbub_trainer.learning import datasets, registry, synthetic, task
folder = Path({str(tmp_path)!r})
task = registry.load_task("synthetic", data="auto", cache_folder=folder)
learner = task.learner(index=0, clients=2, seed=1)
learner.evaluate(learner.train(task.initial_model(1), steps=2, seed=1, progress=print).theta)
registry.load_task("lenet", data="auto", cache_folder=folder).initial_model(1)
datasets.load_images("digits", folder, print)
heavy = {{"torch", "torchvision", "sklearn", "scipy"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, stdout=subprocess.DEVNULL)
