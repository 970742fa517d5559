"""What every event store promises (see `hubbub.store.base`), checked on all of them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest

from hubbub.errors import StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Draft, Entry, EventStore, Snapshot
from hubbub.store.postgres import PostgresStore
from hubbub.store.sqlite import SqliteStore
from support.forgetful_store import Disk, ForgetfulStore
from support.private_postgres import PrivatePostgres, server_programs

RUN, OTHER_RUN = RunId("a" * 64), RunId("b" * 64)
KEY = Key("phase", RUN, 1, "signs")
DRAFT = Draft(KEY, "Arrived", "[{}]")
ELSEWHERE = [
    pytest.param(Key("round", RUN, 1, "signs"), id="another-kind"),
    pytest.param(Key("phase", OTHER_RUN, 1, "signs"), id="another-run"),
    pytest.param(Key("phase", RUN, 2, "signs"), id="another-round"),
    pytest.param(Key("phase", RUN, 1, "union"), id="another-phase"),
]


class Place(ABC):
    """Where stores can be opened one after the other, as a party does that is started again and again."""

    @abstractmethod
    def open(self) -> EventStore: ...

    def crash(self, store: EventStore) -> None:
        """Leave a store as a process does that dies: without a word."""
        del store

    def clean_up(self) -> None:
        """Give back what dead processes would have given back."""
        return


class SqlitePlace(Place):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: list[SqliteStore] = []

    def open(self) -> EventStore:
        self._opened.append(SqliteStore(self._path))
        return self._opened[-1]

    def clean_up(self) -> None:
        for store in self._opened:
            store._file._database.close()


class PostgresPlace(Place):
    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[PostgresStore] = []

    def open(self) -> EventStore:
        self._opened.append(PostgresStore(self._url))
        return self._opened[-1]

    def clean_up(self) -> None:
        for store in self._opened:
            store._connection.close()


class ForgetfulPlace(Place):
    def __init__(self) -> None:
        self._disk = Disk()

    def open(self) -> EventStore:
        return ForgetfulStore(self._disk)

    def crash(self, store: EventStore) -> None:
        assert isinstance(store, ForgetfulStore)
        store.crash()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PrivatePostgres]:
    if server_programs() is None:
        pytest.skip("no PostgreSQL server is installed (apt-get install postgresql)")
    with PrivatePostgres() as server:
        yield server


SCHEMAS = count()


@pytest.fixture(params=["sqlite", "postgres", "forgetful"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place: Place
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        schema = f"place_{next(SCHEMAS)}"
        server.execute(f"CREATE SCHEMA {schema}")
        place = PostgresPlace(f"{server.url}?options=-csearch_path%3D{schema}")
    else:
        place = SqlitePlace(tmp_path / "events.sqlite") if request.param == "sqlite" else ForgetfulPlace()
    yield place
    place.clean_up()


@pytest.fixture
def store(place: Place) -> EventStore:
    return place.open()


def draft(number: int, key: Key = KEY) -> Draft:
    return Draft(key, "Arrived", json.dumps([{"number": number}]), cause=f"{number}.0")


def drafts_in(store: EventStore) -> list[Draft]:
    return [Draft(each.key, each.kind, each.body, each.cause) for each in store.read()]


def entry_at(store: EventStore, sequence: int) -> Entry:
    (found,) = (each for each in store.read() if each.sequence == sequence)
    return found


def test_a_new_store_is_empty(store: EventStore) -> None:
    assert store.read() == []


def test_entries_come_back_in_order_whatever_machine_they_are_of(store: EventStore) -> None:
    drafts = [draft(number, Key("phase", RUN, number % 3, "union")) for number in range(10)]
    for one, two in zip(drafts[::2], drafts[1::2], strict=True):
        store.append([one, two])
    assert drafts_in(store) == drafts
    numbers = [each.sequence for each in store.read()]
    assert all(one < two for one, two in pairwise(numbers))


def test_the_number_of_the_last_entry_is_given(store: EventStore) -> None:
    last = store.append([draft(1), draft(2)])
    assert [each.sequence for each in store.read()][-1] == last
    assert store.append([draft(3)]) > last


def test_nothing_can_be_appended_too(store: EventStore) -> None:
    assert store.append([]) == 0
    assert store.read() == []


def test_what_was_appended_is_there_after_a_crash(place: Place, store: EventStore) -> None:
    store.append([draft(1), draft(2)])
    before = store.read()
    place.crash(store)
    again = place.open()
    assert again.read() == before
    assert again.append([draft(3)]) > before[-1].sequence


def test_what_was_appended_is_there_after_closing(place: Place, store: EventStore) -> None:
    store.append([draft(1), draft(2)])
    before = store.read()
    store.close()
    assert place.open().read() == before


def test_a_store_that_was_closed_takes_nothing_more(place: Place, store: EventStore) -> None:
    store.close()
    with pytest.raises(StorageFailed):
        store.append([draft(1)])
    assert place.open().read() == []


@pytest.mark.parametrize(
    "value",
    ["", "Grüße, 世界 🩺", "'\"; DROP TABLE events; -- %s ? \\", "line\nline\ttab\u2028", "\x01\x1f\x7f"],
    ids=["empty", "unicode", "quotes", "lines", "control"],
)
def test_text_comes_back_to_the_letter(place: Place, store: EventStore, value: str) -> None:
    written = Draft(Key(value, RUN, 2**31 - 1, value), value, value, value)
    store.append([written])
    place.crash(store)
    assert drafts_in(place.open()) == [written]


def test_a_body_of_a_megabyte_comes_back(place: Place, store: EventStore) -> None:
    written = replace(DRAFT, body="é0123456789" * 100_000)
    store.append([written, DRAFT])
    place.crash(store)
    assert drafts_in(place.open()) == [written, DRAFT]


def test_entries_are_appended_all_or_none(place: Place, store: EventStore) -> None:
    store.append([draft(1)])
    no_text = replace(DRAFT, body="\ud800")
    with pytest.raises(UnicodeEncodeError):
        store.append([draft(2), no_text, draft(3)])
    assert drafts_in(store) == [draft(1)]
    store.append([draft(4)])
    place.crash(store)
    assert drafts_in(place.open()) == [draft(1), draft(4)]


# Done ---------------------------------------------------------------------------------------------------


def test_an_entry_is_not_done_until_it_is_marked(place: Place, store: EventStore) -> None:
    number = store.append([draft(1)])
    assert not entry_at(store, number).done
    store.close()
    assert not entry_at(place.open(), number).done


def test_what_is_done_is_known_after_a_crash_if_an_entry_followed(place: Place, store: EventStore) -> None:
    done, open_still = store.append([draft(1)]), store.append([draft(2)])
    store.mark_done(done)
    later = store.append([draft(3)])
    place.crash(store)
    again = place.open()
    assert [entry_at(again, number).done for number in (done, open_still, later)] == [True, False, False]


def test_what_is_done_is_known_after_closing(place: Place, store: EventStore) -> None:
    number = store.append([draft(1)])
    store.mark_done(number)
    store.close()
    assert entry_at(place.open(), number).done


def test_what_is_done_is_kept_when_the_next_append_fails(place: Place, store: EventStore) -> None:
    number = store.append([draft(1)])
    store.mark_done(number)
    with pytest.raises(UnicodeEncodeError):
        store.append([replace(DRAFT, body="\ud800")])
    store.close()
    assert entry_at(place.open(), number).done


# Forgetting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ELSEWHERE)
def test_a_machine_is_dropped_and_no_other(place: Place, store: EventStore, other: Key) -> None:
    store.append([draft(1), draft(2, other), draft(3)])
    store.drop(iter([KEY]))
    assert drafts_in(store) == [draft(2, other)]
    place.crash(store)
    assert drafts_in(place.open()) == [draft(2, other)]


def test_several_machines_are_dropped_at_once_and_unknown_ones_are_no_matter(store: EventStore) -> None:
    union = replace(KEY, phase="union")
    store.append([draft(1), draft(2, union), draft(3, replace(KEY, round=2))])
    store.drop([KEY, union, replace(KEY, round=7)])
    store.drop([])
    assert drafts_in(store) == [draft(3, replace(KEY, round=2))]


def test_all_machines_of_a_run_are_dropped_and_no_others(place: Place, store: EventStore) -> None:
    other = replace(KEY, run=OTHER_RUN)
    store.append([draft(1), draft(2, other), draft(3, Key("run", RUN))])
    store.drop_run(RUN)
    place.crash(store)
    assert drafts_in(place.open()) == [draft(2, other)]


def test_a_number_is_never_given_twice(place: Place, store: EventStore) -> None:
    dropped = store.append([draft(1), draft(2)])
    store.drop_run(RUN)
    store.mark_done(dropped)
    store.close()
    again = place.open()
    number = again.append([draft(3)])
    assert number > dropped
    assert not entry_at(again, number).done


# Archives -----------------------------------------------------------------------------------------------

RUN_KEY, OLD, NEW = Key("run", RUN), Key("round", RUN, 1), Key("round", RUN, 2)
ARCHIVE = Archive(
    run=RUN,
    over=(Snapshot(OLD, "how it ended", "in short"),),
    ongoing=(Snapshot(RUN_KEY, "how far it is"),),
    notes=((7, "seven"), (9, "nine")),
)


def done(number: int, key: Key) -> Draft:
    return replace(draft(number, key), done=True)


def archived_in(store: EventStore) -> tuple[object, ...]:
    return (
        drafts_in(store),
        store.find_over("round", RUN, 1, 9),
        store.read_ongoing(),
        store.read_summaries("round"),
        store.read_notes(10),
    )


def test_what_asks_for_nothing_is_done_at_once(place: Place, store: EventStore) -> None:
    store.append([done(1, KEY), draft(2)])
    place.crash(store)
    assert [each.done for each in place.open().read()] == [True, False]


def test_an_archive_takes_the_place_of_its_machines_entries(place: Place, store: EventStore) -> None:
    other = replace(OLD, run=OTHER_RUN)
    store.append([done(1, RUN_KEY), done(2, OLD), done(3, OLD), done(4, NEW), draft(5, other)])

    assert store.archive(ARCHIVE) == 3

    assert archived_in(store) == (
        [draft(4, NEW), draft(5, other)],
        list(ARCHIVE.over),
        list(ARCHIVE.ongoing),
        [Snapshot(OLD, "", "in short")],
        list(ARCHIVE.notes),
    )
    before = archived_in(store)
    place.crash(store)
    assert archived_in(place.open()) == before


def test_an_entry_is_archived_that_was_marked_done_a_moment_ago(store: EventStore) -> None:
    store.mark_done(store.append([draft(1, OLD)]))
    assert store.archive(ARCHIVE) == 1
    assert store.read() == []


@pytest.mark.parametrize("undone", [OLD, NEW, RUN_KEY])
def test_nothing_is_archived_while_something_of_the_run_is_not_done(
    place: Place, store: EventStore, undone: Key
) -> None:
    """What it told another machine may be archived, and would be told again."""
    store.append([done(1, RUN_KEY), done(2, OLD), draft(3, undone)])
    before = archived_in(store)
    assert store.archive(ARCHIVE) is None
    assert archived_in(store) == before
    place.crash(store)
    assert archived_in(place.open()) == before


def test_an_archive_can_be_written_twice_and_a_machine_that_went_on_can_end(store: EventStore) -> None:
    store.append([done(1, RUN_KEY), done(2, OLD)])
    store.archive(ARCHIVE)
    before = archived_in(store)
    assert store.archive(ARCHIVE) == 0
    assert archived_in(store) == before

    store.append([done(3, RUN_KEY)])
    end = Snapshot(RUN_KEY, "its end", "over")
    assert store.archive(Archive(run=RUN, over=(end,), notes=((9, "another nine"), (11, "eleven")))) == 1

    assert (store.read_ongoing(), store.find_over("run", RUN)) == ([], [end])
    assert store.read_notes(2) == [(9, "nine"), (11, "eleven")]


@pytest.mark.parametrize("forget", [lambda store: store.drop([RUN_KEY]), lambda store: store.drop_run(RUN)])
def test_a_snapshot_goes_with_its_machine_and_what_is_over_stays(
    store: EventStore, forget: Callable[[EventStore], None]
) -> None:
    store.archive(ARCHIVE)
    forget(store)
    assert (store.read_ongoing(), store.find_over("round", RUN, 1, 9)) == ([], list(ARCHIVE.over))


def test_an_archive_that_cannot_be_written_whole_is_not_written(place: Place, store: EventStore) -> None:
    store.append([done(1, RUN_KEY), done(2, OLD)])
    before = archived_in(store)
    with pytest.raises(UnicodeEncodeError):
        store.archive(replace(ARCHIVE, notes=((7, "seven"), (9, "\ud800"))))
    assert archived_in(store) == before
    place.crash(store)
    assert archived_in(place.open()) == before


def test_what_is_over_is_found_by_kind_run_and_round_in_order(store: EventStore) -> None:
    keys = [Key("round", RUN, number) for number in (3, 1, 2, 10)]
    others = [Key("phase", RUN, 2), Key("round", OTHER_RUN, 2)]
    store.archive(Archive(run=RUN, over=tuple(Snapshot(key, str(key.round)) for key in (*keys, *others))))
    assert [each.key.round for each in store.find_over("round", RUN, 2, 9)] == [2, 3]
    assert store.find_over("round", RUN) == []


def test_a_number_is_not_given_again_after_all_was_archived(place: Place, store: EventStore) -> None:
    last = store.append([done(1, OLD)])
    store.archive(ARCHIVE)
    place.crash(store)
    assert place.open().append([draft(2)]) > last


# Use ----------------------------------------------------------------------------------------------------


def test_several_threads_append_at_once_and_each_batch_stays_together(store: EventStore) -> None:
    def append_pairs(thread: int) -> list[int]:
        key = replace(KEY, round=thread)
        numbers = []
        for number in range(20):
            numbers.append(store.append([draft(2 * number, key), draft(2 * number + 1, key)]))
            store.mark_done(numbers[-1])
        return numbers

    with ThreadPoolExecutor(8) as threads:
        given = [number for numbers in threads.map(append_pairs, range(8)) for number in numbers]

    entries = store.read()
    assert sorted(given) == [each.sequence for each in entries[1::2]]
    assert all(one.key == two.key for one, two in zip(entries[::2], entries[1::2], strict=True))
    for thread in range(8):
        bodies = [each.body for each in entries if each.key.round == thread]
        assert bodies == [draft(number).body for number in range(40)]
    store.append([DRAFT])
    assert sum(each.done for each in store.read()) == len(given)


def test_ten_thousand_entries_are_read_whole_and_in_order(place: Place, store: EventStore) -> None:
    store.append([draft(number) for number in range(10_000)])
    place.crash(store)
    entries = place.open().read()
    assert [each.cause for each in entries] == [f"{number}.0" for number in range(10_000)]
