"""Rounds of services in separate processes over RabbitMQ: a coordinator, aggregators, trainers.

Runs are started and read over the coordinator's interface.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import httpx

from benchmarks.processes import Processes, declare, started
from benchmarks.steps import CLIENTS, RHO, SERVERS
from hubbub.errors import ProtocolError
from hubbub.ids import Role, RunId
from hubbub.messages.manifest import Manifest
from hubbub.rest import RoundView, RunView
from hubbub.run_options import RunOptions
from hubbub_local.federation import make_parties
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest

STRATEGY = "sec-union"
RUN_S = 900.0
_LISTENING = "listening on "


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRounds:
    """Cost of rounds; times and sizes are medians over rounds and over the processes of a role."""

    parameters: int
    clients: int
    servers: int
    strategy: str
    rounds: int
    round_s: float
    """Includes the slowest trainer's training and evaluation; so do the next two."""
    fastest_s: float
    slowest_s: float
    payload_bytes: float
    wire_bytes: int
    aggregator_s: float
    """CPU time of one aggregator in a round."""
    trainer_s: float
    """CPU time of one trainer, with training and evaluation."""
    aggregator_bytes: int
    """Peak memory of one aggregator, its interpreter and libraries included."""
    trainer_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessesPlan:
    """Plan of a run: the elements of a model, and the rounds after the first."""

    parameters: int
    rounds: int


def measure_processes(plan: ProcessesPlan, amqp_url: str) -> ProcessRounds:
    """Start all services, run one warm-up round and then those of the plan, and stop the services."""
    parties = make_parties(clients=CLIENTS, servers=SERVERS)
    declare(parties, amqp_url)
    options = RunOptions(strategy=STRATEGY, rho=RHO, local_steps=1, rounds=plan.rounds + 1, seed=0)
    manifest = draw_up_manifest(SyntheticTask(plan.parameters), options, roster=parties.roster)
    # Use no proxy from the environment.
    with (
        started(parties, parties.identities, amqp_url) as processes,
        httpx.Client(timeout=30, trust_env=False) as http,
    ):
        return _follow(_Deployment(processes, http), manifest)


def _follow(deployment: _Deployment, manifest: Manifest) -> ProcessRounds:
    processes = deployment.processes
    deployment.submit(manifest)
    deployment.wait_for_rounds(manifest.run_id, 1)
    before_s = processes.read_spent()
    deployment.wait_for_rounds(manifest.run_id, manifest.rounds)
    spent_s = {name: after_s - before_s[name] for name, after_s in processes.read_spent().items()}
    sizes = processes.read_memory("VmHWM")
    views = [deployment.read_round(manifest.run_id, number) for number in range(2, manifest.rounds + 1)]
    whole_s = [(view.ended_at_s or view.began_at_s) - view.began_at_s for view in views]
    costs = views[-1].cost.values()
    return ProcessRounds(
        parameters=manifest.parameters,
        clients=len(manifest.clients),
        servers=len(manifest.aggregators),
        strategy=manifest.strategy,
        rounds=len(views),
        round_s=statistics.median(whole_s),
        fastest_s=min(whole_s),
        slowest_s=max(whole_s),
        payload_bytes=sum(cost.payload_bits for cost in costs) / 8,
        wire_bytes=sum(cost.wire_bytes for cost in costs),
        aggregator_s=statistics.median(spent_s[name] for name in manifest.aggregators) / len(views),
        trainer_s=statistics.median(spent_s[name] for name in manifest.clients) / len(views),
        aggregator_bytes=max(sizes[name] for name in manifest.aggregators),
        trainer_bytes=max(sizes[name] for name in manifest.clients),
    )


class _Deployment:
    """Client of the coordinator's interface."""

    def __init__(self, processes: Processes, http: httpx.Client) -> None:
        self.processes = processes
        self._http = http
        parties = processes.files.parties
        coordinator = next(party.name for party in parties.roster.named(Role.COORDINATOR))
        self._url = processes.wait_for_message(coordinator, _LISTENING).removeprefix(_LISTENING)

    def submit(self, manifest: Manifest) -> None:
        self._ask("POST", "/api/v1/runs", "change", manifest.model_dump(mode="json"))

    def wait_for_rounds(self, run: RunId, count: int) -> None:
        def released() -> bool:
            view = RunView.model_validate_json(self._ask("GET", f"/api/v1/runs/{run}", "read"))
            if view.state in {"failed", "cancelled"}:
                raise ProtocolError(f"the run {view.state}: {view.reason}")
            return view.rounds_released >= count

        self.processes.wait(released, RUN_S)

    def read_round(self, run: RunId, number: int) -> RoundView:
        return RoundView.model_validate_json(self._ask("GET", f"/api/v1/runs/{run}/rounds/{number}", "read"))

    def _ask(self, method: str, path: str, right: str, body: object = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.processes.files.tokens[right]}"}
        url = f"{self._url}{path}"
        return self._http.request(method, url, json=body, headers=headers).raise_for_status().content
