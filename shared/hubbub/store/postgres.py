"""Event store in a PostgreSQL database, for a coordinator that must outlive its machine's disk.

Its events hold no secrets, and must not: a database does not overwrite what it deletes.

If a connection breaks during a commit, nobody knows whether the commit took place. So one store at a time owns the
tables. Every transaction locks the row that names the owner and the number of its connection. A new connection
first increments that number: it waits there for a transaction of the old connection, which can commit nothing
afterwards. Entries after the last that is known to be stored are then deleted, and the append is tried once more;
the caller learns whether it succeeded.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import conninfo, errors

from hubbub.errors import ConfigurationError, StorageFailed
from hubbub.store.base import Draft
from hubbub.store.sql import LAST, TABLES, VERSION, Cursor, SqlStore, refuse_other_version

T = TypeVar("T")

# A peer that has been silent for a minute is gone. The URL may set other values.
CONNECTION = {
    "application_name": "hubbub",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# Overrides the server's defaults. An abandoned transaction must end before others give up waiting for its lock.
SESSION = """
SET synchronous_commit = on;
SET idle_in_transaction_session_timeout = '20s';
SET lock_timeout = '30s'
"""
OWNER_AND_EVENTS = """
CREATE TABLE hubbub_store (version INTEGER NOT NULL, owner TEXT NOT NULL, connection BIGINT NOT NULL);
CREATE TABLE hubbub_events (
    sequence BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    machine TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, phase TEXT NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, cause TEXT NOT NULL, done BOOLEAN NOT NULL DEFAULT FALSE
)
"""
ARE_THERE = "SELECT to_regclass('hubbub_store') IS NOT NULL"
FIRST_OWNER = "INSERT INTO hubbub_store VALUES (%s, '', 0)"
TAKE = "UPDATE hubbub_store SET owner = %s, connection = connection + 1 RETURNING connection"
TAKE_AGAIN = "UPDATE hubbub_store SET connection = connection + 1 WHERE owner = %s RETURNING connection"
HOLD = "SELECT 1 FROM hubbub_store WHERE owner = %s AND connection = %s FOR UPDATE"
DELETE_AFTER = "DELETE FROM hubbub_events WHERE sequence > %s"

_URL_LOOKS = (
    "the event store's URL must look like postgresql://user:password@host:5432/database;"
    " in a password write %2F for /, %40 for @, %25 for %"
)
_REMEDIES = (
    ((errors.DiskFull,), "make room on the server's disk"),
    (
        (errors.InsufficientPrivilege, errors.InvalidSchemaName),
        "let its user create tables there (GRANT CREATE ON SCHEMA ...)",
    ),
    ((errors.ReadOnlySqlTransaction,), "name the primary server, not a standby"),
    ((errors.LockNotAvailable,), "another process holds it: stop that one, or wait until the server gives it up"),
    ((psycopg.OperationalError,), "see that the server runs, and takes this user and password"),
)


class _ConnectionLost(StorageFailed):
    """The connection broke; it is not known whether a commit in progress took place."""


class PostgresStore(SqlStore):
    """Event store over one connection, which is reopened when it breaks."""

    prefix = "hubbub_"
    mark = "%s"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._access, self.place = _read_url(url)
        self._lock = threading.RLock()
        self._owner = secrets.token_hex(16)
        self._number = 0
        """Number of the connection, among all that the tables have seen; 0 before the first."""
        self._last = 0
        """The last entry that is known to be stored."""
        self._unsure = False
        """True if there may be entries after the last, of an append whose connection broke."""
        self._closed = False
        self._connection = self._connect()

    def append(self, drafts: Sequence[Draft]) -> int:
        """Store entries, all or none; they are on disk when this returns the number of the last (0 if none)."""
        with self._lock:
            number = super().append(drafts)
            self._last = number or self._last
            return number

    def close(self) -> None:
        """Write what is pending, and close; the connection is closed even if the write fails."""
        with self._lock:
            try:
                if self._finished:
                    self._write(lambda _: None)
            finally:
                self._closed = True
                self._connection.close()

    # One transaction ------------------------------------------------------------------------------------

    def _write(self, work: Callable[[Cursor], T]) -> T:
        """Do work in one transaction; if the connection breaks, undo the transaction and try once more."""
        with self._lock:
            try:
                return self._commit(work)
            except _ConnectionLost:
                return self._commit(work)

    def _commit(self, work: Callable[[Cursor], T]) -> T:
        self._make_ready()
        try:
            with self._owning() as connection:
                finished = self._write_finished(connection.cursor())
                result = work(connection.cursor())
        except psycopg.Error as error:
            if not self._connection.closed:
                raise StorageFailed(self._explain(error)) from None
            self._unsure = True
            raise _ConnectionLost(self._explain(error)) from None
        self._settle(finished)
        return result

    @contextmanager
    def _owning(self) -> Iterator[psycopg.Connection]:
        """Open a transaction; raise `StorageFailed` if another store owns the tables by now."""
        with self._connection.transaction():
            if self._connection.execute(HOLD, (self._owner, self._number)).fetchone() is None:
                raise StorageFailed(self._say_taken())
            yield self._connection

    # The connection -------------------------------------------------------------------------------------

    def _make_ready(self) -> None:
        """Reconnect if needed, and delete entries of an append whose connection broke."""
        if self._closed:
            raise StorageFailed(f"the event store {self.place} was closed")
        if self._connection.closed:
            self._connection = self._connect()
        if self._unsure:
            with self._explaining(), self._owning() as connection:
                connection.execute(DELETE_AFTER, (self._last,))
            self._unsure = False

    def _connect(self) -> psycopg.Connection:
        with self._explaining():
            connection = psycopg.connect(self._access, autocommit=True)
            try:
                connection.execute(SESSION)
                with connection.transaction():
                    number = self._take_again(connection) if self._number else self._take(connection)
            except BaseException:
                connection.close()
                raise
        self._number = number
        return connection

    def _take(self, connection: psycopg.Connection) -> int:
        """Take ownership of the tables, also from a process that died or should not be running."""
        if connection.execute("SHOW fsync").fetchone() != ("on",):
            raise ConfigurationError(f"{self.place} runs with fsync = off and loses what it was given: turn it on")
        if not _read_number(connection, ARE_THERE):
            for table in (OWNER_AND_EVENTS, *TABLES):
                connection.execute(self._sql(table))
            connection.execute(FIRST_OWNER, (VERSION,))
        refuse_other_version(_read_number(connection, "SELECT version FROM hubbub_store"), self.place)
        number = _read_number(connection, TAKE, self._owner)
        self._last = _read_number(connection, self._sql(LAST))
        return number

    def _take_again(self, connection: psycopg.Connection) -> int:
        """Register a new connection; raise `StorageFailed` if another store has taken the tables."""
        row = connection.execute(TAKE_AGAIN, (self._owner,)).fetchone()
        if row is None:
            raise StorageFailed(self._say_taken())
        return int(row[0])

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise StorageFailed(self._explain(error)) from None

    def _explain(self, error: psycopg.Error) -> str:
        # Only the server's first line: the others may quote the values that were to be written.
        said = error.diag.message_primary or " ".join(str(error).split())
        what_to_do = next(
            (each for kinds, each in _REMEDIES if isinstance(error, kinds)), "name an empty database"
        )
        return f"the event store {self.place} failed: {said}; {what_to_do}"

    def _say_taken(self) -> str:
        return (
            f"another process has opened the event store {self.place}: stop one of the two, and start this again"
        )


def _read_number(connection: psycopg.Connection, query: str, *values: str) -> int:
    row = connection.execute(query, values).fetchone()
    return int(row[0]) if row else 0


def _read_url(url: str) -> tuple[str, str]:
    """Return the connection string, and a name of the database without user and password for messages."""
    try:
        options = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        # Without the error's message, which quotes the URL.
        raise ConfigurationError(_URL_LOOKS) from None
    host, port, database = (str(options.get(name) or "") for name in ("host", "port", "dbname"))
    # An unescaped sign in a password would make a part of it look like host, port or database, and be shown.
    if "@" in f"{host}{port}{database}" or not all(each.isdigit() for each in port.split(",") if each):
        raise ConfigurationError(_URL_LOOKS)
    ours = {name: value for name, value in CONNECTION.items() if name not in options}
    return conninfo.make_conninfo(url, **ours), f"{host}:{port or 5432}/{database}"
