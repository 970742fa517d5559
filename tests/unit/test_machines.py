"""What holds for every machine of every service, read from the tables that run."""

import ast
import importlib.util
import inspect
import sys
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hubbub.errors import LocalError, UnexpectedEvent
from hubbub.machine.effects import Failed
from hubbub.machine.table import STAY, Stay, Step, Table, To, step

ROOT = Path(__file__).parent.parent.parent


def load_tool(name: str) -> ModuleType:
    """Tools are scripts, not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # A dataclass looks its module up.
    spec.loader.exec_module(module)
    return module


TOOL = load_tool("draw_states")
MACHINES = [pytest.param(machine, id=machine.module.__name__) for machine in TOOL.MACHINES]


def event_types(machine: Any) -> list[type]:  # The tool is loaded by path, so its types are not known here.
    declared = [
        each
        for _, each in inspect.getmembers(machine.events, inspect.isclass)
        if each.__module__ == machine.events.__name__ and not issubclass(each, Enum) and each.__name__ != "Event"
    ]
    return [*declared, Failed]


def pairs_outside(machine: Any) -> list[tuple[Enum, type]]:
    return [
        (state, event)
        for state, row in machine.table.items()
        for event in event_types(machine)
        if event not in row
    ]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_pair_outside_the_table_is_refused_and_changes_nothing(machine: Any) -> None:
    refused = pairs_outside(machine)
    assert refused
    for state, event_type in refused:
        data = object()  # Not even looked at: a handler that was called would fail on it.
        event: object = object.__new__(event_type)
        with pytest.raises(UnexpectedEvent, match=rf"{event_type.__name__} .* {state.name}"):
            step(machine.table, state, data, event)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_event_of_a_row_is_one_that_the_service_has(machine: Any) -> None:
    known = set(event_types(machine))
    for row in machine.table.values():
        assert set(row) <= known


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_has_a_row_and_is_explained(machine: Any) -> None:
    states: list[Enum] = list(machine.module.State)
    assert list(machine.table) == states, "a row for every state, in the order of their declaration"
    for state in states:
        assert state.name in machine.module.__doc__


def targets(table: Table[Any, Any], state: Enum) -> set[Enum]:
    return {target for move in table[state].values() if isinstance(move, To) for target in move.targets}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_state_can_be_reached_and_left_for_an_end(machine: Any) -> None:
    reached, frontier = {machine.initial}, [machine.initial]
    while frontier:
        new = targets(machine.table, frontier.pop()) - reached
        reached |= new
        frontier.extend(new)
    assert reached == set(machine.table)
    finals = {state for state, row in machine.table.items() if not row}
    assert finals
    for state in set(machine.table) - finals:
        assert targets(machine.table, state) - {state}, f"{state.name} can never be left"


@pytest.mark.parametrize("machine", MACHINES)
def test_final_states_are_what_the_docstring_calls_final(machine: Any) -> None:
    lines = [line.strip() for line in machine.module.__doc__.split("\n\n")[1].splitlines()]
    said = {name.strip(" ,") for line in lines if " final" in line for name in line.split(" final")[0].split()} & {
        state.name for state in machine.table
    }
    assert said == {state.name for state, row in machine.table.items() if not row}


def test_a_refused_event_leaves_the_engines_caller_with_what_it_had() -> None:
    class State(Enum):
        ONE = 1
        TWO = 2

    def lie(data: int, event: str) -> Step[State, int]:
        del event
        return Step(State.TWO, data + 1)

    table: Table[State, int] = {State.ONE: {str: To(lie, State.ONE), int: STAY}, State.TWO: {}}
    assert step(table, State.ONE, 7, 3) == Step(State.ONE, 7)
    with pytest.raises(LocalError, match="lie led from ONE to TWO"):
        step(table, State.ONE, 7, "event")
    with pytest.raises(UnexpectedEvent):
        step(table, State.TWO, 7, "event")


@pytest.mark.parametrize("machine", MACHINES)
def test_handlers_change_nothing_that_they_are_given_and_wait_for_nothing(machine: Any) -> None:
    """They return a Step: no assignment reaches outside of a function's own names."""
    for function in ast.walk(ast.parse(inspect.getsource(machine.module))):
        if not isinstance(function, ast.FunctionDef):
            assert not isinstance(function, ast.AsyncFunctionDef | ast.Await | ast.Global | ast.Nonlocal)
            continue
        for node in ast.walk(function):
            for target in assigned(node):
                assert isinstance(target, ast.Name | ast.Tuple), f"{function.name} assigns {ast.unparse(target)}"


def assigned(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.Assign(targets=found):
            inner = (part for target in found for part in ast.walk(target))
            return [part for part in inner if isinstance(getattr(part, "ctx", None), ast.Store)]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.Delete(targets=[target]):
            return [target]
    return []


@pytest.mark.parametrize("machine", MACHINES)
def test_events_are_frozen(machine: Any) -> None:
    for event_type in event_types(machine):
        assert is_dataclass(event_type)
        assert inspect.getattr_static(event_type, "__dataclass_params__").frozen


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_ignored_is_ignored_everywhere_the_same(machine: Any) -> None:
    """STAY gives back the very data, and asks for nothing."""
    for state, row in machine.table.items():
        for event_type, move in row.items():
            if isinstance(move, Stay):
                data = object()
                result = step(machine.table, state, data, object.__new__(event_type))
                assert result == Step(state, data)
                assert result.data is data


def test_the_committed_page_is_what_the_tables_say() -> None:
    committed = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    assert committed == TOOL.write_page(), "run `make docs`"
