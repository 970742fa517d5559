"""Ways to agree on V, side by side: rounds and payload to a target accuracy, summed in the open.

    python tools/compare_unions.py [--seeds 0,1,2] [--only NAME,NAME] [--target 0.98] [--most-rounds 30]

LeNet is trained as the demo's trainers train it, with the same seeds; marks, signs and factors are added as plain
integers, so that a round takes no longer than its training. Payload is what the compact wire would carry; for the
two insecure references it is what Table 2 of Beguier et al. says. All clients take part in every round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
from union_ways import CLIENTS, EXACT, SERVERS, Floats, Run, Told, Way

from hubbub.crypto.secret import ClientSecret
from hubbub.ids import RunId
from hubbub.protocol import compression, costs
from hubbub_trainer.learning.datasets import default_cache_folder
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.learning.task import Learner, Task, Training

LOCAL_STEPS = 100
MEGABYTE_BITS = 8 * 2**20

Scored = tuple[float, Told]
"""The accuracy after a round, and the round."""

WAYS = (
    Way(name="flat"),
    Way(name="flat-q2", q=2),
    Way(name="flat-0.05", rho=0.05),
    Way(name="flat-support", alpha="support"),
    Way(name="reuse", refresh=2),
    Way(name="reuse-support", refresh=2, alpha="support", everybody=True),
    Way(name="two-levels", rho=0.05, coarse=16),
    Way(name="parts", parts=3, alpha="support", everybody=True),
    Way(name="blocks-4", block=4, alpha="support", everybody=True),
    Way(name="blocks-8", block=8, alpha="support", everybody=True),
    Way(name="blocks-16", block=16, alpha="support", everybody=True),
    Way(name="blocks-32", block=32, alpha="support", everybody=True),
    Way(name="blocks-16-q2", block=16, q=2, rho=0.06, alpha="support", everybody=True),
)
SEP, FEDAVG = "topbinary-sep", "fedavg"
TOLD = ("chosen by one", "sign of one", "unanimous")


# Runs -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Nursery:
    """Trains for all ways of one seed. Nobody knows in the first round which way it will be: it is kept."""

    learners: Sequence[Learner]
    seed: int
    first: dict[int, Training] = field(default_factory=dict)

    def train(self, index: int, number: int, theta: Floats, memory: Floats | None) -> Training:
        """With the batches of the demo's trainer."""
        if number == 1 and index in self.first:
            return self.first[index]
        secret = ClientSecret.for_demo(self.seed, index)
        seed = secret.seed_for("batches", run=RunId("0" * 64), round_number=number)
        training = self.learners[index].train(
            theta, steps=LOCAL_STEPS, seed=seed, progress=lambda *_: None, memory=memory
        )
        if number == 1:
            self.first[index] = training
        return training

    def score(self, theta: Floats) -> float:
        """The mean accuracy on the clients' slices of the test set."""
        return float(np.mean([np.divide(*learner.evaluate(theta)["accuracy"]) for learner in self.learners]))


def run_way(task: Task, way: Way, nursery: Nursery) -> Iterator[Scored]:
    """Round by round, for ever."""
    run, number = Run(task, way, nursery.seed, nursery.train), 0
    while True:
        number += 1
        told = run.play(number)
        if way.name == SEP:
            told = replace(told, bits=_sep_bits(run.theta.size, way.rho, told.union_size))
        yield nursery.score(run.theta), told


def _sep_bits(n: int, rho: float, union_size: int) -> int:
    heads = costs.Headcount.complete(CLIENTS, SERVERS)
    return costs.top_binary_sep_bits(n, compression.count_kept(n, rho), union_size, heads)


def run_fedavg(task: Task, nursery: Nursery) -> Iterator[Scored]:
    """Round by round, for ever; every client weighs as much as it has samples."""
    theta, number = task.initial_model(nursery.seed), 0
    memories: list[Floats | None] = [None] * CLIENTS
    weights = [learner.samples for learner in nursery.learners]
    while True:
        number += 1
        trainings = [nursery.train(index, number, theta, memories[index]) for index in range(CLIENTS)]
        memories = [training.memory for training in trainings]
        trained = np.stack([training.theta for training in trainings]).astype(np.float64)
        theta = np.average(trained, axis=0, weights=weights).astype(np.float32)
        yield nursery.score(theta), Told(costs.fedavg_bits(theta.size, CLIENTS), theta.size)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A way with one seed."""

    name: str
    rounds: tuple[Scored, ...]
    reached: bool

    @property
    def megabytes(self) -> float:
        """Of payload."""
        return sum(told.bits for _, told in self.rounds) / MEGABYTE_BITS


def run_to(target: float, most: int, name: str, rounds: Iterator[Scored]) -> Outcome:
    """Play until the target is reached, or for so many rounds."""
    played: list[Scored] = []
    while len(played) < most and not (played and played[-1][0] >= target):
        played.append(next(rounds))
    return Outcome(name, tuple(played), played[-1][0] >= target)


def show(outcomes: Sequence[Outcome]) -> None:
    """One row for each way, in Markdown."""
    by_name: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_name.setdefault(outcome.name, []).append(outcome)
    means = {name: fmean(each.megabytes for each in runs) for name, runs in by_name.items()}
    head = ("way", "rounds", "MB", "mean", f"÷ {SEP}", "FedAvg ÷", "mean \\|V\\|", *TOLD)
    print(f"\n| {' | '.join(head)} |\n| --- |{' ---: |' * (len(head) - 1)}")
    for name, runs in by_name.items():
        every = [told for run in runs for _, told in run.rounds]
        cells = (
            name,
            ", ".join(f"{len(run.rounds)}" + ("" if run.reached else "+") for run in runs),
            ", ".join(f"{run.megabytes:.3f}" for run in runs),
            f"{means[name]:.3f}",
            f"{means[name] / means[SEP]:.2f}",
            f"{means[FEDAVG] / means[name]:.1f}",
            f"{fmean(told.union_size for told in every):,.0f}",
            f"{fmean(told.alone for told in every):.0%}",
            f"{fmean(told.single for told in every):.0%}",
            f"{fmean(told.unanimous for told in every):.0%}",
        )
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Run everything, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", help=f"of {', '.join(way.name for way in WAYS)}; the references run always")
    parser.add_argument("--target", type=float, default=0.98)
    parser.add_argument("--most-rounds", type=int, default=30)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--partition", default="iid", help="how clients share the data: iid, or dirichlet:A")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [way.name for way in WAYS]
    unknown = set(wanted) - {way.name for way in WAYS}
    if unknown:
        parser.error(
            f"there is no way {', '.join(sorted(unknown))}: choose among {', '.join(w.name for w in WAYS)}"
        )
    task = load_task("lenet", data=options.data, cache_folder=default_cache_folder(), partition=options.partition)
    began, outcomes = time.process_time(), []
    for seed in [int(seed) for seed in options.seeds.split(",")]:
        nursery = Nursery(
            [task.learner(index=index, clients=CLIENTS, seed=seed) for index in range(CLIENTS)], seed
        )
        ways = [Way(name=SEP, q=EXACT, floats=True), *(way for way in WAYS if way.name in wanted)]
        plays = [(FEDAVG, run_fedavg(task, nursery)), *((way.name, run_way(task, way, nursery)) for way in ways)]
        for name, rounds in plays:
            outcomes.append(run_to(options.target, options.most_rounds, name, rounds))
            last = outcomes[-1]
            print(f"{name}, seed {seed}: {len(last.rounds)} rounds, {last.megabytes:.3f} MB", flush=True)
    show(outcomes)
    print(f"\nTook {(time.process_time() - began) / 60:.0f} minutes of one thread.")


if __name__ == "__main__":
    main()
