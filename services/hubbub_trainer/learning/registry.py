"""Registry of the tasks on this machine: those that come with Hubbub, and the operator's own.

Manifests name a task. To add one to Hubbub, write a class that keeps to `task.Task` and give it a line in
`load_task`. Nothing else changes.

An operator's own task is given by its place: `package.module:Name`, `path/to/file.py` or `path/to/file.py:Name`.
Loading it imports that code, so only this machine's operator may name a place: a name in a manifest is never taken
for one.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from hubbub.errors import ConfigurationError, HubbubError
from hubbub.protocol.metrics import check_metrics
from hubbub_trainer.learning.batches import Partition
from hubbub_trainer.learning.datasets import default_cache_folder
from hubbub_trainer.learning.networks import AlexnetTask, LenetTask
from hubbub_trainer.learning.numpy_task import NumpyTask
from hubbub_trainer.learning.source import note_source
from hubbub_trainer.learning.synthetic import DEFAULT_PARAMETERS, SyntheticTask
from hubbub_trainer.learning.task import CanBeTried, Task, check_scores

log = logging.getLogger(__name__)

TASKS_IN_TORCH = frozenset({LenetTask.name, AlexnetTask.name})
KNOWN_TASKS = "lenet, alexnet, synthetic, synthetic:N (with N parameters)"
USUAL_NAMES = ("Task", "task")
"""Names to look for in a file if none is given, and no class in it is a task."""


def load_task(
    name: str,
    *,
    data: str = "auto",
    cache_folder: Path | None = None,
    announce: Callable[[str], None] = lambda _line: None,
    partition: str = "iid",
) -> Task:
    """Make a task by its name.

    `data` chooses the data of tasks that have a choice, `partition` how clients share them (such as `iid`,
    `dirichlet:0.5` or `classes:2`), `announce` is given lines for the user. Nothing is loaded or fetched before
    the first learner is made; what is fetched is kept in `cache_folder`, by default the user's own.
    """
    sharing, cache = Partition.parse(partition), cache_folder or default_cache_folder()
    if name == "lenet":
        return LenetTask(data=data, cache_folder=cache, announce=announce, partition=sharing)
    if name == "alexnet":
        return AlexnetTask(data=data, cache_folder=cache, announce=announce, partition=sharing)
    kind, separator, parameters = name.partition(":")
    if kind == "synthetic" and (not separator or (parameters.isascii() and parameters.isdecimal())):
        if sharing != Partition():
            raise ConfigurationError(
                f"the task {name} generates each client's data, iid: it cannot be {partition!r}"
            )
        return SyntheticTask(int(parameters) if separator else DEFAULT_PARAMETERS)
    raise ConfigurationError(f"there is no task {name!r}; there are: {KNOWN_TASKS}")


# Tasks of the operator's own ----------------------------------------------------------------------------


def is_place(text: str) -> bool:
    """Return whether this is the place of a task, and not a name."""
    where, _, name = text.partition(":")
    return where.endswith(".py") or (bool(name) and not name.isdecimal())


def find_task(place: str, *, data: str) -> Task:
    """Import a task from its place; the task itself interprets `data`."""
    where, _, name = place.partition(":")
    module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    found = _make(_pick(module, name, place), place)
    task = _as_task(found, place, data)
    note_source(task, found, module)
    return task


def adopt_task(found: object, *, data: str) -> Task:
    """Return the task that an object or a class is, which the caller's own code gave."""
    place = found.__name__ if isinstance(found, type) else type(found).__name__
    return _as_task(_make(found, place), place, data)


def _make(found: Any, place: str) -> Any:
    """Make an object of a class; an object is returned as it is."""
    if not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        log.exception("%s could not be made", place)
        raise ConfigurationError(f"{place} could not be made: {type(error).__name__}: {error}") from None


def _as_task(found: Any, place: str, data: str) -> Task:
    if isinstance(found, NumpyTask):
        found.site_data = data
    if _is_task(found):
        check_metrics(found.metrics)
        return found
    if _is_torch_task(type(found)):
        from hubbub_trainer.learning.torch_learner import OwnTask  # noqa: PLC0415  (It imports torch.)

        return OwnTask(found, data=data)
    raise ConfigurationError(
        f"{place} is no task: make it a class that has TorchTask or NumpyTask as its base, or an object with the "
        "methods and properties of hubbub_trainer.learning.task.Task"
    )


def try_task(task: Task) -> None:
    """Train a step and evaluate, as the only client of a run; raise `ConfigurationError` if the task fails.

    In a run, its failure would be noticed only in this trainer's log.
    """
    failed = f"the task {task.name!r} was tried on one batch, and failed"
    try:
        theta = task.initial_model(0)
        learner = task.learner(index=0, clients=1, seed=0)
        if isinstance(learner, CanBeTried):
            learner.try_out(theta)
        else:
            learner.train(theta, steps=1, seed=0, progress=lambda _done, _steps: None)
            check_scores(task.metrics, learner.evaluate(theta))
    except HubbubError as error:
        raise ConfigurationError(f"{failed}: {error}") from None
    except Exception as error:
        log.exception("the task %s failed", task.name)
        raise ConfigurationError(f"{failed}: {type(error).__name__}: {error}") from None


def _is_task(found: Any) -> TypeGuard[Task]:
    return all(
        hasattr(found, each) for each in ("name", "metrics", "count_parameters", "initial_model", "learner")
    )


def _is_torch_task(found: object) -> bool:
    """Return whether this is a subclass of `TorchTask`; compares names, so as not to import torch."""
    return isinstance(found, type) and any(
        (base.__module__, base.__name__) == ("hubbub_trainer.learning.torch_task", "TorchTask")
        for base in found.__mro__[1:]
    )


def _pick(module: ModuleType, name: str, place: str) -> Any:
    if name:
        if not hasattr(module, name):
            known = ", ".join(_list_tasks(module)) or "none that is a task"
            raise ConfigurationError(f"{place} does not exist: the module has {known}")
        return getattr(module, name)
    tasks = _list_tasks(module)
    if len(tasks) > 1:
        raise ConfigurationError(f"{place} has several tasks: say which, as {place}:{tasks[0]}")
    found = [*tasks, *(each for each in USUAL_NAMES if hasattr(module, each))]
    if not found:
        raise ConfigurationError(
            f"{place} has no class that has TorchTask or NumpyTask as its base: name what to take, {place}:NAME"
        )
    return getattr(module, found[0])


def _list_tasks(module: ModuleType) -> list[str]:
    """List the task classes that this module defines, in order."""
    return [
        name
        for name, each in vars(module).items()
        if isinstance(each, type)
        and each.__module__ == module.__name__
        and (_is_torch_task(each) or issubclass(each, NumpyTask))
    ]


def _import_module(name: str) -> ModuleType:
    try:
        # As with `python -m`, the current folder counts too.
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  (The operator's own code may raise anything.)
        raise _say_why(name, error) from None


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    # A name of its own for each file: two may be called the same.
    name = f"hubbub_task_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ConfigurationError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    # The file may import modules beside it.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001  (As above.)
        del sys.modules[name]
        raise _say_why(str(path), error) from None
    return module


def _say_why(place: str, error: Exception) -> ConfigurationError:
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return ConfigurationError(
            f"{place} needs torch, which is not installed here: pip install 'hubbub[trainer]'"
        )
    log.error("%s could not be imported", place, exc_info=error)
    return ConfigurationError(f"{place} could not be imported: {type(error).__name__}: {error}")


def choose_task(
    wanted: str,
    *,
    data: str = "auto",
    announce: Callable[[str], None] = lambda _line: None,
    partition: str = "iid",
) -> Task:
    """Load the task that an operator asks for: one of Hubbub's by its name, or their own by its place."""
    if is_place(wanted):
        refuse_partition(wanted, partition)
        return find_task(wanted, data=data)
    return load_task(wanted, data=data, announce=announce, partition=partition)


def refuse_partition(name: str, partition: str) -> None:
    """Raise `ConfigurationError` if anything but `iid` is asked for of a task that gets its own data."""
    if Partition.parse(partition) != Partition():
        raise ConfigurationError(
            f"the task {name} gets each client's data itself: it cannot be {partition!r}, which is for lenet and "
            "alexnet; deal the data out in the task's `data`"
        )


class Shelf:
    """Tasks of one trainer, by name. Names come from manifests of others, so none is taken for a place."""

    def __init__(self, own: Sequence[Task], load: Callable[[str], Task]) -> None:
        self._own = {task.name: task for task in own}
        self._load = load
        if len(self._own) < len(own):
            raise ConfigurationError(
                f"two tasks have the same name, of {', '.join(task.name for task in own)}: give one another name"
            )
        taken = [name for name in self._own if self._is_ours(name)]
        if taken:
            raise ConfigurationError(
                f"there is a task {taken[0]!r} in Hubbub itself: give yours another name, in its attribute `name`"
            )

    def __call__(self, name: str) -> Task:
        """Load a task by name."""
        return self._own[name] if name in self._own else self._load(name)

    def _is_ours(self, name: str) -> bool:
        try:
            self._load(name)
        except ConfigurationError:
            return False
        return True


def list_places(text: str) -> list[str]:
    """Split a setting into its places, which are separated by commas."""
    return [place.strip() for place in text.split(",") if place.strip()]
