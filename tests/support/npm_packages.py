"""Archives as npm leaves them, and an `npm` that delivers them, for tests of what is fetched."""

import io
import stat
import tarfile
from pathlib import Path


def pack(files: dict[str, bytes], *, links: dict[str, str] | None = None) -> bytes:
    """Make a gzipped archive of files and symbolic links under the given names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return buffer.getvalue()


def write_npm(folder: Path, body: str, calls: Path) -> None:
    """Write a shell script called `npm` that notes its arguments in `calls` and then runs `body`."""
    folder.mkdir(exist_ok=True)
    script = folder / "npm"
    script.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{body}\n')
    script.chmod(stat.S_IRWXU)
