"""What the coordinator answers, as far as the command line shows it; fields that it does not know are let pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hubbub_cli.client import NoCoordinator

FINAL_STATES = frozenset({"completed", "failed", "cancelled"})
SHOWN_DIGITS = 12
"""Of a run's id, where people read it: enough to name it again."""


class Answer(BaseModel):
    """Part of an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Headline(Answer):
    """The metric that counts in a run."""

    name: str
    higher_is_better: bool


class Run(Answer):
    """A run, in a line."""

    run: str
    state: str
    reason: str
    strategy: str
    block: int = 1
    wire: str
    task: str
    parameters: int
    clients: int
    aggregators: int
    round: int
    rounds_wanted: int
    rounds_released: int
    rounds_void: int
    headline: Headline | None
    target: float | None
    began_at_s: float
    ended_at_s: float | None
    metrics: Mapping[str, float]
    payload_bits: int
    wire_bytes: int
    remaining_s: float | None
    pausing: bool
    waiting_for: tuple[str, ...]
    waiting_to: str
    waiting_since_s: float | None

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens in it."""
        return self.state in FINAL_STATES

    @property
    def short(self) -> str:
        """Its id as people read it."""
        return self.run[:SHOWN_DIGITS]

    @property
    def pauses_when(self) -> str:
        """When it pauses, if it is to."""
        return "when its open round has ended" if self.round else "before its first round"


class Participant(Answer):
    """A party of a run and where it is."""

    name: str
    role: str
    organisation: str
    status: str
    state: str
    waited_for: bool
    since_s: float | None


class RunDetail(Run):
    """A run with its parties."""

    participants: tuple[Participant, ...]


class Round(Answer):
    """A round."""

    round: int
    state: str
    phase: str
    reason: str
    began_at_s: float
    ended_at_s: float | None
    members: tuple[str, ...]
    missing: tuple[str, ...]
    union_size: int | None
    metrics: Mapping[str, float]
    cost: Mapping[str, Cost]


class Cost(Answer):
    """Communication that counts as one thing."""

    payload_bits: int
    wire_bytes: int


class Event(Answer):
    """Something that happened in a run."""

    id: int
    at_s: float
    run: str
    round: int
    phase: str
    kind: str
    party: str
    text: str
    state: str

    @property
    def ends_the_run(self) -> bool:
        """Whether it is a run's last."""
        return self.kind in {f"run-{state}" for state in FINAL_STATES}


A = TypeVar("A", bound=Answer)


def read(model: type[A], content: Mapping[str, Any]) -> A:
    """Check that an answer has what we show of it."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise NoCoordinator(
            f"the coordinator's answer lacks what this version of hubbub needs ({where}): use the same version on"
            " both sides"
        ) from None
