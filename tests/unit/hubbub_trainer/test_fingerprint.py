"""Models count as the same by more than half of what varies in them, wherever it stands."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from hubbub_trainer.fingerprint import PART_VALUES, Fingerprint, tensor_sizes
from hubbub_trainer.learning.networks import LENET, LenetTask
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Theta
from hubbub_trainer.workspace import digest
from support.numbers_task import NumbersTask

PARTS = 10
SIZE = PARTS * PART_VALUES


def draw(size: int, seed: int = 0) -> Theta:
    return np.random.default_rng(seed).random(size, dtype=np.float32)


def take(*tensors: Theta) -> Fingerprint:
    return Fingerprint.of(np.concatenate(tensors), [tensor.size for tensor in tensors])


def same(one: Fingerprint, other: Fingerprint) -> bool:
    """Neither is favoured."""
    assert one.is_same(other) == other.is_same(one)
    return one.is_same(other)


MODEL = draw(SIZE)


def test_a_model_is_known_by_its_digest_and_survives_being_written_down() -> None:
    taken = take(MODEL)

    assert taken.model == digest(MODEL)
    assert Fingerprint.unpack(taken.model, taken.pack()) == taken


@pytest.mark.parametrize("changed", [0, 1, PARTS // 2 - 1, PARTS // 2, PARTS])
def test_a_model_is_the_same_while_more_than_half_of_its_parts_are(changed: int) -> None:
    """One value in a part makes it another part: that is how far digests reach, and no further."""
    other = MODEL.copy()
    other[: changed * PART_VALUES : PART_VALUES] += 1e-6

    assert same(take(MODEL), take(other)) is (changed < PARTS // 2)


def test_a_shared_backbone_is_found_behind_another_head_and_in_a_larger_model() -> None:
    backbone, heads = MODEL, (draw(7, seed=1), draw(13, seed=2), draw(9 * SIZE, seed=3))

    assert same(take(heads[0], backbone), take(heads[1], backbone))
    assert same(take(backbone), take(heads[2], backbone)), "it is all of the smaller one"
    assert not same(take(heads[0], draw(SIZE, seed=4)), take(heads[0], backbone))


def test_tensors_of_one_value_throughout_make_no_two_models_the_same() -> None:
    biases = np.zeros(9 * SIZE, np.float32)

    assert not same(take(draw(SIZE, seed=1), biases), take(draw(SIZE, seed=2), biases))
    assert same(take(MODEL, biases), take(MODEL, np.ones_like(biases))), "what varies is the same"


def test_a_model_that_varies_nowhere_is_the_same_as_itself() -> None:
    zeros = take(np.zeros(203, np.float32))

    assert same(zeros, take(np.zeros(203, np.float32)))
    assert not same(zeros, take(np.ones(203, np.float32)))
    assert not same(zeros, take(MODEL))


def test_parts_that_occur_twice_are_shared_as_often_as_both_have_them() -> None:
    part, others = draw(PART_VALUES), draw(3 * PART_VALUES, seed=1)

    assert not same(take(part, others), take(part, part, part, part))
    assert same(take(part, part, part, others), take(part, part, part, part))


@dataclass(frozen=True)
class Mislabelled(NumbersTask):
    layout: ClassVar = {"some": (2, 2)}


def test_tensors_are_those_that_the_task_tells_if_they_are_all_of_the_model() -> None:
    assert tensor_sizes(SyntheticTask(203)) == (200, 3)
    assert len(tensor_sizes(LenetTask.__new__(LenetTask))) == len(LENET)
    assert tensor_sizes(NumbersTask([np.zeros(5, np.float32)])) == (5,)
    assert tensor_sizes(Mislabelled([np.zeros(5, np.float32)])) == (5,)
