from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import DataError
from hubbub_trainer.learning.images import ImageData, read_image_folder
from support.colour_files import draw_colour_samples
from support.image_files import (
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    draw_samples,
    pack_idx,
    pack_image_files,
    write_image_folder,
)


@pytest.mark.parametrize("layout", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_folder_is_read_in_each_layout(tmp_path: Path, layout: str, zipped: bool) -> None:  # noqa: FBT001  # A case.
    write_image_folder(tmp_path / layout, pack_image_files(), zipped=zipped)

    data = read_image_folder(tmp_path, "mine")

    train_images, train_labels = draw_samples(300, seed=1)
    test_images, test_labels = draw_samples(50, seed=2)
    assert data.name == "mine"
    assert np.array_equal(data.train_images, train_images)
    assert np.array_equal(data.train_labels, train_labels)
    assert np.array_equal(data.test_images, test_images)
    assert np.array_equal(data.test_labels, test_labels)


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"has no {TRAIN_IMAGES}"):
        read_image_folder(tmp_path, "mine")


def test_missing_labels_are_named(tmp_path: Path) -> None:
    write_image_folder(tmp_path, pack_image_files())
    (tmp_path / TEST_LABELS).unlink()

    with pytest.raises(DataError, match=f"{TEST_LABELS} .* is missing"):
        read_image_folder(tmp_path, "mine")


@pytest.mark.parametrize(
    ("name", "values", "complaint"),
    [
        (TRAIN_LABELS, np.zeros(299, dtype=np.uint8), "300 images, .* has 299 labels"),
        (TRAIN_LABELS, np.full(300, 10, dtype=np.uint8), "label 10"),
        (TEST_IMAGES, np.zeros((50, 28, 27), dtype=np.uint8), "28x28 pixels"),
        (TEST_IMAGES, np.zeros((0, 28, 28), dtype=np.uint8), "28x28 pixels"),
        (
            TEST_IMAGES,
            np.zeros((50, 784), dtype=np.uint8),
            "not an IDX file of unsigned bytes in 3 dimensions",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, name: str, values: np.typing.NDArray[np.uint8], complaint: str
) -> None:
    write_image_folder(tmp_path, {**pack_image_files(), name: pack_idx(values)})

    with pytest.raises(DataError, match=complaint) as refusal:
        read_image_folder(tmp_path, "mine")

    assert name in str(refusal.value)


def test_mean_and_deviation_are_those_of_the_training_pixels(tmp_path: Path) -> None:
    data = read_image_folder(write_image_folder(tmp_path, pack_image_files(train=2_500)), "mine")

    (grey,) = data.measure_channels()

    pixels = data.train_images.astype(np.float64) / 255
    assert grey.mean == pytest.approx(pixels.mean(), rel=1e-12)
    assert grey.deviation == pytest.approx(pixels.std(), rel=1e-12)


def test_each_colour_is_measured_by_itself() -> None:
    images, labels = draw_colour_samples(2_500, seed=1)
    data = ImageData(
        name="mine", train_images=images, train_labels=labels, test_images=images[:9], test_labels=labels[:9]
    )

    channels = data.measure_channels()

    pixels = images.astype(np.float64) / 255
    assert [channel.mean for channel in channels] == pytest.approx(pixels.mean(axis=(0, 2, 3)), rel=1e-12)
    assert [channel.deviation for channel in channels] == pytest.approx(pixels.std(axis=(0, 2, 3)), rel=1e-12)
    assert len({round(channel.mean, 3) for channel in channels}) == 3
