"""Statistics over the patients of several hospitals, without a model: nobody sees one hospital's numbers.

Count, mean and variance of the patients' years of birth follow from three sums; how often each of 2,000 diagnosis
codes occurs is a sum in which most entries are zero. They are added up by the library call, where this file plays
all parties, and by the services, where every party has its own keys and state.

The mean is large and the variance small beside it, so that the sums have to be exact. The library call adds them
in words of 64 bits. A service returns floats of 24 binary digits, so each of the three is sent as two numbers: its
high digits and its low ones.

    python examples/federated_statistics.py
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hubbub.protocol.metrics import Metric, Scores
from hubbub.run_options import RunOptions
from hubbub.secure_sum import SecureSum
from hubbub_coordinator.phases.run import State
from hubbub_local.federation import make_parties, start_federation
from hubbub_trainer.learning.task import ProgressCallback, Theta, Training
from hubbub_trainer.planning import draw_up_manifest
from hubbub_trainer.saved_model import read_kept_model

HOSPITALS, SERVERS, CODES = 5, 2, 2_000
LARGEST = [1e5, 1e8, 1e11, *[1e5] * CODES]  # Bounds that all hospitals agree on: units follow from them.
MOMENTS, BASE = 3, 2.0**16  # The numbers that services are sent as two digits, to this base.
Numbers = NDArray[np.float64]


def collect(hospital: int) -> Numbers:
    """Draw one hospital's numbers: its patients, Σ year, Σ year², and how many patients have each code."""
    dice = np.random.default_rng(hospital)
    years = dice.integers(1925, 2025, 400 + 10 * hospital)
    codes = np.minimum(dice.geometric(0.02, years.size) * dice.integers(1, 12, years.size), CODES) - 1
    return np.array([years.size, years.sum(), (years**2).sum(), *np.bincount(codes, minlength=CODES)], np.float64)


# As a library call --------------------------------------------------------------------------------------


def add_up(ask: SecureSum, inputs: list[Numbers]) -> Numbers:
    """Share every hospital's numbers, add them at every server, and open the totals."""
    dealt = [ask.share(numbers) for numbers in inputs]
    return ask.open([ask.add(shares) for shares in zip(*dealt, strict=True)])


def call_library(inputs: list[Numbers]) -> Numbers:
    """Sum marks of the non-zero entries, in four bits each; then the numbers where any mark is set.

    In 32 bits the last of the three sums would be rounded, and `SecureSum` would refuse.
    """
    ask = SecureSum(clients=len(inputs), servers=SERVERS, length=inputs[0].size, largest=LARGEST, modulus_bits=64)
    marks = SecureSum(clients=len(inputs), servers=SERVERS, length=ask.length, largest=1, modulus_bits=4)
    counts = add_up(marks, [(numbers != 0).astype(float) for numbers in inputs])
    return add_up(ask.restricted_to(np.flatnonzero(counts)), inputs)


# As a service -------------------------------------------------------------------------------------------


def split(numbers: Numbers) -> Numbers:
    """Put the high and the low digits of the first numbers at two places each."""
    return np.concatenate([*divmod(numbers[:MOMENTS], BASE), numbers[MOMENTS:]])


def join(sums: Numbers) -> Numbers:
    """Undo `split`, for sums as well: digits that are carried come right."""
    high, low, rest = np.split(sums, [MOMENTS, 2 * MOMENTS])
    return np.concatenate([high * BASE + low, rest])


@dataclass(frozen=True)
class Hospital:
    """A client that does not train; its update is its numbers."""

    numbers: Numbers
    samples: int = 1
    examples: int = 0

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Add the numbers to the model: clients sum the difference."""
        del steps, seed, progress
        return Training(theta + self.numbers.astype(np.float32), memory)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Return no scores: a sum has no quality to measure."""
        del theta, memory
        return {}


@dataclass(frozen=True)
class Statistics:
    """The task. Deployed, each hospital's trainer has its own, which reads that hospital's patients."""

    inputs: list[Numbers]
    name: str = "statistics"
    metrics: tuple[Metric, ...] = ()

    @property
    def ranges(self) -> list[float]:
        """Return the bound of each number that is sent; a manifest takes them over."""
        high = [bound / BASE + 1 for bound in LARGEST[:MOMENTS]]
        return [*high, *[BASE] * MOMENTS, *LARGEST[MOMENTS:]]

    def count_parameters(self) -> int:
        """Return the number of values per hospital."""
        return self.inputs[0].size

    def initial_model(self, seed: int) -> Theta:
        """Return zeros."""
        del seed
        return np.zeros(self.count_parameters(), np.float32)

    def learner(self, *, index: int, clients: int, seed: int) -> Hospital:
        """Return the hospital at this place of the cohort."""
        del clients, seed
        return Hospital(self.inputs[index])


async def ask_services(inputs: list[Numbers], strategy: str) -> Numbers:
    """Run a whole federation in this process; after one round every client holds the sum as its model."""
    task = Statistics([split(numbers) for numbers in inputs])
    parties = make_parties(clients=len(inputs), servers=SERVERS)
    options = RunOptions(strategy=strategy, rho=0.2, local_steps=1, rounds=1, seed=0)
    manifest = draw_up_manifest(task, options, roster=parties.roster)
    with tempfile.TemporaryDirectory(prefix="hubbub-statistics-") as name:
        folder = Path(name)
        async with start_federation(
            manifest, parties=parties, folder=folder, load_task=lambda _: task, demo_seed=None
        ) as federation:
            state, run = await federation.run(manifest)
            if state is not State.COMPLETED:
                raise SystemExit(f"the run is {state.value}: {run.reason}")
        model = read_kept_model(folder / manifest.clients[0] / "runs" / manifest.run_id).theta
    return join(model.astype(np.float64))


# Side by side -------------------------------------------------------------------------------------------


def describe(sums: Numbers) -> dict[str, str]:
    """Compute the statistics from the sums alone."""
    (patients, year, square), codes = sums[:MOMENTS], sums[MOMENTS:]
    return {
        "patients": f"{patients:.0f}",
        "mean year": f"{year / patients:.2f}",
        "variance": f"{square / patients - (year / patients) ** 2:.2f}",
        "codes": f"{np.count_nonzero(codes)}",
        "rare": f"{np.count_nonzero(codes == 1)}",
        "commonest": f"{codes.argmax()} ({codes.max():.0f})",
    }


def main() -> None:
    """Add up in four ways and compare."""
    inputs = [collect(hospital) for hospital in range(HOSPITALS)]
    plain: Numbers = np.sum(inputs, axis=0)
    found = {
        "plain": plain,
        "library": call_library(inputs),
        "service, dense": asyncio.run(ask_services(inputs, "sum")),
        "service, sparse": asyncio.run(ask_services(inputs, "sparse-sum")),
    }
    table = Table("added up by", *describe(plain), box=SIMPLE_HEAD, pad_edge=False)
    for way, sums in found.items():
        table.add_row(way, *describe(sums).values())
        if not np.array_equal(sums, plain):
            raise SystemExit(f"{way}: this is not the plain sum")
    Console().print(table, "All four are equal, number by number.")


if __name__ == "__main__":
    main()
