"""State of the demo's display, updated from the steps and the progress of all parties, which share this process.

`Stopwatch` splits a round's time: no client reports how long it trained, but here that can be seen in its steps.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Transition
from hubbub_cli.formatting import show_bytes, show_metric
from hubbub_coordinator.accounts import Account, account, count_all_bytes
from hubbub_coordinator.events import PartyJoined, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.progress import find_combiner
from hubbub_trainer.events import Evaluated, Trained

Place = tuple[RunId, int]

FLIGHT_S = 0.8
"""Time for which a share is shown on its way; the real one takes milliseconds here."""
STAGGER_S = 0.07
SUMS_ARE_OUT = frozenset(
    {rounds.State.COLLECTING, rounds.State.APPLYING, rounds.State.REPORTING, rounds.State.RELEASED}
)
"""States that follow RELEASING when a phase did not end in vain."""
RECENT = 3
"""Rounds from whose time that of the next ones is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """A round's time, split into the slowest client's training, its evaluation, and the rest."""

    training_s: float
    evaluation_s: float
    protocol_s: float


@dataclass(slots=True)
class Stopwatch:
    """Observes trainers, and keeps the longest training and evaluation of each round."""

    _training_s: dict[Place, float] = field(default_factory=lambda: defaultdict(float))
    _evaluation_s: dict[Place, float] = field(default_factory=lambda: defaultdict(float))

    def observe(self, moment: Transition) -> None:
        """Note the duration in a trainer's step, if it has one."""
        place = moment.key.run, moment.key.round
        match moment.event:
            case Trained(training_s=training_s):
                self._training_s[place] = max(self._training_s[place], training_s)
            case Evaluated(evaluation_s=evaluation_s):
                self._evaluation_s[place] = max(self._evaluation_s[place], evaluation_s)

    def split(self, run: RunId, account: Account) -> Durations:
        """Split a round's time, once all clients have finished it; the coordinator may report it before that."""
        place = run, account.round
        training_s, evaluation_s = self._training_s[place], self._evaluation_s[place]
        return Durations(
            training_s=training_s,
            evaluation_s=evaluation_s,
            protocol_s=max(0.0, account.round_s - training_s - evaluation_s),
        )


@dataclass(frozen=True, slots=True)
class Flight:
    """A share on its way from a client to an aggregator or, with `is_sum`, a sum on its way back."""

    client: PartyId
    aggregator: PartyId
    began_s: float
    is_sum: bool = False

    def progress(self, now_s: float) -> float:
        """Return the part of the way that is behind it; below 0 before it begins, 1 or more when it is over."""
        return (now_s - self.began_s) / FLIGHT_S


@dataclass(slots=True)
class Board:
    """State of the display.

    `announcements` are shown in both displays, `news` only as plain lines; both hold what was not shown yet.
    """

    manifest: Manifest
    announcements: list[str]
    title: str = ""
    """Name of the run, if there are several."""
    has_own_pace: bool = False
    """Clients take no notice of the number of local steps, so it is not shown."""
    footer: str = ""
    """Last line of the picture."""
    clock: Callable[[], float] = time.monotonic
    joined: int = 0
    round: int = 0
    phase: str = ""
    state: str = "enrolling"
    work: dict[PartyId, tuple[str, int, int]] = field(default_factory=dict)
    """By client: its current or last work, how much of it is done, and how much there is."""
    servers: int = 0
    """Aggregators that the phase has."""
    held: Mapping[PartyId, frozenset[PartyId]] = field(default_factory=dict)
    """By client: the aggregators that hold its complete share set of the phase."""
    released: frozenset[PartyId] = frozenset()
    """Aggregators that have released their sum of the phase."""
    flights: list[Flight] = field(default_factory=list)
    applied: set[PartyId] = field(default_factory=set)
    is_paused: bool = False
    is_pausing: bool = False
    """The run pauses after this round."""
    round_began_s: float = 0.0
    accounts: list[Account] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    payload_bits: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    """By ended round: bytes of all messages."""
    news: list[str] = field(default_factory=list)
    _run: RunId = field(init=False)

    def __post_init__(self) -> None:
        self._run = self.manifest.run_id

    def note(self, line: str) -> None:
        """Add a line of news."""
        self.news.append(line)

    def progress(self, client: PartyId, number: int, what: str, done: int, total: int) -> None:
        """Note how far a trainer is; called from its thread."""
        if number >= self.round:
            self.work[client] = what, done, total

    def observe(self, moment: Transition) -> None:
        """Update the board from a coordinator's step, if it is of this run: the dashboard may start others."""
        data = moment.data
        if moment.key.run != self._run:
            return
        if isinstance(data, runs.CoordinatorRun):
            self._observe_run(moment, data)
        elif isinstance(data, rounds.CoordinatorRound) and isinstance(moment.after, rounds.State):
            self._observe_round(moment, moment.after, data)

    def _observe_run(self, moment: Transition, data: runs.CoordinatorRun) -> None:
        # A party that was asked twice answers twice.
        if isinstance(moment.event, PartyJoined) and len(data.joined) > self.joined:
            self.joined = len(data.joined)
            self.note(f"{moment.event.party} joined ({self.joined} of {len(data.parties)})")
        if data.stalled and isinstance(moment.earlier, runs.CoordinatorRun) and not moment.earlier.stalled:
            self.note(f"the run is stalled: {data.stalled}")
        self.is_paused, self.is_pausing = moment.after is runs.State.PAUSED, data.pausing
        if self.is_paused and moment.before is not moment.after:
            self.note("the run is paused")
        if moment.after in runs.OUTCOMES:
            self.state = str(moment.after.value)

    def _observe_round(self, moment: Transition, state: rounds.State, data: rounds.CoordinatorRound) -> None:
        if data.number != self.round:
            self.round, self.round_began_s = data.number, self.clock()
            self.work.clear()
            self.note(f"round {data.number}: {len(data.manifest.clients)} clients are training")
        self.phase, self.state, self.servers = data.current.name, state.value, len(data.aggregators)
        if not data.records:
            return
        self.held = {client: frozenset(servers) for client, servers in data.record.delivered.items()}
        self.released, self.applied = data.record.ended, set(data.applied)
        self._observe_flights(moment, data)
        # A receipt of the next phase may come while this one is not over.
        if isinstance(moment.event, ReceiptArrived) and moment.event.phase == self.phase:
            for client in moment.event.receipt.receipt.set_of:
                self._note_delivery(data, client)
        if moment.before is not state:
            self._note_change(state, data)

    def _observe_flights(self, moment: Transition, data: rounds.CoordinatorRound) -> None:
        """Send shares off that a receipt names, and sums that a phase ends with."""
        now_s = self.clock()
        self.flights = [each for each in self.flights if each.progress(now_s) < 1]
        if isinstance(moment.event, ReceiptArrived):
            receipt = moment.event.receipt.receipt
            ways = [(client, receipt.aggregator, False) for client in receipt.set_of]
        elif (
            moment.before is rounds.State.RELEASING
            and moment.after in SUMS_ARE_OUT
            and isinstance(ended := moment.earlier, rounds.CoordinatorRound)
        ):
            combiner = find_combiner(ended, ended.current.name)
            givers = [combiner] if combiner else sorted(data.records[ended.phase].ended)
            ways = [(client, giver, True) for client in ended.manifest.clients for giver in givers]
        else:
            return
        self.flights += [Flight(*way[:2], now_s + place * STAGGER_S, way[2]) for place, way in enumerate(ways)]

    def _note_delivery(self, data: rounds.CoordinatorRound, client: PartyId) -> None:
        servers = len(data.aggregators)
        if len(self.held.get(client, ())) == servers:
            done = sum(len(holders) == servers for holders in self.held.values())
            self.note(
                f"round {data.number}: {client} delivered {data.current.name} to all {servers} aggregators "
                f"({done} of {len(data.manifest.clients)})"
            )

    def _note_change(self, state: rounds.State, data: rounds.CoordinatorRound) -> None:
        if state is rounds.State.RELEASING:
            self.note(f"round {data.number}: {data.current.name} closed over {len(data.current_members)} clients")
        elif state is rounds.State.RELEASED:
            self.sent[data.number] = count_all_bytes(data)
            self._add_account(account(data))
        elif state in {rounds.State.VOID, rounds.State.CONTRADICTED}:
            self.sent[data.number] = count_all_bytes(data)
            self.note(f"round {data.number}: {state.value}: {data.reason}")

    def _add_account(self, finished: Account) -> None:
        self.accounts.append(finished)
        self.payload_bits += sum(cost.payload_bits for cost in finished.costs.values())
        scores = [f"{name} {show_metric(name, value)}" for name, value in finished.metrics.items()]
        self.note(
            f"round {finished.round}: {', '.join(scores) or 'released'}, {show_bytes(self.payload_bits / 8)} "
            f"of payload so far"
        )

    @property
    def ended(self) -> int:
        """Number of the last round that has ended."""
        return self.round if self.round in self.sent else max(self.round - 1, 0)

    def estimate_left_s(self, now_s: float) -> float | None:
        """Estimate the seconds until the last round ends; None before one has been released."""
        if not self.accounts or self.is_paused:
            return None
        recent = [each.round_s for each in self.accounts[-RECENT:]]
        usual_s = sum(recent) / len(recent)
        begun_s = 0.0 if self.ended == self.round else min(now_s - self.round_began_s, usual_s)
        return (self.manifest.rounds - self.ended) * usual_s - begun_s

    def split_times(self) -> dict[int, Durations]:
        """Split the time of each released round."""
        return {each.round: self.stopwatch.split(self._run, each) for each in self.accounts}
