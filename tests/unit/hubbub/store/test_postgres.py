"""The PostgreSQL store beyond the contract: connections that break, servers that die, and what is told of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

import psycopg
import pytest

from hubbub.errors import ConfigurationError, StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.store.base import Archive, Draft, Snapshot
from hubbub.store.postgres import PostgresStore
from support.patience import HANG_S
from support.private_postgres import PrivatePostgres, server_programs

KEY = Key("run", RunId("a" * 64))
SCHEMAS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    if server_programs() is None:
        pytest.skip("no PostgreSQL server is installed (apt-get install postgresql)")
    with PrivatePostgres() as server:
        yield server


@pytest.fixture
def schema(server: PrivatePostgres) -> str:
    """A schema for the tables of one test."""
    name = f"test_{next(SCHEMAS)}"
    server.execute(f"CREATE SCHEMA {name}")
    return name


def url_of(server: PrivatePostgres, schema: str, port: int | None = None) -> str:
    return f"{server.url_at(port or server.port)}?options=-csearch_path%3D{schema}"


@pytest.fixture
def store(server: PrivatePostgres, schema: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url_of(server, schema))
    yield store
    store._connection.close()


def draft(body: str) -> Draft:
    return Draft(KEY, "Joined", body)


def bodies(store: PostgresStore) -> list[str]:
    return [entry.body for entry in store.read()]


def read(store: PostgresStore) -> list[tuple[str, bool]]:
    """All that is in it, and whether it is done."""
    return [(entry.body, entry.done) for entry in store.read()]


class Line:
    """Between a store and its server: passes everything on, and fails once, at a commit, in one of three ways."""

    def __init__(self, server: PrivatePostgres) -> None:
        self._target = ("127.0.0.1", server.port)
        self._url = server.url
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lose: Callable[[socket.socket, socket.socket, bytes], None] | None = None
        self._muted: set[socket.socket] = set()
        self._answered = threading.Event()
        self._refuses = False
        self._begin(self._accept)

    def lose_the_order(self) -> None:
        """The next commit does not reach the server."""
        self._lose = lambda client, server, _order: _hang_up(client, server)

    def lose_the_answer(self) -> None:
        """The next commit takes place, and the store is not told."""

        def lose(client: socket.socket, server: socket.socket, order: bytes) -> None:
            self._muted.add(client)
            _send(server, order)
            self._answered.wait(HANG_S)
            _hang_up(client, server)

        self._lose = lose

    def delay_the_order(self) -> None:
        """The next commit reaches the server when the store has come back on another connection and waits."""

        def lose(client: socket.socket, server: socket.socket, order: bytes) -> None:
            self._muted.add(client)
            _hang_up(client)
            self._wait_for_somebody_waiting()
            _send(server, order)
            self._answered.wait(HANG_S)
            _hang_up(server)

        self._lose = lose

    def refuse(self) -> None:
        """Nobody gets through any more."""
        self._refuses = True

    def resume(self) -> None:
        self._refuses = False

    def close(self) -> None:
        # Wakes up the thread that accepts, which closing alone does not.
        _hang_up(self._listener, *self._sockets)
        for thread in self._threads:
            thread.join(HANG_S)
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            self._sockets.append(client)
            if self._refuses:
                _hang_up(client)
                continue
            server = socket.create_connection(self._target)
            self._sockets.append(server)
            self._begin(lambda client=client, server=server: self._pass_orders(client, server))  # type: ignore[misc]
            self._begin(lambda client=client, server=server: self._pass_answers(client, server))  # type: ignore[misc]

    def _pass_orders(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(client):
            lose, self._lose = (self._lose, None) if b"COMMIT" in data else (None, self._lose)
            if lose is not None:
                return lose(client, server, data)
            _send(server, data)
        return _hang_up(server)

    def _pass_answers(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(server):
            if client in self._muted:
                self._answered.set()
            else:
                _send(client, data)
        _hang_up(client)

    def _wait_for_somebody_waiting(self) -> None:
        deadline = time.monotonic() + 5
        with psycopg.connect(self._url, autocommit=True) as connection:
            while time.monotonic() < deadline:
                row = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
                if row is not None and row[0]:
                    return

    def _begin(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(2**16)
    except OSError:
        return b""


def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.sendall(data)


def _hang_up(*connections: socket.socket) -> None:
    for each in connections:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def line(server: PrivatePostgres) -> Iterator[Line]:
    line = Line(server)
    yield line
    line.close()


@pytest.fixture
def far_store(server: PrivatePostgres, schema: str, line: Line) -> Iterator[PostgresStore]:
    store = PostgresStore(url_of(server, schema, line.port))
    yield store
    store._connection.close()


# A connection that breaks at a commit -------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Line.lose_the_order, Line.lose_the_answer, Line.delay_the_order])
def test_entries_are_there_once(far_store: PostgresStore, line: Line, fault: Callable[[Line], None]) -> None:
    first = far_store.append([draft("first")])
    far_store.mark_done(first)
    fault(line)

    last = far_store.append([draft("second"), draft("third")])

    assert read(far_store) == [("first", True), ("second", False), ("third", False)]
    assert far_store.read()[-1].sequence == last
    assert far_store.append([draft("fourth")]) > last


@pytest.mark.parametrize("fault", [Line.lose_the_order, Line.lose_the_answer])
def test_an_append_that_failed_has_not_happened(
    far_store: PostgresStore, line: Line, fault: Callable[[Line], None]
) -> None:
    far_store.append([draft("first")])
    fault(line)
    line.refuse()
    with pytest.raises(StorageFailed, match="see that the server runs"):
        far_store.append([draft("second")])
    with pytest.raises(StorageFailed, match="see that the server runs"):
        far_store.read()

    line.resume()

    assert bodies(far_store) == ["first"]
    far_store.append([draft("second")])
    assert bodies(far_store) == ["first", "second"]


@pytest.mark.parametrize("fault", [Line.lose_the_order, Line.lose_the_answer])
def test_an_archive_is_there_once_and_what_is_dropped_is_not_when_the_connection_broke(
    far_store: PostgresStore, line: Line, fault: Callable[[Line], None]
) -> None:
    far_store.append([replace(draft("first"), done=True)])
    fault(line)
    snapshot = Snapshot(KEY, "how far it is")
    far_store.archive(Archive(run=KEY.run, ongoing=(snapshot,), notes=((1, "one"),)))
    found = bodies(far_store), far_store.read_ongoing(), far_store.read_notes(2)
    assert found == ([], [snapshot], [(1, "one")])
    far_store.append([draft("second")])
    assert bodies(far_store) == ["second"]
    fault(line)
    far_store.drop([KEY])
    assert bodies(far_store) == []


# A server that dies and comes back ----------------------------------------------------------------------


@pytest.mark.parametrize("end", [PrivatePostgres.stop, PrivatePostgres.kill], ids=["stopped", "killed"])
def test_what_was_appended_is_there_when_the_server_is_back_and_the_store_goes_on(
    server: PrivatePostgres, store: PostgresStore, end: Callable[[PrivatePostgres], None]
) -> None:
    store.mark_done(store.append([draft("first")]))
    end(server)
    try:
        with pytest.raises(
            StorageFailed, match=rf"127\.0\.0\.1:{server.port}/postgres failed: .*see that the server"
        ):
            store.append([draft("lost")])
    finally:
        server.start()
    store.append([draft("second")])
    assert read(store) == [("first", True), ("second", False)]
    end(server)
    server.start()
    store.append([draft("third")])
    assert len(store.read()) == 3, "a restart between two entries is not noticed"


def test_commits_are_synced_whatever_the_default_is_and_a_server_that_does_not_sync_is_refused(
    server: PrivatePostgres, schema: str
) -> None:
    server.execute("ALTER ROLE hubbub SET synchronous_commit = off")
    store = PostgresStore(url_of(server, schema))
    assert store._connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    store.close()
    server.execute("ALTER ROLE hubbub RESET synchronous_commit")
    server.execute("ALTER SYSTEM SET fsync = off")
    server.stop()
    server.start()
    try:
        with pytest.raises(ConfigurationError, match=r"fsync = off.*: turn it on"):
            PostgresStore(url_of(server, schema))
    finally:
        server.execute("ALTER SYSTEM RESET fsync")
        server.stop()
        server.start()


# A server that says no ----------------------------------------------------------------------------------


def test_a_full_disk_takes_all_or_nothing_and_goes_on_when_there_is_room(
    server: PrivatePostgres, schema: str, store: PostgresStore
) -> None:
    first = store.append([draft("first")])
    store.mark_done(first)
    server.execute(f"""
        CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
        CREATE TRIGGER full_disk BEFORE INSERT ON {schema}.hubbub_events FOR EACH ROW
        WHEN (new.body = 'large') EXECUTE FUNCTION {schema}.fail()
    """)
    with pytest.raises(StorageFailed, match="No space left on device; make room on the server's disk"):
        store.append([draft("lost"), draft("large")])
    assert bodies(store) == ["first"]
    server.execute(f"DROP TRIGGER full_disk ON {schema}.hubbub_events")
    store.append([draft("second"), draft("large")])
    assert read(store) == [("first", True), ("second", False), ("large", False)]


def test_a_standby_and_a_user_without_rights_are_clear_errors(
    server: PrivatePostgres, store: PostgresStore
) -> None:
    store._connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StorageFailed, match="name the primary server, not a standby"):
        store.append([draft("first")])
    server.execute("CREATE ROLE guest LOGIN PASSWORD 'open-sesame'")
    server.execute("CREATE SCHEMA closed")
    server.execute("GRANT USAGE ON SCHEMA closed TO guest")
    url = url_of(server, "closed").replace(f"hubbub:{server.password}", "guest:open-sesame")
    with pytest.raises(StorageFailed, match=r"let its user create tables there \(GRANT CREATE ON SCHEMA"):
        PostgresStore(url)


@pytest.mark.parametrize("version", [1, 3], ids=["earlier", "later"])
def test_other_versions_are_refused(
    server: PrivatePostgres, schema: str, store: PostgresStore, version: int
) -> None:
    store.append([draft("first")])
    server.execute(f"UPDATE {schema}.hubbub_store SET version = {version}")  # noqa: S608  (A name of ours.)
    with pytest.raises(ConfigurationError, match=f"has version {version}, and this Hubbub knows 2 alone"):
        PostgresStore(url_of(server, schema))
    assert bodies(store) == ["first"], "who was refused has taken nothing over"


# Two processes ------------------------------------------------------------------------------------------


def test_who_opens_the_store_last_has_it_alone(server: PrivatePostgres, schema: str, store: PostgresStore) -> None:
    store.mark_done(store.append([draft("first")]))
    second = PostgresStore(url_of(server, schema))
    second.append([draft("second")])

    for _ in range(2):
        with pytest.raises(
            StorageFailed, match=r"another process has opened the event store .*: stop one of the two"
        ):
            store.append([draft("lost")])
        # Not with a new connection either.
        store._connection.close()
    with pytest.raises(StorageFailed, match="another process"):
        store.close()

    assert read(second) == [("first", False), ("second", False)]
    second.close()


# Passwords ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    [
        *(
            f"{password}@127.0.0.1:1/events"
            for password in ("open/sesame", "1/sesame", "open@sesame", "open%sesame")
        ),
        *("open-sesame/events", "open-sesame@127.0.0.1:1/events?unknown=1"),
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(rest: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must look like postgresql://user:password@host:5432") as caught:
        PostgresStore(f"postgresql://hubbub:{rest}")
    assert "sesame" not in str(caught.value)
    assert "open" not in str(caught.value)


def test_a_password_is_in_no_error_and_no_repr(server: PrivatePostgres, store: PostgresStore) -> None:
    with pytest.raises(StorageFailed, match="takes this user and password") as caught:
        PostgresStore(server.url.replace(server.password, "open-sesame"))
    assert "open-sesame" not in str(caught.value)
    assert server.password not in f"{store!r} {store._connection!r} {store.place}"
