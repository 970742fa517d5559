"""The journal: one verdict a phase, one member set a round, one share set a client, for ever, across crashes."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, RunId, SetId
from hubbub.machine.effects import Key
from hubbub.store.base import Draft
from hubbub.store.sqlite import SqliteStore
from hubbub.store.state_file import StateFile
from hubbub_aggregator.journal import Journal, PhaseOutcome

KEY = Key("phase", RunId("a" * 64), 1, "signs")
UNION = Key("phase", KEY.run, KEY.round, "union")
ELSEWHERE = [
    pytest.param(Key("phase", RunId("b" * 64), 1, "signs"), id="another-run"),
    pytest.param(Key("phase", KEY.run, 2, "signs"), id="another-round"),
    pytest.param(UNION, id="another-phase"),
]
MEMBERS = (PartyId("client-1"), PartyId("client-2"))
MORE = (*MEMBERS, PartyId("client-3"))
CLIENT = MEMBERS[0]
EVENT = Draft(KEY, "SomethingHappened", "{}")
SET, OTHER_SET = SetId("1" * 32), SetId("2" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    yield journal
    journal.close()


@pytest.fixture
def crashed(path: Path) -> Iterator[Callable[[], Journal]]:
    """Open the same file again while the journal before it was never closed, as after a crash."""
    opened: list[Journal] = []

    def reopen() -> Journal:
        opened.append(Journal(path))
        return opened[-1]

    yield reopen
    for journal in opened:
        journal.close()


def refuse(
    journal: Journal,
    members: tuple[PartyId, ...],
    *,
    key: Key = KEY,
    reason: RejectReason = RejectReason.ALREADY_ENDED,
) -> str:
    before = journal.find(key)
    with pytest.raises(PeerError) as caught:
        journal.record(key, members)
    assert caught.value.reason is reason
    assert journal.find(key) == before, "what is written stays as it is"
    return str(caught.value)


# One verdict a phase, one member set a round, one share set a client -----------------------------------------


@pytest.mark.parametrize(
    ("first", "others"),
    [pytest.param(MEMBERS, (MORE, MEMBERS[:1], ()), id="released"), pytest.param((), (MEMBERS,), id="void")],
)
def test_a_verdict_is_final_also_after_a_crash(
    journal: Journal,
    crashed: Callable[[], Journal],
    first: tuple[PartyId, ...],
    others: tuple[tuple[PartyId, ...], ...],
) -> None:
    journal.check(KEY, first)
    assert journal.find(KEY) is None, "it was checked, and not written"
    journal.record(KEY, first)
    for each in (journal, crashed()):
        each.record(KEY, first)
        each.check(KEY, first)
        assert each.find(KEY) == PhaseOutcome(first)
        for other in others:
            assert ("released" if first else "void") + " already" in refuse(each, other)
            with pytest.raises(PeerError, match="already"):
                each.check(KEY, other)


def test_a_phase_that_may_lose_members_has_a_subset_of_all_before_also_after_a_crash(
    journal: Journal, crashed: Callable[[], Journal]
) -> None:
    """Whoever has left does not come back."""
    first, second, third = (replace(KEY, phase=name) for name in ("one", "two", "three"))
    journal.record(first, (*MORE, PartyId("client-4")), may_lose=True)
    journal.record(second, MORE, may_lose=True)

    for each in (journal, crashed()):
        each.check(third, MORE, may_lose=True)
        each.check(third, MEMBERS, may_lose=True)
        for wrong in ([*MORE, PartyId("client-4")], [PartyId("client-5")]):
            with pytest.raises(PeerError) as caught:
                each.check(third, wrong, may_lose=True)
            assert caught.value.reason is RejectReason.DIFFERENT_MEMBERS
        refuse(each, MEMBERS, key=third, reason=RejectReason.DIFFERENT_MEMBERS)
    journal.record(third, (), may_lose=True)
    refuse(journal, MEMBERS, key=replace(KEY, phase="four"), reason=RejectReason.DIFFERENT_MEMBERS)


@pytest.mark.parametrize("other", ELSEWHERE)
def test_runs_rounds_and_phases_are_told_apart(journal: Journal, other: Key) -> None:
    journal.record(KEY, MEMBERS)
    journal.record_set(KEY, CLIENT, SET)
    assert (journal.find(other), journal.find_set(other, CLIENT)) == (None, None)
    journal.record(other, ())
    journal.record_set(other, CLIENT, OTHER_SET)
    assert journal.find(KEY) == PhaseOutcome(MEMBERS)
    assert (journal.find_set(KEY, CLIENT), journal.find_set(other, CLIENT)) == (SET, OTHER_SET)


@pytest.mark.parametrize("first", [MORE, MEMBERS[:1], ()], ids=["more", "fewer", "void"])
def test_a_second_phase_over_other_members_is_refused_also_after_a_crash(
    journal: Journal, crashed: Callable[[], Journal], first: tuple[PartyId, ...]
) -> None:
    journal.record(UNION, first)
    for each in (journal, crashed()):
        refuse(each, MEMBERS, reason=RejectReason.DIFFERENT_MEMBERS)
        each.record(replace(KEY, round=2), MEMBERS)  # Another round may have other members.


@pytest.mark.parametrize("members", [MEMBERS, ()], ids=["released", "void"])
def test_a_second_phase_is_released_over_the_same_members_or_void(
    journal: Journal, members: tuple[PartyId, ...]
) -> None:
    journal.record(UNION, MEMBERS)
    journal.record(KEY, members)
    journal.record(UNION, MEMBERS)  # The same again is fine, whatever came of the rest of the round.
    assert (journal.find(UNION), journal.find(KEY)) == (PhaseOutcome(MEMBERS), PhaseOutcome(members))


def test_a_second_set_of_a_client_is_refused_also_after_a_crash(
    journal: Journal, crashed: Callable[[], Journal]
) -> None:
    journal.record_set(KEY, CLIENT, SET)
    journal.record_set(KEY, MEMBERS[1], OTHER_SET)
    for each in (journal, crashed()):
        each.record_set(KEY, CLIENT, SET)
        with pytest.raises(PeerError, match="has sent another share set") as caught:
            each.record_set(KEY, CLIENT, OTHER_SET)
        assert caught.value.reason is RejectReason.SECOND_SET
        assert [each.find_set(KEY, client) for client in MORE] == [SET, OTHER_SET, None]


def test_all_scores_of_a_run_are_released_over_one_member_set_of_their_own(journal: Journal) -> None:
    first, second, third = (replace(KEY, round=number, phase="scores") for number in (1, 2, 3))
    journal.record(KEY, MORE)
    journal.record(first, ())  # Void scores fix nothing.
    journal.record(second, MEMBERS)
    refuse(journal, MORE, key=third, reason=RejectReason.DIFFERENT_MEMBERS)
    journal.record(third, MEMBERS)
    journal.record(replace(first, run=RunId("b" * 64)), MORE)


# The file -----------------------------------------------------------------------------------------------


def test_every_commit_is_synced(journal: Journal) -> None:
    full = 2
    assert journal._file._database.execute("PRAGMA synchronous").fetchone() == (full,)
    assert journal._file._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    journal.record_set(KEY, CLIENT, SET)
    journal.record(KEY, MEMBERS)
    assert not journal._file._database.in_transaction


@pytest.mark.parametrize(
    "content", [b"this is no database, only text" * 100, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_a_corrupt_file_is_a_clear_error(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LocalError, match=r"journal\.sqlite cannot be used: .*move it away"):
        Journal(path)


def test_a_file_that_takes_nothing_more_is_a_clear_error(journal: Journal) -> None:
    journal._file._database.execute("PRAGMA query_only = ON")
    with pytest.raises(LocalError, match=r"journal\.sqlite cannot be used: .*write to the file"):
        journal.record(KEY, MEMBERS)
    with pytest.raises(LocalError, match=r"journal\.sqlite cannot be used: .*write to the file"):
        journal.record_set(KEY, CLIENT, SET)


def test_a_table_of_another_shape_is_refused_rather_than_misread(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE verdicts (something TEXT)")
    database.close()
    journal = Journal(path)
    with pytest.raises(LocalError, match=r"journal\.sqlite cannot be used: .*move it away"):
        journal.record(KEY, MEMBERS)
    journal.close()


# Together with events ------------------------------------------------------------------------------------


def test_an_entry_is_kept_together_with_the_event_that_relies_on_it(path: Path) -> None:
    file = StateFile(path)
    store, journal = SqliteStore(file), Journal(file)
    with store.together():
        journal.record_set(KEY, CLIENT, SET)
        number = store.append([EVENT])
        with closing(sqlite3.connect(path)) as another:
            assert another.execute("SELECT * FROM sets").fetchall() == [], "nothing is kept yet"
    file.close()

    again = StateFile(path)
    assert [entry.sequence for entry in SqliteStore(again).read()] == [number]
    assert Journal(again).find_set(KEY, CLIENT) == SET
    again.close()


def test_if_the_event_is_not_kept_neither_is_the_entry(path: Path) -> None:
    file = StateFile(path)
    store, journal = SqliteStore(file), Journal(file)
    before = store.append([EVENT])
    store.mark_done(before)

    def keep_what_is_no_text() -> None:
        with store.together():
            journal.record_set(KEY, CLIENT, SET)
            store.append([replace(EVENT, body="\ud800")])

    with pytest.raises(UnicodeEncodeError):
        keep_what_is_no_text()

    assert journal.find_set(KEY, CLIENT) is None
    assert [entry.sequence for entry in store.read()] == [before]
    store.append([EVENT])
    assert [entry.done for entry in store.read()] == [True, False], "what was done is not forgotten"
    store.close()


def test_if_the_entry_is_refused_nothing_else_is_kept(path: Path) -> None:
    file = StateFile(path)
    store, journal = SqliteStore(file), Journal(file)
    journal.record_set(KEY, CLIENT, SET)

    def release_and_take_another_set() -> None:
        with store.together():
            journal.record(KEY, MEMBERS)
            journal.record_set(KEY, CLIENT, OTHER_SET)

    with pytest.raises(PeerError, match="another share set"):
        release_and_take_another_set()

    assert journal.find(KEY) is None
    store.close()
