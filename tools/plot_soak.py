"""Draw what was measured in a long run with kills: memory of each process and what waited in each inbox.

`python tools/plot_soak.py MEASUREMENTS` writes docs/results/DATE-soak.svg.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import escape

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WIDTH, HEIGHT = 760, 520
LEFT, RIGHT = 70, 740
PANEL = 170
TOPS = (60, 290)
LINES = 4
MB = 1 << 20
# By role, lighter for each further party: the eye is to tell roles apart first.
COLOURS: Mapping[str, tuple[str, ...]] = {
    "coordinator": ("#b2182b",),
    "aggregator": ("#2166ac", "#67a9cf"),
    "trainer": ("#1b7837", "#5aae61", "#a6dba0"),
}
STYLE = "text { font: 12px sans-serif; fill: #333 } .title { font-size: 14px; font-weight: bold }"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: a line for each party."""

    title: str
    top: int
    lines: Mapping[str, Sequence[float]]

    @property
    def step(self) -> float:
        """From one line of the scale to the next: a round number, so that there are a few."""
        return round_step(max((value for line in self.lines.values() for value in line), default=0.0) / LINES)

    @property
    def largest(self) -> float:
        """The top of the scale."""
        return self.step * LINES

    def x(self, place: int, places: int) -> float:
        """Where a round is."""
        return LEFT + (RIGHT - LEFT) * place / max(places - 1, 1)

    def y(self, value: float) -> float:
        """Where a value is."""
        return self.top + PANEL * (1 - value / self.largest)


def round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, 25, 50, ... from here on: a whole number."""
    power = 10 ** max(0, math.floor(math.log10(max(least, 1))))
    digits = (1, 2, 5, 10) if power == 1 else (1, 2, 2.5, 5, 10)
    return next(float(power * digit) for digit in digits if power * digit >= least)


def colour_of(name: str, names: Sequence[str]) -> str:
    """A party's colour, the same in both charts."""
    role = name.split("-", maxsplit=1)[0]
    colours = COLOURS[role]
    place = [each for each in names if each.startswith(role)].index(name)
    return colours[place % len(colours)]


def draw(panel: Panel, kills: Sequence[int]) -> Iterator[str]:
    """Axes, a tick for each kill, a line for each party."""
    bottom = panel.top + PANEL
    yield f'<text class="title" x="{LEFT}" y="{panel.top - 12}">{escape(panel.title)}</text>'
    places = max(len(line) for line in panel.lines.values())
    for part in range(LINES + 1):
        value = panel.step * part
        y = panel.y(value)
        yield f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.0f}</text>'
    for place in kills:
        x = panel.x(place, places)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 6}" stroke="#333"/>'
    for number in range(0, places + 1, int(round_step(places / 10))):
        x = panel.x(max(number - 1, 0), places)
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{max(number, 1)}</text>'
    names = list(panel.lines)
    for name, line in panel.lines.items():
        points = " ".join(f"{panel.x(place, places):.1f},{panel.y(value):.1f}" for place, value in enumerate(line))
        yield f'<polyline points="{points}" fill="none" stroke="{colour_of(name, names)}" stroke-width="1.5"/>'


def draw_legend(names: Sequence[str]) -> Iterator[str]:
    """Which colour is whose."""
    for place, name in enumerate(names):
        x = LEFT + 112 * place
        # The last part of a name tells this run's parties from those of any other.
        label = escape(name.rsplit("-", maxsplit=1)[0])
        yield f'<rect x="{x}" y="{HEIGHT - 18}" width="10" height="10" fill="{colour_of(name, names)}"/>'
        yield f'<text x="{x + 15}" y="{HEIGHT - 9}">{label}</text>'


def plot(samples: Sequence[Mapping[str, object]]) -> str:
    """The whole picture."""
    memory = _lines(samples, "memory", MB)
    waiting = _lines(samples, "waiting", 1)
    kills = [place for place, sample in enumerate(samples) if sample["killed"]]
    rounds = f"after each of {len(samples)} rounds (ticks: somebody was killed)"
    panels = (
        Panel(f"Memory in MiB, {rounds}", TOPS[0], memory),
        Panel("Messages waiting in each inbox then", TOPS[1], waiting),
    )
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *(piece for panel in panels for piece in draw(panel, kills)),
        *draw_legend(list(memory)),
        "</svg>",
    ]
    return "\n".join(body) + "\n"


def _lines(samples: Sequence[Mapping[str, object]], what: str, unit: int) -> dict[str, list[float]]:
    lines: dict[str, list[float]] = {}
    for sample in samples:
        measured = sample[what]
        if isinstance(measured, dict):
            for name, value in measured.items():
                lines.setdefault(name, []).append(value / unit)
    return lines


def main() -> int:
    """Read the measurements, write the picture, say where."""
    samples = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    target = RESULTS / f"{datetime.now(UTC).date()}-soak.svg"
    target.write_text(plot(samples), encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
