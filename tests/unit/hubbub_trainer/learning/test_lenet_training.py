import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hubbub.errors import LocalError
from hubbub_trainer.learning.batches import deal_training_samples, order_batches
from hubbub_trainer.learning.datasets import load_images
from hubbub_trainer.learning.lenet import LenetTask
from hubbub_trainer.learning.lenet_training import LenetLearner
from hubbub_trainer.learning.task import Theta
from support.image_files import pack_image_files, write_image_folder
from support.patience import HANG_S
from support.read_scores import read_scores

SEED = 2**127 + 11
STEPS = 6


def ignore(_done: int, _steps: int) -> None:
    pass


def digest(theta: Theta) -> str:
    return hashlib.sha256(theta.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image_folder(tmp_path_factory.mktemp("images"), pack_image_files(train=600, test=53))


@pytest.fixture(scope="module")
def task(folder: Path) -> LenetTask:
    return LenetTask(data=str(folder), cache_folder=folder, announce=print)


@pytest.fixture(scope="module")
def learners(task: LenetTask) -> list[LenetLearner]:
    return [task.learner(index=index, clients=3, seed=7) for index in range(3)]


def reference_network(theta: Theta) -> nn.Sequential:
    """Build the paper's LeNet out of torch's modules, layer by layer as its table lists them."""
    network = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    nn.utils.vector_to_parameters(torch.tensor(theta), network.parameters())
    return network


def reference_images(folder: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    data = load_images(str(folder), folder, print)
    scaled = data.train_images.astype(np.float64) / 255
    mean, deviation = scaled.mean(), scaled.std()
    test = (data.test_images.astype(np.float64) / 255 - mean) / deviation
    return (
        torch.tensor((scaled - mean) / deviation, dtype=torch.float32).unsqueeze(1),
        torch.tensor(data.train_labels.astype(np.int64)),
        torch.tensor(test, dtype=torch.float32).unsqueeze(1),
        torch.tensor(data.test_labels.astype(np.int64)),
    )


def reference_training(theta: Theta, folder: Path, *seeds: int) -> Theta:
    """Train client 1 of 3 with torch's own modules and optimiser, in one go over the batches of all seeds."""
    images, labels, _, _ = reference_images(folder)
    mine = torch.from_numpy(deal_training_samples(600, index=1, clients=3, seed=7))
    network = reference_network(theta)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    orders = [order_batches(len(mine), steps=STEPS, batch_size=64, seed=seed) for seed in seeds]
    for which in np.concatenate(orders):
        optimiser.zero_grad()
        batch = mine[torch.from_numpy(which)]
        nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]  # Torch's.
        optimiser.step()
    trained: Theta = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    return trained


def test_training_is_what_torchs_own_modules_and_optimiser_compute(
    task: LenetTask, learners: list[LenetLearner], folder: Path
) -> None:
    theta = task.initial_model(7)
    expected = reference_training(theta, folder, SEED)

    trained = learners[1].train(theta, steps=STEPS, seed=SEED, progress=ignore).theta

    np.testing.assert_allclose(trained, expected, rtol=0, atol=1e-6)
    assert np.abs(trained - theta).max() > 1e-3


def test_going_on_with_the_memory_is_one_longer_run_of_torchs_optimiser(
    task: LenetTask, learners: list[LenetLearner], folder: Path
) -> None:
    theta = task.initial_model(7)
    expected = reference_training(theta, folder, SEED, SEED + 1)

    first = learners[1].train(theta, steps=STEPS, seed=SEED, progress=ignore)
    second = learners[1].train(first.theta, steps=STEPS, seed=SEED + 1, progress=ignore, memory=first.memory)
    afresh = learners[1].train(first.theta, steps=STEPS, seed=SEED + 1, progress=ignore)

    np.testing.assert_allclose(second.theta, expected, rtol=0, atol=2e-6)
    assert np.abs(afresh.theta - expected).max() > 1e-3


def test_training_again_from_the_same_model_and_memory_gives_the_same_bits(
    task: LenetTask, learners: list[LenetLearner]
) -> None:
    theta = task.initial_model(7)
    memory = learners[0].train(theta, steps=STEPS, seed=SEED, progress=ignore).memory
    assert memory is not None
    kept = memory.copy()
    memory.flags.writeable = False
    elsewhere = np.concatenate([np.zeros(5, dtype=np.float32), memory])[5:]

    def train(memory: Theta | None) -> list[str]:
        training = learners[0].train(theta, steps=STEPS, seed=SEED + 1, progress=ignore, memory=memory)
        assert training.memory is not None
        return [digest(training.theta), digest(training.memory)]

    first = train(memory)
    afresh = train(None)

    assert train(memory) == first
    assert train(elsewhere) == first
    assert np.array_equal(memory, kept)
    assert train(np.zeros_like(theta)) == afresh
    assert not set(afresh) & set(first)


def test_scores_of_all_slices_make_up_the_score_of_the_test_set(
    task: LenetTask, learners: list[LenetLearner], folder: Path
) -> None:
    theta = learners[0].train(task.initial_model(7), steps=STEPS, seed=SEED, progress=ignore).theta
    _, _, images, labels = reference_images(folder)
    with torch.inference_mode():
        logits = reference_network(theta)(images)

    scores = [read_scores(learner, theta) for learner in learners]

    assert sum(score.examples for score in scores) == sum(learner.examples for learner in learners) == 53
    assert sum(score.correct for score in scores) == int((logits.argmax(dim=1) == labels).sum())
    loss = sum(score.loss for score in scores) / 53
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_network_learns(task: LenetTask, learners: list[LenetLearner]) -> None:
    theta = task.initial_model(7)

    trained = learners[0].train(theta, steps=60, seed=SEED, progress=ignore).theta

    before, after = read_scores(learners[0], theta), read_scores(learners[0], trained)
    assert before.correct <= before.examples // 2
    assert after.correct >= after.examples - 1
    assert after.loss < before.loss


def test_bits_are_the_same_in_threads_and_in_a_process_of_its_own(
    task: LenetTask, learners: list[LenetLearner], folder: Path
) -> None:
    theta = task.initial_model(7)

    def train(index: int) -> str:
        trained = learners[index].train(theta, steps=STEPS, seed=SEED + index, progress=ignore).theta
        return f"{digest(trained)} {read_scores(learners[index], trained).loss.hex()}"

    expected = [train(index) for index in range(3)]
    with ThreadPoolExecutor(3) as pool:
        in_threads = list(pool.map(train, range(3)))
    script = f"""
import hashlib
from pathlib import Path
from hubbub_trainer.learning.registry import load_task
task = load_task("lenet", data={str(folder)!r}, cache_folder=Path("unused"))
for index in range(3):
    learner = task.learner(index=index, clients=3, seed=7)
    theta = task.initial_model(7)
    trained = learner.train(theta, steps={STEPS}, seed={SEED} + index, progress=lambda *_: None).theta
    print(hashlib.sha256(trained.tobytes()).hexdigest(), learner.evaluate(trained)["loss"][0].hex())
"""
    in_process = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=HANG_S, capture_output=True, text=True
    )

    assert in_threads == expected
    assert in_process.stdout.splitlines() == expected
    assert len(set(expected)) == 3


def test_bits_do_not_depend_on_threads_that_others_set_nor_on_where_the_model_lies(
    task: LenetTask, learners: list[LenetLearner]
) -> None:
    theta = task.initial_model(7)
    expected = digest(learners[0].train(theta, steps=STEPS, seed=SEED, progress=ignore).theta)

    for shift in (0, 1, 5):
        room = np.empty(theta.size + 8, dtype=np.float32)
        room[shift : shift + theta.size] = theta
        torch.set_num_threads(2)
        shifted = room[shift : shift + theta.size]
        trained = learners[0].train(shifted, steps=STEPS, seed=SEED, progress=ignore).theta
        assert digest(trained) == expected
        assert torch.get_num_threads() == 1


def test_torchs_global_generator_is_left_alone(task: LenetTask, learners: list[LenetLearner]) -> None:
    state = torch.random.get_rng_state()

    learners[0].train(task.initial_model(7), steps=1, seed=SEED, progress=ignore)

    assert torch.equal(torch.random.get_rng_state(), state)


def test_model_that_is_given_stays_as_it_is(task: LenetTask, learners: list[LenetLearner]) -> None:
    theta = task.initial_model(7)

    training = learners[0].train(theta, steps=1, seed=SEED, progress=ignore)
    learners[0].evaluate(theta)

    assert np.array_equal(theta, task.initial_model(7))
    for vector in (training.theta, training.memory):
        assert vector is not None
        assert vector.flags.writeable
        assert vector.flags.owndata


def test_progress_ends_with_the_last_step(task: LenetTask, learners: list[LenetLearner]) -> None:
    reports: list[tuple[int, int]] = []

    learners[0].train(
        task.initial_model(7), steps=25, seed=SEED, progress=lambda done, steps: reports.append((done, steps))
    )

    assert reports[-1] == (25, 25)
    assert len(reports) <= 20


def test_model_of_another_size_is_refused(learners: list[LenetLearner]) -> None:
    with pytest.raises(LocalError, match="61706 elements"):
        learners[0].train(np.zeros(61_705, dtype=np.float32), steps=1, seed=SEED, progress=ignore)
    with pytest.raises(LocalError, match="61706 elements"):
        learners[0].evaluate(np.zeros(1, dtype=np.float32))


@pytest.mark.parametrize(("size", "dtype"), [(61_705, np.float32), (61_706, np.float64)])
def test_memory_of_another_size_or_type_is_refused(
    task: LenetTask, learners: list[LenetLearner], size: int, dtype: type[np.float32]
) -> None:
    memory = np.zeros(size, dtype=dtype)

    with pytest.raises(LocalError, match="memory in this task is a flat float32 vector of 61706 elements"):
        learners[0].train(task.initial_model(7), steps=1, seed=SEED, progress=ignore, memory=memory)
