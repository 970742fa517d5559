"""Plan of a reproduction: methods, seeds, and the settings of the paper's section 4 with changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from hubbub.errors import ConfigurationError
from hubbub.ids import Feedback, WireMode
from hubbub.strategies.registry import STRATEGIES
from hubbub_local.options import DemoOptions
from hubbub_local.reproduce.paper import TABLES, PaperTable
from hubbub_trainer.learning.batches import Partition

BLOCK = 16
"""Indices per block in methods with blocks: the cheapest size in docs/findings.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A strategy with its switches, under the name that `--strategies` takes."""

    name: str
    strategy: str
    q: int = 1
    feedback: Feedback = "lost"
    block: int = 1

    @property
    def label(self) -> str:
        """Name in reports."""
        if self.strategy != "sec-union":
            return self.name
        letter = ", to the letter" if self.feedback == "paper" else ""
        return f"sec-union, q = {self.q}{letter}{f', blocks of {self.block}' if self.block > 1 else ''}"

    @property
    def has_union(self) -> bool:
        """Say whether |V| means anything: without a union it is N."""
        return STRATEGIES[self.strategy].support != "dense"

    @property
    def is_private(self) -> bool:
        """Say whether no server learns anything of a single client."""
        return not STRATEGIES[self.strategy].reveals


# The paper's SecUnion does not give lost indices back ("to the letter"); by default ours does.
METHODS = {
    method.name: method
    for method in (
        *(
            Method(name=name, strategy=name)
            for name in ("fedavg", "topbinary-direct", "topbinary-sep", "no-union")
        ),
        Method(name="sec-union-letter", strategy="sec-union", feedback="paper"),
        Method(name="sec-union", strategy="sec-union"),
        Method(name="sec-union-q5-letter", strategy="sec-union", q=5, feedback="paper"),
        Method(name="sec-union-blocks", strategy="sec-union", block=BLOCK),
        Method(name="sec-union-blocks-q2", strategy="sec-union", q=2, block=BLOCK),
        *(
            Method(name=name, strategy=name)
            for name in (
                "partial-sec-union",
                "plaintext-union",
                "shared-mask",
                "secure-fedavg",
                "bonawitz",
                "eastly-tss",
                "eastly-he",
            )
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that all runs of a folder share. The defaults are the paper's."""

    dataset: str
    task: str
    data: str
    target: float
    max_rounds: int
    partition: str = "iid"
    clients: int = 5
    servers: int = 2
    rho: float | None = None
    """None for what is usual with a strategy."""
    local_steps: int = 100
    wire: WireMode = "paper"
    """The default is the paper's wire mode, which Table 3 counts."""
    learning_rate: float | None = None
    """None for the task's own, or that recommended for a mask."""
    server_momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            meant = f"; did you mean {self.target / 100:g}?" if 1 < self.target <= 100 else ""  # noqa: PLR2004
            raise ConfigurationError(
                f"--target is {self.target:g}: an accuracy is more than 0 and at most 1, such as 0.98{meant}"
            )
        if self.data == "auto":
            raise ConfigurationError(
                "--data auto may be one set today and another tomorrow: say which, such as mnist or digits"
            )
        Partition.parse(self.partition)  # Raises if it is invalid.

    @property
    def table(self) -> PaperTable:
        """The paper's printed results for this data set."""
        return TABLES[self.dataset]

    def demo_options(self, method: Method, seed: int) -> DemoOptions:
        """Return the options that start one run."""
        return DemoOptions(
            strategy=method.strategy,
            q=method.q,
            block=method.block,
            feedback=method.feedback,
            task=self.task,
            data=self.data,
            clients=self.clients,
            servers=self.servers,
            rounds=self.max_rounds,
            target=self.target,
            local_steps=self.local_steps,
            rho=self.rho,
            learning_rate=self.learning_rate,
            server_momentum=self.server_momentum,
            seed=seed,
            wire=self.wire,
        )


# As many rounds as the slowest row of Table 3 takes.
PAPERS = {
    "mnist": Settings(dataset="mnist", task="lenet", data="mnist", target=0.98, max_rounds=22),
    "cifar10": Settings(dataset="cifar10", task="alexnet", data="cifar10", target=0.80, max_rounds=114),
}


def list_changes(before: Settings, after: Settings) -> dict[str, tuple[object, object]]:
    """Return both values of every setting that differs, by its flag; "the usual" is one that was not given."""

    def show(settings: Settings, name: str) -> object:
        value = getattr(settings, name)
        return "the usual" if value is None else value

    both = {field.name: (show(before, field.name), show(after, field.name)) for field in fields(Settings)}
    return {f"--{name.replace('_', '-')}": pair for name, pair in both.items() if pair[0] != pair[1]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All runs that are wanted."""

    settings: Settings
    methods: Sequence[Method]
    seeds: Sequence[int]

    @property
    def command(self) -> str:
        """The command that asks for this plan."""
        changes = list_changes(PAPERS[self.settings.dataset], self.settings)
        names = [method.name for method in self.methods]
        strategies = [] if names == list(METHODS) else [f"--strategies {','.join(names)}"]
        changed = [f"{flag} {after}" for flag, (_, after) in changes.items()]
        seeds = f"--seeds {','.join(map(str, self.seeds))}"
        return " ".join(["hubbub reproduce", self.settings.dataset, *strategies, *changed, seeds])
