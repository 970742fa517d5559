"""Targets of the benchmarks, compared with the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.compact import SHARE_AND_ADD
from benchmarks.footprint import Footprints
from benchmarks.growth import Growth
from benchmarks.peers.contest import PeerCost
from benchmarks.peers.sheet import BASE
from benchmarks.report import Report
from benchmarks.sheet import Sheet
from benchmarks.sizes import NEITHER, SCORES, TAGS
from hubbub_cli.formatting import show_bytes
from hubbub_local.figures import show_seconds

ALEXNET = 1_756_426
FLOWER = "Flower SecAgg+"
HUNDRED_MILLION = 10**8
ELEMENT_BYTES = 4
CONSTANT_BYTES = 256 * 2**20
"""Memory that a process may use for its interpreter, libraries and threads, and for chunks in flight."""
ALL_OF_IT = "Flower's with making messages into bytes"
STRAIGHT = 0.99
ALIKE = 1.25
MOST_ADDED = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target, the measurement, and whether it is met."""

    what: str
    asked: str
    measured: str
    met: bool


def lay_out_targets(report: Report) -> Sheet | None:
    """Lay out every target for which there is a measurement."""
    rows = tuple(
        (each.what, each.asked, each.measured, "yes" if each.met else "no") for each in list_targets(report)
    )
    note = (
        "Each line follows from a sheet below, measured in the same run. Ratios to Flower are to flwr's SecAgg+ "
        "on the same vectors. Our times always hold the making of messages into bytes, signing, sealing and "
        "what is written to disk; Flower's, which writes nothing, are given without and with its bytes. Where a "
        f"word needs a number to be judged, it is this: a straight line has R² ≥ {STRAIGHT}; the same memory is "
        f"at most {ALIKE} times as much; a constant is at most {show_bytes(CONSTANT_BYTES)}."
    )
    return Sheet("Asked and measured", ("what", "asked", "measured", "met"), rows, note) if rows else None


def list_targets(report: Report) -> Iterator[Target]:
    yield from _compare_with_flower(report)
    yield from _judge_deployed(report)
    yield from _judge_steps(report)
    yield from _judge_framing(report)
    yield from _judge_additions(report)
    if report.footprints:
        yield from _judge_memory(report.footprints)
    if report.growth:
        yield from _judge_lines(report.growth)
        yield from _judge_links(report.growth)


def _compare_with_flower(report: Report) -> Iterator[Target]:
    costs = [each for each in (report.peers.costs if report.peers else []) if each.parameters == ALEXNET]
    ours = next((each for each in costs if each.system == BASE), None)
    theirs = next((each for each in costs if each.system == FLOWER), None)
    if ours is None or theirs is None:
        return
    yield _ratio("bytes of a round, N = 1,756,426, ρ = 0.1", 20, ours, theirs, lambda x: x.total_bytes, show_bytes)
    yield _ratio("a client's processor time", 3, ours, theirs, lambda each: each.client_s, show_seconds)
    yield _ratio(f"a client's, {ALL_OF_IT}", 3, ours, theirs, lambda x: x.client_s + x.client_wire_s, show_seconds)
    yield _ratio("an aggregator's processor time", 3, ours, theirs, lambda each: each.server_s, show_seconds)
    yield _ratio(
        f"an aggregator's, {ALL_OF_IT}", 3, ours, theirs, lambda x: x.server_s + x.server_wire_s, show_seconds
    )


def _ratio(
    what: str,
    part: int,
    ours: PeerCost,
    theirs: PeerCost,
    read: Callable[[PeerCost], float],
    show: Callable[[float], str],
) -> Target:
    return Target(
        what=what,
        asked=f"≤ 1/{part} of Flower's",
        measured=f"1/{read(theirs) / read(ours):.1f} ({show(read(ours))} to {show(read(theirs))})",
        met=part * read(ours) <= read(theirs),
    )


def _judge_deployed(report: Report) -> Iterator[Target]:
    theirs = next(
        (each for each in (report.peers.deployed if report.peers else []) if each.parameters == ALEXNET), None
    )
    ours = next((each for each in report.processes if each.parameters == ALEXNET), None)
    if ours is None or theirs is None:
        return
    yield Target(
        what="time of a deployed round, eight processes over RabbitMQ",
        asked="≤ 1/20 of Flower's",
        measured=f"1/{theirs.round_s / ours.round_s:.1f} "
        f"({show_seconds(ours.round_s)} to {show_seconds(theirs.round_s)})",
        met=20 * ours.round_s <= theirs.round_s,
    )


def _judge_steps(report: Report) -> Iterator[Target]:
    for each in report.compact.get(ALEXNET, []):
        if each.name == SHARE_AND_ADD:
            yield Target(
                what="sharing plus adding over the raw stream and copies of the same bytes, N = 1,756,426",
                asked="≤ 5",
                measured=f"{each.ratio:.1f}",
                met=each.ratio <= 5,
            )


def _judge_additions(report: Report) -> Iterator[Target]:
    client_s = {each.transport: each.cost.client_s for each in report.sizes if each.cost.parameters == ALEXNET}
    for name in (TAGS, SCORES):
        if name in client_s and NEITHER in client_s:
            added = client_s[name] / client_s[NEITHER] - 1
            yield Target(
                what=f"{name.removeprefix('memory, ')}: more of all that a client computes, N = 1,756,426",
                asked="≤ 25 %",
                measured=f"{added:.0%} ({show_seconds(client_s[NEITHER])} to {show_seconds(client_s[name])})",
                met=added <= MOST_ADDED,
            )


def _judge_framing(report: Report) -> Iterator[Target]:
    for each in report.sizes:
        cost = each.cost
        if cost.parameters == ALEXNET and each.transport == "memory" and cost.wire_bytes and cost.payload_bytes:
            share = 1 - cost.payload_bytes / cost.wire_bytes
            everything = 1 - cost.payload_bytes / cost.total_bytes
            yield Target(
                what="framing, sealing and signing of shares and sums, of their bytes, N = 1,756,426",
                asked="< 1 %",
                measured=f"{share:.2%} ({everything:.2%} with every order, receipt and report)",
                met=share < 0.01,
            )


def _judge_memory(footprints: Footprints) -> Iterator[Target]:
    line = footprints.line
    if line is not None:
        most = max(each.peak_bytes - ELEMENT_BYTES * each.parameters for each in footprints.by_length)
        yield Target(
            what="an aggregator's peak memory, over N",
            asked=f"≤ {ELEMENT_BYTES} B an element and a constant",
            measured=f"{line.slope:.2f} B an element and {show_bytes(max(0.0, line.constant))}",
            met=line.slope <= ELEMENT_BYTES and most <= CONSTANT_BYTES,
        )
    if footprints.crowd:
        few, many = footprints.crowd
        yield Target(
            what=f"the same at C = {many.clients} as at C = {few.clients}, N = {many.parameters:,}",
            asked=f"the same: ≤ {ALIKE} times",
            measured=f"{many.peak_bytes / few.peak_bytes:.2f} times"
            f" ({show_bytes(many.peak_bytes)} to {show_bytes(few.peak_bytes)})",
            met=many.peak_bytes <= ALIKE * few.peak_bytes,
        )


def _judge_lines(growth: Growth) -> Iterator[Target]:
    for fit in growth.fits:
        yield Target(
            what=f"{fit.what} over {fit.over}",
            asked=f"linear: R² ≥ {STRAIGHT}",
            measured=f"R² = {fit.r_squared:.4f}",
            met=fit.r_squared >= STRAIGHT,
        )
    if not growth.fits:
        return
    longest = max(each.parameters for each in growth.by_length)
    yield Target(
        what="the longest vector that passed",
        asked=f"{HUNDRED_MILLION:,}",
        measured=f"{longest:,}",
        met=longest >= HUNDRED_MILLION,
    )


def _judge_links(growth: Growth) -> Iterator[Target]:
    payloads = {each.link_payload_bytes for each in growth.by_servers}
    if len(growth.by_servers) > 1:
        first, last = growth.by_servers[0], growth.by_servers[-1]
        yield Target(
            what=f"payload on a client's links, S = {first.servers} to {last.servers}",
            asked="the same, but for 32 B a seed",
            measured=f"{first.link_payload_bytes:,} B and {last.link_payload_bytes:,} B; "
            f"seeds {first.seed_bytes} B and {last.seed_bytes} B",
            met=len(payloads) == 1,
        )
