import numpy as np
import pytest

from hubbub.errors import DataError
from hubbub_trainer.learning import images
from hubbub_trainer.learning.images import enlarge, load_digits_images


def test_all_digits_are_there_split_four_to_one() -> None:
    data = load_digits_images()

    assert data.name == "digits"
    assert data.train_images.shape == (1438, 28, 28)
    assert data.test_images.shape == (359, 28, 28)
    assert data.train_images.dtype == np.uint8
    assert data.train_images.max() == 255
    labels = np.concatenate([data.train_labels, data.test_labels])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_table_read_past_scikit_learn_is_the_one_it_gives_out() -> None:
    assert np.array_equal(images._read_table(), images._import_table())


def test_enlarging_keeps_even_shades_exactly() -> None:
    shades = np.arange(17).reshape(17, 1, 1) * np.ones((1, 8, 8), dtype=np.int64)

    large = enlarge(shades)

    for shade, image in zip(range(17), large, strict=True):
        assert set(image.reshape(-1).tolist()) == {round(shade * 255 / 16)}


def test_enlarging_a_ramp_gives_a_ramp() -> None:
    ramp = np.broadcast_to(2 * np.arange(8), (1, 8, 8)).astype(np.int64)

    row = enlarge(ramp)[0, 3].astype(np.int64)

    centres = np.clip((np.arange(28) + 0.5) * 8 / 28 - 0.5, 0, 7)
    assert np.abs(row - centres * 2 * 255 / 16).max() <= 0.5
    assert np.array_equal(enlarge(ramp.transpose(0, 2, 1))[0].T, enlarge(ramp)[0])


def test_missing_scikit_learn_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_spec", lambda _name: None)

    with pytest.raises(DataError, match=r"pip install 'hubbub\[demo\]'"):
        load_digits_images()
