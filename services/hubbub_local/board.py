"""What a spectator of a run knows: kept up to date from the steps and the progress of its parties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.protocol.metrics import format_value
from hubbub.runtime.runner import Moment
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.events import PartyJoined, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.timing import Stopwatch


@dataclass(slots=True)
class Board:
    """The state of the show.

    `announcements` are for every spectator, `news` for those who read a log; both hold what was not shown yet.
    """

    manifest: Manifest
    announcements: list[str]
    joined: int = 0
    round: int = 0
    phase: str = ""
    state: str = "enrolling"
    steps: dict[PartyId, int] = field(default_factory=dict)
    delivered: dict[PartyId, int] = field(default_factory=dict)
    applied: set[PartyId] = field(default_factory=set)
    accounts: list[Account] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    payload_bits: int = 0
    wire_bytes: int = 0
    news: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Say something."""
        self.news.append(line)

    def progress(self, client: PartyId, number: int, done: int, _steps: int) -> None:
        """A trainer has done that many steps; called from its thread."""
        if number >= self.round:
            self.steps[client] = done

    def observe(self, moment: Moment) -> None:
        """Take in a step of the coordinator, if it is about this run: others may be begun from the dashboard."""
        data = moment.data
        if moment.key.run != self.manifest.run_id:
            return
        if isinstance(data, runs.Run):
            self._observe_run(moment, data)
        elif isinstance(data, rounds.Round) and isinstance(moment.after, rounds.State):
            self._observe_round(moment, moment.after, data)

    def _observe_run(self, moment: Moment, data: runs.Run) -> None:
        # A party that was asked twice answers twice.
        if isinstance(moment.event, PartyJoined) and len(data.joined) > self.joined:
            self.joined = len(data.joined)
            self.note(f"{moment.event.party} joined ({self.joined} of {len(data.parties)})")
        if moment.after in runs.OUTCOMES:
            self.state = str(moment.after.value)

    def _observe_round(self, moment: Moment, state: rounds.State, data: rounds.Round) -> None:
        if data.number != self.round:
            self._begin_round(data)
        self.phase, self.state = data.current.name, state.value
        if not data.records:
            return
        receipts = data.record.receipts
        self.delivered = {client: len(receipts.get(client, {})) for client in data.manifest.clients}
        self.applied = set(data.applied)
        # A receipt of the next phase may come while this one is not over.
        if isinstance(moment.event, ReceiptArrived) and moment.event.phase == self.phase:
            self._note_delivery(data, moment.event.receipt.receipt.client)
        if moment.before is not state:
            self._note_change(state, data)

    def _begin_round(self, data: rounds.Round) -> None:
        self.round = data.number
        self.steps.clear()
        self.note(f"round {data.number}: {len(data.manifest.clients)} clients are training")

    def _note_delivery(self, data: rounds.Round, client: PartyId) -> None:
        servers = len(data.aggregators)
        if self.delivered[client] == servers:
            done = sum(count == servers for count in self.delivered.values())
            self.note(
                f"round {data.number}: {client} delivered {data.current.name} to all {servers} aggregators "
                f"({done} of {len(self.delivered)})"
            )

    def _note_change(self, state: rounds.State, data: rounds.Round) -> None:
        if state is rounds.State.RELEASING:
            self.note(f"round {data.number}: {data.current.name} closed over {len(data.current_members)} clients")
        elif state is rounds.State.RELEASED:
            self._add_account(account(data))
        elif state in {rounds.State.VOID, rounds.State.CONTRADICTED}:
            self.note(f"round {data.number}: {state.value}: {data.reason}")

    def _add_account(self, finished: Account) -> None:
        self.accounts.append(finished)
        self.payload_bits += sum(cost.payload_bits for cost in finished.costs.values())
        self.wire_bytes += sum(cost.wire_bytes for cost in finished.costs.values())
        scores = [f"{name} {show_metric(name, finished.metrics)}" for name in finished.metrics]
        self.note(
            f"round {finished.round}: {', '.join(scores) or 'released'}, {show_bytes(self.payload_bits / 8)} "
            f"of payload so far"
        )


def show_metric(name: str, metrics: Mapping[str, float]) -> str:
    """A metric of a round for people; a dash where the round has none."""
    return format_value(name, metrics[name]) if name in metrics else "-"


def show_bytes(count: float) -> str:
    """A size for people: 1 MB is 2^20 bytes, as in the paper."""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"
