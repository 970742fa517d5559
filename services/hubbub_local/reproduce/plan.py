"""What is run: the methods, the seeds, and the settings of the paper's section 4 with what was changed in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from hubbub.errors import ConfigurationError
from hubbub.protocol.modes import WireMode
from hubbub.strategies.registry import STRATEGIES
from hubbub_local.demo import DemoOptions
from hubbub_local.reproduce.published import TABLES, PaperTable
from hubbub_trainer.learning.batches import Partition
from hubbub_trainer.learning.datasets import default_cache_folder
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.learning.task import Task

IID = "iid"
BLOCK = 16
"""Indices in a block, where methods have blocks: what took least in docs/results/2026-11-16-unions.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A strategy with its switches, under the name that `--strategies` takes."""

    name: str
    strategy: str
    q: int = 1
    feedback: str = "lost"
    block: int = 1

    @property
    def label(self) -> str:
        """As people read it."""
        if self.strategy != "sec-union":
            return self.name
        letter = ", to the letter" if self.feedback == "paper" else ""
        return f"sec-union, q = {self.q}{letter}{f', blocks of {self.block}' if self.block > 1 else ''}"

    @property
    def has_union(self) -> bool:
        """Whether |V| says anything: without a union it is N."""
        return self.strategy not in {"fedavg", "no-union", "bonawitz", "eastly-tss", "eastly-he"}

    @property
    def is_private(self) -> bool:
        """Whether no server learns anything of a single client."""
        return not STRATEGIES[self.strategy].reveals


# The paper's SecUnion does not give lost indices back ("to the letter"); by default ours does.
_VARIANTS: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "sec-union": (
            Method(name="sec-union-letter", strategy="sec-union", feedback="paper"),
            Method(name="sec-union", strategy="sec-union"),
            Method(name="sec-union-q5-letter", strategy="sec-union", q=5, feedback="paper"),
            Method(name="sec-union-blocks", strategy="sec-union", block=BLOCK),
            Method(name="sec-union-blocks-q2", strategy="sec-union", q=2, block=BLOCK),
        )
    }
)


def list_methods(block: int = BLOCK) -> dict[str, Method]:
    """All that can be run: every strategy of the registry that learns, and sec-union in all its forms."""
    learning = [name for name, strategy in STRATEGIES.items() if not strategy.repeats]
    found = [method for name in learning for method in _VARIANTS.get(name, (Method(name=name, strategy=name),))]
    return {method.name: replace(method, block=block) if method.block > 1 else method for method in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is the same in all runs of a folder. The defaults are the paper's."""

    dataset: str
    task: str
    data: str
    target: float
    max_rounds: int
    partition: str = IID
    clients: int = 5
    servers: int = 2
    rho: float = 0.1
    local_steps: int = 100
    wire: WireMode = "paper"
    """Table 3 counts the paper's, so that is what a run takes unless told otherwise."""

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
        Partition.parse(self.partition)  # Refuses what is none.

    @property
    def table(self) -> PaperTable:
        """What the paper prints for this data set."""
        return TABLES[self.dataset]

    def demo_options(self, method: Method, seed: int) -> DemoOptions:
        """The same as one run is begun with."""
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
            local_steps=self.local_steps,
            rho=self.rho,
            seed=seed,
            wire=self.wire,
        )


_PAPERS: Mapping[str, Settings] = MappingProxyType(
    {
        "mnist": Settings(
            dataset="mnist", task="lenet", data="mnist", target=0.98, max_rounds=TABLES["mnist"].most_rounds
        ),
        "cifar10": Settings(
            dataset="cifar10",
            task="alexnet",
            data="cifar10",
            target=0.80,
            max_rounds=TABLES["cifar10"].most_rounds,
        ),
    }
)
DATASETS = tuple(_PAPERS)


def papers_settings(dataset: str) -> Settings:
    """Section 4 as it is printed; as many rounds as the slowest row of Table 3 takes."""
    return _PAPERS[dataset]


def describe_changes(before: Settings, after: Settings) -> list[str]:
    """What differs between two settings, by the names of the flags."""
    return [
        f"--{field.name.replace('_', '-')} {getattr(after, field.name)} instead of {getattr(before, field.name)}"
        for field in fields(Settings)
        if getattr(before, field.name) != getattr(after, field.name)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All runs that are wanted. A seed's runs are next to each other: they share local training."""

    settings: Settings
    methods: Sequence[Method]
    seeds: Sequence[int]

    @property
    def runs(self) -> list[tuple[Method, int]]:
        """In order."""
        return [(method, seed) for seed in self.seeds for method in self.methods]


def load_task_of(settings: Settings, announce: Callable[[str], None]) -> Task:
    """The network and its data, dealt out as the settings say."""
    return load_task(
        settings.task,
        data=settings.data,
        cache_folder=default_cache_folder(),
        announce=announce,
        partition=settings.partition,
    )


def write_command(plan: Plan) -> str:
    """The command that asks for this plan."""
    usual = papers_settings(plan.settings.dataset)
    changed = [
        f"--{field.name.replace('_', '-')} {getattr(plan.settings, field.name)}"
        for field in fields(Settings)
        if getattr(usual, field.name) != getattr(plan.settings, field.name)
    ]
    names = [method.name for method in plan.methods]
    strategies = [] if names == list(list_methods()) else [f"--strategies {','.join(names)}"]
    blocks = dict.fromkeys(f"--block {each.block}" for each in plan.methods if each.block not in (1, BLOCK))
    seeds = f"--seeds {','.join(map(str, plan.seeds))}"
    return " ".join(["hubbub reproduce", plan.settings.dataset, *strategies, *changed, *blocks, seeds])
