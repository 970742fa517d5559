"""Plots of a saved report."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.feeding import PhaseCost
from benchmarks.peers.contest import PeerCost
from benchmarks.report import Report
from hubbub_local.figures import Panel, draw_plot

_MIB = 2**20


def draw_plots(report: Report) -> dict[str, tuple[str, str]]:
    """Return title and SVG of every plot that has data, by the suffix of its file name."""
    growth, memory = report.growth, report.footprints
    plots: dict[str, tuple[str, list[Panel]]] = {}
    if growth and len(growth.by_length) > 1:
        sizes = [(each.parameters, each.peak_bytes) for each in memory.by_length] if memory else []
        plots["growth"] = "A phase by N: C = 5, S = 2", _growth(growth.by_length, sizes)
    if report.peers and report.peers.costs:
        longest = max(each.parameters for each in report.peers.costs)
        peers = [each for each in report.peers.costs if each.parameters == longest]
        plots["peers"] = f"One round of 5 clients, N = {longest:,}", _peers(peers)
    return {name: (title, draw_plot(title, panels)) for name, (title, panels) in plots.items()}


def _growth(costs: Sequence[PhaseCost], sizes: Sequence[tuple[int, int]]) -> list[Panel]:
    """Return panels of time, bytes and, if it was measured, memory."""
    times = {
        "client": [(each.parameters, each.client_s) for each in costs],
        "aggregator": [(each.parameters, each.server_s) for each in costs],
    }
    sent = {"everybody": [(each.parameters, each.all_bytes / _MIB) for each in costs]}
    panels = [
        Panel(title="processor time (s)", x_label="N", lines=times, log_x=True, log_y=True),
        Panel(title="bytes sent (MiB)", x_label="N", lines=sent, log_x=True, log_y=True),
    ]
    if sizes:
        # On a linear axis from zero: the interpreter is most of it, so it does not span a power of ten.
        memory = {"aggregator's process": [(x, size / _MIB) for x, size in sizes]}
        panels.append(Panel(title="peak memory (MiB)", x_label="N", lines=memory, log_x=True, from_zero=True))
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
