"""Local training compared with a bare PyTorch loop: the same network as modules, torch.optim.SGD, same batches.

The bare loop is the obvious one: modules in the order of the paper's tables, and `backward`. Both sides run on one
thread, in turn, and are timed by its CPU time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hubbub_trainer.learning.batches import order_batches
from hubbub_trainer.learning.images import Channel, LabelledImages
from hubbub_trainer.learning.network_training import RECIPES, NetworkLearner, Recipe, draw_flips
from hubbub_trainer.learning.networks import Hand, draw_initial_model
from hubbub_trainer.learning.task import Theta

_SAMPLES = 2_000
_BATCH_SIZE = 64
_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Number of repeats, and of steps per repeat."""

    repeats: int
    lenet_steps: int
    alexnet_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Network, as we train it and as modules, and the number of steps that are timed at once."""

    network: str
    steps: int
    recipe: Recipe
    image: tuple[int, ...]
    modules: Callable[[], nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """Medians over `repeats` of the time for all steps; the ratio is the median of neighbours' ratios."""

    network: str
    steps: int
    repeats: int
    seconds: float
    bare_s: float
    ratio: float


def _build_lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def _build_alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
        nn.LocalResponseNorm(4, alpha=0.001 / 9, beta=0.75, k=1.0),
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(),
        nn.LocalResponseNorm(4, alpha=0.001 / 9, beta=0.75, k=1.0),
        nn.MaxPool2d(3, stride=2, padding=1), nn.Flatten(),
        nn.Linear(4096, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip


def make_contests(plan: TrainingPlan) -> tuple[Contest, ...]:
    """Return the paper's two networks, with its hyper-parameters."""
    lenet = Contest(
        network="lenet",
        steps=plan.lenet_steps,
        recipe=RECIPES["lenet"],
        image=(28, 28),
        modules=_build_lenet,
    )
    alexnet = Contest(
        network="alexnet",
        steps=plan.alexnet_steps,
        recipe=RECIPES["alexnet"],
        image=(3, 32, 32),
        modules=_build_alexnet,
    )
    return lenet, alexnet


def time_training(contest: Contest, repeats: int) -> TrainingTime:
    """Time both sides in turn, each once beforehand to warm up."""
    ours, bare = prepare(contest)
    for warm_up in (ours, bare):
        warm_up()
    pairs = [(_time(ours), _time(bare)) for _ in range(repeats)]
    return TrainingTime(
        network=contest.network,
        steps=contest.steps,
        repeats=repeats,
        seconds=statistics.median(own for own, _ in pairs),
        bare_s=statistics.median(other for _, other in pairs),
        ratio=statistics.median(own / other for own, other in pairs),
    )


def _time(run: Callable[[], object]) -> float:
    started = time.thread_time()
    run()
    return time.thread_time() - started


def prepare(contest: Contest) -> tuple[Callable[[], Theta], Callable[[], Theta]]:
    """Return both training functions, which start from the same model on the same images."""
    generator = np.random.default_rng(_SEED)
    pixels = generator.integers(256, size=(_SAMPLES, *contest.image), dtype=np.uint8)
    classes = generator.integers(10, size=_SAMPLES, dtype=np.uint8)
    samples = LabelledImages(pixels, classes)
    channels = (Channel(mean=0.5, deviation=0.25),) * contest.recipe.shapes["conv1.weight"][1]
    learner = NetworkLearner(contest.recipe, Hand(training=samples, test=samples, channels=channels))
    theta = draw_initial_model(contest.recipe.shapes, _SEED)
    images = torch.tensor(
        (pixels.reshape(_SAMPLES, len(channels), *contest.image[-2:]) / 255 - 0.5) / 0.25
    ).float()
    labels = torch.tensor(classes.astype(np.int64))

    def train() -> Theta:
        return learner.train(theta, steps=contest.steps, seed=_SEED, progress=lambda _done, _steps: None).theta

    return train, lambda: _train_bare(contest, theta, images, labels)


def _train_bare(contest: Contest, theta: Theta, images: torch.Tensor, labels: torch.Tensor) -> Theta:
    torch.set_num_threads(1)
    network = contest.modules()
    nn.utils.vector_to_parameters(torch.tensor(theta), network.parameters())
    optimiser = torch.optim.SGD(
        network.parameters(), lr=contest.recipe.learning_rate, momentum=contest.recipe.momentum
    )
    order = order_batches(len(labels), steps=contest.steps, batch_size=_BATCH_SIZE, seed=_SEED)
    for which, flipped in zip(torch.from_numpy(order), draw_flips(order.shape, _SEED), strict=True):
        batch = images[which]
        if contest.recipe.flips:
            batch = torch.where(flipped.view(-1, 1, 1, 1), batch.flip(3), batch)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(network(batch), labels[which])
        loss.backward()  # type: ignore[no-untyped-call]  # Torch's.
        optimiser.step()
    trained: Theta = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    return trained
