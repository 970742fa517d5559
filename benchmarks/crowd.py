"""Load generator for the web interface: open event streams, and requests at a steady rate, in its own process.

`python -m benchmarks.crowd URL CORE STREAMS RATE RUN` reads a token from the first line of the standard input. It
prints `ready` when all streams are open. After a line with the ids of all events it prints the result. It requests
RUN until an event is about another run, and then that one, because a page shows the ongoing run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count, cycle
from urllib.parse import urlsplit

OPENED_AT_ONCE = 50
ASKERS = 64
"""Connections for the requests; each has one request in flight at a time."""
LAST_EVENTS_S = 30.0
PATHS = (
    "/api/v1/runs/{run}",
    "/api/v1/runs?limit=20",
    "/api/v1/runs/{run}/rounds?limit=5",
    "/api/v1/events?run={run}&limit=20",
)
"""Requests of an open page."""

_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_RUN = re.compile(rb'"run":"([0-9a-f]{64})"')
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Result of the load."""

    streams: int
    events: int
    """Events that each stream should have had."""
    missed: int
    """Events that a stream should have had and did not, over all streams."""
    repeated: int
    requests: int
    failed: int
    """Requests that were not answered with 200."""
    seconds: float
    median_s: float
    """Latency, from when a request was due until it was answered; so is the next."""
    slowest_s: float

    @property
    def rate(self) -> float:
        """Requests per second that were answered."""
        return self.requests / self.seconds


@dataclass(slots=True)
class _Stream:
    """Open event stream, and what it received."""

    writer: asyncio.StreamWriter
    heard: Callable[[bytes], None]
    """Called with what arrives, in whole lines."""
    ids: list[int] = field(default_factory=list)

    async def read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while data := await reader.read(2**16):
            whole, _, rest = (rest + data).rpartition(b"\n")
            self.ids += map(int, _ID.findall(whole))
            self.heard(whole)


@dataclass(slots=True)
class Crowd:
    """All streams and requests."""

    url: str
    token: str = field(repr=False)
    run: str
    streams: list[_Stream] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    failed: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def open(self, streams: int, rate: float) -> None:
        """Open all streams, a few at a time, and start the requests."""
        for already in range(0, streams, OPENED_AT_ONCE):
            await asyncio.gather(*(self._open_stream() for _ in range(min(OPENED_AT_ONCE, streams - already))))
        due = self._list_due(time.monotonic(), rate)
        self._tasks += [asyncio.create_task(self._ask(due)) for _ in range(ASKERS)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self.streams:
            stream.writer.close()

    async def wait_for(self, last: int) -> None:
        """Wait until every stream has had the last event, or for as long as that can possibly take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EVENTS_S):
                while any(not stream.ids or stream.ids[-1] < last for stream in self.streams):
                    self.arrived.clear()
                    await self.arrived.wait()

    def _note(self, _lines: bytes) -> None:
        self.arrived.set()

    def _follow(self, lines: bytes) -> None:
        if named := _RUN.findall(lines):
            self.run = named[-1].decode()
        self.arrived.set()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = urlsplit(self.url)
        return await asyncio.open_connection(where.hostname, where.port)

    def _write_request(self, path: str) -> bytes:
        host = urlsplit(self.url).netloc
        return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode()

    async def _open_stream(self) -> None:
        reader, writer = await self._connect()
        writer.write(self._write_request("/api/v1/events/stream"))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"a stream was refused: {head.splitlines()[0].decode()}")
        # One stream is enough to know which run is ongoing.
        stream = _Stream(writer, self._note if self.streams else self._follow)
        self.streams.append(stream)
        self._tasks.append(asyncio.create_task(stream.read(reader)))

    def _list_due(self, began_s: float, rate: float) -> Iterator[tuple[float, str]]:
        """Yield the due time and path of each request; the connections share this iterator."""
        return ((began_s + number / rate, path) for number, path in zip(count(), cycle(PATHS), strict=False))

    async def _ask(self, due: Iterator[tuple[float, str]]) -> None:
        reader, writer = await self._connect()
        try:
            for due_s, path in due:
                await asyncio.sleep(due_s - time.monotonic())
                writer.write(self._write_request(path.format(run=self.run)))
                if not await _read_answer(reader):
                    self.failed += 1
                self.waits_s.append(time.monotonic() - due_s)
        finally:
            writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> bool:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    await reader.readexactly(int(length[1]) if length else 0)
    return head.startswith(b"HTTP/1.1 200")


def compare(crowd: Crowd, expected: Sequence[int], answered: int, seconds: float) -> Seen:
    """Compare the events received with those expected; `answered` requests were answered in `seconds`."""
    wanted = Counter(expected)
    had = [Counter(stream.ids) for stream in crowd.streams]
    return Seen(
        streams=len(crowd.streams),
        events=len(expected),
        missed=sum((wanted - each).total() for each in had),
        repeated=sum((each - wanted).total() for each in had),
        requests=answered,
        failed=crowd.failed,
        seconds=seconds,
        median_s=statistics.median(crowd.waits_s),
        slowest_s=max(crowd.waits_s),
    )


async def look_on(url: str, token: str, run: str, streams: int, rate: float) -> Seen:
    """Open everything, generate load until told that it is over, and return the result."""
    lines = asyncio.StreamReader(limit=2**24)
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    crowd = Crowd(url, token, run)
    try:
        await crowd.open(streams, rate)
        began_s = time.monotonic()
        print("ready", flush=True)
        expected: list[int] = json.loads(await lines.readline())
        answered, seconds = len(crowd.waits_s), time.monotonic() - began_s
        await crowd.wait_for(expected[-1])
        return compare(crowd, expected, answered, seconds)
    finally:
        await crowd.close()


def main(url: str, core: str, streams: str, rate: str, run: str) -> None:
    """Generate load, on one core."""
    os.sched_setaffinity(0, {int(core)})
    token = sys.stdin.readline().strip()
    print(json.dumps(asdict(asyncio.run(look_on(url, token, run, int(streams), float(rate))))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
