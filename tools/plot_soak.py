"""Plot the measurements of a soak test with kills: memory of each process and messages in each inbox.

`python tools/plot_soak.py MEASUREMENTS` writes docs/results/DATE-soak.svg.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hubbub_local.figures import Panel, draw_plot

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MB = 1 << 20
Sample = Mapping[str, Mapping[str, int]]


def plot(samples: Sequence[Sample]) -> str:
    """Return the whole plot: a line for each party, a point for each round."""
    kills = sum(bool(sample["killed"]) for sample in samples)
    memory, waiting = _lines(samples, "memory", MB), _lines(samples, "waiting", 1)
    panels = [
        Panel(title="memory (MiB)", x_label="round", lines=memory, from_zero=True),
        Panel(title="messages waiting in its inbox", x_label="round", lines=waiting, from_zero=True),
    ]
    return draw_plot(f"After each of {len(samples)} rounds, in {kills} of which somebody was killed", panels)


def _lines(samples: Sequence[Sample], what: str, unit: int) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for number, sample in enumerate(samples, start=1):
        for name, value in sample[what].items():
            # The last part of a name distinguishes this run's parties from those of others.
            lines.setdefault(name.rsplit("-", maxsplit=1)[0], []).append((number, value / unit))
    return lines


def main() -> int:
    """Read the measurements, write the plot, print its path."""
    samples = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    target = RESULTS / f"{datetime.now(UTC).date()}-soak.svg"
    target.write_text(plot(samples), encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
