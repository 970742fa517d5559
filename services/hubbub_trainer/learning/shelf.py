"""The tasks that are to be had on this machine: those that come with Hubbub, and those of the operator's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hubbub.errors import ConfigurationError
from hubbub_trainer.learning.finding import find_task, is_place
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.learning.task import Task


def choose_task(wanted: str, *, data: str, cache_folder: Path, announce: Callable[[str], None]) -> Task:
    """Load what an operator asks for: a task of ours by its name, or one of their own by its place."""
    if is_place(wanted):
        return find_task(wanted, data=data)
    return load_task(wanted, data=data, cache_folder=cache_folder, announce=announce)


class Shelf:
    """Finds the task that a manifest names. That comes from others, so nothing in it is taken for a place."""

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
    """The places in a setting, separated by commas."""
    return [place.strip() for place in text.split(",") if place.strip()]
