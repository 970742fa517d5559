"""Rules that hold for every machine of every service, read from the tables that run."""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hubbub.errors import UnexpectedEvent
from hubbub.machine.effects import Failed, Job, Key, SetTimer
from hubbub.machine.table import Kind, Table, To, step
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import RoundApplied, ScoreClaim
from hubbub.messages.runs import RunKey
from hubbub.messages.shares import Receipt, SignedReceipt, Traffic, VectorClaim
from hubbub.messages.snapshots import Voucher
from hubbub.protocol.layout import Vector
from hubbub.store.event_codec import EventCodec
from support.builders import make_bodies, make_claims, make_manifest, make_receipt, make_run_key, make_vectors
from support.parties import sign_receipts
from support.tools import load_tool

ROOT = Path(__file__).parent.parent.parent


TOOL = load_tool("draw_states")
MACHINES = [pytest.param(machine, id=machine.module.__name__) for machine in TOOL.MACHINES]


def event_types(machine: Any) -> list[type]:  # The tool is loaded by path, so its types are not known here.
    declared = [
        each
        for _, each in inspect.getmembers(machine.events, inspect.isclass)
        if each.__module__ == machine.events.__name__ and not issubclass(each, Enum) and each.__name__ != "Event"
    ]
    return [*declared, Failed]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_pair_outside_the_table_is_refused_and_changes_nothing(machine: Any) -> None:
    known = event_types(machine)
    refused = [(state, each) for state, row in machine.table.items() for each in known if each not in row]
    assert refused
    for state, event_type in refused:
        data = object()  # Not even looked at: a handler that was called would fail on it.
        event: object = object.__new__(event_type)
        with pytest.raises(UnexpectedEvent, match=rf"{event_type.__name__} .* {state.name}"):
            step(machine.table, state, data, event)
    for row in machine.table.values():
        assert set(row) <= set(known), "every event of a row is one that the service has"


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


@pytest.mark.parametrize("machine", MACHINES)
def test_handlers_change_nothing_that_they_are_given_and_wait_for_nothing(machine: Any) -> None:
    """They return a Step: no assignment reaches outside of a function's own names."""
    for function in (node for tree in sources(machine) for node in ast.walk(tree)):
        if not isinstance(function, ast.FunctionDef):
            assert not isinstance(function, ast.AsyncFunctionDef | ast.Await | ast.Global | ast.Nonlocal)
            continue
        for node in ast.walk(function):
            for target in assigned(node):
                assert isinstance(target, ast.Name | ast.Tuple), f"{function.name} assigns {ast.unparse(target)}"


def sources(machine: Any) -> list[ast.Module]:
    """The file of a machine's table, and those of its handlers and its data."""
    handlers = {move.handler for row in machine.table.values() for move in row.values() if isinstance(move, To)}
    modules = {machine.module, *(inspect.getmodule(each) for each in (*handlers, machine.kind.data))}
    return [ast.parse(inspect.getsource(module)) for module in modules]


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


# What is kept, and what is taken up again -------------------------------------------------------------------

MANIFEST = make_manifest()
BODIES = {type(body): body for body in make_bodies(MANIFEST)}
(RECEIPT,) = sign_receipts(MANIFEST, [make_receipt(MANIFEST)])
GIVEN: dict[type, SearchStrategy[Any]] = {
    Manifest: st.just(MANIFEST),
    RunKey: st.just(make_run_key(MANIFEST)),
    Receipt: st.just(RECEIPT.receipt),
    SignedReceipt: st.just(RECEIPT),
    VectorClaim: st.sampled_from(make_claims(MANIFEST)),
    RoundApplied: st.just(BODIES[RoundApplied]),
    MetricClaim: st.just(MetricClaim(name="accuracy")),
    ScoreClaim: st.just(ScoreClaim(name="accuracy", value=0.5)),
    Voucher: st.just(Voucher(round=2, released=1, model_hmac="4d" * 32)),
    Traffic: st.just(Traffic(counts_as="signs", direction="up", payload_bits=300, wire_bytes=412)),
    Vector: st.sampled_from(make_vectors(MANIFEST)),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
}


def values_of(annotation: Any) -> SearchStrategy[Any]:
    """Any value of a type: what the services make by hand is given, all else is put together field by field."""
    if annotation in GIVEN:
        return GIVEN[annotation]
    if isinstance(annotation, NewType):
        return values_of(annotation.__supertype__)
    if isinstance(annotation, type) and is_dataclass(annotation):
        hints = get_type_hints(annotation)
        return st.builds(annotation, **{each.name: values_of(hints[each.name]) for each in fields(annotation)})
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is tuple and inner[-1] is not Ellipsis:
        return st.tuples(*map(values_of, inner))
    if origin is tuple:
        return st.lists(values_of(inner[0]), max_size=3).map(tuple)
    if origin is frozenset:
        return st.frozensets(values_of(inner[0]), max_size=3)
    if origin is Mapping:
        return st.dictionaries(values_of(inner[0]), values_of(inner[1]), max_size=3)
    if origin in {Union, UnionType}:
        return st.one_of(*map(values_of, inner))
    found: SearchStrategy[Any] = st.from_type(annotation)
    return found


KINDS = [pytest.param(machine.kind, id=machine.module.__name__) for machine in TOOL.MACHINES]


def check_reading(shapes: EventCodec, shape: type) -> None:
    @given(values_of(shape))
    @settings(max_examples=15)
    def check(value: object) -> None:
        read = shapes.load(shapes.name_of(value), shapes.dump(value))
        assert read == value
        assert type(read) is shape

    check()


def test_everything_that_is_kept_is_read_back_as_it_was(subtests: pytest.Subtests) -> None:
    for machine in TOOL.MACHINES:
        kept = (machine.kind.data, *machine.kind.events)
        for shape in kept:
            with subtests.test(machine.module.__name__, shape=shape.__name__):
                check_reading(EventCodec(kept), shape)


def test_what_a_service_keeps_has_one_name_each() -> None:
    for service in {machine.events for machine in TOOL.MACHINES}:
        kinds = [machine.kind for machine in TOOL.MACHINES if machine.events is service]
        EventCodec(shape for kind in kinds for shape in (kind.data, *kind.events))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_resumed_is_jobs_and_timers_that_come_back_as_what_the_state_takes(kind: Kind[Any, Any]) -> None:
    for state in kind.table:
        for effect in kind.resume(state, fresh(kind.data)):
            assert isinstance(effect, Job | SetTimer)
            if isinstance(effect, SetTimer):
                assert effect.event in kind.table[state]


def fresh(data: type) -> object:
    """Data as a machine begins with it."""
    needed = {
        "me": MANIFEST.clients[0],
        "key": Key("x", MANIFEST.run_id, 1),
        "run": Key("run", MANIFEST.run_id),
        "manifest": MANIFEST,
        "number": 1,
        "servers": MANIFEST.aggregators,
        "after": 0,
        "chunks": 1,
    }
    required = [each.name for each in fields(data) if each.default is each.default_factory is MISSING]
    made: object = data(**{name: needed[name] for name in required})
    return made


@pytest.mark.parametrize("machine", MACHINES)
def test_who_waits_for_the_event_of_a_job_resumes_that_job(machine: Any) -> None:
    """A state whose only way on is a job's event would be stuck for ever without it."""
    jobs = JOBS[machine.module.__name__]
    for state, expected in jobs.items():
        resumed = machine.kind.resume(machine.module.State[state], fresh(machine.kind.data))
        assert [type(effect).__name__ for effect in resumed] == [expected]


JOBS: dict[str, dict[str, str]] = {
    "hubbub_coordinator.phases.run": {},
    "hubbub_coordinator.phases.round": {},
    "hubbub_aggregator.phases.membership": {},
    "hubbub_aggregator.phases.accumulation": {"SUMMING": "SumAndRelease"},
    "hubbub_trainer.phases.admission": {"PREPARING": "PrepareTask"},
    "hubbub_trainer.phases.participation": {},
    "hubbub_trainer.phases.round": {
        "TRAINING": "Train",
        "SHARING": "SendShares",
        "DECODING": "DecodeSums",
        "CONCLUDING": "Conclude",
        "CLOSING": "CloseVoid",
    },
    "hubbub_trainer.phases.catchup": {},
}


def test_the_committed_page_is_what_the_tables_say() -> None:
    committed = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    assert committed == TOOL.write_page(), "run `make docs`"
