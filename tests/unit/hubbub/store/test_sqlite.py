"""The SQLite store beyond the contract: what is synced when, and disks that are full, read-only or damaged."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hubbub.errors import ConfigurationError, StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Draft
from hubbub.store.sqlite import SqliteStore
from support.patience import HANG_S

KEY = Key("phase", RunId("a" * 64), 1, "signs")
MEGABYTE = "x" * 2**20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "events.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store._file._database.close()


def draft(body: str) -> Draft:
    return Draft(KEY, "Arrived", body)


def bodies(store: SqliteStore) -> list[str]:
    return [entry.body for entry in store.read()]


def read(store: SqliteStore) -> list[tuple[str, bool]]:
    """All that is in it, and whether it is done."""
    return [(entry.body, entry.done) for entry in store.read()]


def script(text: str, *arguments: str | Path, prefix: tuple[str, ...] = ()) -> list[str]:
    begin = """
import os, signal, sys
from pathlib import Path
from hubbub.errors import StorageFailed
from hubbub.machine.effects import Key
from hubbub.store.base import Draft
from hubbub.store.sqlite import SqliteStore
def draft(body):
    return Draft(Key("phase", "a" * 64), "Arrived", body)
def bodies(store):
    return " ".join(entry.body for entry in store.read())
"""
    return [*prefix, sys.executable, "-c", begin + text, *map(str, arguments)]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


# On disk when append returns ----------------------------------------------------------------------------

APPEND_AND_SAY = """
store = SqliteStore(Path(sys.argv[1]))
store._file._database.execute(sys.argv[2])
for number in range(3):
    store.append([draft("first"), draft("second")])
    os.write(1, b"appended")
"""
CALL = re.compile(r'(write|pwrite64|fsync|fdatasync)\(\d+<([^>]*)>(?:, "([^"]*)")?.* = \d+$')


def synced_before_it_was_said(trace: str) -> list[bool]:
    """For each time that the process said `appended`: was all synced that it had written to the log?"""
    said, unsynced, written = [], False, False
    for call, file, text in (match.groups() for match in map(CALL.search, trace.splitlines()) if match):
        if text == "appended":
            said.append(written and not unsynced)
            written = False
        elif file.endswith("-wal"):
            unsynced = "write" in call
            written = written or unsynced
    return said


@pytest.mark.parametrize(
    ("setting", "synced"), [("", True), ("PRAGMA synchronous = NORMAL", False)], ids=["ours", "another"]
)
def test_a_sync_has_returned_before_append_returns(path: Path, setting: str, synced: bool) -> None:  # noqa: FBT001  (A parameter of the test.)
    tracer = ("strace", "-f", "-y", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o", str(path.parent / "trace"))
    path.parent.mkdir(parents=True)
    if shutil.which("strace") is None or subprocess.run([*tracer, "true"], check=False).returncode:
        pytest.skip("strace is not installed, or may not trace here")

    run(script(APPEND_AND_SAY, path, setting, prefix=tracer))

    # That it is not so with another setting shows that the trace would tell.
    assert synced_before_it_was_said((path.parent / "trace").read_text()) == [synced] * 3


def test_what_was_appended_is_there_after_kill_9_and_the_store_asks_for_full_syncs(path: Path) -> None:
    text = """
store = SqliteStore(Path(sys.argv[1]))
store.mark_done(store.append([draft("first")]))
store.append([draft("second")])
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(script(text, path), check=False, timeout=HANG_S)
    assert killed.returncode == -signal.SIGKILL
    store = SqliteStore(path)
    assert read(store) == [("first", True), ("second", False)]
    full = 2
    assert store._file._database.execute("PRAGMA synchronous").fetchone() == (full,)
    assert store._file._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


# A disk that is full, and then has room again -----------------------------------------------------------


def test_a_full_file_takes_all_or_nothing_and_goes_on_when_there_is_room(store: SqliteStore, path: Path) -> None:
    first = store.append([draft("first")])
    store.mark_done(first)
    (pages,) = store._file._database.execute("PRAGMA page_count").fetchone()
    store._file._database.execute(f"PRAGMA max_page_count = {pages + 20}")

    for _ in range(2):
        with pytest.raises(StorageFailed, match=r"events\.sqlite cannot be used: .*full; make room on its disk"):
            store.append([draft("lost"), draft(MEGABYTE)])
    assert bodies(store) == ["first"]

    store._file._database.execute("PRAGMA max_page_count = 1000000")
    store.append([draft("second"), draft(MEGABYTE)])
    again = SqliteStore(path)
    assert read(again) == [("first", True), ("second", False), (MEGABYTE, False)]
    again.close()


FILL = """
import resource
folder = Path(sys.argv[1])
store = SqliteStore(folder / "events.sqlite")
store.append([draft("first")])

def fill(mode):
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1))
    else:
        # All but a little, so that a part of what is to be written finds room.
        free = os.statvfs(folder)
        (folder / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - 40_000))

def make_room(mode):
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    else:
        (folder / "filler").unlink()

fill(sys.argv[2])
for _ in range(2):
    try:
        store.append([draft("lost"), draft("x" * 200_000)])
    except StorageFailed as error:
        print(error)
print(bodies(store))
make_room(sys.argv[2])
print(bodies(SqliteStore(folder / "events.sqlite")))
store.append([draft("second"), draft("third")])
print(bodies(SqliteStore(folder / "events.sqlite")))
"""


def on_its_own_disk(folder: Path, options: str) -> tuple[str, ...]:
    """A prefix that runs a command with a small disk in memory at a folder, which nobody else sees."""
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c")
    mount = f'mount -t tmpfs -o {options} none "{folder}"'
    if shutil.which("unshare") is None or subprocess.run([*prefix, mount], check=False).returncode:
        pytest.skip("this user may not mount anything here")
    return (*prefix, f'{mount} && exec "$@"', "sh")


@pytest.mark.parametrize(
    ("mode", "complaint"),
    [
        ("limit", "cannot be used: disk I/O error; see whether its disk is full"),
        ("disk", "cannot be used: .*full; make room on its disk"),
    ],
)
def test_a_file_that_cannot_grow_takes_all_or_nothing_until_it_can(
    tmp_path: Path, mode: str, complaint: str
) -> None:
    prefix = on_its_own_disk(tmp_path, "size=1m") if mode == "disk" else ()
    first, second, during, after, later = run(script(FILL, tmp_path, mode, prefix=prefix)).splitlines()

    assert re.search(complaint, first)
    assert second == first
    assert (during, after, later) == ("first", "first", "first second third")


# Folders and files that cannot be used ------------------------------------------------------------------

OPEN = """
try:
    SqliteStore(Path(sys.argv[1]))
except StorageFailed as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["events.sqlite", "new/events.sqlite"], ids=["file", "folder"])
def test_a_read_only_disk_is_a_clear_error(tmp_path: Path, name: str) -> None:
    said = run(script(OPEN, tmp_path / name, prefix=on_its_own_disk(tmp_path, "ro")))
    assert re.search("cannot be used: Read-only file system; let this user write to the file and its folder", said)


def test_a_folder_of_others_is_a_clear_error(tmp_path: Path) -> None:
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and without setpriv stays root")
        prefix = ("setpriv", "--bounding-set=-all")
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    said = run(script(OPEN, folder / "events.sqlite", prefix=prefix))
    assert re.search("cannot be used: Permission denied; let this user write to the file and its folder", said)
    assert list(folder.iterdir()) == []


def damaged() -> bytes:
    """A store with a page of zeros in its middle."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.sqlite"
        store = SqliteStore(path)
        store.append([draft(f"{number} {'x' * 500}") for number in range(100)])
        store.close()
        content = path.read_bytes()
    return content[:-8192] + bytes(4096) + content[-4096:]


@pytest.mark.parametrize(
    "content",
    [b"this is no database, only text" * 100, b"SQLite format 3\x00" + b"\xff" * 5000, damaged()],
    ids=["text", "noise", "damaged"],
)
def test_a_file_that_is_no_database_or_another_or_damaged_is_a_clear_error(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(StorageFailed, match=r"events\.sqlite cannot be used: .*damaged.*: move it away"):
        SqliteStore(path)
    assert path.read_bytes() == content
    with closing(sqlite3.connect(path.with_name("other"))) as database:
        database.execute("CREATE TABLE events (something TEXT)")
    with pytest.raises(StorageFailed, match=r"no such column: .*; it is damaged, or something else"):
        SqliteStore(path.with_name("other"))


@pytest.mark.parametrize("version", [1, 3], ids=["earlier", "later"])
def test_a_store_of_another_version_is_refused(store: SqliteStore, path: Path, version: int) -> None:
    store.append([draft("first")])
    store._file._database.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(
        ConfigurationError, match=rf"events\.sqlite has version {version}, and this Hubbub knows 2 alone: .*"
    ):
        SqliteStore(path)
    assert bodies(store) == ["first"]


def test_a_file_that_another_process_holds_is_a_clear_error(store: SqliteStore, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE verdicts (members TEXT)")
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO verdicts VALUES ('client-1')")
    store._file._database.execute("PRAGMA busy_timeout = 0")
    with pytest.raises(StorageFailed, match="locked; stop the other process that is using it"):
        store.append([draft("first")])
    other.execute("COMMIT")
    store.append([draft("second")])
    assert bodies(store) == ["second"]
    store.drop([KEY])
    assert other.execute("SELECT members FROM verdicts").fetchall() == [("client-1",)], "another table in the file"
    other.close()


def test_a_name_that_is_special_to_sqlite_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SqliteStore(Path(":memory:")).close()
    assert (tmp_path / ":memory:").stat().st_size > 0


# Who may read it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_log_only", [True, False])
def test_only_its_owner_may_read_it_and_what_is_dropped_is_gone(
    store: SqliteStore, path: Path, *, in_log_only: bool
) -> None:
    def found() -> bool:
        return any(b"open-sesame" in each.read_bytes() for each in path.parent.iterdir())

    store.append([draft("open-sesame" * 1000), draft("open-sesame")])
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == dict.fromkeys(["events.sqlite", "events.sqlite-wal", "events.sqlite-shm"], 0o600)
    if not in_log_only:
        store._file._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert found()
    store.drop([KEY])
    assert not found()


def test_it_is_closed_also_if_the_last_write_fails(store: SqliteStore) -> None:
    store.mark_done(store.append([draft("first")]))
    store._file._database.execute("PRAGMA query_only = ON")
    with pytest.raises(StorageFailed, match="readonly database; let this user write"):
        store.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store._file._database.execute("SELECT 1")
