"""What two unions around a void round tell of the indices of the client that was absent.

A union is released over M, a member v is then missing and the round is void; all train anew from the same model
with fresh batches, and the next union is over M without v. What is in the first and not in the second may be v's,
the more likely the less the others change their minds. Here LeNet is trained in the plaintext, each round is tried
several times from the same state, and for each client in turn as v it is counted what an adversary gains that
sees the sums of the marks. It takes indices as they come: it knows no layers and no earlier rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from hubbub.crypto.stream import AesCtrStream
from hubbub.parameters import Parameters
from hubbub.protocol.influence import NO_HISTORY
from hubbub.protocol.leakage import pair_error
from hubbub.strategies.base import ClientInput, ClientRound, Release, Strategy, Theta
from hubbub.strategies.registry import find_strategy
from hubbub_trainer.learning.datasets import default_cache_folder
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.learning.task import Task, Training

CLIENTS = 5
RHO = 0.1
LOCAL_STEPS = 100
PAIRS = 3

Totals = NDArray[np.int64]
Chosen = NDArray[np.bool_]
Table = NDArray[np.int64]
"""A row for each thing that can be observed at an index: how often v did not choose the index then, and did."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A strategy under test."""

    label: str
    strategy: str
    q: int = 1
    block: int = 1
    """With more than one, all that is said of indices is said of blocks."""

    @property
    def counts(self) -> bool:
        """Whether the sum of the marks says how many chose an index."""
        return self.strategy == "partial-sec-union"


SETTINGS = (
    Setting("sec-union q=1", "sec-union"),
    Setting("sec-union q=2", "sec-union", q=2),
    Setting("partial-sec-union", "partial-sec-union"),
)


def list_settings(block: int) -> tuple[Setting, ...]:
    """The flat unions; or, with a block, those over blocks."""
    if block == 1:
        return SETTINGS
    return tuple(Setting(f"sec-union q={q} b={block}", "sec-union", q=q, block=block) for q in (1, 2))


# Training -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """All clients, trained once from the state that the last released round left."""

    trainings: tuple[Training, ...]
    rounds: tuple[ClientRound, ...]
    marks: Totals
    modulus: int

    @property
    def chosen(self) -> Chosen:
        """Who chose what: a row for each client."""
        chosen: Chosen = self.marks != 0
        return chosen

    def unite(self, members: Sequence[int]) -> Totals:
        """What the union phase releases over these members."""
        total: Totals = self.marks[list(members)].sum(axis=0) % self.modulus
        return total


class Federation:
    """The clients of a run, in the plaintext."""

    def __init__(self, task: Task, strategy: Strategy, parameters: Parameters, seed: int) -> None:
        self._strategy = strategy
        self._parameters = parameters
        self._draws = np.random.default_rng(seed)
        self._learners = [task.learner(index=index, clients=CLIENTS, seed=seed) for index in range(CLIENTS)]
        self._theta = task.initial_model(seed)
        self._accumulators = [np.zeros_like(self._theta)] * CLIENTS
        self._memories: list[Theta | None] = [None] * CLIENTS
        self._history = NO_HISTORY

    def attempt(self) -> Attempt:
        """Train everybody with fresh batches; nothing is kept of it until it is released."""
        trainings = tuple(
            learner.train(
                self._theta,
                steps=LOCAL_STEPS,
                seed=int(self._draws.integers(2**63)),
                progress=lambda *_: None,
                memory=memory,
            )
            for learner, memory in zip(self._learners, self._memories, strict=True)
        )
        rounds = tuple(self._begin(index, training) for index, training in enumerate(trainings))
        marks = np.stack([each.contribute("union")[0] for each in rounds]).astype(np.int64)
        return Attempt(trainings, rounds, marks, rounds[0].vectors("union")[0].modulus)

    def _begin(self, index: int, training: Training) -> ClientRound:
        mine = ClientInput(
            theta=self._theta,
            update=training.theta - self._theta,
            accumulator=self._accumulators[index],
            samples=self._learners[index].samples,
            stream=AesCtrStream(self._draws.bytes(32)),
            history=self._history,
        )
        return self._strategy.begin(self._parameters, mine)

    def release(self, attempt: Attempt) -> None:
        """Let this attempt count: all take part and step."""
        for phase in self._strategy.phases:
            vectors = attempt.rounds[0].vectors(phase.name)
            inputs = [each.contribute(phase.name) for each in attempt.rounds]
            sums = tuple(
                (np.sum([mine[place].astype(np.int64) for mine in inputs], axis=0) % vector.modulus).astype(
                    np.uint32
                )
                for place, vector in enumerate(vectors)
            )
            for each in attempt.rounds:
                each.absorb(phase.name, Release(vectors, sums), CLIENTS)
        ends = [each.conclude(took_part=True) for each in attempt.rounds]
        self._theta = ends[0].theta
        self._accumulators = [end.accumulator for end in ends]
        self._history = ends[0].history
        self._memories = [training.memory for training in attempt.trainings]

    def score(self) -> float:
        """The model's mean accuracy on the clients' slices of the test set."""
        return float(
            np.mean([np.divide(*learner.evaluate(self._theta)["accuracy"]) for learner in self._learners])
        )


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One round, tried several times from the same state, and the next round after the first attempt."""

    setting: Setting
    number: int
    accuracy: float
    attempts: tuple[Attempt, ...]
    following: Attempt


def run_trials(task: Task, setting: Setting, numbers: Sequence[int], seed: int) -> Iterator[Trial]:
    """Train to the last of these rounds, and try each of them as often as the pairs need."""
    strategy = find_strategy(setting.strategy)
    parameters = Parameters(
        parameters=task.count_parameters(),
        clients=CLIENTS,
        servers=2,
        rho=RHO,
        q=setting.q,
        block=setting.block,
        verified=False,
    )
    federation = Federation(task, strategy, parameters, seed)
    attempt = federation.attempt()
    for number in range(1, max(numbers) + 1):
        more = [federation.attempt() for _ in range(2 * PAIRS - 1)] if number in numbers else []
        accuracy = federation.score() if more else 0.0
        federation.release(attempt)
        following = federation.attempt()
        if more:
            yield Trial(setting, number, accuracy, (attempt, *more), following)
        attempt = following


# What is seen, and what it is worth -----------------------------------------------------------------------


def tabulate(seen: Sequence[Totals], truth: Chosen, where: Chosen | None = None) -> Table:
    """Count v's choices for each combination of what is seen, at these indices (by default all)."""
    code = np.zeros(truth.size, dtype=np.int64)
    for values in seen:
        code = code * (int(values.max(initial=0)) + 1) + values
    inside = np.ones(truth.size, dtype=np.bool_) if where is None else where
    _, code = np.unique(code[inside], return_inverse=True)
    cells = int(code.max(initial=0)) + 1
    return np.bincount(code * 2 + truth[inside], minlength=2 * cells).reshape(cells, 2).astype(np.int64)


def entropy(table: Table) -> float:
    """H(v's choice | what is seen), in bits per index."""
    sums = table.sum(axis=1, keepdims=True)
    shares = table / np.maximum(sums, 1)
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    return float(-(table * logs).sum() / table.sum())


def order_by_suspicion(table: Table) -> Table:
    """Put what speaks for v first."""
    return table[np.argsort(-table[:, 1] / table.sum(axis=1), kind="stable")]


def area(table: Table) -> float:
    """The area under the curve: how often an index of v ranks above one that is not, ties counted half."""
    innocent, guilty = table[:, 0], table[:, 1]
    below = innocent.sum() - np.cumsum(innocent)
    return float((guilty * (below + innocent / 2)).sum() / (guilty.sum() * innocent.sum()))


def hit_rate(table: Table, guesses: int) -> float:
    """How many of so many guesses are right, if the most suspicious indices are named."""
    ordered = order_by_suspicion(table)
    sums = ordered.sum(axis=1)
    named = np.clip(guesses - (np.cumsum(sums) - sums), 0, sums)
    return float((named * ordered[:, 1] / sums).sum() / guesses)


@dataclass(frozen=True, slots=True)
class Gain:
    """What something seen is worth to the adversary, over all indices of the model."""

    entropy: float
    area: float
    hits: float


def weigh(tables: Sequence[Table], kept: int) -> Gain:
    """The mean over tables, one for each v."""
    return Gain(
        _mean(entropy(table) for table in tables),
        _mean(area(order_by_suspicion(table)) for table in tables),
        _mean(hit_rate(table, kept) for table in tables),
    )


def _mean(values: Iterator[float] | Sequence[float]) -> float:
    return float(np.mean(list(values)))


# The views of an adversary --------------------------------------------------------------------------------


def others_of(absent: int) -> list[int]:
    """M without v."""
    return [client for client in range(CLIENTS) if client != absent]


View = Callable[[Trial, int], list[Totals]]
"""A trial and who is v, to what is seen."""


def see_first(trial: Trial, absent: int) -> list[Totals]:
    """The void round's union alone."""
    del absent
    return [trial.attempts[0].unite(range(CLIENTS))]


def see_pair(trial: Trial, absent: int) -> list[Totals]:
    """The void round's union, and the next one without v."""
    return [*see_first(trial, absent), trial.attempts[1].unite(others_of(absent))]


def see_control(trial: Trial, absent: int) -> list[Totals]:
    """The same, but nobody is absent."""
    return [*see_first(trial, absent), trial.attempts[1].unite(range(CLIENTS))]


def see_ordinary(trial: Trial, absent: int) -> list[Totals]:
    """No round is void: v is in one round and not in the next."""
    return [*see_first(trial, absent), trial.following.unite(others_of(absent))]


def see_pairs(pairs: int) -> View:
    """So many pairs from one model: the first union, and how often, or how much, an index is in the others."""

    def see(trial: Trial, absent: int) -> list[Totals]:
        def weight(total: Totals) -> Totals:
            return total if trial.setting.counts else (total != 0).astype(np.int64)

        with_v = [weight(attempt.unite(range(CLIENTS))) for attempt in trial.attempts[2 : 2 * pairs : 2]]
        without = [weight(attempt.unite(others_of(absent))) for attempt in trial.attempts[1 : 2 * pairs : 2]]
        nothing = np.zeros_like(without[0])
        return [*see_first(trial, absent), sum(with_v, nothing), sum(without, nothing)]

    return see


def see_with_help(helpers: int, *, pair: bool) -> View:
    """Some of the others tell the adversary what they sent; it takes it off the sums."""

    def see(trial: Trial, absent: int) -> list[Totals]:
        corrupt = [(absent + 1 + place) % CLIENTS for place in range(helpers)]
        honest = [client for client in others_of(absent) if client not in corrupt]
        first, second = trial.attempts[:2]
        seen = [first.unite([absent, *honest]), first.chosen[corrupt].sum(axis=0)]
        if pair:
            seen += [second.unite(honest), second.chosen[corrupt].sum(axis=0)]
        return seen

    return see


def weigh_view(trial: Trial, view: View) -> Gain:
    """What a view tells of v's choice in the void round, for each client in turn as v."""
    truth = trial.attempts[0].chosen
    tables = [tabulate(view(trial, absent), truth[absent]) for absent in range(CLIENTS)]
    return weigh(tables, int(truth[0].sum()))


def weigh_mean(trials: Sequence[Trial], view: View) -> Gain:
    """The same, as the mean over trials."""
    gains = [weigh_view(trial, view) for trial in trials]
    return Gain(
        _mean(gain.entropy for gain in gains),
        _mean(gain.area for gain in gains),
        _mean(gain.hits for gain in gains),
    )


# The tables -----------------------------------------------------------------------------------------------


def overlap_row(trial: Trial) -> list[str]:
    """How alike two trainings of one client are, and two clients of one training."""
    first, second = trial.attempts[0].chosen, trial.attempts[1].chosen
    kept = first[0].sum()
    own = _mean([float((first[each] & second[each]).sum() / kept) for each in range(CLIENTS)])
    pairs = [(one, two) for one in range(CLIENTS) for two in range(one)]
    between = _mean([float((first[one] & first[two]).sum() / kept) for one, two in pairs])
    unions = [see_pair(trial, absent) for absent in range(CLIENTS)]
    sizes = [_mean([float(np.count_nonzero(seen[place])) for seen in unions]) for place in (0, 1)]
    return [f"{trial.accuracy:.1%}", f"{own:.1%}", f"{between:.1%}", *(f"{size:,.0f}" for size in sizes)]


def rule_row(trial: Trial) -> list[str]:
    """Within V1: the rates, the plain rule (not in V2; with counts: the count fell), and the best rule."""
    pair = [_judge(trial, see_pair(trial, absent), absent) for absent in range(CLIENTS)]
    control = [_judge(trial, see_control(trial, absent), absent) for absent in range(CLIENTS)]
    before, *rates, plain, best = (_mean(column) for column in zip(*pair, strict=True))
    areas = [plain, before, best, *(_mean([each[place] for each in control]) for place in (-2, -1))]
    return [*(f"{rate:.1%}" for rate in rates), *(f"{value:.3f}" for value in areas)]


def _judge(trial: Trial, seen: Sequence[Totals], absent: int) -> tuple[float, ...]:
    first, second = seen
    truth, inside = trial.attempts[0].chosen[absent], first != 0
    gone = inside & (second == 0)
    fall = first - second if trial.setting.counts else gone.astype(np.int64)
    fell = inside & (fall > 0)
    # Cells ascend with what they stand for; the plain rule suspects the largest fall most.
    by_fall = tabulate([fall - int(fall.min())], truth, inside)[::-1]
    return (
        area(order_by_suspicion(tabulate([first], truth, inside))),
        float(truth[inside].mean()),
        float(truth[gone].mean()),
        float(truth[inside & ~gone].mean()),
        float(truth[fell].mean()),
        float(truth[fell].sum() / truth[inside].sum()),
        area(by_fall),
        area(order_by_suspicion(tabulate(seen, truth, inside))),
    )


def alone_row(trial: Trial) -> list[str]:
    """Of the indices in V1 that one client alone chose: how many are v's, before and after V2."""
    first = trial.attempts[0].chosen
    rates = []
    for absent in range(CLIENTS):
        one, two = see_pair(trial, absent)
        alone = (first.sum(axis=0) == 1) & (one != 0)
        where = (alone, alone & (two == 0), alone & (two != 0))
        rates.append([float(alone.sum()), *(float(first[absent][each].mean()) for each in where)])
    count, *means = (_mean(column) for column in zip(*rates, strict=True))
    return [f"{count:,.0f}", *(f"{mean:.1%}" for mean in means)]


def bits_row(trial: Trial) -> list[str]:
    """H(v's choice | V1), and what the second union takes off it."""
    before = weigh_view(trial, see_first)
    views = [weigh_view(trial, view) for view in (see_pair, see_control, see_ordinary)]
    gains = [before.entropy - view.entropy for view in views]
    return [
        f"{before.entropy:.4f}",
        *(f"{gain:.4f} ({gain / before.entropy:.0%})" for gain in gains),
        *(f"{view.hits:.1%}" for view in (before, *views)),
    ]


def parity_row(trial: Trial) -> list[str]:
    """At q = 1: how often V1 and V2 differ where v chose nothing, or agree where it did; and by the formula."""
    chosen, after = trial.attempts[0].chosen, trial.attempts[1].chosen
    wrong = []
    for absent in range(CLIENTS):
        first, second = see_pair(trial, absent)
        wrong.append(float(np.mean((first != second) != chosen[absent])))
    own = _mean([float((chosen[each] & after[each]).sum() / chosen[each].sum()) for each in range(CLIENTS)])
    return [f"{own:.1%}", f"{_mean(wrong):.3f}", f"{pair_error(RHO, own, CLIENTS - 1):.3f}"]


def pairs_row(trials: Sequence[Trial], pairs: int) -> list[str]:
    """What so many pairs from one model tell, as the mean over the rounds."""
    before, after = weigh_mean(trials, see_first), weigh_mean(trials, see_pairs(pairs) if pairs else see_first)
    gain = before.entropy - after.entropy
    return [str(pairs), f"{gain:.4f} ({gain / before.entropy:.0%})", f"{after.area:.3f}", f"{after.hits:.1%}"]


def help_row(trials: Sequence[Trial], helpers: int) -> list[str]:
    """What a pair tells when some of the others help, as the mean over the rounds."""
    before = weigh_mean(trials, see_with_help(helpers, pair=False))
    after = weigh_mean(trials, see_with_help(helpers, pair=True))
    gain = before.entropy - after.entropy
    return [
        str(helpers),
        f"{before.entropy:.4f}",
        f"{gain:.4f} ({gain / before.entropy:.0%})",
        f"{before.hits:.1%}",
        f"{after.hits:.1%}",
    ]


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n## {title}\n")
    print(f"| {' | '.join(name.replace('|', chr(92) + '|') for name in head)} |")
    print(f"| --- | {' | '.join(['---:'] * (len(head) - 1))} |")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    """Train, count, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", default="1,3,6", help="the rounds that are tried, comma-separated (default 1,3,6)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--block", type=int, default=1, help="sec-union over blocks of so many indices, and no other"
    )
    parser.add_argument("--data", default="mnist")
    options = parser.parse_args()
    numbers = [int(number) for number in options.rounds.split(",")]
    began = time.process_time()
    task = load_task("lenet", data=options.data, cache_folder=default_cache_folder())
    trials = [
        trial
        for setting in list_settings(options.block)
        for trial in run_trials(task, setting, numbers, options.seed)
    ]
    _show_all(trials)
    print(
        f"\nMade on {datetime.now(UTC):%Y-%m-%d} in {(time.process_time() - began) / 60:.1f} minutes of one thread"
        f" on {os.cpu_count()} cores, Python {platform.python_version()}."
    )


def _show_all(trials: Sequence[Trial]) -> None:
    def each(row: Callable[[Trial], list[str]], chosen: Sequence[Trial] = trials) -> list[list[str]]:
        return [[trial.setting.label, str(trial.number), *row(trial)] for trial in chosen]

    def pooled(row: Callable[[Sequence[Trial], int], list[str]], numbers: Sequence[int]) -> list[list[str]]:
        settings = dict.fromkeys(trial.setting for trial in trials)
        groups = [[trial for trial in trials if trial.setting == setting] for setting in settings]
        return [[group[0].setting.label, *row(group, number)] for group in groups for number in numbers]

    show(
        "How alike two trainings are",
        ("strategy", "round", "accuracy", "own overlap", "between clients", "|V1|", "|V2|"),
        each(overlap_row),
    )
    show(
        "Whose is an index of V1?",
        (
            *("strategy", "round", "v's in V1", "in V1∖V2", "in V1∩V2", "precision", "recall", "AUC"),
            *("best AUC: V1", "pair", "control: AUC", "best AUC"),
        ),
        each(rule_row),
    )
    show(
        "Indices that one client alone chose",
        ("strategy", "round", "in V1", "v's of them", "v's in V1∖V2", "v's in V1∩V2"),
        each(alone_row),
    )
    show(
        "Bits per index, and k guesses",
        (
            *("strategy", "round", "H(v given V1)", "pair", "control", "no void"),
            *("hits: V1", "hits: pair", "hits: control", "hits: no void"),
        ),
        each(bits_row),
    )
    show(
        "Parities at q = 1",
        ("strategy", "round", "own overlap", "wrong", "formula"),
        each(
            parity_row,
            [trial for trial in trials if trial.setting.strategy == "sec-union" and trial.setting.q == 1],
        ),
    )
    show(
        "More pairs from one model",
        ("strategy", "pairs", "bits", "AUC", "hits"),
        pooled(pairs_row, range(PAIRS + 1)),
    )
    show(
        "With help from other clients",
        ("strategy", "helpers", "H(v given V1)", "pair", "hits: V1", "hits: pair"),
        pooled(help_row, range(CLIENTS - 1)),
    )


if __name__ == "__main__":
    main()
