import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from hubbub.errors import LocalError
from hubbub_trainer.learning.alexnet import AlexnetTask
from hubbub_trainer.learning.alexnet_training import AlexnetLearner, normalise
from hubbub_trainer.learning.batches import order_batches
from hubbub_trainer.learning.task import Theta
from support.colour_files import pack_batches
from support.image_files import write_image_folder
from support.read_scores import read_scores

SEED = 2**127 + 11
STEPS = 2


def ignore(_done: int, _steps: int) -> None:
    pass


def digest(theta: Theta) -> str:
    return hashlib.sha256(theta.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image_folder(tmp_path_factory.mktemp("images"), pack_batches(train=500, test=53))


@pytest.fixture(scope="module")
def task(folder: Path) -> AlexnetTask:
    return AlexnetTask(data=str(folder), cache_folder=folder, announce=print)


@pytest.fixture(scope="module")
def learners(task: AlexnetTask) -> list[AlexnetLearner]:
    return [task.learner(index=index, clients=2, seed=7) for index in range(2)]


def reference_network(theta: Theta) -> nn.Sequential:
    """Build the paper's AlexNet out of torch's modules, layer by layer as its table lists them."""
    network = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
        nn.LocalResponseNorm(4, alpha=0.001 / 9, beta=0.75, k=1.0),
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(),
        nn.LocalResponseNorm(4, alpha=0.001 / 9, beta=0.75, k=1.0),
        nn.MaxPool2d(3, stride=2, padding=1), nn.Flatten(),
        nn.Linear(4096, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
    )  # fmt: skip
    nn.utils.vector_to_parameters(torch.tensor(theta), network.parameters())
    return network


def prepare(task: AlexnetTask, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Normalise each colour, by the mean and deviation of the whole training set."""
    everything = task._load()[0].train_images.astype(np.float64) / 255
    mean = everything.mean(axis=(0, 2, 3), keepdims=True)
    deviation = everything.std(axis=(0, 2, 3), keepdims=True)
    normalised: NDArray[np.float64] = (pixels / 255 - mean) / deviation
    return normalised.astype(np.float32)


def reference_training(task: AlexnetTask, theta: Theta) -> Theta:
    """Train client 1 of 2 with torch's own modules and optimiser; images are flipped one by one."""
    hand = task.deal(index=1, clients=2, seed=7)
    images, labels = prepare(task, hand.training.images), hand.training.labels.astype(np.int64)
    order = order_batches(len(labels), steps=STEPS, batch_size=64, seed=SEED)
    flips = np.random.default_rng([0x666C6970, SEED]).random((STEPS, 64)) < 0.5
    torch.set_num_threads(1)
    network = reference_network(theta)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for which, flipped in zip(order, flips, strict=True):
        batch = np.stack(
            [images[i, :, :, ::-1] if turn else images[i] for i, turn in zip(which, flipped, strict=True)]
        )
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(network(torch.tensor(batch)), torch.tensor(labels[which]))
        loss.backward()  # type: ignore[no-untyped-call]  # Torch's.
        optimiser.step()
    trained: Theta = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    return trained


def test_training_is_what_torchs_own_modules_and_optimiser_compute_on_flipped_images(
    task: AlexnetTask, learners: list[AlexnetLearner]
) -> None:
    theta = task.initial_model(7)
    expected = reference_training(task, theta)

    trained = learners[1].train(theta, steps=STEPS, seed=SEED, progress=ignore).theta

    np.testing.assert_allclose(trained, expected, rtol=0, atol=2e-6)
    assert np.abs(trained - theta).max() > 1e-3


def test_normalisation_is_torchs_in_values_and_gradients() -> None:
    generator = np.random.default_rng(3)
    # Large, so that the window weighs.
    x = torch.tensor(generator.normal(size=(2, 9, 3, 4), scale=100), requires_grad=True)
    weights = torch.tensor(generator.normal(size=(2, 9, 3, 4)))
    expected = nn.functional.local_response_norm(x, 4, alpha=0.001 / 9, beta=0.75, k=1.0)

    got = normalise(x)

    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(got, x, weights), torch.autograd.grad(expected, x, weights), rtol=1e-10, atol=1e-12
    )
    assert float((expected / x).detach().min()) < 0.9


def test_scores_of_all_slices_make_up_the_score_of_the_test_set(
    task: AlexnetTask, learners: list[AlexnetLearner]
) -> None:
    theta = learners[0].train(task.initial_model(7), steps=STEPS, seed=SEED, progress=ignore).theta
    data = task._load()[0]
    labels = torch.tensor(data.test_labels.astype(np.int64))
    with torch.inference_mode():
        logits = reference_network(theta)(torch.tensor(prepare(task, data.test_images)))

    scores = [read_scores(learner, theta) for learner in learners]

    assert sum(score.examples for score in scores) == sum(learner.examples for learner in learners) == 53
    assert sum(score.correct for score in scores) == int((logits.argmax(dim=1) == labels).sum())
    loss = sum(score.loss for score in scores) / 53
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_bits_are_the_same_in_threads(task: AlexnetTask, learners: list[AlexnetLearner]) -> None:
    theta = task.initial_model(7)

    def train(index: int) -> str:
        trained = learners[index].train(theta, steps=STEPS, seed=SEED + index, progress=ignore).theta
        return f"{digest(trained)} {read_scores(learners[index], trained).loss.hex()}"

    expected = [train(index) for index in range(2)]
    with ThreadPoolExecutor(2) as pool:
        in_threads = list(pool.map(train, range(2)))

    assert in_threads == expected
    assert len(set(expected)) == 2


def test_bits_do_not_depend_on_threads_that_others_set_nor_on_where_the_model_lies(
    task: AlexnetTask, learners: list[AlexnetLearner]
) -> None:
    theta = task.initial_model(7)
    expected = digest(learners[0].train(theta, steps=1, seed=SEED, progress=ignore).theta)
    room = np.empty(theta.size + 8, dtype=np.float32)
    room[5 : 5 + theta.size] = theta
    torch.set_num_threads(2)

    trained = learners[0].train(room[5 : 5 + theta.size], steps=1, seed=SEED, progress=ignore).theta

    assert digest(trained) == expected
    assert torch.get_num_threads() == 1


def test_torchs_global_generator_is_left_alone(task: AlexnetTask, learners: list[AlexnetLearner]) -> None:
    state = torch.random.get_rng_state()

    learners[0].train(task.initial_model(7), steps=1, seed=SEED, progress=ignore)

    assert torch.equal(torch.random.get_rng_state(), state)


def test_descent_without_momentum_keeps_no_memory_and_takes_none(
    task: AlexnetTask, learners: list[AlexnetLearner]
) -> None:
    theta = task.initial_model(7)

    training = learners[0].train(theta, steps=1, seed=SEED, progress=ignore)

    assert training.memory is None
    assert training.theta.flags.owndata
    assert np.array_equal(theta, task.initial_model(7))
    with pytest.raises(LocalError, match="without momentum has no memory"):
        learners[0].train(theta, steps=1, seed=SEED, progress=ignore, memory=np.zeros_like(theta))


def test_model_of_another_size_is_refused(learners: list[AlexnetLearner]) -> None:
    with pytest.raises(LocalError, match="1756426 elements"):
        learners[0].train(np.zeros(61_706, dtype=np.float32), steps=1, seed=SEED, progress=ignore)
    with pytest.raises(LocalError, match="1756426 elements"):
        learners[0].evaluate(np.zeros(1, dtype=np.float32))
