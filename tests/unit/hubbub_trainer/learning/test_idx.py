import gzip
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import DataError
from hubbub_trainer.learning.idx import read_idx
from support.image_files import pack_idx

VALUES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
GOOD = pack_idx(VALUES)


@pytest.mark.parametrize(("name", "content"), [("images", GOOD), ("images.gz", gzip.compress(GOOD, mtime=0))])
def test_plain_and_zipped_files_read_alike(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    assert np.array_equal(read_idx(path, dimensions=3), VALUES)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "begins with nothing, not with 00000803"),
        (pack_idx(VALUES[0]), "begins with 00000802"),
        (b"\0\0\x0d\3" + GOOD[4:], "begins with 00000d03"),
        (GOOD[:9], "cut off in its header"),
        (GOOD[:-1], "promises 24 bytes of data and holds 23"),
        (GOOD + b"\0", "promises 24 bytes of data and holds 25"),
        (GOOD[:4] + b"\xff" * 12 + GOOD[16:], "holds 24"),
    ],
)
def test_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)

    with pytest.raises(DataError, match=complaint) as refusal:
        read_idx(path, dimensions=3)

    assert str(path) in str(refusal.value)
    assert "get it again" in str(refusal.value)


@pytest.mark.parametrize(
    "content", [gzip.compress(GOOD, mtime=0)[:-9], GOOD, gzip.compress(GOOD, mtime=0)[:-8] + b"\0" * 8]
)
def test_damaged_gzip_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"images\.gz is not a whole gzip file"):
        read_idx(path, dimensions=3)


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere cannot be read"):
        read_idx(tmp_path / "nowhere", dimensions=3)
