"""Running to a target: it stops at the first round that reaches it, and not before."""

from hubbub_local.demo import DemoOptions
from hubbub_local.experiment import run_to_target
from hubbub_trainer.learning.synthetic import SyntheticTask
from support.aio import aio

OPTIONS = DemoOptions(task="synthetic", clients=3, rounds=6, local_steps=10, seed=1)


@aio
async def test_it_stops_at_the_first_round_that_reaches_the_target() -> None:
    outcome = await run_to_target(OPTIONS, SyntheticTask(), target=0.5)

    accuracies = [each.metrics["accuracy"] for each in outcome.accounts]
    assert outcome.reached
    assert outcome.metrics["accuracy"] >= 0.5
    assert all(accuracy < 0.5 for accuracy in accuracies[:-1])
    assert outcome.total_bits == outcome.predicted_bits > 0


@aio
async def test_it_ends_after_the_last_round_without_reaching_it() -> None:
    options = DemoOptions(task="synthetic", clients=3, rounds=2, local_steps=1, seed=1, strategy="sec-union")

    outcome = await run_to_target(options, SyntheticTask(), target=1.0)

    assert not outcome.reached
    assert len(outcome.accounts) == 2
    assert outcome.mean_union > 0
