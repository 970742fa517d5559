"""Image data sets by name or folder, the built-in `digits`, and the measures of their channels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import DataError
from hubbub_trainer.learning import images, mnist
from hubbub_trainer.learning.datasets import COLOUR, GREY, default_cache_folder, load_images
from hubbub_trainer.learning.fetching import FetchError
from hubbub_trainer.learning.images import Bytes, ImageData, LabelledImages, enlarge, load_digits_images
from support.colour_files import draw_colour_samples, pack_batches
from support.image_files import draw_samples, pack_image_files, write_image_folder


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no program with which to fetch anything."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(mnist, "find_spec", lambda _name: None)


def test_cache_folder_is_the_environments_or_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path / "mine"))
    assert default_cache_folder() == tmp_path / "mine"

    monkeypatch.delenv("HUBBUB_CACHE")
    assert default_cache_folder() == tmp_path / ".cache" / "hubbub"


@pytest.mark.usefixtures("no_network")
def test_only_grey_images_that_cannot_be_fetched_have_a_substitute_and_the_user_is_told(tmp_path: Path) -> None:
    lines: list[str] = []

    assert load_images("auto", tmp_path / "cache", lines.append).name == "digits"
    assert "'digits' instead of MNIST" in lines[-1]
    assert "npm" in lines[-1]
    assert "\n" not in lines[-1]
    with pytest.raises(FetchError):
        load_images("mnist", tmp_path / "cache", print)
    with pytest.raises(FetchError, match=r"npm, which is not installed.*no smaller set of colour images"):
        COLOUR.load("auto", tmp_path / "cache", print)
    with pytest.raises(FetchError, match="npm, which is not installed"):
        COLOUR.load("cifar10", tmp_path / "cache", print)
    # A damaged cache is no reason to use something else.
    write_image_folder(tmp_path / "MNIST" / "raw", pack_image_files())
    with pytest.raises(DataError, match="is damaged"):
        load_images("auto", tmp_path, print)


def test_folder_is_read_as_what_it_is_without_any_cache_unless_the_other_kind_is_wanted(tmp_path: Path) -> None:
    grey = write_image_folder(tmp_path / "grey", pack_image_files())
    colour = write_image_folder(tmp_path / "colour" / "cifar-10-batches-bin", pack_batches()).parent

    shapes = [load_images(str(each), tmp_path / "cache", print).train.images.shape for each in (grey, colour)]

    assert shapes == [(300, 28, 28), (300, 3, 32, 32)]
    assert not (tmp_path / "cache").exists()
    with pytest.raises(DataError, match=r"has no data_batch_1\.bin"):
        COLOUR.load(str(grey), tmp_path, print)
    with pytest.raises(DataError, match="has no train-images-idx3-ubyte"):
        GREY.load(str(colour), tmp_path, print)


def test_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'minst' .* choose auto, mnist, digits, cifar10 or a folder"):
        load_images("minst", tmp_path, print)


@pytest.mark.parametrize("draw", [draw_samples, draw_colour_samples])
def test_mean_and_deviation_are_those_of_each_channel(draw: Callable[[int, int], tuple[Bytes, Bytes]]) -> None:
    train = LabelledImages(*draw(2_500, 1))

    channels = ImageData("mine", train, train.pick(slice(9))).measure_channels()

    pixels = train.images.reshape(2_500, -1, *train.images.shape[-2:]) / 255
    assert [channel.mean for channel in channels] == pytest.approx(pixels.mean(axis=(0, 2, 3)), rel=1e-12)
    assert [channel.deviation for channel in channels] == pytest.approx(pixels.std(axis=(0, 2, 3)), rel=1e-12)
    assert len({round(channel.mean, 3) for channel in channels}) == pixels.shape[1]


# `digits` -------------------------------------------------------------------------------------------------


def test_all_digits_are_there_split_four_to_one() -> None:
    data = load_digits_images()

    assert data.name == "digits"
    assert data.train.images.shape == (1438, 28, 28)
    assert data.test.images.shape == (359, 28, 28)
    assert data.train.images.dtype == np.uint8
    assert data.train.images.max() == 255
    labels = np.concatenate([data.train.labels, data.test.labels])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.array_equal(images._read_table(), images._import_table()), "read directly or by scikit-learn"


def test_enlarging_keeps_even_shades_and_ramps() -> None:
    shades = np.arange(17).reshape(17, 1, 1) * np.ones((1, 8, 8), dtype=np.int64)
    ramp = np.broadcast_to(2 * np.arange(8), (1, 8, 8)).astype(np.int64)

    for shade, image in enumerate(enlarge(shades)):
        assert set(image.reshape(-1).tolist()) == {round(shade * 255 / 16)}
    row = enlarge(ramp)[0, 3].astype(np.int64)
    centres = np.clip((np.arange(28) + 0.5) * 8 / 28 - 0.5, 0, 7)
    assert np.abs(row - centres * 2 * 255 / 16).max() <= 0.5
    assert np.array_equal(enlarge(ramp.transpose(0, 2, 1))[0].T, enlarge(ramp)[0])


def test_missing_scikit_learn_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_spec", lambda _name: None)

    with pytest.raises(DataError, match=r"pip install 'hubbub\[demo\]'"):
        load_digits_images()
