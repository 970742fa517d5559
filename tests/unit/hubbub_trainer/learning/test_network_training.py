"""The bits of local training, against the plain sequence of torch's operations that they have always been."""

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from hubbub_trainer.learning.batches import deal_training_samples, order_batches
from hubbub_trainer.learning.image_task import Hand
from hubbub_trainer.learning.images import Channel, LabelledImages
from hubbub_trainer.learning.lenet import SHAPES, LenetTask
from hubbub_trainer.learning.network_training import NetworkLearner, Recipe, draw_flips
from hubbub_trainer.learning.task import Theta
from support.image_files import draw_samples, pack_image_files, write_image_folder

SEED = 2**127 + 11
STEPS = 5


def ignore(_done: int, _steps: int) -> None:
    pass


def compute_lenet(theta: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    last = torch.channels_last
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES]).tolist()
    k1, b1, k2, b2, w3, b3, w4, b4, w5, b5 = (
        theta[start:end].view(shape) for start, end, shape in zip([0, *ends], ends, SHAPES, strict=False)
    )
    x = functional.conv2d(images, k1.to(memory_format=last), b1, padding=2)
    x = functional.relu(functional.max_pool2d(x, 2))
    x = functional.conv2d(x, k2.to(memory_format=last), b2)
    x = functional.relu(functional.max_pool2d(x, 2)).flatten(1)
    x = functional.relu(functional.linear(x, w3, b3))
    x = functional.relu(functional.linear(x, w4, b4))
    return functional.linear(x, w5, b5)


def train_lenet_by_hand(theta: Theta, memory: Theta) -> tuple[Theta, Theta]:
    """Train client 1 of 3 on 600 images."""
    pixels, classes = draw_samples(600, seed=1)
    values: np.typing.NDArray[np.float64] = np.arange(256) / 255
    counts = np.bincount(pixels.reshape(-1), minlength=256)
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    mine = deal_training_samples(600, index=1, clients=3, seed=7)
    table = ((values - mean) / deviation).astype(np.float32)
    images, labels = torch.tensor(table[pixels[mine]]).unsqueeze(1), torch.tensor(classes[mine].astype(np.int64))
    flat, velocity = torch.tensor(theta).requires_grad_(), torch.tensor(memory)
    for which in torch.from_numpy(order_batches(len(mine), steps=STEPS, batch_size=64, seed=SEED)):
        loss = functional.cross_entropy(compute_lenet(flat, images.index_select(0, which)), labels[which])
        (gradient,) = torch.autograd.grad(loss, [flat])
        with torch.no_grad():
            velocity.mul_(0.9).add_(gradient)
            flat.add_(velocity, alpha=-0.01)
    return flat.detach().numpy(), velocity.numpy()


def test_lenets_bits_are_those_of_earlier_versions(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path, pack_image_files(train=600))
    task = LenetTask(data=str(folder), cache_folder=tmp_path, announce=print)
    learner = task.learner(index=1, clients=3, seed=7)
    torch.set_num_threads(1)
    first = train_lenet_by_hand(task.initial_model(7), np.zeros(61_706, dtype=np.float32))
    second = train_lenet_by_hand(*first)

    once = learner.train(task.initial_model(7), steps=STEPS, seed=SEED, progress=ignore)
    twice = learner.train(once.theta, steps=STEPS, seed=SEED, progress=ignore, memory=once.memory)

    for training, (theta, memory) in ((once, first), (twice, second)):
        assert training.memory is not None
        assert training.theta.tobytes() == theta.tobytes()
        assert training.memory.tobytes() == memory.tobytes()


def test_half_of_all_images_are_flipped_as_the_seed_says() -> None:
    flips = draw_flips((200, 64), SEED)

    assert torch.equal(flips, draw_flips((200, 64), SEED))
    assert not torch.equal(flips, draw_flips((200, 64), SEED + 1))
    assert abs(float(flips.double().mean()) - 0.5) < 0.02
    # A longer round begins as a shorter one does.
    assert torch.equal(flips[:5], draw_flips((5, 64), SEED))


def remember_images(seen: list[torch.Tensor]) -> Recipe:
    """Make a network of one weight and one bias that keeps the batches it is shown."""

    def forward(parameters: list[torch.Tensor], images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        return images.flatten(1)[:, :10] * parameters[0] + parameters[1]

    return Recipe(
        shapes=((1, 1), (1,)),
        forward=forward,
        learning_rate=0.1,
        momentum=0.0,
        batch_size=64,
        flips=True,
        evaluation_batch_size=4,
    )


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
