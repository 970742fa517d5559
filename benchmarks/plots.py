"""The plots of a saved report."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.feeding import PhaseCost
from benchmarks.peers.contest import PeerCost
from benchmarks.report import Report
from hubbub_local.figures import Panel, draw_plot

_MIB = 2**20
Sized = Sequence[tuple[int, int]]


def draw_plots(report: Report) -> dict[str, tuple[str, str]]:
    """Title and SVG of every plot for which something was measured, by the end of its file's name."""
    growth, memory = report.growth, report.footprints
    plots: dict[str, tuple[str, list[Panel]]] = {}
    if growth and len(growth.by_length) > 1:
        costs = [(each.parameters, each) for each in growth.by_length]
        sizes = [(each.parameters, each.peak_bytes) for each in memory.by_length] if memory else []
        plots["growth-n"] = "A phase by N: C = 5, S = 2", _growth("N", costs, sizes)
    if growth and len(growth.by_cohort) > 1:
        costs = [(each.clients, each) for each in growth.by_cohort]
        sizes = [(each.clients, each.peak_bytes) for each in memory.by_cohort] if memory else []
        plots["growth-c"] = f"A phase by C: N = {costs[0][1].parameters:,}, S = 2", _growth("C", costs, sizes)
    if report.peers and report.peers.costs:
        longest = max(each.parameters for each in report.peers.costs)
        peers = [each for each in report.peers.costs if each.parameters == longest]
        plots["peers"] = f"One round of 5 clients, N = {longest:,}", _peers(peers)
    return {name: (title, draw_plot(title, panels)) for name, (title, panels) in plots.items()}


def _growth(label: str, costs: Sequence[tuple[int, PhaseCost]], sizes: Sized) -> list[Panel]:
    """Time, bytes and, where it was measured, memory."""
    times = {
        "client": [(x, each.client_s) for x, each in costs],
        "aggregator": [(x, each.server_s) for x, each in costs],
    }
    sent = {"everybody": [(x, each.all_bytes / _MIB) for x, each in costs]}
    panels = [
        Panel(title="processor time (s)", x_label=label, lines=times, log_x=True, log_y=True),
        Panel(title="bytes sent (MiB)", x_label=label, lines=sent, log_x=True, log_y=True),
    ]
    if sizes:
        # The interpreter is most of it: from zero, not by powers of ten, of which it does not span one.
        memory = {"aggregator's process": [(x, size / _MIB) for x, size in sizes]}
        panels.append(Panel(title="peak memory (MiB)", x_label=label, lines=memory, log_x=True, from_zero=True))
    return panels


def _peers(costs: Sequence[PeerCost]) -> list[Panel]:
    names = [f"≈ {each.system}" if each.is_scaled else each.system for each in costs]
    measures = {
        "all bytes (MiB)": [each.total_bytes / _MIB for each in costs],
        "a client's processor time (s)": [each.client_s + each.client_wire_s for each in costs],
        "a server's processor time (s)": [each.server_s + each.server_wire_s for each in costs],
    }
    return [
        Panel(title=title, bars=dict(zip(names, values, strict=True)), log_x=True)
        for title, values in measures.items()
    ]
