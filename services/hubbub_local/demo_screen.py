"""Terminal display of the demo: a live picture, or plain lines where the output is piped.

`Board` is updated from the steps and the progress of all parties, which share this process. `Stopwatch` splits
a round's time: no client reports how long its training took, but here it can be seen in its steps.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Transition
from hubbub_cli.formatting import show_bytes, show_metric
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.events import PartyJoined, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_trainer.events import Evaluated, Trained
from hubbub_trainer.task_runner import TRAINING

Place = tuple[RunId, int]

FRAMES_PER_SECOND = 10


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
    joined: int = 0
    round: int = 0
    phase: str = ""
    state: str = "enrolling"
    work: dict[PartyId, tuple[str, int, int]] = field(default_factory=dict)
    """By client: its current or last work, how much of it is done, and how much there is."""
    servers: int = 0
    """Aggregators that the phase has."""
    delivered: dict[PartyId, int] = field(default_factory=dict)
    applied: set[PartyId] = field(default_factory=set)
    accounts: list[Account] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    payload_bits: int = 0
    wire_bytes: int = 0
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
        if moment.after in runs.OUTCOMES:
            self.state = str(moment.after.value)

    def _observe_round(self, moment: Transition, state: rounds.State, data: rounds.CoordinatorRound) -> None:
        if data.number != self.round:
            self.round = data.number
            self.work.clear()
            self.note(f"round {data.number}: {len(data.manifest.clients)} clients are training")
        self.phase, self.state, self.servers = data.current.name, state.value, len(data.aggregators)
        if not data.records:
            return
        self.delivered = {client: len(data.record.held.get(client, {})) for client in data.manifest.clients}
        self.applied = set(data.applied)
        # A receipt of the next phase may come while this one is not over.
        if isinstance(moment.event, ReceiptArrived) and moment.event.phase == self.phase:
            for client in moment.event.receipt.receipt.set_of:
                self._note_delivery(data, client)
        if moment.before is not state:
            self._note_change(state, data)

    def _note_delivery(self, data: rounds.CoordinatorRound, client: PartyId) -> None:
        servers = len(data.aggregators)
        if self.delivered[client] == servers:
            done = sum(count == servers for count in self.delivered.values())
            self.note(
                f"round {data.number}: {client} delivered {data.current.name} to all {servers} aggregators "
                f"({done} of {len(self.delivered)})"
            )

    def _note_change(self, state: rounds.State, data: rounds.CoordinatorRound) -> None:
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
        scores = [f"{name} {show_metric(name, value)}" for name, value in finished.metrics.items()]
        self.note(
            f"round {finished.round}: {', '.join(scores) or 'released'}, {show_bytes(self.payload_bits / 8)} "
            f"of payload so far"
        )


@contextmanager
def show(board: Board, console: Console) -> Iterator[None]:
    """Update the terminal while the block runs: a live picture, or one line for each piece of news in a pipe."""
    picture = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def update() -> None:
        _print_all(board.announcements, console)
        if picture is None:
            _print_all(board.news, console)
        else:
            board.news.clear()
            drawn = Group(_headline(board), Text(), _parties(board), Text(), _history(board))
            picture.update(drawn, refresh=True)

    async def tick() -> None:
        while True:
            update()
            await asyncio.sleep(1 / FRAMES_PER_SECOND)

    ticker = asyncio.get_running_loop().create_task(tick())
    with picture or nullcontext():
        try:
            yield
        finally:
            ticker.cancel()
            update()


def _print_all(lines: list[str], console: Console) -> None:
    while lines:
        console.print(lines.pop(0), highlight=False, markup=False, soft_wrap=True)


def _headline(board: Board) -> Text:
    parties = len(board.manifest.clients) + len(board.manifest.aggregators)
    line = Text(f"{board.title}   " if board.title else "")
    if board.round == 0:
        joined = f"Enrolling: {board.joined} of {parties} parties have joined"
        return line.append("The run goes on where it was stopped" if board.work else joined, style="bold")
    line.append(f"Round {board.round} of {board.manifest.rounds}", style="bold")
    line.append(f"   phase {board.phase}: {board.state}", style="cyan")
    line.append(
        f"   {show_bytes(board.payload_bits / 8)} of payload, {show_bytes(board.wire_bytes)} on the wire so far",
        style="dim",
    )
    return line


def _parties(board: Board) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=max(len(name) for name in board.manifest.clients))
    table.add_column(width=28)
    table.add_column(width=9, justify="right")
    table.add_column()
    nothing_yet = TRAINING, 0, board.manifest.local_steps
    for client in board.manifest.clients:
        what, done, total = board.work.get(client, nothing_yet)
        bar = ProgressBar(total=total, completed=done, width=28, complete_style="green", finished_style="green")
        count = "" if board.has_own_pace and what == TRAINING else f"{done}/{total}"
        table.add_row(client, bar, count, _status(board, client))
    return table


def _status(board: Board, client: PartyId) -> Text:
    servers, delivered = board.servers, board.delivered.get(client, 0)
    what, done, total = board.work.get(client, ("", 0, 0))
    if client in board.applied:
        return Text("applied the sum", style="green")
    if done < total:
        return Text(what, style="dim")
    if delivered and delivered == servers:
        return Text(f"delivered to {delivered} of {servers} aggregators", style="cyan")
    if delivered:
        return Text(f"delivered to {delivered} of {servers} aggregators", style="yellow")
    if board.round == 0:
        return Text("loading its task", style="dim")
    return Text("sharing", style="yellow") if what else Text("waiting for a core", style="dim")


def _history(board: Board) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    headline = board.manifest.headline
    names = [headline.name] if headline else []
    for column in ("round", *names, "payload"):
        table.add_column(column, justify="right")
    for finished in board.accounts[-8:]:
        payload = sum(cost.payload_bits for cost in finished.costs.values()) / 8
        scores = [show_metric(name, finished.metrics.get(name)) for name in names]
        table.add_row(str(finished.round), *scores, show_bytes(payload))
    return table if board.accounts else Text()
