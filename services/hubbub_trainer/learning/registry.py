"""The tasks that exist, by the names that manifests carry.

To add one, write a class that keeps to `task.Task` and give it a line in `load_task`. Nothing else changes.
"""

from collections.abc import Callable
from pathlib import Path

from hubbub.errors import ConfigurationError
from hubbub_trainer.learning.alexnet import AlexnetTask
from hubbub_trainer.learning.batches import Partition
from hubbub_trainer.learning.lenet import LenetTask
from hubbub_trainer.learning.synthetic import DEFAULT_PARAMETERS, SyntheticTask
from hubbub_trainer.learning.task import Task

TASKS_IN_TORCH = frozenset({LenetTask.name, AlexnetTask.name})
KNOWN_TASKS = "lenet, alexnet, synthetic, synthetic:N (with N parameters)"


def _keep_silent(_line: str) -> None:
    pass


def load_task(
    name: str,
    *,
    data: str,
    cache_folder: Path,
    announce: Callable[[str], None] = _keep_silent,
    partition: str = "iid",
) -> Task:
    """Make a task by its name.

    `data` chooses the data of tasks that have a choice, `partition` how clients share them (`iid`, or such as
    `dirichlet:0.5`), `announce` is given lines for the user. Nothing is loaded or fetched before the first
    learner is made.
    """
    sharing = Partition.parse(partition)
    if name == "lenet":
        return LenetTask(data=data, cache_folder=cache_folder, announce=announce, partition=sharing)
    if name == "alexnet":
        return AlexnetTask(data=data, cache_folder=cache_folder, announce=announce, partition=sharing)
    kind, separator, parameters = name.partition(":")
    if kind == "synthetic" and (not separator or (parameters.isascii() and parameters.isdecimal())):
        if sharing != Partition():
            raise ConfigurationError(
                f"the task {name} generates each client's data, iid: it cannot be {partition!r}"
            )
        return SyntheticTask(int(parameters) if separator else DEFAULT_PARAMETERS)
    raise ConfigurationError(f"there is no task {name!r}; there are: {KNOWN_TASKS}")
