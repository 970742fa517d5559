"""The plan: the paper's settings by default, and words for what was changed in them."""

from dataclasses import replace

import pytest

from hubbub.errors import ConfigurationError
from hubbub.strategies.registry import STRATEGIES
from hubbub_local.reproduce.plan import METHODS, PAPERS, Plan, list_changes

MNIST = PAPERS["mnist"]


def test_every_strategy_that_learns_is_run_and_sec_union_as_the_paper_has_it_too() -> None:
    learning = {name for name, strategy in STRATEGIES.items() if not strategy.repeats}
    forms = {(each.q, each.feedback, each.block) for each in METHODS.values() if each.strategy == "sec-union"}

    assert {method.strategy for method in METHODS.values()} == learning
    assert forms == {(1, "paper", 1), (1, "lost", 1), (5, "paper", 1), (1, "lost", 16), (2, "lost", 16)}


@pytest.mark.parametrize(("dataset", "task", "target"), [("mnist", "lenet", 0.98), ("cifar10", "alexnet", 0.8)])
def test_the_defaults_are_those_of_section_4(dataset: str, task: str, target: float) -> None:
    settings = PAPERS[dataset]

    assert (settings.task, settings.data, settings.target) == (task, dataset, target)
    assert (settings.clients, settings.servers, settings.local_steps, settings.rho) == (5, 2, 100, None)
    assert (settings.partition, settings.wire) == ("iid", "paper")


def test_the_options_of_a_run_carry_all_settings_and_the_methods_switches() -> None:
    settings = replace(MNIST, clients=3, servers=4, rho=0.2, local_steps=7, max_rounds=9, wire="compact")

    options = settings.demo_options(METHODS["sec-union-q5-letter"], 11)

    assert (options.strategy, options.q, options.feedback, options.seed) == ("sec-union", 5, "paper", 11)
    assert (options.clients, options.servers, options.rho) == (3, 4, 0.2)
    assert (options.local_steps, options.rounds, options.wire) == (7, 9, "compact")
    assert MNIST.demo_options(METHODS["sec-union-blocks"], 0).block == 16
    assert settings.demo_options(METHODS["shared-mask"], 0).rho == 0.2


def test_data_that_may_be_another_set_tomorrow_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="say which"):
        replace(MNIST, data="auto")


def test_the_command_asks_for_the_same_plan_again() -> None:
    settings = replace(MNIST, data="digits", local_steps=10, wire="compact")
    some = Plan(settings=settings, methods=[METHODS["no-union"]], seeds=(0, 2))
    everything = Plan(settings=MNIST, methods=list(METHODS.values()), seeds=(0,))

    assert list_changes(MNIST, settings)["--local-steps"] == (100, 10)
    assert some.command == (
        "hubbub reproduce mnist --strategies no-union --data digits --local-steps 10 --wire compact --seeds 0,2"
    )
    assert everything.command == "hubbub reproduce mnist --seeds 0"
