"""IDX, the file format of MNIST: a magic number, the dimensions, then one unsigned byte per value.

Big-endian throughout. A file may be gzipped, which its name says (`.gz`).
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import DataError

Bytes = NDArray[np.uint8]

_WORD_BYTES = 4
_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, *, dimensions: int) -> Bytes:
    """Read an IDX file of unsigned bytes with this number of dimensions; refuse anything else."""
    return parse_idx(read_bytes(path), path, dimensions=dimensions)


def read_bytes(path: Path) -> bytes:
    """Read a file, unzipped if it is a `.gz`."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}): get it again") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): check that it is there and readable"
        ) from error


def parse_idx(content: bytes, path: Path, *, dimensions: int) -> Bytes:
    """Read the content of an IDX file; `path` is named in errors. The array returned is read-only."""
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if content[:_WORD_BYTES] != magic:
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions: it begins with "
            f"{content[:_WORD_BYTES].hex() or 'nothing'}, not with {magic.hex()}; get it again"
        )
    header_bytes = _WORD_BYTES * (1 + dimensions)
    if len(content) < header_bytes:
        raise DataError(f"{path} is cut off in its header, after {len(content)} bytes: get it again")
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=_WORD_BYTES))
    promised, held = int(np.prod(shape, dtype=object)), len(content) - header_bytes
    if held != promised:
        raise DataError(f"{path} promises {promised} bytes of data and holds {held}: get it again")
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)
