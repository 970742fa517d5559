"""Telemetry of a party: log lines as JSON objects, or as text at a terminal; counters and gauges.

Every line of JSON names the party that wrote it and, if it is about one, the run, round and phase. Of a message's
content, only its kind and size are logged.

Counters are for the party's operator, and an organisation may hand its trainer's to others. So nothing is counted
that depends on what a client puts into a sum, only kinds, sizes that the manifest fixes, times and outcomes. No
label is a run, a round or a party: their number is unbounded.

Gauges are read from the party when metrics are collected.
"""

from __future__ import annotations

import collections
import json
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, TextIO

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hubbub import __version__
from hubbub.errors import RejectReason
from hubbub.machine.effects import Key
from hubbub.machine.table import Kind, is_final
from hubbub.messages.envelope import Envelope
from hubbub.messages.rounds import MaskedChunk, PartialChunk, SumChunk
from hubbub.messages.shares import ShareChunk, ShareSeed, count_seeds
from hubbub.transport.base import Condition

_NOTHING: Mapping[str, object] = MappingProxyType({})
_context: ContextVar[Mapping[str, object]] = ContextVar("log_context", default=_NOTHING)


@contextmanager
def context(**fields: object) -> Iterator[None]:
    """Add fields to every log line written inside."""
    token = _context.set({**_context.get(), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _context.reset(token)


def current_context() -> dict[str, object]:
    """Return the fields that a log line would have now, to pass them on to a worker."""
    return dict(_context.get())


class JsonFormatter(logging.Formatter):
    """Formatter that writes one JSON object per line."""

    def __init__(self, party: str) -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, party, context and message, and a traceback if there is one."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            # If several parties share a process, the context overrides it.
            "party": self._party,
            **_context.get(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        reason = getattr(record, "reason", None)
        if reason:
            line["reason"] = reason
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Formatter for a reader at a terminal: time of day, level unless it is ordinary, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a line, and a traceback if there is one."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{datetime.fromtimestamp(record.created).astimezone():%H:%M:%S}  {level}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def log_to_error_stream(party: str, level: str) -> None:
    """Send all log lines of this process to standard error: as text to a terminal, otherwise as JSON."""
    if sys.stderr.isatty():
        _log_with(TextFormatter(), level, None)
    else:
        log_as_json(party, level)


def log_as_json(party: str, level: str, stream: TextIO | None = None) -> None:
    """Send all log lines of this process to `stream`, or to the current standard error."""
    _log_with(JsonFormatter(party), level, stream)


def _log_with(formatter: logging.Formatter, level: str, stream: TextIO | None) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # They log every failed attempt to connect as an error; the transport logs what matters itself.
    for noisy in ("aio_pika", "aiormq"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""Buckets for everything that takes time, from a write to a disk to hours of training."""

Direction = Literal["sent", "received"]


class WebRefusal(StrEnum):
    """Reason for which a request to the web interface was refused or its connection closed."""

    HEADERS_TOO_LONG = "headers-too-long"
    TOO_SLOW = "too-slow"
    TOO_MANY = "too-many"
    MADE_ROOM = "made-room"
    UNREAD = "unread"
    TRACE = "trace"
    NO_REQUEST = "no-request"
    BUSY = "busy"


class Counters:
    """Counters of one party, in a registry of their own so that several parties can share a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="hubbub", registry=self.registry)
        self.received = cache(self._count("messages_received", "Messages acted upon, by kind.", "kind").labels)
        self.rejected = self._count("messages_rejected", "Messages refused, by reason.", "reason")
        self.late = self._count("messages_late", "Messages that came after the end, by kind.", "kind")
        self.broken = self._count(
            "internal_errors", "Messages, effects and jobs that a bug of ours kept from being done."
        )
        self.lost = self._count(
            "runs_lost", "How often this party told a coordinator that it has lost what it knew of a run."
        )
        self.damaged = self._count(
            "sets_damaged", "Share sets that a disk has damaged or lost and that clients were asked for again."
        )
        self._sent = cache(
            self._count("messages_sent", "Messages that the broker has taken, by kind.", "kind").labels
        )
        wire_bytes = self._count(
            "wire_bytes",
            "Bytes of encoded messages that were sent, or received and acted upon, repetitions included; phase is"
            " that of shares and sums, and empty for all else.",
            *("direction", "kind", "phase"),
        )
        payload_bytes = self._count(
            "payload_bytes",
            "Elements times bits per element, in bytes, of share sets and sums that were sent or received,"
            " repetitions included, by what they count as. A set is counted with its first chunk.",
            *("direction", "phase", "counts_as"),
        )
        steps = self._count("machine_steps", "Events that state machines took.", "machine", "event")
        # Each of these is used several times per message, and each lookup takes a lock: cache it.
        self._wire_bytes, self._payload_bytes = cache(wire_bytes.labels), cache(payload_bytes.labels)
        self._wire = wire_bytes
        self._steps = cache(steps.labels)
        self.retries = self._count(
            "retries",
            "Attempts that the broker or a disk kept from succeeding and that are made again: of a job, an effect,"
            " or to keep an event.",
            "what",
        )
        self.jobs = self._time("job_seconds", "How long jobs took, outages included, by what was done.", "what")
        self.appends = self._time("store_append_seconds", "How long it took until an event was on disk.")
        self._turned_away = self._count(
            "requests_refused",
            "Requests to the web interface that were refused, and connections to it that were closed, by reason.",
            "reason",
        )
        self._ends: dict[str, Counter] = {}
        for why in WebRefusal:
            self._turned_away.labels(why)
        for reason in RejectReason:
            self.rejected.labels(reason)
        for what in ("job", "effect", "event"):
            self.retries.labels(what)

    def _count(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"hubbub_{name}", help_text, labels, registry=self.registry)

    def _time(self, name: str, help_text: str, *labels: str) -> Histogram:
        return Histogram(f"hubbub_{name}", help_text, labels, registry=self.registry, buckets=SECONDS)

    def expect(self, kinds: Mapping[str, Kind[Any, Any]]) -> None:
        """Count how machines of these kinds end: runs, rounds and phases."""
        for name, kind in kinds.items():
            labels = ["phase", "outcome"] if name == "phase" else ["outcome"]
            self._ends[name] = self._count(
                f"{name}s", f"How machines of the kind {name} ended at this party.", *labels
            )
            for state in kind.table:
                if is_final(kind.table, state) and name != "phase":
                    self._ends[name].labels(state.value)

    def sent(self, envelope: Envelope, size: int) -> None:
        """Count a message that the broker has taken, and its bytes."""
        self._sent(envelope.kind).inc()
        self.carried("sent", envelope, size)

    def carried(self, direction: Direction, envelope: Envelope, size: int) -> None:
        """Count the bytes of a message that we sent, or that was checked."""
        phase, begun = _measure(envelope)
        self._wire_bytes(direction, envelope.kind, phase).inc(size)
        for counts_as, count in begun.items():
            self._payload_bytes(direction, phase, counts_as).inc(count)

    def bytes_sent(self) -> dict[str, int]:
        """Return the bytes of all messages that were sent, by kind."""
        sent: dict[str, int] = {}
        for metric in self._wire.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total") and sample.labels["direction"] == "sent":
                    kind = sample.labels["kind"]
                    sent[kind] = sent.get(kind, 0) + int(sample.value)
        return sent

    def turned_away(self, reason: WebRefusal) -> None:
        """Count a request that was refused, or a connection that was closed."""
        self._turned_away.labels(reason).inc()

    def stepped(self, key: Key, event: object, after: Enum, *, final: bool) -> None:
        """Count a step of a machine, and its end."""
        self._steps(key.kind, type(event).__name__).inc()
        if final and key.kind in self._ends:
            labels = [key.phase, after.value] if key.kind == "phase" else [after.value]
            self._ends[key.kind].labels(*labels).inc()

    def rejections(self, reason: RejectReason) -> int:
        """Return the number of messages refused for this reason."""
        return int(self.registry.get_sample_value("hubbub_messages_rejected_total", {"reason": reason}) or 0)


def _measure(envelope: Envelope) -> tuple[str, Mapping[str, float]]:
    """Return the phase that a message's bytes count under, and the payload bytes that begin with it."""
    body = envelope.body
    if isinstance(body, ShareSeed):
        (seed,) = count_seeds([claim.vector for claim in body.vectors], copies=1)
        return envelope.phase, {seed.counts_as: seed.payload_bits / 8}
    if not isinstance(body, ShareChunk | SumChunk | PartialChunk | MaskedChunk):
        # Its phase may be any text: only that of a chunk is always checked before.
        return "", {}
    begun: dict[str, float] = defaultdict(float)
    for vector in (claim.vector for claim in body.vectors if body.index == 0):
        begun[vector.counts_as] += body.encoding.bits(vector.length, vector.modulus) / 8
    return envelope.phase, begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """State of a party at one moment."""

    ready: bool
    storage_failed: bool
    condition: Condition
    queues: tuple[str, ...]
    """Queues of this party."""
    machines: tuple[tuple[str, Enum], ...]
    """Kind and state of every running machine."""
    jobs: int
    turns: int
    """Events that wait to be taken."""
    entries: int
    clock_ahead_s: float
    last_event_at_s: float


class Gauges(Collector):
    """Collector that reads a party's state whenever metrics are collected."""

    def __init__(self, role: str, kinds: Mapping[str, Kind[Any, Any]], read: Callable[[], Reading]) -> None:
        self._role = role
        self._kinds = kinds
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield all gauges, and the counts that the transport keeps."""
        now = self._read()
        broker = now.condition
        for name, text, value in (
            (
                "ready",
                "Whether this party is connected, its log is replayed and it receives (1), or not (0).",
                now.ready,
            ),
            (
                "storage_failed",
                "Whether this party's disk or database fails, so that it takes no messages (1), or not (0).",
                now.storage_failed,
            ),
            (
                "broker_connected",
                "Whether this party is connected to the broker (1) or not (0).",
                broker.connected,
            ),
            (
                "broker_blocked",
                "Whether the broker, short of memory or disk, takes no messages from this party (1), or does (0).",
                broker.blocked,
            ),
            ("jobs_running", "Jobs that are under way: training, adding, sending.", now.jobs),
            (
                "turns_waiting",
                "Deliveries, timers and finished jobs that wait to be taken by a machine.",
                now.turns,
            ),
            ("store_entries", "Entries in the event store.", now.entries),
            (
                "clock_ahead_seconds",
                "By how much the machine's clock is ahead of this party's time; not 0 if it was set meanwhile.",
                now.clock_ahead_s,
            ),
            (
                "last_event_timestamp_seconds",
                "When a machine last took an event, in Unix time; when this party was started if none has yet.",
                now.last_event_at_s,
            ),
        ):
            yield GaugeMetricFamily(f"hubbub_{name}", text, value=float(value))
        for name, text, count in (
            ("reconnects", "Connections to the broker that were lost and made again.", broker.reconnects),
            ("publish_retries", "Messages that had to be sent to the broker once more.", broker.retries),
        ):
            yield CounterMetricFamily(f"hubbub_{name}", text, value=count)
        about = GaugeMetricFamily(
            "hubbub_info", "Always 1; says which version runs as what.", labels=["version", "role"]
        )
        about.add_metric([__version__, self._role], 1.0)
        yield about
        waiting = GaugeMetricFamily(
            "hubbub_inbox_messages",
            "Messages that wait at the broker for this party, in all of its queues, as it last said.",
        )
        counts = [broker.waiting[queue] for queue in now.queues if queue in broker.waiting]
        if counts:
            waiting.add_metric([], sum(counts))
        yield waiting
        yield self._count_machines(now)

    def _count_machines(self, now: Reading) -> Metric:
        family = GaugeMetricFamily(
            "hubbub_machines", "State machines that are running, by kind and state.", labels=["machine", "state"]
        )
        counted = collections.Counter((kind, state.value) for kind, state in now.machines)
        for name, kind in self._kinds.items():
            for state in kind.table:
                if not is_final(kind.table, state):
                    family.add_metric([name, str(state.value)], counted[name, state.value])
        return family
