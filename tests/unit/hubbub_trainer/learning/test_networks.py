"""LeNet and AlexNet as tasks: size, initial model, and the data of each client."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import ConfigurationError
from hubbub_trainer.learning.networks import AlexnetTask, ImageTask, LenetTask
from hubbub_trainer.learning.task import HasLearningRate
from support.colour_files import pack_batches
from support.image_files import pack_image_files, write_image_folder


@pytest.fixture(params=["lenet", "alexnet"])
def task(request: pytest.FixtureRequest, tmp_path: Path) -> ImageTask:
    grey = request.param == "lenet"
    files = pack_image_files(train=600, test=53) if grey else pack_batches(train=500, test=53)
    folder = write_image_folder(tmp_path / "images", files)
    return (LenetTask if grey else AlexnetTask)(data=str(folder), cache_folder=tmp_path, announce=print)


def test_initial_model_is_uniform_within_the_bound_of_each_layer(task: ImageTask) -> None:
    theta, shapes = task.initial_model(3), list(task.layout.values())

    start = 0
    for weights, biases in zip(shapes[::2], shapes[1::2], strict=True):
        size = math.prod(weights) + math.prod(biases)
        layer, bound = theta[start : start + size], 1 / math.sqrt(math.prod(weights[1:]))
        assert 0.97 * bound < np.abs(layer).max() <= bound
        assert abs(layer.mean()) < 4 * bound / math.sqrt(3 * size)
        start += size
    assert theta.shape == (start,)
    assert theta.dtype == np.float32


def test_initial_model_follows_the_seed_alone_on_every_machine(task: ImageTask) -> None:
    digests = {
        "lenet": "e2721d4d7beaf3516ca4b6ca1d7e6e1f7b3fa91a7ce54bc6eb5fc77d30d78cd2",
        "alexnet": "6f3acb977a7d8b00f9d765afb4f3d034858b91ecf72b1576bf015d56da4fc0d6",
    }

    assert hashlib.sha256(task.initial_model(7).tobytes()).hexdigest() == digests[task.name]
    assert not np.array_equal(task.initial_model(7), task.initial_model(8))


def test_the_learning_rate_is_the_papers(task: ImageTask) -> None:
    assert isinstance(task, HasLearningRate)
    assert task.find_learning_rate() == {"lenet": 0.01, "alexnet": 0.1}[task.name]


def test_clients_share_out_all_images_but_those_held_out(task: ImageTask) -> None:
    # LeNet holds out a sixth of 600, AlexNet a fifth of 500.
    each = 100 if task.name == "lenet" else 80

    hands = [task.deal(index=index, clients=5, seed=7) for index in range(5)]

    assert [len(hand.training.labels) for hand in hands] == [each] * 5
    assert [len(hand.test.labels) for hand in hands] == [10, 11, 10, 11, 11]
    images = np.concatenate([hand.training.images for hand in hands])
    assert len(np.unique(images.reshape(5 * each, -1), axis=0)) == 5 * each
    with pytest.raises(ConfigurationError, match="no client 5 among 5"):
        task.learner(index=5, clients=5, seed=7)
