import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import ConfigurationError
from hubbub_trainer.learning.alexnet import SHAPES, AlexnetTask
from support.colour_files import pack_batches
from support.image_files import write_image_folder


@pytest.fixture
def task(tmp_path: Path) -> AlexnetTask:
    folder = write_image_folder(tmp_path / "images", pack_batches(train=500, test=53))
    return AlexnetTask(data=str(folder), cache_folder=tmp_path, announce=print)


def test_alexnet_has_the_papers_number_of_parameters(task: AlexnetTask) -> None:
    assert task.count_parameters() == 1_756_426
    assert task.initial_model(1).shape == (1_756_426,)
    assert task.initial_model(1).dtype == np.float32


def test_initial_model_is_uniform_within_the_bound_of_each_layer(task: AlexnetTask) -> None:
    theta = task.initial_model(3)

    start = 0
    for weights, biases in zip(SHAPES[::2], SHAPES[1::2], strict=True):
        size = math.prod(weights) + math.prod(biases)
        layer, bound = theta[start : start + size], 1 / math.sqrt(math.prod(weights[1:]))
        assert np.abs(layer).max() <= bound
        assert np.abs(layer).max() > 0.97 * bound
        assert abs(layer.mean()) < 4 * bound / math.sqrt(3 * size)
        start += size


def test_initial_model_follows_the_seed_alone_on_every_machine(task: AlexnetTask) -> None:
    digest = hashlib.sha256(task.initial_model(7).tobytes()).hexdigest()

    assert digest == "6f3acb977a7d8b00f9d765afb4f3d034858b91ecf72b1576bf015d56da4fc0d6"
    assert not np.array_equal(task.initial_model(7), task.initial_model(8))


def test_clients_share_out_four_fifths_of_the_training_data(task: AlexnetTask) -> None:
    hands = [task.deal(index=index, clients=5, seed=7) for index in range(5)]

    assert [len(hand.training.labels) for hand in hands] == [80] * 5
    assert [len(hand.test.labels) for hand in hands] == [10, 11, 10, 11, 11]
    images = np.concatenate([hand.training.images for hand in hands])
    assert len(np.unique(images.reshape(400, -1), axis=0)) == 400


def test_client_outside_of_the_cohort_is_refused(task: AlexnetTask) -> None:
    with pytest.raises(ConfigurationError, match="no client 5 among 5"):
        task.learner(index=5, clients=5, seed=7)
