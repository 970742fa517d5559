"""Making a manifest where the task is installed: it knows N and the initial model."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from pydantic import ValidationError

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, is_party_id
from hubbub.messages.manifest import CohortMember, Manifest, default_min_clients, describe
from hubbub.strategies.registry import find_strategy
from hubbub_trainer.learning.task import Task
from hubbub_trainer.workspace import digest


def draw_up_manifest(
    task: Task,
    *,
    clients: Sequence[PartyId],
    aggregators: Sequence[PartyId],
    coordinator: PartyId,
    strategy: str,
    rho: float,
    local_steps: int,
    rounds: int,
    seed: int,
    min_clients: int | None = None,
    wire: str = "paper",
    q: int = 1,
    alpha_rule: str = "norm",
    feedback: str = "lost",
) -> Manifest:
    """Draw up a manifest; each client counts as an organisation of its own."""
    find_strategy(strategy)
    for name in (*clients, *aggregators, coordinator):
        if not is_party_id(name):
            raise ConfigurationError(
                f"{name!r} cannot name a party: take up to 40 lower-case letters, digits and hyphens"
            )
    fields = {
        "cohort": tuple(CohortMember(name=name, organisation=name) for name in clients),
        "aggregators": tuple(aggregators),
        "coordinator": coordinator,
        "min_clients": default_min_clients(len(clients)) if min_clients is None else min_clients,
        "strategy": strategy,
        "rho": rho,
        "parameters": task.count_parameters(),
        "wire": wire,
        "q": q,
        "alpha_rule": alpha_rule,
        "feedback": feedback,
        "task": task.name,
        "local_steps": local_steps,
        "rounds": rounds,
        "seed": seed,
        "initial_model_sha256": digest(task.initial_model(seed)),
        "nonce": secrets.token_hex(16),
    }
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        raise ConfigurationError(describe(error)) from None
