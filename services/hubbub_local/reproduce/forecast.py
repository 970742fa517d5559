"""How long it will still take: from the rounds that are done, and the paper's for those that are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from hubbub_local.reproduce.plan import Method, Plan
from hubbub_local.reproduce.records import RunRecord


@dataclass(slots=True)
class Forecast:
    """Told of every round; `done` and `left` are in rounds, also parts of one."""

    plan: Plan
    finished: dict[tuple[str, int], int] = field(default_factory=dict)
    current: tuple[Method, int] | None = None
    rounds_now: float = 0.0
    _round_s: list[float] = field(default_factory=list)

    def begin(self, method: Method, seed: int) -> None:
        """A run begins."""
        self.current, self.rounds_now = (method, seed), 0.0

    def note_round(self, wall_s: float, rounds: int) -> None:
        """Another round of it is done."""
        self._round_s.append(wall_s)
        self.rounds_now = rounds

    def note_part(self, part: float) -> None:
        """So much of the round that is open is trained."""
        self.rounds_now = int(self.rounds_now) + min(part, 0.99)

    def end(self, record: RunRecord) -> None:
        """A run is finished, now or before."""
        self.finished[record.name, record.seed] = record.rounds
        self.current, self.rounds_now = None, 0.0

    @property
    def done(self) -> float:
        """Rounds that are done."""
        return sum(self.finished.values()) + self.rounds_now

    @property
    def left(self) -> float:
        """Rounds that are still to be expected: at least one of a run that is not finished."""
        open_runs = [run for run in self.plan.runs if (run[0].name, run[1]) not in self.finished]
        expected = [max(self._expect(method), 1.0) for method, _ in open_runs]
        begun = max(self._expect(self.current[0]) - self.rounds_now, 1.0) if self.current else 0.0
        return sum(expected) - (max(self._expect(self.current[0]), 1.0) if self.current else 0.0) + begun

    @property
    def left_s(self) -> float | None:
        """The same in seconds; nothing before the first round is done."""
        return self.left * fmean(self._round_s) if self._round_s else None

    def _expect(self, method: Method) -> float:
        """Rounds that a run will take: the paper's, as much quicker or slower as the runs so far were."""
        known = [rounds / self._printed(name) for (name, _), rounds in self.finished.items()]
        return min(self.plan.settings.max_rounds, self._printed(method.name) * (fmean(known) if known else 1.0))

    def _printed(self, name: str) -> float:
        rows = self.plan.settings.table.rows
        return rows[name].rounds if name in rows else median(row.rounds for row in rows.values())


def list_expected(plan: Plan, records: Sequence[RunRecord]) -> Forecast:
    """A forecast that knows what was finished before."""
    forecast = Forecast(plan)
    wanted = {(method.name, seed) for method, seed in plan.runs}
    for record in records:
        if record.finished and (record.name, record.seed) in wanted:
            forecast.end(record)
    return forecast
