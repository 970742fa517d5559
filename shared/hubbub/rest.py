"""Models of the coordinator's REST interface, for the coordinator that answers and the command line that reads.

Unknown fields are ignored, and states and kinds are plain strings, so that an older command reads the answers of a
newer coordinator. The interface's description lists the values of today.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

FINAL_STATES = frozenset({"completed", "failed", "cancelled"})
"""The states of a run that is over."""
SHOWN_DIGITS = 12
"""Digits of a run's id that people are shown: enough to name it again."""


class CostView(BaseModel):
    """Communication that counts as one thing."""

    payload_bits: int
    predicted_bits: int
    """By the formula of the run's wire mode."""
    wire_bytes: int


class PhaseView(BaseModel):
    """A phase of a round."""

    name: str
    state: str
    combiner: str | None
    """The aggregator to which the others send their sums, and which alone sends to clients; null where all do."""
    opened_at_s: float
    closed_at_s: float | None
    released_at_s: float | None
    delivered: dict[str, list[str]]
    """Client to the aggregators that hold its complete share set."""
    spoilt: dict[str, str]
    """Client to why an aggregator refused its share set."""


class RoundView(BaseModel):
    """A round."""

    round: int
    state: str
    phase: str
    reason: str
    began_at_s: float
    ended_at_s: float | None
    members: list[str]
    missing: list[str]
    union_size: int | None
    metrics: dict[str, float]
    """By name, over all members of the scores phase; empty if the round was not scored."""
    phases: list[PhaseView]
    cost: dict[str, CostView]
    all_wire_bytes: int
    """Bytes of all messages so far: those with payload as reported; orders, receipts and reports by formula."""
    fedavg_bits: int
    """Payload of uncompressed FedAvg for a round of as many clients."""
    fedavg_wire_bytes: int
    """Bytes of all messages of such a round of FedAvg, by formula; with scores if this round has them."""
    applied: list[str]
    """The clients that have applied it."""
    arrivals: dict[str, str]
    """Client to whether its shares were on-time, late or missing; of scores nothing is said."""


class ParticipantView(BaseModel):
    """A party of a run and where it is."""

    name: str
    role: str
    organisation: str
    joined: bool
    status: str
    state: str
    waited_for: bool
    since_s: float | None
    """The time since which it is waited for."""


class HeadlineView(BaseModel):
    """The metric that counts in a run."""

    name: str
    higher_is_better: bool


class RunView(BaseModel):
    """A run."""

    run: str
    name: str
    """A name that an operator gave it; empty if nobody did."""
    note: str
    state: str
    reason: str
    warning: str
    """A warning if its strategy and parameters are expected to lose many indices; empty otherwise."""
    stalled: str
    """The reason why its model seems to learn nothing any more; empty if it does not seem so."""
    strategy: str
    block: int
    """Neighbouring indices that sec-union chooses together; 1 in every other strategy."""
    bits: int
    """Bits in which shared-mask gives the change of a coordinate; 2 in every other strategy."""
    wire: str
    task: str
    parameters: int
    clients: int
    aggregators: int
    round: int
    rounds_wanted: int
    rounds_released: int
    rounds_void: int
    headline: HeadlineView | None
    """The first of its metrics; null if it has none."""
    target: float | None
    """The value of the headline metric that ends the run."""
    began_at_s: float
    ended_at_s: float | None
    metrics: dict[str, float]
    """Of the last round that was scored, by name; empty before there is one."""
    payload_bits: int
    wire_bytes: int
    remaining_s: float | None
    """An estimate: the mean time of the rounds that have ended, times the rounds that are left."""
    pausing: bool
    paused_since_s: float | None
    """The time since which it is paused; null if it is not."""
    waiting_for: list[str]
    """The parties that are waited for, then what they have yet to do, and since when; empty where nobody is."""
    waiting_to: str
    waiting_since_s: float | None

    @property
    def is_over(self) -> bool:
        """True if nothing more happens in it."""
        return self.state in FINAL_STATES

    @property
    def short(self) -> str:
        """The beginning of its id, as people read it."""
        return self.run[:SHOWN_DIGITS]


class RunWithParties(RunView):
    """A run with its parties."""

    participants: list[ParticipantView]


class EventView(BaseModel):
    """One thing that happened."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    """Goes up, stays the same across restarts of the coordinator, and never means something else."""
    at_s: float
    run: str
    round: int
    """0 where it is about the run as a whole."""
    phase: str
    kind: str
    party: str
    """The party that did it, or to which it happened; empty where it is about no party in particular."""
    text: str
    state: str
    """Of the run or the round, after it."""

    @property
    def ends_the_run(self) -> bool:
        """True for the last event of a run."""
        return self.kind in {f"run-{state}" for state in FINAL_STATES}
