"""The journal: one verdict a phase, for ever, across crashes."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub_aggregator.journal import Journal, Verdict

KEY = Key("phase", RunId("a" * 64), 1, "signs")
MEMBERS = (PartyId("client-1"), PartyId("client-2"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    yield journal
    journal.close()


def refuse(journal: Journal, members: tuple[PartyId, ...]) -> PeerError:
    with pytest.raises(PeerError) as caught:
        journal.record(KEY, members)
    assert caught.value.reason is RejectReason.ALREADY_ENDED
    return caught.value


def test_what_has_no_verdict_is_not_found(journal: Journal) -> None:
    assert journal.find(KEY) is None


@pytest.mark.parametrize("members", [MEMBERS, ()])
def test_the_same_verdict_twice_is_fine(journal: Journal, members: tuple[PartyId, ...]) -> None:
    journal.record(KEY, members)
    journal.record(KEY, members)
    assert journal.find(KEY) == Verdict(members)


def test_a_release_over_other_members_is_refused(journal: Journal) -> None:
    journal.record(KEY, MEMBERS)
    assert "released already" in str(refuse(journal, MEMBERS[:1]))
    assert journal.find(KEY) == Verdict(MEMBERS)


def test_a_void_after_a_release_is_refused_and_the_other_way_round(journal: Journal, tmp_path: Path) -> None:
    journal.record(KEY, MEMBERS)
    refuse(journal, ())
    other = Journal(tmp_path / "other.sqlite")
    other.record(KEY, ())
    assert "void already" in str(refuse(other, MEMBERS))
    other.close()


def test_a_reopened_file_remembers(journal: Journal, path: Path) -> None:
    journal.record(KEY, MEMBERS)
    journal.close()
    again = Journal(path)
    assert again.find(KEY) == Verdict(MEMBERS)
    refuse(again, ())
    refuse(again, (*MEMBERS, PartyId("client-3")))
    again.close()


def test_a_verdict_is_in_the_file_when_record_returns_also_if_the_process_dies(
    journal: Journal, path: Path
) -> None:
    """Another connection sees it while the first was never closed."""
    journal.record(KEY, MEMBERS)
    other = Journal(path)
    assert other.find(KEY) == Verdict(MEMBERS)
    other.close()


@pytest.mark.parametrize(
    "other",
    [
        Key("phase", RunId("b" * 64), 1, "signs"),
        Key("phase", KEY.run, 2, "signs"),
        Key("phase", KEY.run, 1, "union"),
    ],
)
def test_runs_rounds_and_phases_are_told_apart(journal: Journal, other: Key) -> None:
    journal.record(KEY, MEMBERS)
    assert journal.find(other) is None
    journal.record(other, ())
    assert journal.find(KEY) == Verdict(MEMBERS)


def test_every_commit_is_synced(journal: Journal) -> None:
    full = 2
    assert journal._database.execute("PRAGMA synchronous").fetchone() == (full,)
    assert journal._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    journal.record(KEY, MEMBERS)
    assert not journal._database.in_transaction


@pytest.mark.parametrize(
    "content", [b"this is no database, only text" * 100, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_a_corrupt_file_is_a_clear_error(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LocalError, match=r"journal .*journal\.sqlite cannot be used"):
        Journal(path)


def test_a_file_that_breaks_while_in_use_is_a_clear_error(journal: Journal) -> None:
    journal._database.execute("DROP TABLE verdicts")
    with pytest.raises(LocalError, match="the journal could not be written"):
        journal.record(KEY, MEMBERS)
    with pytest.raises(LocalError, match="the journal could not be read"):
        journal.find(KEY)


def test_a_table_of_another_shape_is_refused_rather_than_misread(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE verdicts (something TEXT)")
    database.close()
    journal = Journal(path)
    with pytest.raises(LocalError, match="could not be written"):
        journal.record(KEY, MEMBERS)
    journal.close()
