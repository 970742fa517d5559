"""What can be read off a party at any moment, read when somebody asks for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hubbub import __version__
from hubbub.machine.kind import Kind
from hubbub.machine.table import is_final
from hubbub.transport.base import Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a party is at one moment."""

    ready: bool
    storage_failed: bool
    condition: Condition
    queues: tuple[str, ...]
    """Where messages wait for this party."""
    machines: tuple[tuple[str, Enum], ...]
    """Kind and state of every machine that is running."""
    jobs: int
    turns: int
    """Events that wait for their turn."""
    entries: int
    clock_ahead_s: float
    last_event_at_s: float


class Gauges(Collector):
    """Reads a party whenever metrics are collected."""

    def __init__(self, role: str, kinds: Mapping[str, Kind[Any, Any]], read: Callable[[], Reading]) -> None:
        self._role = role
        self._kinds = kinds
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All gauges, and the counts that others keep."""
        now = self._read()
        yield self._describe()
        yield from self._tell_of_broker(now)
        yield self._count_machines(now)
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

    def _describe(self) -> Metric:
        about = GaugeMetricFamily(
            "hubbub_info", "Always 1; says which version runs as what.", labels=["version", "role"]
        )
        about.add_metric([__version__, self._role], 1.0)
        return about

    def _tell_of_broker(self, now: Reading) -> Iterator[Metric]:
        condition = now.condition
        yield GaugeMetricFamily(
            "hubbub_broker_connected",
            "Whether this party is connected to the broker (1) or not (0).",
            value=float(condition.connected),
        )
        yield GaugeMetricFamily(
            "hubbub_broker_blocked",
            "Whether the broker, short of memory or disk, takes no messages from this party (1), or does (0).",
            value=float(condition.blocked),
        )
        yield CounterMetricFamily(
            "hubbub_reconnects",
            "Connections to the broker that were lost and made again.",
            value=condition.reconnects,
        )
        yield CounterMetricFamily(
            "hubbub_publish_retries",
            "Messages that had to be sent to the broker once more.",
            value=condition.retries,
        )
        waiting = GaugeMetricFamily(
            "hubbub_inbox_messages",
            "Messages that wait at the broker for this party, in all of its queues, as it last said.",
        )
        counts = [condition.waiting[queue] for queue in now.queues if queue in condition.waiting]
        if counts:
            waiting.add_metric([], sum(counts))
        yield waiting

    def _count_machines(self, now: Reading) -> Metric:
        family = GaugeMetricFamily(
            "hubbub_machines", "State machines that are running, by kind and state.", labels=["machine", "state"]
        )
        counted = Counter((kind, state.value) for kind, state in now.machines)
        for name, kind in self._kinds.items():
            for state in kind.table:
                if not is_final(kind.table, state):
                    family.add_metric([name, str(state.value)], counted[name, state.value])
        return family
