"""Local training of LeNet and AlexNet: against torch's own modules, and the same bits in any thread."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from hubbub.errors import LocalError
from hubbub_trainer.learning.batches import deal_training_samples, order_batches
from hubbub_trainer.learning.images import Channel, LabelledImages
from hubbub_trainer.learning.network_training import NetworkLearner, Recipe, draw_flips, normalise
from hubbub_trainer.learning.networks import LENET, AlexnetTask, Hand, ImageTask, LenetTask
from hubbub_trainer.learning.task import Theta, Training
from hubbub_trainer.workspace import digest
from support.colour_files import draw_colour_samples, pack_batches
from support.image_files import draw_samples, pack_image_files, write_image_folder
from support.learners import check_same_everywhere, ignore, read_scores

SEED = 2**127 + 11


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A task on a folder of small images, and its learners."""

    folder: Path
    task: ImageTask
    learners: list[NetworkLearner]
    steps: int

    @property
    def theta(self) -> Theta:
        return self.task.initial_model(7)

    def train(self, index: int, theta: Theta, *, seed: int = SEED, memory: Theta | None = None) -> Theta:
        return self.learners[index].train(theta, steps=self.steps, seed=seed, progress=ignore, memory=memory).theta


@pytest.fixture(scope="module", params=["lenet", "alexnet"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("images")
    task: ImageTask
    if request.param == "lenet":
        write_image_folder(folder, pack_image_files(train=600, test=53))
        task, steps, clients = LenetTask(data=str(folder), cache_folder=folder, announce=print), 6, 3
    else:
        write_image_folder(folder, pack_batches(train=500, test=53))
        task, steps, clients = AlexnetTask(data=str(folder), cache_folder=folder, announce=print), 2, 2
    learners = [task.learner(index=index, clients=clients, seed=7) for index in range(clients)]
    return Scene(folder=folder, task=task, learners=learners, steps=steps)


# Against torch's own modules ------------------------------------------------------------------------------


def reference_network(scene: Scene, theta: Theta) -> nn.Sequential:
    """Build the paper's network out of torch's modules, layer by layer as its table lists them."""
    if scene.task.name == "lenet":
        network = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip
    else:
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


def draw(scene: Scene, count: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the images of the folder, [n, channels, height, width] from 0 to 1, and their labels."""
    pixels, labels = (draw_samples if scene.task.name == "lenet" else draw_colour_samples)(count, seed)
    planes = pixels[:, np.newaxis] if pixels.ndim == 3 else pixels
    return planes / 255, labels.astype(np.int64)


def reference_images(scene: Scene, *, test: bool = False) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Normalise each channel, by the mean and deviation of the whole training set."""
    everything, labels = draw(scene, 600 if scene.task.name == "lenet" else 500, 1)
    mean, deviation = everything.mean(axis=(0, 2, 3), keepdims=True), everything.std(axis=(0, 2, 3), keepdims=True)
    images, labels = draw(scene, 53, 2) if test else (everything, labels)
    return ((images - mean) / deviation).astype(np.float32), labels


def reference_training(scene: Scene, *seeds: int) -> Theta:
    """Train client 1 with torch's own modules and optimiser, over the batches of all seeds, flipped one by one."""
    lenet = scene.task.name == "lenet"
    images, labels = reference_images(scene)
    mine = deal_training_samples(
        len(labels), index=1, clients=len(scene.learners), seed=7, held_out_one_in=6 if lenet else 5
    )
    torch.set_num_threads(1)
    network = reference_network(scene, scene.theta)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01 if lenet else 0.1, momentum=0.9 if lenet else 0)
    for seed in seeds:
        order = order_batches(len(mine), steps=scene.steps, batch_size=64, seed=seed)
        flips = np.random.default_rng([0x666C6970, seed]).random((scene.steps, 64)) < 0.5
        for which, flipped in zip(order, flips & (not lenet), strict=True):
            batch = np.stack(
                [images[i, :, :, ::-1] if f else images[i] for i, f in zip(mine[which], flipped, strict=True)]
            )
            optimiser.zero_grad()
            loss = functional.cross_entropy(network(torch.tensor(batch)), torch.tensor(labels[mine[which]]))
            loss.backward()  # type: ignore[no-untyped-call]  # Torch's.
            optimiser.step()
    trained: Theta = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    return trained


def test_training_is_what_torchs_own_modules_and_optimiser_compute(scene: Scene) -> None:
    expected = reference_training(scene, SEED)

    trained = scene.train(1, scene.theta)

    np.testing.assert_allclose(trained, expected, rtol=0, atol=2e-6)
    assert np.abs(trained - scene.theta).max() > 1e-3


def test_scores_of_all_slices_make_up_the_score_of_the_test_set(scene: Scene) -> None:
    theta = scene.train(0, scene.theta)
    images, classes = reference_images(scene, test=True)
    labels = torch.tensor(classes)
    with torch.inference_mode():
        logits = reference_network(scene, theta)(torch.tensor(images))

    scores = [read_scores(learner, theta) for learner in scene.learners]

    assert sum(score.examples for score in scores) == sum(learner.examples for learner in scene.learners) == 53
    assert sum(score.correct for score in scores) == int((logits.argmax(dim=1) == labels).sum())
    loss = sum(score.loss for score in scores) / 53
    assert loss == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-5)


def test_normalisation_is_torchs_in_values_and_gradients() -> None:
    generator = np.random.default_rng(3)
    # Large, so that the window weighs.
    x = torch.tensor(generator.normal(size=(2, 9, 3, 4), scale=100), requires_grad=True)
    weights = torch.tensor(generator.normal(size=(2, 9, 3, 4)))
    expected = functional.local_response_norm(x, 4, alpha=0.001 / 9, beta=0.75, k=1.0)

    got = normalise(x)

    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(got, x, weights), torch.autograd.grad(expected, x, weights), rtol=1e-10, atol=1e-12
    )
    assert float((expected / x).detach().min()) < 0.9


# The memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", ["lenet"], indirect=True)
def test_training_goes_on_with_the_memory_as_torchs_optimiser_would(scene: Scene) -> None:
    expected = reference_training(scene, SEED, SEED + 1)
    first = scene.learners[1].train(scene.theta, steps=scene.steps, seed=SEED, progress=ignore)
    assert first.memory is not None
    kept = first.memory.copy()
    first.memory.flags.writeable = False
    elsewhere = np.concatenate([np.zeros(5, dtype=np.float32), first.memory])[5:]

    def go_on(memory: Theta | None) -> list[bytes]:
        training = scene.learners[1].train(
            first.theta, steps=scene.steps, seed=SEED + 1, progress=ignore, memory=memory
        )
        assert training.memory is not None
        return [training.theta.tobytes(), training.memory.tobytes()]

    second, afresh = go_on(first.memory), go_on(None)

    np.testing.assert_allclose(np.frombuffer(second[0], np.float32), expected, rtol=0, atol=2e-6)
    assert go_on(first.memory) == go_on(elsewhere) == second
    assert go_on(np.zeros_like(kept)) == afresh
    assert np.array_equal(first.memory, kept)
    assert np.abs(np.frombuffer(afresh[0], np.float32) - expected).max() > 1e-3


@pytest.mark.parametrize("scene", ["alexnet"], indirect=True)
def test_descent_without_momentum_keeps_no_memory_and_takes_none(scene: Scene) -> None:
    assert scene.learners[0].train(scene.theta, steps=1, seed=SEED, progress=ignore).memory is None
    with pytest.raises(LocalError, match="without momentum has no memory"):
        scene.train(0, scene.theta, memory=np.zeros_like(scene.theta))


# Adjusted training ----------------------------------------------------------------------------------------


def test_only_movable_coordinates_move_and_each_as_in_a_round_without_a_memory(scene: Scene) -> None:
    learner, theta = scene.learners[1], scene.theta
    movable = np.flatnonzero(np.arange(theta.size) % 3 == 1)
    memory = np.ones_like(theta) if scene.task.name == "lenet" else None
    some = learner.adjusted(learning_rate=None, movable=movable)
    whole = learner.adjusted(learning_rate=None, movable=np.arange(theta.size))

    def train(each: NetworkLearner, steps: int, memory: Theta | None) -> Training:
        return each.train(theta, steps=steps, seed=SEED, progress=ignore, memory=memory)

    for steps in (1, scene.steps):
        trained = train(some, steps, memory)
        moved = np.flatnonzero(trained.theta.view(np.uint32) != theta.view(np.uint32))
        assert np.isin(moved, movable).all()
        assert moved.size > movable.size / 2, "the gradient of some is zero"
        assert trained.memory is None
    # One step from the same gradient.
    first = train(learner, 1, None)
    np.testing.assert_array_equal(train(some, 1, memory).theta[movable], first.theta[movable])
    assert train(whole, scene.steps, memory).theta.tobytes() == train(learner, scene.steps, None).theta.tobytes()
    assert some.evaluate(theta) == learner.evaluate(theta)


def test_a_learning_rate_scales_a_step_and_leaves_the_learner_as_it_was(scene: Scene) -> None:
    learner, theta = scene.learners[1], scene.theta
    faster = learner.adjusted(learning_rate=4 * scene.task.learning_rate, movable=None)

    once, far = (each.train(theta, steps=1, seed=SEED, progress=ignore) for each in (learner, faster))

    np.testing.assert_allclose(far.theta - theta, 4 * (once.theta - theta), rtol=1e-4, atol=1e-6)
    assert (far.memory is None) == (once.memory is None)
    again = faster.adjusted(learning_rate=None, movable=None).train(theta, steps=1, seed=SEED, progress=ignore)
    assert again.theta.tobytes() == once.theta.tobytes(), "None is the task's own rate"


# The same bits --------------------------------------------------------------------------------------------


def test_bits_are_the_same_in_threads_and_in_a_process_of_its_own(scene: Scene) -> None:
    clients = len(scene.learners)
    check_same_everywhere(scene.task, data=str(scene.folder), clients=clients, steps=scene.steps, seed=SEED)


def test_bits_do_not_depend_on_threads_that_others_set_nor_on_where_the_model_lies(scene: Scene) -> None:
    theta = scene.theta
    expected = digest(scene.train(0, theta))
    state = torch.random.get_rng_state()

    for shift in (1, 5):
        room = np.empty(theta.size + 8, dtype=np.float32)
        room[shift : shift + theta.size] = theta
        torch.set_num_threads(2)
        trained = scene.train(0, room[shift : shift + theta.size])
        assert digest(trained) == expected
        assert trained.flags.owndata
        assert trained.flags.writeable
        assert torch.get_num_threads() == 1

    scene.learners[0].evaluate(theta)
    assert np.array_equal(theta, scene.theta), "the model that was given is as it was"
    assert torch.equal(torch.random.get_rng_state(), state), "torch's global generator is left alone"


def compute_lenet(theta: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    last = torch.channels_last
    ends = np.cumsum([int(np.prod(shape)) for shape in LENET.values()]).tolist()
    k1, b1, k2, b2, w3, b3, w4, b4, w5, b5 = (
        theta[start:end].view(shape) for start, end, shape in zip([0, *ends], ends, LENET.values(), strict=False)
    )
    x = functional.conv2d(images, k1.to(memory_format=last), b1, padding=2)
    x = functional.relu(functional.max_pool2d(x, 2))
    x = functional.conv2d(x, k2.to(memory_format=last), b2)
    x = functional.relu(functional.max_pool2d(x, 2)).flatten(1)
    x = functional.relu(functional.linear(x, w3, b3))
    x = functional.relu(functional.linear(x, w4, b4))
    return functional.linear(x, w5, b5)


def train_lenet_by_hand(theta: Theta, memory: Theta, steps: int) -> tuple[Theta, Theta]:
    """Train client 1 of 3 on 600 images, by the plain sequence of torch's operations that it has always been."""
    pixels, classes = draw_samples(600, seed=1)
    values: NDArray[np.float64] = np.arange(256) / 255
    counts = np.bincount(pixels.reshape(-1), minlength=256)
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    mine = deal_training_samples(600, index=1, clients=3, seed=7)
    table = ((values - mean) / deviation).astype(np.float32)
    images, labels = torch.tensor(table[pixels[mine]]).unsqueeze(1), torch.tensor(classes[mine].astype(np.int64))
    flat, velocity = torch.tensor(theta).requires_grad_(), torch.tensor(memory)
    for which in torch.from_numpy(order_batches(len(mine), steps=steps, batch_size=64, seed=SEED)):
        loss = functional.cross_entropy(compute_lenet(flat, images.index_select(0, which)), labels[which])
        (gradient,) = torch.autograd.grad(loss, [flat])
        with torch.no_grad():
            velocity.mul_(0.9).add_(gradient)
            flat.add_(velocity, alpha=-0.01)
    return flat.detach().numpy(), velocity.numpy()


@pytest.mark.parametrize("scene", ["lenet"], indirect=True)
def test_lenets_bits_are_those_of_earlier_versions(scene: Scene) -> None:
    torch.set_num_threads(1)
    first = train_lenet_by_hand(scene.theta, np.zeros(61_706, dtype=np.float32), scene.steps)
    second = train_lenet_by_hand(*first, scene.steps)

    once = scene.learners[1].train(scene.theta, steps=scene.steps, seed=SEED, progress=ignore)
    twice = scene.learners[1].train(once.theta, steps=scene.steps, seed=SEED, progress=ignore, memory=once.memory)

    for training, (theta, memory) in ((once, first), (twice, second)):
        assert training.memory is not None
        assert training.theta.tobytes() == theta.tobytes()
        assert training.memory.tobytes() == memory.tobytes()


# Progress and refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", ["lenet"], indirect=True)
def test_network_learns_and_reports_its_progress(scene: Scene) -> None:
    reports: list[tuple[int, int]] = []
    theta, learner = scene.theta, scene.learners[0]

    trained = learner.train(theta, steps=60, seed=SEED, progress=lambda *report: reports.append(report)).theta

    before, after = read_scores(learner, theta), read_scores(learner, trained)
    assert before.correct <= before.examples // 2
    assert after.correct >= after.examples - 1
    assert after.loss < before.loss
    assert reports == [(done, 60) for done in range(3, 61, 3)]


def test_model_or_memory_of_another_size_or_type_is_refused(scene: Scene) -> None:
    theta = scene.theta
    for wrong in (theta[:-1], theta.reshape(1, -1)):
        with pytest.raises(LocalError, match=f"a model of this task is a flat .* {theta.size} elements"):
            scene.train(0, wrong)
        with pytest.raises(LocalError, match=f"{theta.size} elements"):
            scene.learners[0].evaluate(wrong)
        with pytest.raises(LocalError, match=f"memory in this task is a flat float32 vector of {theta.size} elem"):
            scene.train(0, theta, memory=wrong)


# Images ---------------------------------------------------------------------------------------------------


def remember_images(seen: list[torch.Tensor]) -> Recipe:
    """Make a network of one weight and one bias that keeps the batches it is shown."""

    def forward(parameters: list[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        return images.flatten(1)[:, :10] * parameters[0] + parameters[1]

    return Recipe(
        shapes={"weight": (1, 1), "bias": (1,)},
        forward=forward,
        learning_rate=0.1,
        momentum=0.0,
        batch_size=64,
        flips=True,
        evaluation_batch_size=4,
    )


def test_half_of_all_images_are_flipped_as_the_seed_says() -> None:
    flips = draw_flips((200, 64), SEED)

    assert torch.equal(flips, draw_flips((200, 64), SEED))
    assert not torch.equal(flips, draw_flips((200, 64), SEED + 1))
    assert abs(float(flips.double().mean()) - 0.5) < 0.02
    # A longer round begins as a shorter one does.
    assert torch.equal(flips[:5], draw_flips((5, 64), SEED))


def test_images_are_flipped_left_to_right_in_training_and_never_in_evaluation() -> None:
    pixels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(1, 3, 4, 5)
    sample = LabelledImages(pixels, np.zeros(1, dtype=np.uint8))
    channels = tuple(Channel(mean=0.1 * (1 + number), deviation=0.5) for number in range(3))
    expected = (pixels / 255 - np.array([0.1, 0.2, 0.3])[:, np.newaxis, np.newaxis]) / 0.5
    seen: list[torch.Tensor] = []
    learner = NetworkLearner(remember_images(seen), Hand(training=sample, test=sample, channels=channels))
    theta = np.ones(2, dtype=np.float32)

    learner.train(theta, steps=1, seed=SEED, progress=ignore)
    learner.evaluate(theta)

    shown, evaluated = (batch.numpy() for batch in seen)
    for image, flipped in zip(shown, draw_flips((1, 64), SEED)[0], strict=True):
        np.testing.assert_allclose(
            image, expected[0, :, :, ::-1] if flipped else expected[0], rtol=1e-6, atol=1e-7
        )
    np.testing.assert_allclose(evaluated, expected, rtol=1e-6, atol=1e-7)


def test_images_of_one_shade_are_shifted_and_not_scaled() -> None:
    sample = LabelledImages(np.full((2, 28, 28), 51, dtype=np.uint8), np.zeros(2, dtype=np.uint8))
    seen: list[torch.Tensor] = []
    hand = Hand(training=sample, test=sample, channels=(Channel(mean=0.1, deviation=0.0),))

    NetworkLearner(remember_images(seen), hand).evaluate(np.ones(2, dtype=np.float32))

    assert seen[0].shape == (2, 1, 28, 28)
    np.testing.assert_allclose(seen[0].numpy(), 0.1, rtol=1e-6)
