"""The twin that forgets: what is lost in a crash is what was not synced, no less."""

import pytest

from hubbub.errors import StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Draft, EventStore
from support.forgetful_store import Disk, ForgetfulStore

KEY = Key("phase", RunId("a" * 64))


class PowerFailure(BaseException):
    """Nobody catches it."""


def draft(body: str) -> Draft:
    return Draft(KEY, "Arrived", body)


def bodies(store: EventStore) -> list[str]:
    return [entry.body for entry in store.read()]


def test_what_was_written_but_not_synced_is_lost() -> None:
    disk = Disk()
    ForgetfulStore(disk).append([draft("first")])

    def fail() -> None:
        raise PowerFailure

    store = ForgetfulStore(disk, before_sync=fail)
    with pytest.raises(PowerFailure):
        store.append([draft("second")])
    store.crash()

    again = ForgetfulStore(disk)
    assert bodies(again) == ["first"]
    assert again.append([draft("third")]) == 2


def test_a_careless_store_forgets_what_it_said_it_kept() -> None:
    disk = Disk()
    store = ForgetfulStore(disk, careless=True)
    store.append([draft("first")])
    assert bodies(store) == ["first"]
    store.crash()
    assert bodies(ForgetfulStore(disk)) == []


def test_what_is_done_is_lost_unless_an_entry_followed() -> None:
    disk = Disk()
    store = ForgetfulStore(disk)
    store.mark_done(store.append([draft("first")]))
    store.mark_done(store.append([draft("second")]))
    store.crash()
    assert [entry.done for entry in ForgetfulStore(disk).read()] == [True, False]


def test_a_store_that_has_crashed_takes_nothing_more() -> None:
    disk = Disk()
    store = ForgetfulStore(disk)
    store.crash()
    with pytest.raises(StorageFailed):
        store.append([draft("first")])
    with pytest.raises(StorageFailed):
        store.close()
    assert bodies(ForgetfulStore(disk)) == []
