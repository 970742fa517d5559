"""Sheets on the compact wire, on whole rounds by size, and on growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.compact import SHARE_AND_ADD, CompactTiming
from benchmarks.deployed import ProcessRounds
from benchmarks.feeding import PhaseCost
from benchmarks.footprint import Footprints
from benchmarks.growth import Fit, Growth
from benchmarks.sheet import Sheet
from benchmarks.sizes import SizedRound
from benchmarks.steps import CLIENTS, SERVERS
from benchmarks.threads import ThreadsTiming
from hubbub_cli.formatting import show_bytes
from hubbub_local.figures import show_seconds


def lay_out_compact(parameters: int, timings: Sequence[CompactTiming]) -> Sheet:
    """Lay out the steps of the compact wire, per element."""
    rows = tuple(
        (
            each.name,
            show_seconds(each.seconds),
            f"{each.seconds / each.elements * 1e9:.2f} ns",
            f"{each.stream_bytes / each.elements:.2f} B",
            f"{each.copied_bytes / each.elements:.2f} B",
            show_seconds(each.stream_s + each.copy_s),
            f"{each.ratio:.1f}",
        )
        for each in timings
    )
    columns = ("step", "time", "an element", "stream", "copied", "raw", "× raw")
    note = (
        f"C = {CLIENTS}, S = {SERVERS}, m = {2 * CLIENTS + 1} and a factor; the processor's time of one thread. "
        "Stream is what a step draws from AES-CTR, counted while it runs; copied is what goes into it and comes "
        "out of it, as it lies in memory (a client's residues in the narrowest type, what travels packed); both "
        "per element. Raw is filling as many bytes with AES-CTR and copying as many with numpy, into memory that "
        f"is there already. The last row, {SHARE_AND_ADD}, is all {CLIENTS} clients dealing and all {SERVERS} "
        "aggregators adding, one of them with the others' sums; rows above it are one step of one party. From "
        "*deal* on, steps go chunk by chunk, as the services do."
    )
    return Sheet(f"The compact wire: steps, N = {parameters:,}", columns, rows, note)


def lay_out_threads(timing: ThreadsTiming) -> Sheet:
    """Lay out the times with one thread and with two."""
    row = (
        f"{timing.chunks}",
        *map(show_seconds, (timing.one_s, timing.two_s, timing.best_one_s, timing.best_two_s)),
        f"{timing.speedup:.2f}",
        f"{timing.raw_speedup:.2f}",
    )
    columns = ("chunks", "one thread", "two threads", "best, one", "best, two", "gain", "gain of AES-CTR")
    note = (
        f"C = {CLIENTS}, S = {SERVERS}, m = {2 * CLIENTS + 1} and a factor. One aggregator decrypts the full "
        "shares of a phase, expands the seeded ones, adds and packs, without messages and disks; the time that "
        "passes. Gain is the median of one thread's time over that of two right after it. The last column is the "
        "same of filling memory with AES-CTR: what two threads gain on this machine at that moment."
    )
    return Sheet(f"An aggregator with two threads, N = {timing.parameters:,}", columns, (row,), note)


def lay_out_sizes(rounds: Sequence[SizedRound]) -> Sheet:
    """Lay out rounds by size and transport."""
    rows = tuple(
        (
            f"{each.cost.parameters:,}",
            each.transport,
            show_bytes(each.cost.payload_bytes or 0),
            show_bytes(each.cost.wire_bytes or 0),
            show_bytes(each.cost.total_bytes),
            show_seconds(each.cost.client_s),
            show_seconds(each.cost.server_s),
            show_seconds(each.cost.wall_s),
            "" if each.cost.memory_bytes is None else show_bytes(each.cost.memory_bytes),
        )
        for each in rounds
    )
    columns = ("N", "transport", "payload", "wire", "all", "client", "aggregator", "round", "memory")
    note = (
        f"Hubbub sec-union, {rounds[0].cost.setting}, {CLIENTS} clients; medians of rounds, the first left out. "
        "Payload is of shares and sums, wire is of the messages that carry them, all is of every message. Client "
        "and aggregator are the processor's time of one of each; training, top-k and moving the model on are left "
        "out. Round is the time that passes with all eight parties in one process, which also write to disk "
        "and sync; memory is by how much that process grew, with five models, accumulators and updates in it. The "
        "rows *tags and scores*, *tags* and *neither* leave out training alone."
    )
    return Sheet("One secure round", columns, rows, note)


def lay_out_processes(rounds: Sequence[ProcessRounds]) -> Sheet:
    """Lay out rounds of separate processes."""
    rows = tuple(
        (
            f"{each.parameters:,}",
            f"{each.round_s:.2f} s",
            f"{each.fastest_s:.2f}–{each.slowest_s:.2f}",
            show_bytes(each.payload_bytes),
            show_bytes(each.wire_bytes),
            show_seconds(each.aggregator_s),
            show_seconds(each.trainer_s),
            show_bytes(each.aggregator_bytes),
            show_bytes(each.trainer_bytes),
        )
        for each in rounds
    )
    columns = (
        *("N", "round", "range", "payload", "wire"),
        *("aggregator", "trainer", "aggregator's memory", "trainer's memory"),
    )
    first = rounds[0]
    note = (
        f"{first.clients} trainers, {first.servers} aggregators and a coordinator, each a process, over RabbitMQ "
        f"on the same machine; {first.strategy}, medians over rounds, the first left out. "
        "A round holds the slowest training and evaluation. Times of one aggregator and one trainer "
        "are the processor's in a round; the trainer's holds training, top-k and evaluation. Memory is the most "
        "that a process had, its interpreter and libraries included."
    )
    return Sheet("A round of eight processes", columns, rows, note)


def lay_out_growth(growth: Growth) -> Iterator[Sheet]:
    """Lay out the measurements of growth, and the lines through them."""
    rows = tuple(_row(each) for each in (*growth.by_length, *growth.by_cohort, *growth.by_servers))
    columns = ("N", "C", "S", "client", "aggregator", "link payload", "seeds", "link wire", "everybody")
    note = (
        "One phase of all N elements mod 2C + 1 and a factor. All S aggregators are the real service (messages, "
        "spool, opening, checking, journal, adding, combining, releasing) over the memory transport, in one fresh "
        "process for each row; clients are the trainer's own dealing, sealing, signing and unmasking, on values "
        "that are drawn when they are needed, without training and disk. Client and aggregator are the "
        "processor's time of one. Link is what one client sends and gets: packed, the seeds beside it, and as "
        "messages. Times are medians of five turns."
    )
    yield Sheet("Growth", columns, rows, note)
    fits = tuple(map(_fit_row, growth.fits))
    if fits:
        note = (
            "By least squares. A larger cohort has a larger ring, so bytes over C hold a factor log2(2C + 1), "
            "which elements, bytes over log2(2C + 1), leave out. Times over C hold it too, and more: each ring "
            "has words of its own, and those of 46 bits, for C = 100, are packed in three times the time of "
            "those of 40. The largest residual is over the largest value."
        )
        names = ("of", "over", "slope", "constant", "R²", "largest residual")
        yield Sheet("Growth: straight lines", names, fits, note)


def lay_out_footprints(footprints: Footprints) -> Sheet:
    """Lay out an aggregator's memory."""
    crowd = footprints.crowd or ()
    # A footprint in several series was measured once.
    measured = dict.fromkeys((*footprints.by_length, *footprints.by_cohort, *crowd))
    rows = tuple(
        (
            f"{each.parameters:,}",
            f"{each.clients}",
            show_bytes(each.idle_bytes),
            show_bytes(each.peak_bytes),
            show_bytes(each.grown_bytes),
        )
        for each in measured
    )
    note = (
        "An aggregator as a process of its own over RabbitMQ, one of two, while one phase of all N elements mod "
        "2C + 1 goes through it; interpreter and libraries included. Idle is once it is connected, peak is the "
        "most until every client has the sum, as Linux accounts for it. Of the two aggregators the one that "
        "took more; of three times the one in the middle."
    )
    return Sheet("An aggregator's memory", ("N", "C", "idle", "peak", "grown"), rows, note)


def _row(cost: PhaseCost) -> tuple[str, ...]:
    return (
        f"{cost.parameters:,}",
        f"{cost.clients}",
        f"{cost.servers}",
        show_seconds(cost.client_s),
        show_seconds(cost.server_s),
        f"{cost.link_payload_bytes:,} B",
        f"{cost.seed_bytes} B",
        f"{cost.link_wire_bytes:,} B",
        show_bytes(cost.all_bytes),
    )


def _fit_row(fit: Fit) -> tuple[str, ...]:
    return (
        fit.what,
        fit.over,
        _show(fit.slope, fit.unit),
        _show(fit.constant, fit.unit),
        f"{fit.r_squared:.5f}",
        f"{fit.largest_residual:.2%}",
    )


def _show(value: float, unit: str) -> str:
    if unit == "s":
        return f"{'-' if value < 0 else ''}{show_seconds(abs(value))}"
    return f"{value:,.2f} {unit}".strip()
