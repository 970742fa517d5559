"""The audit log: written once, broken by any change, and held against the logs of others."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from hubbub.crypto.signing import bind
from hubbub.errors import ConfigurationError, LocalError
from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.trust import audit
from hubbub.trust.audit import AuditLog, BrokenChain, Log, Refusals, read_log
from hubbub.trust.comparison import Common, Difference, DifferenceKind, compare, find_common, runs_of
from support.builders import make_manifest

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


def test_a_log_opens_with_format_and_party_and_each_digest_covers_its_line_and_the_digest_before(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "folder" / "audit.jsonl", "joined", "ended")

    log = read_log(path)

    assert log.party == ME
    assert [(entry.sequence, entry.kind) for entry in log.entries] == [(1, "opened"), (2, "joined"), (3, "ended")]
    assert log.entries[0].fields == {"format": 2, "party": ME}
    assert log.entries[1].fields == {"number": 0, "text": "naïve ☃", "ratio": 0.1}
    first, second = (json.loads(line) for line in path.read_text("ascii").splitlines()[:2])
    assert second["previous"] == first["digest"]
    digest = second.pop("digest")
    text = json.dumps(second, sort_keys=True, separators=(",", ":"))
    assert digest == hashlib.sha256(bind("hubbub audit entry", 2, text)).hexdigest()


def test_who_knows_a_head_cannot_confirm_a_guess_at_the_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two logs with the same entries, written at the same time, have nothing in common but what they say."""
    monkeypatch.setattr(audit, "datetime", StoppedClock)

    one, other = (read_log(write(tmp_path / name, "joined", "ended")) for name in ("one", "other"))

    told = [[(entry.time, entry.kind, entry.fields) for entry in log.entries] for log in (one, other)]
    assert told[0] == told[1]
    salts = {entry.salt for log in (one, other) for entry in log.entries}
    digests = {entry.digest for log in (one, other) for entry in log.entries}
    assert len(salts) == len(digests) == 6


class StoppedClock:
    @staticmethod
    def now(zone: tzinfo) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=zone)


def test_only_the_owner_can_read_a_log_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = write(tmp_path / "log")
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o777 == 0o600


def test_a_reopened_log_goes_on_with_the_same_chain_and_syncs_each_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_full_disk_is_told_and_nothing_follows_until_the_log_is_opened_again(
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


@pytest.mark.parametrize("place", ["file/log", "folder"])
def test_a_log_that_cannot_be_opened_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()

    with pytest.raises(LocalError, match="cannot be opened"):
        AuditLog(tmp_path / place, ME)


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
    assert entries[-1] == {
        "reason": "bad-signature",
        "kind": "share",
        "sender": "client-2",
        "run": RUN,
        "count": 1,
    }


def test_made_up_names_are_lumped_together_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        changes = (
            {"previous": json.loads(lines[-1])["digest"]} if lines else {"fields": {"format": 1, "party": ME}}
        )
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
def test_a_broken_chain_says_where_and_how(
    kept: Path, change: Callable[[list[bytes]], list[bytes]], line: int, how: str
) -> None:
    lines = kept.read_bytes().splitlines(keepends=True)

    error = check_broken(kept, b"".join(change(lines)))

    assert error.line == line
    assert f", line {line}: " in str(error)
    assert how in error.how


def test_a_log_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file") as caught:
        read_log(tmp_path / "log")

    assert not isinstance(caught.value, BrokenChain)


# Comparing. A story is what each party writes; a test changes the story of somebody.

Story = dict[str, list[tuple[str, dict[str, Any]]]]

MANIFEST = make_manifest(clients=3, servers=2, strategy="sec-union", roster_sha256="cd" * 32)
CLIENTS = ["client-1", "client-2", "client-3"]
AGGREGATORS = ["aggregator-1", "aggregator-2"]
PARTIES = [*CLIENTS, *AGGREGATORS, "coordinator"]


def tell_story(manifest: Manifest = MANIFEST) -> Story:
    """Two rounds of two phases, the second void, as every party writes them when all goes well."""
    return {party: tell_part(party, manifest) for party in PARTIES}


def tell_part(party: str, manifest: Manifest) -> list[tuple[str, dict[str, Any]]]:
    run: dict[str, Any] = {"run": manifest.run_id}
    part = [("joined", {**run, "manifest": manifest.model_dump(mode="json"), "roster_sha256": "cd" * 32})]
    if party != "coordinator":
        part.append(("keys", {**run, "keys_sha256": "11" * 32}))
    if party in CLIENTS:
        part.append(("group", {**run, "confirmation": "22" * 32}))
    for phase in ("union", "signs"):
        released = {"members": CLIENTS, "transcript": f"{len(phase):02}" * 32}
        part.append(("released", {**run, "round": 1, "phase": phase, **released}))
    if party in CLIENTS:
        part.append(("applied", {**run, "round": 1, "model_hmac": "33" * 32}))
    part.append(("void", {**run, "round": 2, "phase": "union"}))
    part.append(("ended", {**run, "outcome": "completed"}))
    return part


def write_story(folder: Path, story: Story) -> list[Log]:
    for party, part in story.items():
        with opened(folder / party, PartyId(party)) as log:
            for kind, fields in part:
                log.append(kind, **fields)
    return [read_log(folder / party) for party in story]


def find(part: list[tuple[str, dict[str, Any]]], kind: str, **where: object) -> dict[str, Any]:
    """The fields of the one entry of a kind that fits."""
    (fields,) = [fields for each, fields in part if each == kind and where.items() <= fields.items()]
    return fields


def cut_after(part: list[tuple[str, dict[str, Any]]], kind: str, **where: object) -> None:
    del part[part.index((kind, find(part, kind, **where))) + 1 :]


def test_parties_that_tell_the_same_story_agree(tmp_path: Path) -> None:
    logs = write_story(tmp_path, tell_story())

    assert compare(logs) == ()
    assert find_common(logs) == Common(runs=1, phases=3)
    assert {runs_of(log) for log in logs} == {(MANIFEST.run_id,)}


Change = Callable[[Story], object]


def say(party: str, kind: str, what: dict[str, Any], **where: object) -> Change:
    """Change the fields of one entry of a party."""
    return lambda story: find(story[party], kind, **where).update(what)


def release_what_is_void(story: Story) -> None:
    at = story["aggregator-2"].index(("void", find(story["aggregator-2"], "void")))
    released = {"members": CLIENTS, "transcript": "55" * 32}
    story["aggregator-2"][at] = ("released", {**story["aggregator-2"][at][1], **released})


def sum_fewer_signs(story: Story) -> None:
    for part in story.values():
        find(part, "released", phase="signs")["members"] = ["client-1", "client-2"]


def end_a_phase_twice(story: Story) -> None:
    story["aggregator-1"].insert(-1, ("void", {"run": MANIFEST.run_id, "round": 1, "phase": "signs"}))


def refuse_a_run_that_began(story: Story) -> None:
    story["aggregator-2"][:] = [("refused", {"run": MANIFEST.run_id, "reason": "too-early"})]


OTHER_KEYS = say("client-3", "keys", {"keys_sha256": "44" * 32})
OTHER_MODEL = say("client-1", "applied", {"model_hmac": "77" * 32})
DIFFERENCES: list[tuple[Change, DifferenceKind, str, str]] = [
    (
        OTHER_KEYS,
        DifferenceKind.KEYS,
        "run keys",
        "aggregator-1 and aggregator-2 say 1111111111111111…; client-3 says 4444444444444444…",
    ),
    (
        say("client-2", "group", {"confirmation": "44" * 32}),
        DifferenceKind.CONFIRMATIONS,
        "group secret",
        "client-1 and client-3 say 2222222222222222…; client-2 says 4444444444444444…",
    ),
    (
        say("aggregator-1", "joined", {"roster_sha256": "44" * 32}),
        DifferenceKind.ROSTERS,
        "roster",
        "aggregator-1 says 4444444444444444…",
    ),
    (
        release_what_is_void,
        DifferenceKind.VERDICTS,
        "round 2, phase union",
        "client-1, client-2, client-3, aggregator-1 and coordinator say void; aggregator-2 says released",
    ),
    (
        say("client-1", "released", {"transcript": "66" * 32}, phase="signs"),
        DifferenceKind.TRANSCRIPTS,
        "round 1, phase signs",
        "client-1 says 6666666666666666…",
    ),
    (
        OTHER_MODEL,
        DifferenceKind.MODELS,
        "round 1",
        "client-2 and client-3 say 3333333333333333…; client-1 says 7777777777777777…",
    ),
    (
        sum_fewer_signs,
        DifferenceKind.MEMBERS_OF_PHASES,
        "round 1",
        "phase union has 3 members with client-3; phase signs has 2 members",
    ),
    (
        end_a_phase_twice,
        DifferenceKind.ENDED_TWICE,
        "round 1, phase signs",
        "aggregator-1 ended this phase in different ways: released, then void",
    ),
    (
        say("client-1", "joined", {"manifest": {**MANIFEST.model_dump(mode="json"), "rounds": 99}}),
        DifferenceKind.MANIFESTS,
        "manifest",
        "client-1's manifest is that of run",
    ),
    (
        say("client-1", "joined", {"manifest": {"nonce": "\x1b[2J"}}),
        DifferenceKind.UNREADABLE,
        "manifest",
        "client-1 joined with something else",
    ),
    (
        say("client-1", "applied", {"model_hmac": None}),
        DifferenceKind.UNREADABLE,
        "line 7",
        "client-1's entry of kind applied cannot be read: model_hmac: Input should be a valid string",
    ),
    (
        lambda story: story["aggregator-2"].clear(),
        DifferenceKind.ABSENT,
        "whole run",
        "aggregator-2 is named in the manifest that",
    ),
    (refuse_a_run_that_began, DifferenceKind.ABSENT, "whole run", "aggregator-2 is named"),
]


@pytest.mark.parametrize(("change", "kind", "place", "what"), DIFFERENCES)
def test_one_difference_is_found_where_it_is(
    tmp_path: Path, change: Change, kind: DifferenceKind, place: str, what: str
) -> None:
    story = tell_story()
    change(story)

    (found,) = compare(write_story(tmp_path, story))

    assert (found.kind, found.place) == (kind, place)
    assert what in found.what
    assert found.run == ("" if place.startswith("line") else MANIFEST.run_id)
    assert not found.kind.is_note


def test_different_members_are_found_in_every_phase(tmp_path: Path) -> None:
    story = tell_story()
    for phase in ("union", "signs"):
        find(story["aggregator-1"], "released", phase=phase)["members"] = ["client-1", "client-2"]

    found = compare(write_story(tmp_path, story))

    assert [(each.kind, each.place) for each in found] == [
        (DifferenceKind.MEMBERS, "round 1, phase union"),
        (DifferenceKind.MEMBERS, "round 1, phase signs"),
    ]
    assert found[0].what.endswith("say 3 members with client-3; aggregator-1 says 2 members")


def test_one_nonce_in_two_manifests_is_a_run_told_in_two_ways(tmp_path: Path) -> None:
    lowered = make_manifest(clients=3, servers=2, strategy="sec-union", roster_sha256="cd" * 32, min_clients=2)
    story = {**tell_story(), "client-3": tell_part("client-3", lowered)}

    (found,) = compare(write_story(tmp_path, story))

    assert found.kind is DifferenceKind.MANIFESTS
    assert f"client-3 joined {lowered.run_id[:16]}…" in found.what
    assert found.what.endswith("the manifests differ in min_clients")
    assert set(found.parties) == set(PARTIES)


@pytest.mark.parametrize(
    ("party", "last", "where", "stops"),
    [
        ("client-1", "joined", {}, "joining"),
        ("client-1", "group", {}, "the group secret"),
        ("client-1", "released", {"phase": "union"}, "round 1, phase union"),
        ("client-1", "applied", {}, "the model of round 1"),
        ("client-1", "void", {}, "round 2, phase union"),
        ("aggregator-1", "keys", {}, "the exchange of run keys"),
        ("aggregator-2", "released", {"phase": "union"}, "round 1, phase union"),
        ("coordinator", "released", {"phase": "signs"}, "round 1, phase signs"),
    ],
)
@pytest.mark.parametrize("over", [True, False], ids=["the run is over", "the run goes on"])
def test_a_tail_that_was_cut_off_is_found(
    tmp_path: Path, party: str, last: str, where: dict[str, object], stops: str, *, over: bool
) -> None:
    story = tell_story()
    cut_after(story[party], last, **where)
    if not over:
        for part in story.values():
            part[:] = [entry for entry in part if entry[0] != "ended"]

    found = compare(write_story(tmp_path, story))

    if last == "void" and not over:
        assert found == ()
        return
    assert [(each.kind, each.place, each.parties[0]) for each in found] == [(DifferenceKind.CUT_OFF, stops, party)]
    beyond = "the end of the run" if over else "round 2, phase union"
    assert f"{party}'s log stops after {stops}, but " in found[0].what
    assert f"'s goes on to {beyond}: " in found[0].what


def test_phases_follow_each_other_as_in_the_log_that_has_most_of_them(tmp_path: Path) -> None:
    story = tell_story()
    work_in_the_last_phase_alone_while_the_run_goes_on(story)
    for part in story.values():
        part[:] = [entry for entry in part if entry[0] not in {"void", "applied"}]
    cut_after(story["client-1"], "released", phase="union")

    (found,) = compare(write_story(tmp_path, {party: story[party] for party in reversed(PARTIES[:-1])}))

    assert (found.kind, found.parties[0]) == (DifferenceKind.CUT_OFF, "client-1")
    assert "goes on to round 1, phase signs" in found.what


def leave_early(story: Story) -> None:
    cut_after(story["client-1"], "applied")
    story["client-1"].append(("ended", {"run": MANIFEST.run_id, "outcome": "left"}))


def leave_early_while_the_others_go_on(story: Story) -> None:
    leave_early(story)
    for party in PARTIES[1:]:
        story[party].pop()


def work_in_the_last_phase_alone(story: Story) -> None:
    """As the second aggregator does where a phase is for the first one only."""
    story["aggregator-2"].remove(("released", find(story["aggregator-2"], "released", phase="union")))
    story["aggregator-2"].remove(("void", find(story["aggregator-2"], "void")))


def work_in_the_last_phase_alone_while_the_run_goes_on(story: Story) -> None:
    work_in_the_last_phase_alone(story)
    for part in story.values():
        part.pop()


def be_between_two_rounds(story: Story) -> None:
    for part in story.values():
        del part[-2:]


def void_the_other_phase_too(story: Story) -> None:
    """A void phase ends its round; who also writes that of the next phase is no further."""
    for party, part in story.items():
        part.pop()
        if party in AGGREGATORS:
            part.append(("void", {"run": MANIFEST.run_id, "round": 2, "phase": "signs"}))


def decline(story: Story) -> None:
    for part in story.values():
        part[1:-1] = []
    story["client-1"][:] = [("refused", {"run": MANIFEST.run_id, "reason": "policy"})]


def skip_a_round(story: Story) -> None:
    """As a client does that takes a snapshot of a later round."""
    story["client-1"][:] = [entry for entry in story["client-1"] if entry[1].get("round") != 1]


def add_fields_and_kinds(story: Story) -> None:
    find(story["client-1"], "applied")["phase"] = "signs"
    story["client-1"].append(("remarked", {"run": 5}))


@pytest.mark.parametrize(
    "change",
    [
        *(leave_early, leave_early_while_the_others_go_on),
        *(work_in_the_last_phase_alone, work_in_the_last_phase_alone_while_the_run_goes_on),
        *(be_between_two_rounds, void_the_other_phase_too, decline, skip_a_round, add_fields_and_kinds),
    ],
)
def test_what_may_happen_is_no_difference(tmp_path: Path, change: Change) -> None:
    story = tell_story()
    change(story)

    assert [each for each in compare(write_story(tmp_path, story)) if not each.kind.is_note] == []


def test_a_verdict_written_again_and_a_log_without_a_common_run_are_only_noted(tmp_path: Path) -> None:
    story = {**tell_story(), "hospital-z": []}
    story["aggregator-1"].insert(-1, ("void", find(story["aggregator-1"], "void")))

    repeated, unrelated = compare(write_story(tmp_path, story))

    assert (repeated.kind, unrelated.kind) == (DifferenceKind.REPEATED, DifferenceKind.UNRELATED)
    assert repeated.kind.is_note
    assert unrelated.kind.is_note
    assert unrelated.what.startswith("hospital-z shares no run with the others")


def take_copy(folder: Path, party: str, lines: int) -> Log:
    copy = folder / "copy"
    copy.write_bytes(b"".join((folder / party).read_bytes().splitlines(keepends=True)[:lines]))
    return read_log(copy)


def test_an_earlier_copy_agrees_with_its_log_unless_the_log_was_written_anew(tmp_path: Path) -> None:
    logs = write_story(tmp_path, tell_story())
    copy = take_copy(tmp_path, "client-1", lines=4)
    assert compare([copy, *logs]) == ()
    (tmp_path / "client-1").unlink()
    anew = write_story(tmp_path, {"client-1": tell_story()["client-1"]})

    found = compare([copy, *anew, *logs[1:]])

    assert [(each.kind, each.place) for each in found] == [(DifferenceKind.FORKED, "line 1")]


def test_differences_come_in_the_order_of_the_run(tmp_path: Path) -> None:
    story = tell_story()
    for change in (OTHER_MODEL, OTHER_KEYS, release_what_is_void):
        change(story)

    found: tuple[Difference, ...] = compare(write_story(tmp_path, story))

    assert [each.kind for each in found] == [DifferenceKind.KEYS, DifferenceKind.VERDICTS, DifferenceKind.MODELS]
