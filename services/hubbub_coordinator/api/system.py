"""Routes about the coordinator itself: health, readiness, metrics, its parties and its state machines."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field

from hubbub import __version__
from hubbub.ids import Role
from hubbub.machine.table import Kind, Stay, is_final
from hubbub.strategies.registry import STRATEGIES
from hubbub_coordinator.api.access import HEALTH_PATH, READY_PATH, Right
from hubbub_coordinator.api.dependencies import Asked
from hubbub_coordinator.api.openapi import problems, reading
from hubbub_coordinator.api.problems import problem
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs

router = APIRouter(tags=["coordinator"])
OPEN = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


class Health(BaseModel):
    """Health: the process is up and takes events."""

    status: Literal["ok"]
    version: str


class Readiness(BaseModel):
    """Readiness: the coordinator is connected, receives messages and has restored its state."""

    status: Literal["ready"]


class PartyView(BaseModel):
    """A party of the roster."""

    name: str
    role: Role
    organisation: str


class StrategyView(BaseModel):
    """An aggregation strategy."""

    name: str
    phases: list[str]
    reveals: str
    """Information about a single client that a server learns; empty if none."""
    usual_rho: float
    """ρ of a run that does not ask for another."""


class About(BaseModel):
    """Identity of the coordinator, its roster and its strategies."""

    version: str
    coordinator: str
    roster_sha256: str
    parties: list[PartyView]
    ready: bool
    broker_connected: bool
    may_change: bool
    """True if the request's token is the change token."""
    strategies: list[StrategyView]


class StateView(BaseModel):
    """A state of a machine."""

    name: str
    final: bool


class TransitionView(BaseModel):
    """Transition of a state machine; events that change nothing are left out."""

    source: str = Field(serialization_alias="from")
    event: str
    to: str


class MachineView(BaseModel):
    """A state machine, drawn from its table."""

    initial: str
    states: list[StateView]
    transitions: list[TransitionView]


class Machines(BaseModel):
    """The coordinator's state machines."""

    run: MachineView
    round: MachineView


@router.get(HEALTH_PATH, response_model=Health, responses=problems(*OPEN, HTTPStatus.SERVICE_UNAVAILABLE))
async def read_health(request: Request, coordinator: Asked) -> Health | Response:
    """Report whether the coordinator takes events; if not, restart it."""
    stall = coordinator.runner.find_stall()
    if stall:
        return problem(request.scope, HTTPStatus.SERVICE_UNAVAILABLE, stall)
    return Health(status="ok", version=__version__)


@router.get(READY_PATH, response_model=Readiness, responses=problems(*OPEN, HTTPStatus.SERVICE_UNAVAILABLE))
async def read_readiness(request: Request, coordinator: Asked) -> Readiness | Response:
    """Report whether the coordinator can do its work; if not, what is missing."""
    missing = coordinator.runner.find_problems()
    if missing:
        return problem(request.scope, HTTPStatus.SERVICE_UNAVAILABLE, "; ".join(missing))
    return Readiness(status="ready")


TEXT = {"schema": {"type": "string"}}
COUNTED = {
    "description": "In Prometheus' text format, or OpenMetrics for who accepts it.",
    "content": {"text/plain": TEXT, "application/openmetrics-text": TEXT},
}


@router.get("/metrics", response_class=Response, **reading(also={HTTPStatus.OK.value: COUNTED}))
async def read_metrics(request: Request, coordinator: Asked) -> Response:
    """Return the metrics for Prometheus."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    # Not as `media_type`, to which a second charset would be added.
    return Response(encode(coordinator.counters.registry), headers={"content-type": media_type})


@router.get("/api/v1/about", **reading())
async def read_about(request: Request, coordinator: Asked) -> About:
    """Return the coordinator's identity, its roster and the strategies that it can run."""
    runner = coordinator.runner
    return About(
        version=__version__,
        coordinator=runner.identity.name,
        roster_sha256=runner.roster.digest,
        parties=[
            PartyView(name=party.name, role=party.role, organisation=party.organisation)
            for party in runner.roster.parties
        ],
        ready=not runner.find_problems(),
        broker_connected=coordinator.is_connected,
        may_change=request.state.right is Right.CHANGE,
        strategies=[
            StrategyView(
                name=name,
                phases=[phase.name for phase in strategy.phases],
                reveals=strategy.reveals,
                usual_rho=strategy.usual_rho,
            )
            for name, strategy in STRATEGIES.items()
        ],
    )


@router.get("/api/v1/machines", **reading())
async def read_machines() -> Machines:
    """Return the state machines of a run and of a round."""
    return Machines(run=_view_machine(runs.KIND), round=_view_machine(rounds.KIND))


def _view_machine(kind: Kind[Any, Any]) -> MachineView:
    states: list[Enum] = list(kind.table)
    return MachineView(
        initial=kind.initial.value,
        states=[StateView(name=state.value, final=is_final(kind.table, state)) for state in states],
        transitions=[
            TransitionView(source=state.value, event=event.__name__, to=target.value)
            for state, row in kind.table.items()
            for event, move in row.items()
            if not isinstance(move, Stay)
            for target in states
            if target in move.targets
        ],
    )
