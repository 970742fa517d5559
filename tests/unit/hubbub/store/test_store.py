"""The store that a setting means, and the complaint if it means none."""

import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from hubbub.errors import ConfigurationError
from hubbub.store import open_store, postgres
from hubbub.store.sqlite import SqliteStore


@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
@pytest.mark.parametrize("from_root", [True, False])
def test_a_path_from_here_or_from_the_root_is_an_sqlite_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, *, from_root: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "events.sqlite" if from_root else Path("events.sqlite")
    store = open_store(f"{scheme}{path}" if scheme else path)
    assert isinstance(store, SqliteStore)
    assert (tmp_path / "events.sqlite").exists()
    store.close()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_postgresql_url_is_a_database(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    made = Mock()
    monkeypatch.setattr(postgres, "PostgresStore", made)
    url = f"{scheme}://hubbub@db.example:5432/events"
    assert open_store(url) is made.return_value
    made.assert_called_once_with(url)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("mysql://hubbub:open-sesame@db.example/events", "mysql:... is no event store"),
        ("postgresql+psycopg://hubbub:open-sesame@db.example/events", r"postgresql\+psycopg:... is no"),
        (Path("postgresql://hubbub:open-sesame@db.example/events"), "postgresql:... is no event store"),
        ("sqlite://open-sesame", "sqlite:... is no event store"),
        ("sqlite:///", "sqlite:... is no event store"),
        ("", "an empty setting is no event store"),
    ],
)
def test_anything_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | Path, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"{named}.*: give the path of a file") as caught:
        open_store(text)
    assert "open-sesame" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_without_psycopg_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hubbub.store.postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hubbub\[postgres\]'"):
        open_store("postgresql://hubbub:open-sesame@db.example/events")
