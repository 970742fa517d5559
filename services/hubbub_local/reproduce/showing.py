"""What is to be seen while runs go on: a bar with an estimate in a terminal, plain lines where output is piped."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hubbub_local.board import show_bytes
from hubbub_local.reproduce.forecast import Forecast
from hubbub_local.reproduce.plan import Method
from hubbub_local.reproduce.records import BITS, RunRecord

MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
TRUST_AFTER = 2
"""Rounds; an estimate from fewer is none."""


class Show:
    """Tells of runs as they go; steps of training come from other threads."""

    def __init__(self, console: Console, forecast: Forecast, target: float) -> None:
        self._console = console
        self._forecast = forecast
        self._target = target
        self._label = ""
        self._steps: dict[str, float] = {}
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            left = TextColumn("{task.fields[left]}", style="dim")
            self._bar = Progress(*columns, TimeElapsedColumn(), left, console=console, transient=True)
            self._task = self._bar.add_task("", total=1.0, left="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, line: str) -> None:
        """A line above the bar."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def skip(self, record: RunRecord) -> None:
        """A run was finished before."""
        self.say(f"{name_run(record)}: {record.describe(self._target)}; kept from before")

    def begin(self, method: Method, seed: int) -> None:
        """A run begins."""
        self._label, self._steps = f"{method.label}, seed {seed}", {}
        self._forecast.begin(method, seed)
        self._draw("joining")

    def train(self, client: str, clients: int, done: int, steps: int) -> None:
        """A client is so far in its round."""
        self._steps[client] = done / steps
        part = sum(self._steps.values()) / clients
        self._forecast.note_part(part)
        self._draw(f"round {int(self._forecast.rounds_now) + 1}")

    def finish_round(self, record: RunRecord) -> None:
        """A round is done."""
        last, self._steps = record.by_round[-1], {}
        self._forecast.note_round(last.wall_s, record.rounds)
        self._draw(f"round {record.rounds}: {100 * last.accuracy:.2f} %")
        if not self._bar:
            self.say(
                f"{name_run(record)}, round {last.round}: {100 * last.accuracy:.2f} %, "
                f"{show_bytes(record.payload_bits / BITS)} so far{self._left(', ')}"
            )

    def end(self, record: RunRecord) -> None:
        """A run is finished."""
        self._forecast.end(record)
        self.say(
            f"{name_run(record)}: {record.describe(self._target)}, {show_bytes(record.payload_bits / BITS)}, "
            f"on the wire {show_bytes(record.wire_bytes)}"
        )

    def _draw(self, doing: str) -> None:
        if self._bar:
            done, left = self._forecast.done, self._forecast.left
            share = done / (done + left) if done + left else 0.0
            text = f"{self._label}: {doing}"
            self._bar.update(self._task, completed=share, description=text, left=self._left(""))

    def _left(self, before: str) -> str:
        left_s = self._forecast.left_s
        if left_s is None or self._forecast.done < TRUST_AFTER:
            return ""
        return f"{before}about {show_left(left_s)} left"


def name_run(record: RunRecord) -> str:
    """A run as people call it."""
    return f"{record.method.label}, seed {record.seed}"


def show_left(seconds: float) -> str:
    """A time that is a guess: in its one or two largest units."""
    if seconds < MINUTE_S:
        return f"{max(round(seconds), 1)} s"
    if seconds < HOUR_S:
        return f"{round(seconds / MINUTE_S)} min"
    minutes = round(seconds / MINUTE_S)
    return f"{minutes // MINUTE_S} h {minutes % MINUTE_S} min"
