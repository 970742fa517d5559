"""Secrets of a run survive a restart, and after the run they are nowhere in the file."""

import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hubbub.errors import StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.sqlite import SqliteStore
from hubbub.store.state_file import StateFile, Vault, open_database

RUN, OTHER_RUN = RunId("ab" * 32), RunId("cd" * 32)
SECRET = b"open-sesame-12345678901234567890"


def path_in(folder: Path) -> Path:
    return folder / "state.sqlite"


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    opened = Vault(path_in(tmp_path))
    yield opened
    opened.close()


def bytes_on_disk(folder: Path) -> bytes:
    """The file and all that SQLite keeps beside it."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_the_last_secret_of_a_name_is_kept_unless_deleted(vault: Vault, tmp_path: Path) -> None:
    for name, value in (("run key", SECRET), ("group", SECRET), ("group", b""), ("outbox", SECRET)):
        vault.put(RUN, name, value)
    vault.delete(RUN, "outbox")
    vault.delete(RUN, "no such")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}

    # Not closed: the process was killed.
    again = Vault(path_in(tmp_path))

    assert [again.get(RUN, name) for name in ("run key", "group", "outbox")] == [SECRET, b"", None]
    assert again.get(OTHER_RUN, "run key") is None
    again.close()


def test_what_is_deleted_or_replaced_is_overwritten_when_a_machine_is_forgotten(tmp_path: Path) -> None:
    file = StateFile(path_in(tmp_path))
    store, vault = SqliteStore(file), Vault(file)
    for name in ("outbox 1", "outbox 2", "group"):
        vault.put(RUN, name, SECRET)
    vault.put(RUN, "group", b"stepped")
    assert SECRET in bytes_on_disk(tmp_path)

    vault.delete(RUN, "outbox 1", "outbox 2", "no such")
    store.drop([Key("round", RUN, 1)])

    assert SECRET not in bytes_on_disk(tmp_path)
    assert vault.get(RUN, "group") == b"stepped"
    store.close()


def test_what_is_changed_together_is_changed_as_a_whole_or_not_at_all(vault: Vault) -> None:
    vault.put(RUN, "group", SECRET)
    vault.put(RUN, "outbox 1", SECRET)

    def step(*, fails: bool) -> None:
        with vault.together():
            vault.put(RUN, "group", b"stepped")
            vault.delete(RUN, "outbox 1")
            if fails:
                raise KeyError

    with pytest.raises(KeyError):
        step(fails=True)
    assert vault.get(RUN, "group") == vault.get(RUN, "outbox 1") == SECRET
    step(fails=False)
    assert (vault.get(RUN, "group"), vault.get(RUN, "outbox 1")) == (b"stepped", None)


def test_what_was_deleted_before_a_crash_is_overwritten_by_the_next_process(vault: Vault, tmp_path: Path) -> None:
    vault.put(RUN, "outbox 1", SECRET)
    with closing(open_database(path_in(tmp_path))) as crashed:
        crashed.execute("DELETE FROM secrets")
        assert SECRET in bytes_on_disk(tmp_path), "else this test shows nothing"

        Vault(path_in(tmp_path)).close()

        assert SECRET not in bytes_on_disk(tmp_path)


def test_with_the_run_every_byte_of_its_secrets_is_overwritten_and_none_shown_after_a_failure(
    vault: Vault, tmp_path: Path
) -> None:
    large = SECRET * 1_000  # Larger than a page, so that it lies in pages of its own.
    vault.put(RUN, "run key", SECRET)
    vault.put(RUN, "outbox 1", large)
    vault.put(OTHER_RUN, "run key", b"the other run's")
    assert SECRET in bytes_on_disk(tmp_path)

    vault.forget(RUN)

    assert SECRET[:8] not in bytes_on_disk(tmp_path)
    assert vault.get(RUN, "run key") is None
    assert vault.get(OTHER_RUN, "run key") == b"the other run's"
    vault.close()
    with pytest.raises(StorageFailed) as caught:
        vault.put(RUN, "run key", SECRET)
    assert "open-sesame" not in str(caught.value)
