"""Routes for planning a run: what it would cost and tell, and a request for one like another."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hubbub.frame_costs import count_sent
from hubbub.ids import WireMode
from hubbub.run_request import FRESH_SEEDS, RunRequest, request_again
from hubbub.strategies import planner
from hubbub.strategies.registry import STRATEGIES, find_strategy
from hubbub_coordinator.api.dependencies import Absent, Asked, RunPath, Turns
from hubbub_coordinator.api.openapi import reading

MOST_PARAMETERS = 10**9
MOST_PARTIES = 200
LEAST = 1.5
"""Indices that a client chooses at the least; more than one, for rounding."""

router = APIRouter(tags=["runs"])


class PlanView(BaseModel):
    """Expected cost of a run, and what its parties would learn."""

    strategy: str
    rho: float
    q: int
    union_size: int
    """Expected size of V, if clients choose independently; with similar data it is smaller."""
    payload_bits: int
    """Of a round, without scores."""
    wire_bytes: int
    """All messages of a round."""
    fedavg_wire_bytes: int
    """All messages of a round of uncompressed FedAvg."""
    servers_learn: str
    clients_learn: str
    """Besides V and the sums."""
    reveals: str
    warning: str
    refused: bool
    """True if such a run is refused."""
    no_gain: str


@router.get("/api/v1/plan", **reading(HTTPStatus.SERVICE_UNAVAILABLE))
async def plan_run(
    turns: Turns,
    *,
    strategy: Annotated[str, Query(json_schema_extra={"enum": [*STRATEGIES]})],
    parameters: Annotated[int, Query(ge=1, le=MOST_PARAMETERS)],
    clients: Annotated[int, Query(ge=2, le=MOST_PARTIES)],
    servers: Annotated[int, Query(ge=2, le=MOST_PARTIES)],
    rho: Annotated[Annotated[float, Field(gt=0, le=1)] | Absent, Query(description="At least one index.")] = None,
    wire: WireMode = "compact",
) -> PlanView:
    """Predict the cost of a run and what its parties would learn, by the planner of `hubbub plan`."""
    return await turns.build(lambda: _plan(strategy, parameters, clients, servers, rho, wire))


def _plan(name: str, parameters: int, clients: int, servers: int, rho: float | None, wire: WireMode) -> PlanView:
    strategy = find_strategy(name)
    wanted = planner.choose_rho(strategy, parameters) if rho is None else rho
    question = planner.Question(
        parameters=parameters,
        clients=clients,
        servers=servers,
        rho=min(1.0, max(wanted, LEAST / parameters)),
        wire=wire,
    )
    q = planner.choose_q(strategy, question.run)
    answer = planner.plan(replace(question, q=q))
    row, dense = answer.row(name), answer.row("fedavg")
    sent, dense_sent = (count_sent(each.strategy, each.phases, answer.question.run) for each in (row, dense))
    return PlanView(
        strategy=name,
        rho=question.rho,
        q=q,
        union_size=row.union_size,
        payload_bits=row.bits_per_round,
        wire_bytes=sent,
        fedavg_wire_bytes=dense_sent,
        servers_learn=row.exposure.servers_learn,
        clients_learn=row.exposure.clients_learn,
        reveals=STRATEGIES[name].reveals,
        warning=row.warning,
        refused=row.refused,
        no_gain=planner.explain_no_gain(name, parameters) if sent >= dense_sent else "",
    )


@router.get("/api/v1/runs/{run}/request", **reading(HTTPStatus.NOT_FOUND))
async def request_run_again(coordinator: Asked, run: RunPath) -> RunRequest:
    """Return a request for a run like this one, with a fresh seed; `hubbub manifest new --from` completes it."""
    known = await coordinator.look(run)
    return await asyncio.to_thread(request_again, known.data.manifest, secrets.randbelow(FRESH_SEEDS))
