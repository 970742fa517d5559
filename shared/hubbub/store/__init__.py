"""Event stores: the events of a party, in SQLite or PostgreSQL, and the secrets of its runs."""

from __future__ import annotations

import re
from pathlib import Path

from hubbub.errors import ConfigurationError
from hubbub.store.base import EventStore
from hubbub.store.sqlite import SqliteStore

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):", re.IGNORECASE)


def open_store(url_or_path: str | Path) -> EventStore:
    """Open a postgresql:// database or a file: a path, or sqlite:///path (sqlite:////path from the root)."""
    text = str(url_or_path)
    scheme = _SCHEME.match(text)
    if scheme is None and text:
        return SqliteStore(Path(text))
    if text.startswith("sqlite:///") and text != "sqlite:///":
        return SqliteStore(Path(text.removeprefix("sqlite:///")))
    if text.startswith(("postgresql://", "postgres://")):
        return _open_postgres(text)
    # Show the scheme only: the rest may hold a password.
    what = f"{scheme[1]}:..." if scheme else "an empty setting"
    raise ConfigurationError(
        f"{what} is no event store: give the path of a file, sqlite:///path or postgresql://user@host/database"
    )


def _open_postgres(url: str) -> EventStore:
    try:
        # Imported here because most parties do not have psycopg.
        from hubbub.store.postgres import PostgresStore  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "an event store in PostgreSQL needs psycopg: pip install 'hubbub[postgres]'"
        ) from None
    return PostgresStore(url)
