"""A kind of machine: its table, where it begins, what it knows, and what it takes up again after a restart.

A machine is rebuilt by taking its kept events again. That gives its state and data back, but not what was under
way when the party died: jobs that ran in threads and timers that were set. `resume` says, from state and data
alone, which of these the machine waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from hubbub.machine.effects import Effect
from hubbub.machine.table import Table

S = TypeVar("S", bound=Enum)
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Kind(Generic[S, D]):
    """What a runner must know to set a machine up, or to rebuild it."""

    table: Table[S, D]
    initial: S
    data: type[D]
    resume: Callable[[S, D], tuple[Effect, ...]]

    @property
    def events(self) -> frozenset[type]:
        """Every type of event that some state takes."""
        return frozenset(event for row in self.table.values() for event in row)
