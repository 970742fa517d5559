"""`hubbub run export`: a run's data into a file, whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hubbub.errors import ConfigurationError
from hubbub_cli.asking import RUNS, find_run
from hubbub_cli.client import Client


async def export(client: Client, run: str, wanted: Mapping[str, object], out: Path | None) -> int:
    """Write an export to a file or to standard output; how many bytes it has."""
    path = f"{RUNS}/{await find_run(client, run)}/export"
    async with client.download(path, wanted) as pieces:
        if out is not None:
            with _replacing(out) as stream:
                return await _copy(pieces, stream)
        size = await _copy(pieces, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return size


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Write beside the file first, so that half an export never stands under its name."""
    draft = path.with_name(f".{path.name}.part")
    try:
        try:
            with draft.open("wb") as stream:
                yield stream
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


async def _copy(pieces: AsyncIterator[bytes], stream: BinaryIO) -> int:
    size = 0
    async for piece in pieces:
        size += stream.write(piece)
    return size
