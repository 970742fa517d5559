"""What comes out of a federation beside pooled data: `python -m benchmarks.quality`.

Four hospitals have 60, 25, 10 and 5 % of the rows (`--parts` for others), and each has more of some labels.
They train for 15 rounds of 20 steps. A quarter of the rows is held back from all of them, and every model is
scored on it: by the area under the ROC curve for breast cancer, by R² for the progression of diabetes. *Pooled*
is the same network on all their rows in one place, with as many steps. Data are those in scikit-learn's wheel.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.metrics import r2_score, roc_auc_score
from torch import Tensor, nn

from benchmarks.sheet import Sheet, draw, write_sheet
from hubbub.errors import ProtocolError
from hubbub_local import simulate
from hubbub_trainer.learning.torch_task import Data, Site, TorchTask

PARTS = (0.60, 0.25, 0.10, 0.05)
ROUNDS, STEPS, BATCH, RATE = 15, 20, 16, 0.05
HELD_BACK_ONE_IN = 4
Kind = Literal["cancer", "diabetes"]
MODELS: tuple[tuple[Kind, int], ...] = (("cancer", 0), ("cancer", 32), ("diabetes", 0), ("diabetes", 32))
"""Data, and units of the hidden layer."""
RECOMMENDED = "what the demo recommends"
WAYS: dict[str, dict[str, Any]] = {
    "fedavg, in the clear": {"strategy": "fedavg"},
    RECOMMENDED: {},
    "secure-fedavg, equal weights": {"strategy": "secure-fedavg", "weights": "equal"},
    "no-union": {"strategy": "no-union"},
    "no-union, by samples": {"strategy": "no-union", "weights": "samples"},
    "sec-union": {"strategy": "sec-union"},
    "sec-union, by samples": {"strategy": "sec-union", "weights": "samples"},
}
"""Options of a run, by the name of its row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a data set: standardised inputs, and labels or standardised targets."""

    inputs: Tensor
    targets: Tensor

    def pick(self, which: NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        return Rows(self.inputs[which], self.targets[which])


@cache
def load(kind: Kind) -> Rows:
    """Load a data set. Scaling is by all rows, as if its ranges were public."""
    bunch = load_breast_cancer() if kind == "cancer" else load_diabetes()
    inputs = torch.tensor(bunch.data, dtype=torch.float32)
    targets = torch.tensor(bunch.target, dtype=torch.int64 if kind == "cancer" else torch.float32)
    if kind == "diabetes":
        targets = (targets - targets.mean()) / targets.std()
    return Rows((inputs - inputs.mean(0)) / inputs.std(0), targets)


def deal(kind: Kind, seed: int, parts: Sequence[float] = PARTS) -> tuple[list[Rows], Rows]:
    """Return the hospitals' rows, and those held back. Labels are skewed: rows are dealt out roughly by label."""
    rows, generator = load(kind), np.random.default_rng(seed)
    order = generator.permutation(len(rows.targets))
    held_back, rest = np.split(order, [len(order) // HELD_BACK_ONE_IN])
    labels = rows.targets[rest].numpy().astype(np.float64)
    ranked = rest[np.argsort(labels + generator.normal(scale=labels.std(), size=len(rest)))]
    ends = (np.cumsum(parts)[:-1] / sum(parts) * len(ranked)).astype(int)
    return [rows.pick(part) for part in np.split(ranked, ends)], rows.pick(held_back)


def make_network(kind: Kind, hidden: int) -> nn.Module:
    """Make a linear model, or one with a hidden layer."""
    features, outputs = load(kind).inputs.shape[1], 2 if kind == "cancer" else 1
    if not hidden:
        return nn.Linear(features, outputs)
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def make_task(kind: Kind, hidden: int, hospitals: Sequence[Rows]) -> TorchTask:
    """Make the hospitals' task."""

    class Hospitals(TorchTask):
        metrics = "binary" if kind == "cancer" else "regression"
        target_range = (-3.0, 3.0)
        batch_size = BATCH
        learning_rate = RATE / 5 if kind == "diabetes" else RATE
        momentum = 0.0

        def model(self) -> nn.Module:
            return make_network(kind, hidden)

        def data(self, site: Site) -> Data:
            mine = hospitals[site.index]
            return Data(train=(mine.inputs, mine.targets), test=(mine.inputs, mine.targets))

    return Hospitals()


def score(kind: Kind, model: nn.Module, held_back: Rows) -> float:
    """Score a model on the rows that were held back."""
    with torch.inference_mode():
        outputs = model(held_back.inputs)
    if kind == "cancer":
        return float(roc_auc_score(held_back.targets, outputs[:, 1] - outputs[:, 0]))
    return float(r2_score(held_back.targets, outputs[:, 0]))


def train_pooled(kind: Kind, hidden: int, hospitals: Sequence[Rows], seed: int) -> nn.Module:
    """Train on all rows in one place."""
    torch.manual_seed(seed)
    model, task = make_network(kind, hidden), make_task(kind, hidden, hospitals)
    inputs, targets = (torch.cat([getattr(each, name) for each in hospitals]) for name in ("inputs", "targets"))
    optimiser = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    for _ in range(ROUNDS * STEPS):
        batch = torch.randint(len(targets), (BATCH,))
        optimiser.zero_grad()
        task.loss(model, (inputs[batch], targets[batch])).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return model


def measure(
    kind: Kind, hidden: int, seed: int, parts: Sequence[float], say: Callable[[str], None]
) -> dict[str, float]:
    """Return the score of each way to train, by its name; NaN for a run that trainers left."""
    hospitals, held_back = deal(kind, seed, parts)
    scores = {"pooled": score(kind, train_pooled(kind, hidden, hospitals, seed), held_back)}
    for name, options in WAYS.items():
        say(f"{kind}, hidden {hidden}, seed {seed}: {name}")
        try:
            result = simulate(
                make_task(kind, hidden, hospitals),
                **{"strategy": None, **options},
                clients=len(parts),
                rounds=ROUNDS,
                local_steps=STEPS,
                seed=seed,
                evaluate_every=0,
            )
        except ProtocolError as error:
            # Rounds that move nothing count as void, and trainers allow few of them.
            say(str(error))
            scores[name] = math.nan
            continue
        model = make_network(kind, hidden)
        model.load_state_dict(result.state_dict())
        scores[name] = score(kind, model, held_back)
    return scores


def main(arguments: Sequence[str], console: Console | None = None) -> Sheet:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--seeds", default="0,1", help="seeds, separated by commas (%(default)s)")
    parser.add_argument(
        "--parts", default=",".join(map(str, PARTS)), help="sizes of the hospitals, in any unit (%(default)s)"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    wanted = parser.parse_args(arguments)
    seeds, console = [int(each) for each in wanted.seeds.split(",")], console or Console()
    parts = [float(each) for each in wanted.parts.split(",")]
    rows: dict[str, list[str]] = {name: [] for name in ("pooled", *WAYS)}
    titles = []
    with console.status("") as status:
        for kind, hidden in MODELS:
            count = sum(each.numel() for each in make_network(kind, hidden).parameters())
            titles.append(f"{kind}, {'one hidden layer' if hidden else 'linear'}, N = {count:,}")
            found = [measure(kind, hidden, seed, parts, status.update) for seed in seeds]
            for name, cells in rows.items():
                cells.append(
                    ", ".join("left" if math.isnan(each[name]) else f"{each[name]:.3f}" for each in found)
                )
    sheet = Sheet(
        f"Models on rows held back; seeds {wanted.seeds}",
        ("", *titles),
        tuple((name, *cells) for name, cells in rows.items()),
        f"AUC for cancer, R² for diabetes. Hospitals of {' : '.join(f'{part:g}' for part in parts)}. Each "
        "strategy has its usual ρ, q and learning rate, and its usual weights unless said. Left: trainers left "
        "the run, because two rounds in a row hardly moved the model.",
    )
    console.print(write_sheet(sheet) if wanted.markdown else draw(sheet), soft_wrap=wanted.markdown)
    return sheet


if __name__ == "__main__":
    main(sys.argv[1:])
