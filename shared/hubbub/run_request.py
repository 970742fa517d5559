"""A request for a run: everything that is chosen about it, without what only the task can tell.

The coordinator's page writes requests. It has no task, so it knows neither the model's parameters nor the initial
model; an owner of the task completes a request with `hubbub manifest new --from`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from hubbub.errors import ConfigurationError
from hubbub.messages.manifest import Digest, Manifest, Name, describe
from hubbub.run_options import RunOptions
from hubbub.strategies import planner
from hubbub.strategies.registry import find_strategy

FRESH_SEEDS = 2**32
"""Number of seeds to draw from: enough that none comes twice, and short enough to read out."""
_OPTIONS = frozenset(field.name for field in fields(RunOptions))


def _refuse_unknown(options: Any) -> Any:
    unknown = sorted(options.keys() - _OPTIONS) if isinstance(options, dict) else []
    if unknown:
        raise ValueError(f"there are no options {', '.join(unknown)}")
    return options


class RunRequest(BaseModel):
    """A request for a run by named parties of a roster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["hubbub-request-1"] = "hubbub-request-1"
    task: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    options: Annotated[RunOptions, BeforeValidator(_refuse_unknown)]
    clients: Annotated[tuple[Name, ...], Field(min_length=1)]
    aggregators: Annotated[tuple[Name, ...], Field(min_length=1)]
    coordinator: Name
    roster_sha256: Digest


def read_request(path: Path) -> RunRequest:
    """Read a request from its file, or raise `ConfigurationError` with one line on what is wrong."""
    try:
        return RunRequest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigurationError(f"{path} is not a request for a run: {describe(error)}") from None


def request_again(manifest: Manifest, seed: int) -> RunRequest:
    """Request a run like another with a fresh seed: data owners let one run begin from a model.

    ρ and q that were chosen for the other run's strategy are chosen again; values that somebody asked for stay.
    """
    strategy, run = find_strategy(manifest.strategy), manifest.protocol_parameters
    options = RunOptions(**{**manifest.model_dump(include=set(_OPTIONS)), "seed": seed})
    if manifest.rho == planner.choose_rho(strategy, manifest.parameters):
        options = replace(options, rho=None)
    if manifest.q == planner.choose_q(strategy, run):
        options = replace(options, q=None)
    return RunRequest(
        task=manifest.task,
        options=options,
        clients=manifest.clients,
        aggregators=manifest.aggregators,
        coordinator=manifest.coordinator,
        roster_sha256=manifest.roster_sha256,
    )
