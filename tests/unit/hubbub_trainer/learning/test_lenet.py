import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import ConfigurationError
from hubbub_trainer.learning.lenet import SHAPES, LenetTask
from support.image_files import pack_image_files, write_image_folder


@pytest.fixture
def task(tmp_path: Path) -> LenetTask:
    folder = write_image_folder(tmp_path / "images", pack_image_files(train=600, test=53))
    return LenetTask(data=str(folder), cache_folder=tmp_path, announce=print)


def test_lenet_has_the_papers_number_of_parameters(task: LenetTask) -> None:
    assert task.count_parameters() == 61_706
    assert task.initial_model(1).shape == (61_706,)
    assert task.initial_model(1).dtype == np.float32


def test_initial_model_is_uniform_within_the_bound_of_each_layer(task: LenetTask) -> None:
    theta = task.initial_model(3)

    start = 0
    for weights, biases in zip(SHAPES[::2], SHAPES[1::2], strict=True):
        size = math.prod(weights) + math.prod(biases)
        layer, bound = theta[start : start + size], 1 / math.sqrt(math.prod(weights[1:]))
        assert np.abs(layer).max() <= bound
        assert np.abs(layer).max() > 0.97 * bound
        assert abs(layer.mean()) < 4 * bound / math.sqrt(3 * size)
        start += size


def test_initial_model_follows_the_seed_alone_on_every_machine(task: LenetTask) -> None:
    digest = hashlib.sha256(task.initial_model(7).tobytes()).hexdigest()

    assert digest == "e2721d4d7beaf3516ca4b6ca1d7e6e1f7b3fa91a7ce54bc6eb5fc77d30d78cd2"
    assert not np.array_equal(task.initial_model(7), task.initial_model(8))


def test_clients_share_out_the_data(task: LenetTask) -> None:
    learners = [task.learner(index=index, clients=5, seed=7) for index in range(5)]

    assert [learner.samples for learner in learners] == [100] * 5
    assert [learner.examples for learner in learners] == [10, 11, 10, 11, 11]


def test_client_outside_of_the_cohort_is_refused(task: LenetTask) -> None:
    with pytest.raises(ConfigurationError, match="no client 5 among 5"):
        task.learner(index=5, clients=5, seed=7)
