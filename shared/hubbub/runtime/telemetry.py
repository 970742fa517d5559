"""Log lines as JSON objects, and the counters of a service.

Every line says which party wrote it and, where it is about one, which run, round and phase. Nothing that a
message carries is logged but its kind and size.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter

from hubbub.errors import RejectReason

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


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, party: str) -> None:
        super().__init__()
        self._party = party

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, party, context and message, and a traceback if there is one."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
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


def log_as_json(party: str, level: str, stream: TextIO | None = None) -> None:
    """Send all log lines of this process to `stream`, or to what is standard error now."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(party))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # They log every failed attempt to connect as an error; what matters of them the transport says itself.
    for noisy in ("aio_pika", "aiormq"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


class Counters:
    """The counters of one party, in a registry of their own so that several parties share a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._received = Counter(
            "hubbub_messages_received", "Messages acted upon, by kind.", ["kind"], registry=self.registry
        )
        self._rejected = Counter(
            "hubbub_messages_rejected", "Messages refused, by reason.", ["reason"], registry=self.registry
        )
        self._late = Counter(
            "hubbub_messages_late",
            "Messages that came after the end, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._broken = Counter(
            "hubbub_internal_errors",
            "Messages that a bug of ours kept from being handled.",
            registry=self.registry,
        )
        for reason in RejectReason:
            self._rejected.labels(reason.value)

    def received(self, kind: str) -> None:
        """Count a message that was acted upon."""
        self._received.labels(kind).inc()

    def rejected(self, reason: RejectReason) -> None:
        """Count a message that was refused."""
        self._rejected.labels(reason.value).inc()

    def broken(self) -> None:
        """Count a message that could not be handled for no fault of its sender."""
        self._broken.inc()

    def late(self, kind: str) -> None:
        """Count a message that came after what it is about had ended."""
        self._late.labels(kind).inc()

    def rejections(self, reason: RejectReason) -> int:
        """How many were refused for this reason."""
        value = self.registry.get_sample_value("hubbub_messages_rejected_total", {"reason": reason.value})
        return int(value or 0)
