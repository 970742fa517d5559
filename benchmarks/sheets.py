"""Lays out a report as sheets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.disturbed import DisturbedRate, describe_rates
from benchmarks.interface import LoadTimes, PageTime, Restart
from benchmarks.learning import TrainingTime
from benchmarks.peers.sheet import lay_out_peers
from benchmarks.refusals import RefusalRate
from benchmarks.report import Report
from benchmarks.rounds import RoundTimes
from benchmarks.scale_sheets import (
    lay_out_compact,
    lay_out_footprints,
    lay_out_growth,
    lay_out_processes,
    lay_out_sizes,
    lay_out_threads,
)
from benchmarks.sheet import Sheet
from benchmarks.steps import CHUNKS, CLIENTS, SERVERS
from benchmarks.timing import ELEMENT_BYTES, Timing
from benchmarks.trust import TrustCost
from hubbub.messages.manifest import CHUNK_BYTES
from hubbub_cli.formatting import show_bytes
from hubbub_local.figures import show_seconds


def lay_out(report: Report) -> Iterator[Sheet]:
    """Yield the sheets of all parts that were measured."""
    yield from _lay_out_compact_wire(report)
    if report.peers:
        yield from lay_out_peers(report.peers)
    yield from _lay_out_paper_wire(report)
    yield from _lay_out_services(report)


def _lay_out_compact_wire(report: Report) -> Iterator[Sheet]:
    for parameters, timings in report.compact.items():
        yield lay_out_compact(parameters, timings)
    if report.threads:
        yield lay_out_threads(report.threads)
    if report.sizes:
        yield lay_out_sizes(report.sizes)
    if report.processes:
        yield lay_out_processes(report.processes)
    if report.growth:
        yield from lay_out_growth(report.growth)
    if report.footprints:
        yield lay_out_footprints(report.footprints)


def _lay_out_paper_wire(report: Report) -> Iterator[Sheet]:
    for parameters, timings in report.signs.items():
        yield _lay_out_steps(f"The paper's wire: signs, N = {parameters:,}, m = {2 * CLIENTS + 1}", timings)
    if report.factors:
        yield _lay_out_steps("The paper's wire: factors, one element, m = 2^32: what a call costs", report.factors)
    for parameters, by_size in report.chunk_sizes.items():
        yield _lay_out_chunk_sizes(parameters, by_size)


def _lay_out_services(report: Report) -> Iterator[Sheet]:
    if report.rounds:
        yield _lay_out_rounds(report.rounds)
    if report.trust:
        yield _lay_out_trust(report.trust)
    if report.refusals:
        yield _lay_out_refusals(report.refusals)
    if report.training:
        yield _lay_out_training(report.training)
    if report.load:
        yield _lay_out_load(report.load)
    if report.disturbed:
        yield _lay_out_disturbed(report.disturbed)
    if report.pages:
        yield _lay_out_pages(report.pages)
    if report.restarts:
        yield _lay_out_restarts(report.restarts)


def _lay_out_steps(title: str, timings: Sequence[Timing]) -> Sheet:
    rows = tuple(
        (
            f"chunks: {each.name}" if each.path == CHUNKS else each.name,
            show_bytes(each.elements * each.vectors * ELEMENT_BYTES),
            show_seconds(each.seconds),
            f"{each.stream_ratio:.1f}",
            f"{each.addition_ratio:.1f}",
        )
        for each in timings
    )
    note = (
        f"C = {CLIENTS}, S = {SERVERS}. Bytes are those of the residues in memory, {ELEMENT_BYTES} each. The last "
        "two columns are the time over that of filling as many bytes with the AES-CTR stream, and of adding as "
        "many with numpy, both into memory that is there already."
    )
    return Sheet(title, ("step", "bytes", "time", "× AES-CTR", "× numpy add"), rows, note)


def _lay_out_chunk_sizes(parameters: int, by_size: dict[int, list[Timing]]) -> Sheet:
    today = by_size[CHUNK_BYTES]
    rows = tuple(
        (
            show_bytes(size),
            *(
                f"{show_seconds(each.seconds)} ({each.stream_ratio / now.stream_ratio:.2f})"
                for each, now in zip(timings, today, strict=True)
            ),
        )
        for size, timings in by_size.items()
    )
    note = (
        f"In brackets: over the time with {show_bytes(CHUNK_BYTES)}, the size that manifests have by default, "
        "after both were divided by the AES-CTR stream's time at that moment."
    )
    names = tuple(each.name for each in today)
    return Sheet(f"Chunk sizes, N = {parameters:,}", ("chunk", *names), rows, note)


def _lay_out_rounds(rounds: Sequence[RoundTimes]) -> Sheet:
    memory = {each.parameters: each.protocol_s for each in rounds if each.transport == "memory"}
    rows = tuple(
        (
            f"{each.parameters:,}",
            each.transport,
            f"{each.protocol_s:.3f} s",
            f"{each.fastest_s:.2f}–{each.slowest_s:.2f}",
            f"{each.protocol_s / memory[each.parameters]:.2f}",
            show_bytes(each.payload_bytes),
            f"{each.wire_bytes / each.payload_bytes:.4f}",
        )
        for each in rounds
    )
    columns = ("N", "transport", "protocol", "range", "× memory", "payload", "wire")
    note = (
        f"Medians over {rounds[0].rounds} rounds; no-union, {CLIENTS} trainers, {SERVERS} aggregators and a "
        "coordinator in one process. Protocol time is the round's less the slowest training and evaluation; "
        "payload is of one round, all parties, all directions, on the compact wire; wire is what the transport"
        " carried, over it."
    )
    return Sheet("A round's time", columns, rows, note)


def _lay_out_trust(costs: Sequence[TrustCost]) -> Sheet:
    rows = tuple(
        (
            f"{each.parameters:,}",
            each.strategy,
            show_seconds(each.rest_s),
            f"+{each.time_added:.1%}",
            show_bytes(each.rest_bytes),
            f"+{each.bytes_added:.2%}",
        )
        for each in costs
    )
    columns = ("N", "strategy", "protocol", "time added", "messages", "bytes added")
    note = (
        f"Medians over {costs[0].rounds} rounds, all parties together. Protocol is the processor's time for a "
        "round without training, evaluation and what is measured here; messages are all bytes that are published "
        "in a round, likewise."
    )
    return Sheet("What sealing, signing and transcripts add", columns, rows, note)


def _lay_out_refusals(rates: Sequence[RefusalRate]) -> Sheet:
    rows = tuple((each.transport, each.what, f"{each.messages:,}", f"{each.per_s:,.0f}") for each in rates)
    note = (
        "An aggregator finds its inbox full of bad messages of 1 kB from one sender. Each is counted; the log, "
        "the audit log and the dead letters have some of them. A consumer that uses aio-pika alone, with the same "
        "prefetch, reads such messages and acknowledges one by one."
    )
    return Sheet("Refusing", ("transport", "message", "messages", "refused a second"), rows, note)


def _lay_out_disturbed(rates: Sequence[DisturbedRate]) -> Sheet:
    note = (
        f"Medians of {len(rates[0].ratios)} turns; the ratio is to the mean of the runs without a disturbance "
        "before and after. Everything is in one process but for the readers."
    )
    columns = ("disturbance", "rounds a second", "ratio", "answered or sent")
    return Sheet("Rounds that somebody disturbs", columns, describe_rates(rates), note)


def _lay_out_training(times: Sequence[TrainingTime]) -> Sheet:
    rows = tuple(
        (
            each.network,
            f"{each.steps}",
            show_seconds(each.seconds / each.steps),
            show_seconds(each.bare_s / each.steps),
            f"{each.ratio:.2f}",
        )
        for each in times
    )
    note = (
        f"Medians of {times[0].repeats} interleaved repeats, the processor's time on one thread. Bare is the same "
        "network as torch.nn modules with torch.optim.SGD, on the same batches."
    )
    return Sheet("Local training", ("network", "steps", "a step", "bare", "× bare"), rows, note)


def _show_middle(values: Sequence[float]) -> str:
    """Return the interquartile range as text."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{low:.2f} to {high:.2f}"


def _lay_out_load(load: LoadTimes) -> Sheet:
    seen = load.seen
    requests = sum(each.requests for each in seen)
    row = (
        f"{seen[0].streams}",
        f"{requests / sum(each.seconds for each in seen):.0f}/s",
        show_seconds(load.alone_s),
        show_seconds(load.watched_s),
        f"{load.ratio:.2f} ({_show_middle(load.ratios)})",
        _show_middle(load.null_ratios),
        f"{sum(each.missed for each in seen)} of {sum(each.events * each.streams for each in seen):,}",
        f"{sum(each.failed for each in seen)}",
        show_seconds(statistics.median(each.median_s for each in seen)),
    )
    columns = ("streams", "requests", "alone", "watched", "× alone", "noise", "events missed", "failed", "answer")
    note = (
        f"Protocol times are medians over {load.rounds} rounds each, N = {load.parameters:,}, in turn and with "
        "the same pinning: all parties and the interface on one core, those who look on, if any, on another. "
        f"The ratio is the median of {len(load.ratios)} runs, each over those before and after it, the middle "
        "half in brackets; noise is the middle half of runs without anybody over the one before. "
        "Requests are those answered; answer is the median time from when one was due."
    )
    return Sheet("A round's time with an audience", columns, (row,), note)


def _lay_out_pages(pages: Sequence[PageTime]) -> Sheet:
    rows = tuple((each.page, show_seconds(each.seconds), show_seconds(each.slowest_s)) for each in pages)
    note = (
        f"Medians of {pages[0].repeats}, each over a connection of its own, from a coordinator that was started "
        "on what its event store held."
    )
    return Sheet(f"A page of {pages[0].runs:,} runs", ("page", "time", "slowest"), rows, note)


def _lay_out_restarts(restarts: Sequence[Restart]) -> Sheet:
    first = restarts[0]
    rows = tuple(
        (
            f"{each.rounds:,}",
            f"{each.replayed:,}",
            *(show_seconds(each.replay_s), f"{each.replay_s / first.replay_s:.2f}"),
            *(show_seconds(each.process_s), f"{each.process_s / first.process_s:.2f}"),
            *(show_bytes(each.memory_bytes), show_bytes(each.running_bytes)),
        )
        for each in restarts
    )
    note = (
        f"Medians of {first.repeats} starts, C = {CLIENTS}, S = {SERVERS}. All rounds are of one run, fed as "
        "events without training; replay is what it takes to have the run again, process from the start of the "
        "process until it could answer, each also over its first line. Memory is resident, after a restart and in "
        "the process that had run the rounds; the latter holds the news of up to 20,000 events."
    )
    headings = ("rounds", "entries", "replay", "over", "process", "over", "memory", "running")
    return Sheet("A coordinator that is started again", headings, rows, note)
