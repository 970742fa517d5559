"""Draws up a manifest, on a machine where the task is installed: the task gives N and the initial model."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from pydantic import ValidationError

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import (
    TAKES_NUMBERS,
    CohortMember,
    Manifest,
    MetricClaim,
    RangeClaim,
    default_min_clients,
    describe,
)
from hubbub.protocol.masks import recommend_rate
from hubbub.run_options import RunOptions
from hubbub.run_request import FRESH_SEEDS
from hubbub.strategies import planner
from hubbub.strategies.base import Strategy
from hubbub.strategies.registry import find_strategy
from hubbub.trust.roster import PublicIdentity, Roster
from hubbub.trust.succession import EndorsedModel, find_unendorsed, gather
from hubbub_trainer.learning.task import HasLearningRate, HasRanges, Task
from hubbub_trainer.phases.catchup import heirs
from hubbub_trainer.workspace import digest


def draw_up_manifest(
    task: Task,
    options: RunOptions,
    *,
    roster: Roster,
    clients: Sequence[str] | None = None,
    aggregators: Sequence[str] | None = None,
    coordinator: str | None = None,
    endorsed: Sequence[EndorsedModel] = (),
) -> Manifest:
    """Draw up a manifest for parties of a roster: the named ones, or all of a role.

    With endorsements of a completed run's model, it continues from that model and takes that run's seed. Otherwise
    a seed that is not given is drawn at random: data owners let one run begin from a model. A run that is expected
    to lose nearly all indices is refused; `find_warning` tells of one that may not learn.
    """
    parameters, seed = task.count_parameters(), options.seed
    strategy = find_strategy(options.strategy or recommend_for(task).strategy)
    if seed is None:
        seed = endorsed[0].seed if endorsed else secrets.randbelow(FRESH_SEEDS)
    cohort = tuple(
        CohortMember(name=party.name, organisation=party.organisation)
        for party in _choose(roster, Role.CLIENT, clients)
    )
    coordinators = _choose(roster, Role.COORDINATOR, None if coordinator is None else [coordinator])
    if len(coordinators) != 1:
        raise ConfigurationError(
            f"the roster has {len(coordinators)} coordinators: say which one is to run this manifest"
        )
    contents = {
        "min_clients": default_min_clients(len({member.organisation for member in cohort})),
        "strategy": strategy.name,
        "rho": planner.choose_rho(strategy, parameters),
        "weights": strategy.usual_weights,
        **_choose_rate(task, options, strategy),
        **_find_ranges(task, strategy),
        **options.given(),
        "cohort": cohort,
        "aggregators": tuple(party.name for party in _choose(roster, Role.AGGREGATOR, aggregators)),
        "coordinator": coordinators[0].name,
        "roster_sha256": roster.digest,
        "parameters": parameters,
        "task": task.name,
        "metrics": tuple(MetricClaim.of(metric) for metric in task.metrics),
        "seed": seed,
        **_begin_with(task, seed, endorsed),
        "nonce": secrets.token_hex(16),
    }
    try:
        manifest = Manifest.model_validate(contents)
        if options.q is None:
            q = planner.choose_q(strategy, manifest.protocol_parameters)
            manifest = Manifest.model_validate({**contents, "q": q})
    except ValidationError as error:
        raise ConfigurationError(describe(error)) from None
    planner.refuse_empty_union(strategy, manifest.protocol_parameters)
    unendorsed = find_unendorsed(manifest, roster)
    if unendorsed:
        raise ConfigurationError("; ".join(unendorsed))
    if manifest.predecessor and not heirs(manifest):
        raise ConfigurationError(
            f"no client of this run was in {manifest.predecessor.run}, so nobody could send the others its model: "
            "name one that was"
        )
    return manifest


def recommend_for(task: Task) -> planner.Recommendation:
    """Recommend a strategy for a task."""
    return planner.recommend(task.count_parameters(), has_fixed_rate=not isinstance(task, HasLearningRate))


def find_warning(manifest: Manifest) -> str:
    """Return the warnings about a run that may learn slowly or not at all; nothing if there are none."""
    strategy = find_strategy(manifest.strategy)
    warnings = [planner.describe_risks(strategy, manifest.protocol_parameters)]
    if strategy.support == "mask" and manifest.learning_rate is None:
        warnings.append(
            f"{strategy.name} moves few parameters in a round, and they hardly move at the task's own learning "
            "rate: it may learn slowly. Choose sec-union, or a higher learning rate if clients can be told one"
        )
    return ". ".join(each for each in warnings if each)


def _choose_rate(task: Task, options: RunOptions, strategy: Strategy) -> dict[str, float]:
    """Recommend a learning rate if only a mask is trained: its coordinates may move further."""
    asked = options.learning_rate is not None
    if asked or strategy.support != "mask" or not isinstance(task, HasLearningRate):
        return {}
    return {
        "learning_rate": recommend_rate(
            task.find_learning_rate(), options.rho or planner.choose_rho(strategy, task.count_parameters())
        )
    }


def _find_ranges(task: Task, strategy: Strategy) -> dict[str, object]:
    """Return the ranges of a task's numbers, and the largest."""
    if strategy.name not in TAKES_NUMBERS or not isinstance(task, HasRanges):
        return {}
    ranges = RangeClaim.join(task.ranges)
    return {"alpha_max": max(each.largest for each in ranges), "ranges": ranges} if ranges else {}


def _begin_with(task: Task, seed: int, endorsed: Sequence[EndorsedModel]) -> dict[str, object]:
    if not endorsed:
        return {"initial_model_sha256": digest(task.initial_model(seed))}
    commitment, predecessor = gather(endorsed)
    return {"initial_model_sha256": commitment, "predecessor": predecessor}


def _choose(roster: Roster, role: Role, names: Sequence[str] | None) -> list[PublicIdentity]:
    """Return the named parties of a role, in the order given; all of the role if none are named."""
    there = {party.name: party for party in roster.named(role)}
    strangers = [name for name in names or () if name not in there]
    if strangers:
        known = ", ".join(there) or "none"
        raise ConfigurationError(f"the roster has no {role.value} {', '.join(strangers)}; it has {known}")
    return list(there.values()) if names is None else [there[PartyId(name)] for name in names]
