"""Prometheus metrics of the coordinator: duration and cost of phases and rounds, waiting times, stalled runs.

All are derived from the steps of its machines, so only persisted steps are counted. Byte counts are the
parties' own reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hubbub.machine.effects import Key
from hubbub.protocol.costs import Headcount
from hubbub.runtime.clock import Clock
from hubbub.runtime.runner import Observer, RunningMachine, Transition
from hubbub.runtime.telemetry import SECONDS
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.scores import SCORES
from hubbub_coordinator.accounts import predict
from hubbub_coordinator.events import RoundVerdict
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.progress import Last, Waiting, find_awaited


class Metering:
    """Observer that counts steps and passes them on to the next observer."""

    def __init__(self, registry: CollectorRegistry, observer: Observer) -> None:
        self._registry = registry
        self._observer = observer
        self._phases = self._count("phases", "What a phase came to, of all aggregators.", "phase", "outcome")
        self._collecting = self._time(
            "phase_collecting_seconds", "From the opening of a phase until its member set was closed.", "phase"
        )
        self._releasing = self._time(
            "phase_releasing_seconds", "From the closing of a member set until all its sums were out.", "phase"
        )
        self._rounds = self._time("round_seconds", "From the opening of a round to its verdict.", "outcome")
        self._metrics = Gauge(
            "hubbub_metric",
            "What the clients' scores came to in the last round that was scored, by the metric's name.",
            ("name",),
            registry=self._registry,
        )
        self._payload = self._count(
            "reported_payload_bytes",
            "Elements times bits per element, in bytes, of all parties in rounds that have ended.",
            *("counts_as", "direction"),
        )
        self._wire = self._count(
            "reported_wire_bytes",
            "Encoded bytes that reached their recipients, first deliveries only, in rounds that have ended.",
            *("counts_as", "direction"),
        )
        self._predicted = self._count(
            "predicted_payload_bytes",
            "What the formula of the run's wire mode says that the payload of released rounds comes to.",
            "counts_as",
        )
        self._disagreements = self._count(
            "model_disagreements", "Rounds after which clients held different models, which ends their run."
        )
        for verdict in RoundVerdict:
            self._rounds.labels(verdict.value)

    def _count(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"hubbub_{name}", help_text, labels, registry=self._registry)

    def _time(self, name: str, help_text: str, *labels: str) -> Histogram:
        return Histogram(f"hubbub_{name}", help_text, labels, registry=self._registry, buckets=SECONDS)

    def __call__(self, moment: Transition) -> None:
        """Count the changes of one step of a round."""
        if isinstance(moment.data, CoordinatorRound) and isinstance(moment.earlier, CoordinatorRound):
            self._note_phases(moment.earlier, moment.data)
            if moment.after.value in set(RoundVerdict):
                self._note_end(moment.data, RoundVerdict(moment.after.value))
        self._observer(moment)

    def _note_phases(self, earlier: CoordinatorRound, data: CoordinatorRound) -> None:
        for place, record in enumerate(data.records):
            before = earlier.records[place] if place < len(earlier.records) else None
            phase = data.phases[place].name
            if record.closed_at_s is not None and (before is None or before.closed_at_s is None):
                self._collecting.labels(phase).observe(record.closed_at_s - record.opened_at_s)
            if _is_released(record) and not (before and _is_released(before)):
                self._phases.labels(phase, RoundVerdict.RELEASED.value).inc()
                self._releasing.labels(phase).observe((record.released_at_s or 0) - (record.closed_at_s or 0))

    def _note_end(self, data: CoordinatorRound, verdict: RoundVerdict) -> None:
        if data.ended_at_s is not None:
            self._rounds.labels(verdict.value).observe(data.ended_at_s - data.began_at_s)
        if data.records and not _is_released(data.record):
            self._phases.labels(data.current.name, verdict.value).inc()
        known = _known_names(data)
        for _, row in data.traffic:
            name = row.counts_as if row.counts_as in known else "other"
            self._payload.labels(name, row.direction).inc(row.payload_bits / 8)
            self._wire.labels(name, row.direction).inc(row.wire_bytes)
        if verdict is RoundVerdict.RELEASED:
            for name, bits in predict(data).items():
                self._predicted.labels(name).inc(bits / 8)
        for metric in data.manifest.metrics:
            if metric.name in data.metrics:
                self._metrics.labels(metric.name).set(data.metrics[metric.name])
        if len({report.model_hmac for report in data.applied.values()}) > 1:
            self._disagreements.inc()


def _known_names(data: CoordinatorRound) -> frozenset[str]:
    """Return the known traffic categories: a report may name any, and must not create labels without limit."""
    everybody = Headcount.complete(len(data.manifest.cohort), len(data.manifest.aggregators))
    strategy = find_strategy(data.manifest.strategy)
    return frozenset({*strategy.predict_bits(data.manifest.protocol_parameters, everybody, 0), SCORES.name})


def _is_released(record: PhaseRecord) -> bool:
    return record.released_at_s is not None


class OpenRuns(Collector):
    """Collector of how many parties runs wait for, the longest wait, and stalled runs; computed on each scrape."""

    def __init__(self, machines: Mapping[Key, RunningMachine], clock: Clock) -> None:
        self._machines = machines
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Measure all runs that have not ended."""
        machines = dict(self._machines)
        waits = [wait for wait in _find_waits(machines) if wait.parties]
        longest_s = max((self._clock.now_s() - wait.since_s for wait in waits), default=0.0)
        yield GaugeMetricFamily(
            "hubbub_parties_awaited",
            "Parties that runs wait for, added up over runs.",
            value=sum(len(wait.parties) for wait in waits),
        )
        yield GaugeMetricFamily(
            "hubbub_longest_wait_seconds",
            "How long the run that has waited longest has waited for somebody; 0 if none waits.",
            value=max(0.0, longest_s),
        )
        yield GaugeMetricFamily(
            "hubbub_stalled_runs",
            "Runs that have not ended and whose model seems to learn nothing any more.",
            value=sum(
                isinstance(live.data, runs.CoordinatorRun) and bool(live.data.stalled)
                for live in machines.values()
            ),
        )


def _find_waits(machines: Mapping[Key, RunningMachine]) -> Iterator[Waiting]:
    for key, live in machines.items():
        if isinstance(live.state, runs.State) and isinstance(live.data, runs.CoordinatorRun):
            open_round = machines.get(Key("round", key.run, live.data.round))
            last: Last = None
            if open_round and isinstance(open_round.state, rounds.State):
                last = open_round.state, open_round.data
            yield find_awaited(live.state, live.data, last)
