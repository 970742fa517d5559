"""Transition tables and the engine that steps them: one event in, the next state, data and effects out.

A machine is a table: for each state, for each type of event, the handler to call and every state it may
lead to. Two rules hold everywhere:

1. Nothing but `step` changes a state. A handler is a plain function of frozen data and one event; it never
   awaits, reads a clock or draws randomness. Time and seeds reach it inside events.
2. A pair of state and event that is not in the table raises `UnexpectedEvent` and changes nothing, and so
   does a handler that raises: the caller still holds the state and data it had.

The same table is read by the engine, by the test that walks every pair, and by `draw`, which makes a Mermaid
diagram of it.

A machine is rebuilt by replaying its stored events. That restores its state and data, but not what was under way
when the party died: jobs in threads and timers. `Kind.resume` says, from state and data alone, which of these the
machine waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from hubbub.errors import LocalError, UnexpectedEvent
from hubbub.machine.effects import Effect

S = TypeVar("S", bound=Enum)
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Step(Generic[S, D]):
    """Result of a handler: the next state, the next data, and the effects to do, in order."""

    state: S
    data: D
    effects: tuple[Effect, ...] = ()

    def first(self, *effects: Effect) -> Step[S, D]:
        """Return the same step with effects before its own."""
        return replace(self, effects=(*effects, *self.effects))

    def then(self, *effects: Effect) -> Step[S, D]:
        """Return the same step with effects after its own."""
        return replace(self, effects=(*self.effects, *effects))


class To(Generic[S, D]):
    """A handler together with every state that it may lead to."""

    __slots__ = ("handler", "targets")

    # A table holds handlers for different event types side by side. Python's types cannot say "the handler
    # takes the event whose type is this key", so the event is `Any` here and nowhere else.
    def __init__(self, handler: Callable[[D, Any], Step[S, D]], *targets: S) -> None:
        self.handler = handler
        self.targets = frozenset(targets)


class Stay:
    """In a row: the event is ordinary in this state and changes nothing (the broker may deliver twice)."""

    __slots__ = ()


STAY = Stay()


def stay(data: D, *effects: Effect) -> Step[Any, D]:
    """Return a step that keeps the state, whichever it is: so one handler can serve several states."""
    state: Any = STAY
    return Step(state, data, effects)


Row = Mapping[type, To[S, D] | Stay]
Table = Mapping[S, Row[S, D]]


def step(table: Table[S, D], state: S, data: D, event: object) -> Step[S, D]:
    """Take one step, or raise `UnexpectedEvent` and leave everything as it was."""
    move = table[state].get(type(event))
    if move is None:
        raise UnexpectedEvent(f"{type(event).__name__} is not expected in state {state.name}")
    if isinstance(move, Stay):
        return Step(state, data)
    result: Step[Any, D] = move.handler(data, event)
    if result.state is STAY:
        result = replace(result, state=state)
    if result.state not in move.targets:
        raise LocalError(
            f"{move.handler.__name__} led from {state.name} to {result.state.name}, which its row does not list"
        )
    return result


def is_final(table: Table[S, D], state: S) -> bool:
    """Say whether a state is final: its row is empty, so the runner retires the machine."""
    return not table[state]


@dataclass(frozen=True, slots=True)
class Kind(Generic[S, D]):
    """Kind of machine: everything that a runner needs to start one or to rebuild it."""

    table: Table[S, D]
    initial: S
    data: type[D]
    resume: Callable[[S, D], tuple[Effect, ...]]

    @property
    def events(self) -> frozenset[type]:
        """Every type of event that some state accepts."""
        return frozenset(event for row in self.table.values() for event in row)


def draw(table: Table[S, D], initial: S) -> str:
    """Draw a table as a Mermaid state diagram: one arrow for all events that lead from one state to another.

    Events that a state handles and stays in, and those that it ignores, are listed below as comments.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {initial.name}"]
    comments: list[str] = []
    for state, row in table.items():
        arrows: dict[S, list[str]] = {}
        for event, move in row.items():
            if isinstance(move, Stay):
                comments.append(f"%% {state.name} ignores {event.__name__}")
                continue
            for target in (each for each in table if each in move.targets):
                arrows.setdefault(target, []).append(event.__name__)
        comments += [f"%% {state.name} keeps on {event}" for event in arrows.pop(state, ())]
        lines += [
            f"    {state.name} --> {target.name}: {'<br/>'.join(events)}" for target, events in arrows.items()
        ]
        if is_final(table, state):
            lines.append(f"    {state.name} --> [*]")
    return "\n".join([*lines, *(f"    {line}" for line in comments)]) + "\n"
