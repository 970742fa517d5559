"""Chunks that lie in a party's spool."""

import io
from pathlib import Path

from hubbub.runtime.spool import read_head


def chunk_in(path: Path, content: bytes) -> tuple[str, bytes] | None:
    """The chunk that a file with this content holds, and its name; none if it is no chunk's, or an empty slot."""
    if path.suffix != ".slot":
        return None
    file = io.BytesIO(content)
    head = read_head(file, len(content))
    return None if head is None else (head[1], file.read())


def spooled_in(folder: Path) -> dict[str, bytes]:
    """All chunks in a folder, by their names."""
    found = [chunk_in(path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    return dict(each for each in found if each is not None)
