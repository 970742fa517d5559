"""The audit log: written once, broken by any change, and held against the logs of others."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from hubbub.crypto.signing import bind
from hubbub.errors import ConfigurationError, LocalError
from hubbub.ids import PartyId
from hubbub.trust import audit
from hubbub.trust.audit import AuditLog, BrokenChain, Refusals, read_log
from hubbub.trust.comparison import DifferenceKind, compare

ME = PartyId("hospital-a")
RUN = "ab" * 32


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Nothing here loses power, and a sync takes longer than all the rest of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@contextmanager
def opened(path: Path, party: PartyId = ME) -> Iterator[AuditLog]:
    log = AuditLog(path, party)
    try:
        yield log
    finally:
        log.close()


def write(path: Path, *kinds: str, party: PartyId = ME) -> Path:
    with opened(path, party) as log:
        for number, kind in enumerate(kinds):
            log.append(kind, number=number, text="naïve ☃", ratio=0.1)
    return path


def kinds_in(path: Path) -> list[str]:
    return [entry.kind for entry in read_log(path).entries]


# Writing.


def test_a_log_opens_with_format_and_party_and_each_digest_covers_the_one_before(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = write(tmp_path / "folder" / "audit.jsonl", "joined", "ended")
    finally:
        os.umask(before)

    log = read_log(path)

    assert path.stat().st_mode & 0o777 == 0o600, "only its owner can read it, whatever the umask"
    assert log.party == ME
    assert [(entry.sequence, entry.kind) for entry in log.entries] == [(1, "opened"), (2, "joined"), (3, "ended")]
    assert log.entries[0].fields == {"format": 2, "party": ME}
    assert log.entries[1].fields == {"number": 0, "text": "naïve ☃", "ratio": 0.1}
    first, second = (json.loads(line) for line in path.read_text("ascii").splitlines()[:2])
    assert second["previous"] == first["digest"]
    digest = second.pop("digest")
    text = json.dumps(second, sort_keys=True, separators=(",", ":"))
    assert digest == hashlib.sha256(bind("hubbub audit entry", 2, text)).hexdigest()


def test_a_head_cannot_confirm_a_guess_at_the_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two logs with the same entries, written at the same time, have nothing in common but what they say."""
    stopped = Mock(now=lambda zone: datetime(2026, 1, 2, 3, 4, 5, tzinfo=zone))
    monkeypatch.setattr(audit, "datetime", stopped)

    one, other = (read_log(write(tmp_path / name, "joined", "ended")) for name in ("one", "other"))

    told = [[(entry.time, entry.kind, entry.fields) for entry in log.entries] for log in (one, other)]
    assert told[0] == told[1]
    salts = {entry.salt for log in (one, other) for entry in log.entries}
    digests = {entry.digest for log in (one, other) for entry in log.entries}
    assert len(salts) == len(digests) == 6


def test_a_reopened_log_goes_on_and_syncs_each_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        log.append("joined", kind="share", self="fields may be named like the parameters")
        head = log.head
    with opened(path) as log:
        assert log.head == head
        size_when_synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda file: size_when_synced.append(os.fstat(file).st_size))
        log.append("ended")
        assert log.head != head

    assert size_when_synced == [path.stat().st_size]
    assert kinds_in(path) == ["opened", "joined", "ended"]
    assert read_log(path).entries[1].fields["kind"] == "share"


def nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: "a"}, {"a"}, b"bytes", float("nan"), float("inf"), Path("x"), nested(100_000)],
    ids=["tuple", "number as key", "set", "bytes", "nan", "infinity", "object", "deep"],
)
def test_only_plain_json_is_written(tmp_path: Path, value: Any) -> None:
    with opened(tmp_path / "log") as log:
        with pytest.raises(LocalError, match="audit entry of kind 'joined' holds something"):
            log.append("joined", value=value)
        log.append("ended")

    assert kinds_in(tmp_path / "log") == ["opened", "ended"]


def test_many_threads_write_one_chain(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:

        def work(number: int) -> None:
            for turn in range(20):
                log.append("noted", place=[number, turn])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    places = [entry.fields["place"] for entry in read_log(tmp_path / "log").entries[1:]]
    assert sorted(map(str, places)) == sorted(str([number, turn]) for number in range(8) for turn in range(20))


def test_after_a_full_disk_nothing_follows_until_a_reopening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    real_write = os.write

    def write_a_little(file: int, piece: bytes) -> int:
        if len(piece) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(file, piece[:60])

    with opened(path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write_a_little)
            with pytest.raises(LocalError, match="cannot be written: No space left"):
                log.append("joined")
        with pytest.raises(LocalError, match="failed before"):
            log.append("joined")
    write(path, "ended")

    assert kinds_in(path) == ["opened", "recovered", "ended"]


def test_a_log_that_is_closed_or_that_somebody_else_writes_to_takes_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with opened(path) as log:
        with opened(path) as other:
            other.append("joined")
            other.close()
            with pytest.raises(LocalError, match="is closed"):
                other.append("joined")
        with pytest.raises(LocalError, match="was changed by somebody else"):
            log.append("ended")

    assert kinds_in(path) == ["opened", "joined"]


# Opening what a crash, or somebody, left.


def reorder(path: Path, end: bytes) -> None:
    lines = path.read_bytes().splitlines()
    path.write_bytes(lines[0] + b"\n" + lines[2] + end)


@pytest.mark.parametrize(
    ("party", "change", "complaint"),
    [
        ("hospital-b", lambda _: None, "line 1: this is the audit log of hospital-b, not of hospital-a"),
        (ME, lambda path: reorder(path, b"\n"), "line 2: entry 3 stands where entry 2 belongs"),
        (ME, lambda path: reorder(path, b""), "line 2: entry 3 stands where entry 2 belongs"),
        (ME, lambda path: path.write_text("a private key without a newline"), "line 1: this is not JSON"),
    ],
)
def test_a_file_that_is_not_this_partys_unbroken_log_is_left_as_it_is(
    tmp_path: Path, party: str, change: Callable[[Path], None], complaint: str
) -> None:
    path = write(tmp_path / "log", "joined", "ended", party=PartyId(party))
    change(path)
    before = path.read_bytes()

    with pytest.raises(LocalError, match=complaint):
        AuditLog(path, ME)

    assert path.read_bytes() == before


def test_wherever_a_crash_cuts_the_last_line_the_log_goes_on_and_says_so(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", "joined", "ended").read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    path = tmp_path / "log"
    for end in range(start, len(whole) + 1):
        path.write_bytes(whole[:end])
        write(path, "again")

        entries = read_log(path).entries
        if end in {start, len(whole) - 1, len(whole)}:
            kept = ["ended"] * (end > start)
            assert [entry.kind for entry in entries] == ["opened", "joined", *kept, "again"]
        else:
            assert [entry.kind for entry in entries] == ["opened", "joined", "recovered", "again"]
            assert entries[2].fields == {"bytes": end - start}


@pytest.mark.parametrize("left", [b"", b"{", b'{"digest":"ab', b"\0" * 30])
def test_a_crash_in_the_first_line_leaves_a_log_that_opens(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(left)

    write(path, "joined")

    assert kinds_in(path) == ["opened", *(["recovered"] if left else []), "joined"]


# Refusals.


def write_down(
    refusals: Refusals, reason: str, *, sender: str, kind: str = "share", run: str = "", by: str = ""
) -> None:
    write = refusals.note(reason, kind=kind, sender=sender, run=run, by=by)
    if write is not None:
        write()


def test_a_flood_of_refusals_makes_the_log_longer_by_its_logarithm_only(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        refusals = Refusals(log)
        for _ in range(1000):
            write_down(refusals, "bad-signature", sender="client-1", run=RUN)
        write_down(refusals, "bad-signature", sender="client-2", run=RUN)

    entries = [entry.fields for entry in read_log(tmp_path / "log").entries[1:]]
    assert [entry["count"] for entry in entries] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1]
    about = {"reason": "bad-signature", "kind": "share", "sender": "client-2", "run": RUN}
    assert entries[-1] == {**about, "count": 1}


def test_too_many_made_up_names_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of the broker that makes up names uses up its own room only."""
    monkeypatch.setattr(audit, "MAX_TALLIES", 14)
    monkeypatch.setattr(audit, "MAX_TALLIES_OF_ONE", 3)
    with opened(tmp_path / "log") as log:
        refusals = Refusals(log)
        for number in range(7):
            write_down(refusals, "unknown-run", sender="mallory", run=f"{number}", by="mallory")
        for number in range(1010):
            write_down(refusals, "unknown-run", sender=f"stranger-{number}")
        write_down(refusals, "unknown-run", sender="stranger-0")

    entries = [entry.fields for entry in read_log(tmp_path / "log").entries[1:]]
    assert [(entry["reason"], entry["sender"], entry["run"], entry["count"]) for entry in entries] == [
        *(("unknown-run", "mallory", f"{number}", 1) for number in range(3)),
        *(("unknown-run", "mallory", "other", count) for count in (1, 2, 4)),
        *(("unknown-run", f"stranger-{number}", "", 1) for number in range(10)),
        *(("other", "other", "other", 2**power) for power in range(10)),
        ("unknown-run", "stranger-0", "", 2),
    ]


def test_a_strangers_name_is_escaped_and_cut(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        write_down(Refusals(log), "malformed", kind="\x1b[2J\n", sender="\ud800", run="x" * 10_000)

    fields = read_log(tmp_path / "log").entries[-1].fields
    assert (fields["kind"], fields["sender"], fields["run"]) == ("\\x1b[2J\\n", "\\ud800", "x" * 80)


# Reading.


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("kept") / "log", "joined", "released", "released", "ended")


def check_broken(kept: Path, changed: bytes) -> BrokenChain:
    path = kept.with_name("changed")
    path.write_bytes(changed)
    with pytest.raises(BrokenChain) as caught:
        read_log(path)
    return caught.value


@given(st.data())
def test_a_change_of_any_byte_is_found(kept: Path, data: st.DataObject) -> None:
    whole = kept.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[place]))

    error = check_broken(kept, whole[:place] + bytes([byte]) + whole[place + 1 :])

    assert error.line == whole.count(b"\n", 0, place) + 1


@given(st.data())
def test_bytes_taken_out_or_put_in_are_found(kept: Path, data: st.DataObject) -> None:
    whole = kept.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    changed = whole[:start] + data.draw(st.binary(max_size=20)) + whole[end:]
    lines = whole.splitlines(keepends=True)
    if changed in {b"".join(lines[:count]) for count in range(1, len(lines) + 1)}:
        return  # Nothing changed, or whole lines at the end are gone: only other logs show that.

    check_broken(kept, changed)


@given(st.data())
def test_lines_removed_moved_or_repeated_are_found(kept: Path, data: st.DataObject) -> None:
    lines = kept.read_bytes().splitlines(keepends=True)
    chosen = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=8))
    if chosen == list(range(len(chosen))) and chosen:
        return

    error = check_broken(kept, b"".join(lines[index] for index in chosen))

    in_order = next((at for at, index in enumerate(chosen) if at != index), len(chosen))
    assert error.line == in_order + 1


def rewrite(line: bytes, **changes: object) -> bytes:
    """A line that was changed by somebody who also knows how to make its digest; a salt of None is left out."""
    content = {**json.loads(line), **changes}
    del content["digest"]
    if content["salt"] is None:
        del content["salt"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(bind("hubbub audit entry", 2 if "salt" in content else 1, text)).hexdigest()
    return json.dumps({**content, "digest": digest}, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def write_without_salt(path: Path, *kinds: str) -> Path:
    """A log as it was before lines had salts."""
    lines: list[bytes] = []
    for line in write(path, *kinds).read_bytes().splitlines():
        first: dict[str, object] = {"fields": {"format": 1, "party": ME}}
        changes = {"previous": json.loads(lines[-1])["digest"]} if lines else first
        lines.append(rewrite(line, salt=None, **changes))
    path.write_bytes(b"".join(lines))
    return path


def test_a_log_of_the_format_before_is_read_and_continued_with_salts(tmp_path: Path) -> None:
    old = read_log(write_without_salt(tmp_path / "log", "joined"))

    new = read_log(write(tmp_path / "log", "ended"))

    assert [(entry.kind, entry.format) for entry in new.entries] == [("opened", 1), ("joined", 1), ("ended", 2)]
    assert DifferenceKind.FORKED not in {each.kind for each in compare([old, new])}


@pytest.mark.parametrize(
    ("change", "line", "how"),
    [
        (lambda lines: [lines[0], b"nonsense\n", *lines[2:]], 2, "this is not JSON as an entry has it"),
        (lambda lines: [lines[0], b"{}\n", *lines[2:]], 2, "this is not an entry: sequence: Field required"),
        (lambda lines: [lines[0], b"[" * 100_000 + b"\n"], 2, "this is not JSON as an entry has it"),
        (lambda lines: [lines[0], lines[1].replace(b"joined", b"joinee")], 2, "the line was changed"),
        (lambda lines: [lines[0], lines[1].replace(b'"kind":', b'"kind": ')], 2, "the line was changed"),
        (lambda lines: [lines[0], lines[2]], 2, "entry 3 stands where entry 2 belongs"),
        (lambda lines: [lines[0], rewrite(lines[1], kind="x"), lines[2]], 3, "does not follow from line 2"),
        (lambda lines: [rewrite(lines[0], previous="1" * 64)], 1, "does not follow from the start of a log"),
        (lambda lines: [rewrite(lines[0], kind="joined")], 1, "does not open an audit log of format 1 or 2"),
        (lambda lines: [rewrite(lines[0], fields={"format": 1, "party": ME})], 1, "does not open an audit log"),
        (lambda lines: [rewrite(lines[0], fields={"format": 3, "party": ME})], 1, "does not open an audit log"),
        (lambda lines: [rewrite(lines[0], fields={"format": 2, "party": "\n"})], 1, "does not open an audit log"),
        (lambda lines: [rewrite(lines[0], salt="ab")], 1, "this is not an entry: salt: String should match"),
        (lambda lines: [lines[0], rewrite(lines[1], salt=None)], 2, "has no salt, and the one before it has"),
        (lambda lines: [lines[0], lines[1][:-1]], 2, "the last line is incomplete"),
        (lambda _: [], 1, "there is no entry"),
    ],
)
def test_a_break_is_located(kept: Path, change: Callable[[list[bytes]], list[bytes]], line: int, how: str) -> None:
    lines = kept.read_bytes().splitlines(keepends=True)

    error = check_broken(kept, b"".join(change(lines)))

    assert error.line == line
    assert f", line {line}: " in str(error)
    assert how in error.how


def test_a_log_that_is_not_there_or_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file") as caught:
        read_log(tmp_path / "log")
    assert not isinstance(caught.value, BrokenChain)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "log", tmp_path):
        with pytest.raises(LocalError, match="cannot be opened"):
            AuditLog(path, ME)
