"""Live picture of a run in a terminal: progress, parties, who is waited for, the last events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hubbub.rest import EventView, ParticipantView, RoundView, RunWithParties
from hubbub_cli.formatting import show_bytes, show_clock, show_duration
from hubbub_cli.run_report import describe_metrics, describe_waiting, style_of

KEPT_EVENTS = 200
BAR_COLUMNS = 24
NAME_COLUMNS = 24
MIN_EVENTS = 4
FIXED_LINES = 11
"""Lines of a picture without those of parties and events."""
MIN_SKEW_S = 2.0
"""A smaller clock skew is ignored: servers' Date headers are no more exact."""

NOTICE_S = 10.0
"""Time for which the notice of a restored connection is shown."""

DONE_IN = {
    "collecting": "delivered",
    "releasing": "released",
    "voiding": "released",
    "applying": "applied",
    "reporting": "applied",
}
"""State of a party that has done its part, by the state of the round."""


@dataclass(slots=True)
class Picture:
    """Data of the picture: run, round, events and connection."""

    run: RunWithParties
    round: RoundView | None
    events: deque[EventView] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    is_lost: bool = False
    notice: str = ""
    """State of the connection, as of `told_at_s`."""
    told_at_s: float = 0.0
    seen_at_s: float = field(default_factory=time.time)
    ahead_s: float = 0.0
    """Seconds that the coordinator's clock is ahead of ours."""

    def see(self, run: RunWithParties, current: RoundView | None, *, ahead_s: float | None) -> None:
        """Take in what the coordinator answered."""
        self.run, self.round, self.seen_at_s = run, current, time.time()
        self.ahead_s = ahead_s if ahead_s is not None and abs(ahead_s) > MIN_SKEW_S else 0.0

    def tell(self, notice: str, *, is_lost: bool) -> None:
        """Set the notice about the connection."""
        self.notice, self.is_lost, self.told_at_s = notice, is_lost, time.time()


def name_place(event: EventView) -> str:
    """Name the place of an event: a round, or the run as a whole."""
    return f"round {event.round}" if event.round else "run"


def draw(picture: Picture, console: Console) -> RenderableType:
    """Draw the picture, in as many lines as the terminal has."""
    now_s = time.time() + picture.ahead_s
    stalled = _draw_stalled(picture.run)
    left = max(console.height - FIXED_LINES - len(stalled), 2 * MIN_EVENTS)
    parties = _draw_parties(picture, left - MIN_EVENTS, now_s)
    events = _draw_events(picture.events, left - parties.row_count)
    return Group(
        _draw_headline(picture),
        _draw_progress(picture, now_s),
        _draw_numbers(picture.run),
        *stalled,
        Text(),
        parties,
        Text(),
        events,
        Text(),
        _draw_last_line(picture, now_s),
    )


def _draw_headline(picture: Picture) -> Text:
    run = picture.run
    line = Text.assemble(("run ", "bold"), (run.short, "bold"), "  ", (run.state, f"bold {style_of(run.state)}"))
    line.append(f"  {run.strategy}, {run.task}, {run.parameters:,} parameters", "dim")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _draw_progress(picture: Picture, now_s: float) -> Table:
    run = picture.run
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=6)
    grid.add_column(width=BAR_COLUMNS)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    void = f", {run.rounds_void} void" if run.rounds_void else ""
    told = f"{run.rounds_released} of {run.rounds_wanted}{void}{_describe_rest(picture, now_s)}"
    grid.add_row("rounds", _bar(run.rounds_released, run.rounds_wanted), told)
    done, of, what = _measure_phase(picture)
    grid.add_row("phase", _bar(done, of), what)
    return grid


def _describe_rest(picture: Picture, now_s: float) -> str:
    run = picture.run
    if run.ended_at_s is not None:
        return f"   took {show_duration(run.ended_at_s - run.began_at_s)}"
    if run.state == "paused":
        return ""
    if run.remaining_s is None:
        return f"   for {show_duration(now_s - run.began_at_s)}"
    rest_s = run.remaining_s - (time.time() - picture.seen_at_s)
    return f"   about {show_duration(rest_s)} left" if rest_s > 1 else "   almost done"


def _measure_phase(picture: Picture) -> tuple[int, int, str]:
    """Return how many parties have done their part in the current phase, of how many, and a description."""
    run, current = picture.run, picture.round
    parties = run.participants
    if run.state == "enrolling":
        there = sum(party.state != "asked" for party in parties)
        return there, len(parties), f"{there} of {len(parties)} parties have joined"
    if run.state == "agreeing":
        ready = len(parties) - len(run.waiting_for)
        return ready, len(parties), f"{ready} of {len(parties)} parties have checked the keys"
    if current is None or run.is_over or current.state not in DONE_IN:
        return (
            int(run.state == "completed"),
            1,
            "" if current is None else f"round {current.round} {current.state}",
        )
    role = "client" if current.state in {"collecting", "applying", "reporting"} else "aggregator"
    acting = [party for party in parties if party.role == role]
    done = sum(party.state == DONE_IN[current.state] for party in acting)
    what = f"{done} of {len(acting)} {role}s {DONE_IN[current.state]}"
    return done, len(acting), f"round {current.round}, {current.phase}: {what}"


def _is_someone_late(picture: Picture) -> bool:
    """Return whether some parties lag behind others; while none has finished, all are simply at work."""
    done, of, _ = _measure_phase(picture)
    return 0 < done < of


def _bar(done: int, of: int) -> ProgressBar:
    return ProgressBar(total=max(of, 1), completed=done, width=BAR_COLUMNS, complete_style="cyan")


def _draw_numbers(run: RunWithParties) -> Text:
    sent = f"{show_bytes(run.payload_bits / 8)} of payload, {show_bytes(run.wire_bytes)} on the wire"
    label = "" if run.metrics else "scores "
    line = Text.assemble(label, (describe_metrics(run), "bold"), f"   sent {sent}")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _draw_stalled(run: RunWithParties) -> list[Text]:
    """Draw a line for a run that seems to learn nothing any more, and none for others."""
    line = Text(f"stalled: {run.stalled}", "yellow", no_wrap=True, overflow="ellipsis")
    return [line] if run.stalled else []


def _draw_parties(picture: Picture, room: int, now_s: float) -> Table:
    """Draw as many parties as fit; if not all do, those that are waited for come first."""
    parties, late_style = picture.run.participants, "bold yellow" if _is_someone_late(picture) else ""
    table = Table.grid(padding=(0, 2))
    for width in (NAME_COLUMNS, 10, 9):
        table.add_column(max_width=width, no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis")
    shown: Sequence[ParticipantView] = parties
    if len(parties) > room:
        shown = sorted(parties, key=lambda party: not party.waited_for)[: room - 1]
    for party in shown:
        since = f", for {show_duration(now_s - party.since_s)}" if party.waited_for and party.since_s else ""
        style = (party.waited_for and late_style) or style_of(party.state)
        table.add_row(
            Text(party.name), Text(party.role, "dim"), Text(party.state, style), Text(f"{party.status}{since}")
        )
    if len(shown) < len(parties):
        table.add_row(Text(f"and {len(parties) - len(shown)} more", "dim"))
    return table


def _draw_events(events: Sequence[EventView], room: int) -> Table:
    shown = [*events][-room:]
    table = Table.grid(padding=(0, 2))
    for width in (len("hh:mm:ss"), max((len(name_place(event)) for event in shown), default=0)):
        table.add_column(style="dim", no_wrap=True, min_width=width)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for event in shown:
        table.add_row(show_clock(event.at_s), name_place(event), Text(event.text))
    return table


def _draw_last_line(picture: Picture, now_s: float) -> Text:
    """Draw the most important fact."""
    run = picture.run
    if picture.is_lost:
        return Text(f"{picture.notice} ({show_duration(time.time() - picture.told_at_s)})", "bold yellow")
    if run.is_over:
        return Text(f"{run.state}: {run.reason}", f"bold {style_of(run.state)}")
    if time.time() - picture.told_at_s < NOTICE_S:
        return Text(picture.notice, "green")
    if run.state == "paused":
        return Text(f"paused: {run.reason}. `hubbub run resume {run.short}` goes on.", "yellow")
    style = "yellow" if _is_someone_late(picture) else "dim"
    return Text(f"waiting {describe_waiting(run, now_s)}" if run.waiting_for else "", style)
