"""Becomes a container's first process: builds the file system that the container would see, and steps into it.

It is started as a program, in new mount, host name and process namespaces, and reads what to do from a file that
its command line names. All of this machine is at /.host, read-only, and every name at the top is a link to there,
except where something is mounted: what stands on the way to a mount is a folder with links in it. So a program
that is installed here runs there, with exactly the mounts that it is given and nothing else to write to.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HOST = Path("/.host")
_SYS_MOUNT_SETATTR = 442  # The same number on every architecture.
_AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = -100, 0x8000, 0x1


@dataclass(frozen=True, slots=True)
class Container:
    """All that an engine makes a process from."""

    command: Sequence[str]
    environment: Mapping[str, str]
    hostname: str
    hosts: Mapping[str, str]
    """Addresses by name."""
    user: str
    """Number of user and group, as in `10001:10001`."""
    binds: Sequence[tuple[str, str, bool]]
    """Path on this machine, path in the container, whether it is read-only."""
    empty: Sequence[str]
    """Folders that images have empty, whatever is in them here."""
    scratch: Sequence[str]
    """Folders in memory."""
    files: Mapping[str, str]
    """Programs that images have and this machine has not, by path."""
    links: Mapping[str, str]
    read_only: bool
    root: str
    """An empty folder here to build it on."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def become(container: Container) -> None:
    """Build the file system, step into it and run the command; does not return."""
    root = Path(container.root)
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(root))
    _bind(Path("/"), root / HOST.name)
    _protect(root / HOST.name, recursive=True)
    # Making a user namespace writes there.
    container = replace(container, binds=[("/proc", "/proc", False), *container.binds])
    _link_everything(root, container)
    for source, target, read_only in container.binds:
        place = root / target.lstrip("/")
        _bind(Path(source), place)
        if read_only:
            _protect(place, recursive=False)
    for target in container.scratch:
        _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(root / target.lstrip("/")))
    if container.read_only:
        _protect(root, recursive=False)
    socket.sethostname(container.hostname)
    _enter(root)
    user, group = container.user.split(":")
    # A user of that number, who owns what this process owns, and has no rights beyond.
    prefix = ["unshare", "--user", f"--map-user={user}", f"--map-group={group}", "setpriv", "--no-new-privs"]
    os.execvpe(prefix[0], [*prefix, *container.command], dict(container.environment))  # noqa: S606  (No shell.)


def _link_everything(root: Path, container: Container) -> None:
    """Make folders of what is on the way to a mount, and links of everything else."""
    made = {"/etc/hosts": "".join(f"{address} {name}\n" for name, address in container.hosts.items())}
    files = {**container.files, **made}
    folders = [*container.empty, *container.scratch, *(target for _, target, _ in container.binds)]
    places = [Path(each) for each in (*folders, *files, *container.links)]
    _mirror(Path("/"), root, places, {Path(each) for each in container.empty})
    for source, target, _ in container.binds:
        place = root / target.lstrip("/")
        place.touch() if Path(source).is_file() else place.mkdir(exist_ok=True)
    for target in (*container.empty, *container.scratch):
        (root / target.lstrip("/")).mkdir(exist_ok=True)
    for target, text in files.items():
        place = root / target.lstrip("/")
        place.write_text(text, encoding="utf-8")
        place.chmod(0o755)
    for target, destination in container.links.items():
        (root / target.lstrip("/")).symlink_to(destination)


def _mirror(folder: Path, copy: Path, places: Sequence[Path], empty: Iterable[Path]) -> None:
    """Copy a folder as links, without the places that are to be something else."""
    copy.mkdir(exist_ok=True)
    on_the_way = {place for place in _parents_of(places) if place.parent == folder != place}
    here = [] if folder in empty or not folder.is_dir() else sorted(folder.iterdir())
    for path in {*here, *on_the_way}:
        if path in on_the_way:
            _mirror(path, copy / path.name, places, empty)
        elif path not in places and path.name != HOST.name:
            (copy / path.name).symlink_to(HOST / path.relative_to("/"))


def _parents_of(places: Iterable[Path]) -> set[Path]:
    return {parent for place in places for parent in place.parents}


def _bind(source: Path, target: Path) -> None:
    if not target.exists():
        target.mkdir()
    _mount("--rbind", str(source), str(target))


def _mount(*arguments: str) -> None:
    _do("mount", *arguments)


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


def _protect(path: Path, *, recursive: bool) -> None:
    """Make a mount read-only; its other flags stay, which mount(8) cannot promise."""
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(path),
        flags,
        ctypes.byref(attributes),
        ctypes.sizeof(attributes),
    ):
        raise OSError(ctypes.get_errno(), "mount_setattr", str(path))


def _enter(root: Path) -> None:
    """Make it the root. Not by chroot, in which no user namespace can be made."""
    os.chdir(root)
    _do("pivot_root", ".", ".")
    _do("umount", "--lazy", ".")
    os.chdir("/")


if __name__ == "__main__":
    become(Container(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
