"""What is run: the paper's settings by default, and words for what was changed in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hubbub.errors import ConfigurationError
from hubbub.strategies.registry import STRATEGIES
from hubbub_local.reproduce.plan import (
    Plan,
    describe_changes,
    list_methods,
    papers_settings,
    write_command,
)

MNIST = papers_settings("mnist")


def test_every_strategy_that_learns_is_run_and_sec_union_as_the_paper_has_it_too() -> None:
    methods = list_methods()

    assert {method.strategy for method in methods.values()} == set(STRATEGIES) - {"sum", "sparse-sum"}
    assert {(each.q, each.feedback, each.block) for each in methods.values() if each.strategy == "sec-union"} == {
        (1, "paper", 1),
        (1, "lost", 1),
        (5, "paper", 1),
        (1, "lost", 16),
        (2, "lost", 16),
    }


def test_blocks_are_as_large_as_they_are_wanted_and_in_the_command_if_that_is_unusual() -> None:
    usual, other = list_methods(), list_methods(8)

    assert {each.block for each in other.values()} == {1, 8}
    assert other["sec-union-blocks"].label == "sec-union, q = 1, blocks of 8"
    assert MNIST.demo_options(other["sec-union-blocks-q2"], 0).block == 8
    names = ("sec-union", "sec-union-blocks", "sec-union-blocks-q2")
    for methods, flag in ((usual, ""), (other, " --block 8")):
        plan = Plan(settings=MNIST, methods=[methods[name] for name in names], seeds=[0])
        assert write_command(plan) == f"hubbub reproduce mnist --strategies {','.join(names)}{flag} --seeds 0"


@pytest.mark.parametrize(
    ("dataset", "task", "target", "rounds"), [("mnist", "lenet", 0.98, 22), ("cifar10", "alexnet", 0.8, 114)]
)
def test_the_defaults_are_those_of_section_4(dataset: str, task: str, target: float, rounds: int) -> None:
    settings = papers_settings(dataset)

    assert (settings.task, settings.data, settings.target, settings.max_rounds) == (task, dataset, target, rounds)
    assert (settings.clients, settings.servers, settings.local_steps, settings.rho) == (5, 2, 100, 0.1)
    assert settings.partition == "iid"
    assert settings.demo_options(list_methods()["no-union"], 0).wire == settings.wire == "paper"


def test_the_options_of_a_run_carry_all_settings_and_the_methods_switches() -> None:
    settings = replace(MNIST, clients=3, servers=4, rho=0.2, local_steps=7, max_rounds=9, wire="compact")

    options = settings.demo_options(list_methods()["sec-union-q5-letter"], 11)

    assert (options.strategy, options.q, options.feedback, options.seed) == ("sec-union", 5, "paper", 11)
    assert (options.clients, options.servers, options.rho) == (3, 4, 0.2)
    assert (options.local_steps, options.rounds, options.wire) == (7, 9, "compact")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": 98}, "did you mean 0.98?"),
        ({"target": 0}, "more than 0 and at most 1"),
        ({"data": "auto"}, "say which"),
        ({"partition": "dirichlet"}, "such as dirichlet:0.5"),
        ({"partition": "dirichlet:0"}, "a number A between"),
        ({"partition": "dirichlet:nan"}, "a number A between"),
        ({"partition": "diriclet:1"}, "there is no partition 'diriclet:1'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        replace(MNIST, **change)  # type: ignore[arg-type]  # Wrong on purpose.

    assert message in str(refused.value)


def test_a_partition_by_dirichlet_is_taken() -> None:
    assert replace(MNIST, partition="dirichlet:0.5").partition == "dirichlet:0.5"


def test_changes_are_told_by_flag_with_both_values() -> None:
    changed = replace(MNIST, local_steps=10, rho=0.2)

    assert describe_changes(MNIST, changed) == ["--rho 0.2 instead of 0.1", "--local-steps 10 instead of 100"]
    assert describe_changes(MNIST, MNIST) == []


def test_a_seeds_runs_are_next_to_each_other_because_they_share_training() -> None:
    methods = [list_methods()[name] for name in ("no-union", "fedavg")]

    runs = Plan(settings=MNIST, methods=methods, seeds=(3, 4)).runs

    assert [(method.name, seed) for method, seed in runs] == [
        *(("no-union", 3), ("fedavg", 3)),
        *(("no-union", 4), ("fedavg", 4)),
    ]


def test_the_command_asks_for_the_same_plan_again() -> None:
    settings = replace(MNIST, data="digits", local_steps=10, wire="compact")
    some = Plan(settings=settings, methods=[list_methods()["no-union"]], seeds=(0, 2))
    everything = Plan(settings=MNIST, methods=list(list_methods().values()), seeds=(0,))

    assert write_command(some) == (
        "hubbub reproduce mnist --strategies no-union --data digits --local-steps 10 --wire compact --seeds 0,2"
    )
    assert write_command(everything) == "hubbub reproduce mnist --seeds 0"
