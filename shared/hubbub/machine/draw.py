"""A table as a Mermaid state diagram."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from hubbub.machine.table import Stay, Table, is_final

S = TypeVar("S", bound=Enum)
D = TypeVar("D")


def draw(table: Table[S, D], initial: S) -> str:
    """Draw every move that can change the state or do something; list apart what is ignored where."""
    lines = ["stateDiagram-v2", f"    [*] --> {initial.name}"]
    ignored: list[str] = []
    for state, row in table.items():
        for event, move in row.items():
            if isinstance(move, Stay):
                ignored.append(f"%% {state.name} ignores {event.__name__}")
                continue
            targets = (each for each in table if each in move.targets)
            lines.extend(f"    {state.name} --> {target.name}: {event.__name__}" for target in targets)
        if is_final(table, state):
            lines.append(f"    {state.name} --> [*]")
    return "\n".join([*lines, *(f"    {line}" for line in ignored)]) + "\n"
