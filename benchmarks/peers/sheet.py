"""Lays out the results about the peers as sheets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.peers.contest import PeerCost
from benchmarks.peers.report import PeersReport
from benchmarks.sheet import Sheet
from hubbub_cli.formatting import show_bytes
from hubbub_local.figures import show_seconds

BASE = "Hubbub sec-union"
"""Rows to which the ratios refer."""


def lay_out_peers(report: PeersReport) -> Iterator[Sheet]:
    """Yield the sheets of all parts that were measured."""
    if report.costs:
        yield _lay_out_bytes(report.costs)
        yield _lay_out_times(report.costs)
    if report.deployed:
        yield _lay_out_deployed(report)


def _lay_out_bytes(costs: Sequence[PeerCost]) -> Sheet:
    base = _find_base(costs)
    rows = tuple(
        (
            f"{each.parameters:,}",
            _name(each),
            show_bytes(each.up_bytes),
            show_bytes(each.down_bytes),
            show_bytes(each.others_bytes),
            show_bytes(each.total_bytes),
            _ratio(each.total_bytes, base[each.parameters].total_bytes),
            f"{8 * each.total_bytes / each.parameters / each.clients:.1f}",
            f"{each.largest_error:.0e}",
        )
        for each in costs
    )
    columns = ("N", "system", "up", "down", "other", "all", "× sec-union", "bits", "error")
    settings = {f"{each.system}: {each.version}, {each.setting}" for each in costs}
    note = (
        f"One round of {costs[0].clients} clients, all of them together; serialised messages, counted. Other is "
        "what no client sends or gets. Bits are of all bytes, per element and client. Error is the largest of any "
        "element against plain arithmetic. " + ". ".join(sorted(settings)) + "."
    )
    return Sheet("Peers: bytes of a round", columns, rows, note)


def _lay_out_times(costs: Sequence[PeerCost]) -> Sheet:
    base = _find_base(costs)
    rows = tuple(
        (
            f"{each.parameters:,}",
            _name(each),
            _show_times(each.client_s, each.client_wire_s),
            _show_ratios(each.client_s, each.client_wire_s, base[each.parameters].client_s),
            _show_times(each.server_s, each.server_wire_s),
            _show_ratios(each.server_s, each.server_wire_s, base[each.parameters].server_s),
            show_seconds(each.servers * (each.server_s + each.server_wire_s) + each.others_s),
            show_seconds(each.wall_s),
            "" if each.memory_bytes is None else show_bytes(each.memory_bytes),
        )
        for each in costs
    )
    columns = ("N", "system", "client", "× sec-union", "server", "× sec-union", "all servers", "round", "memory")
    note = (
        "The processor's time of a client, of one server, and of all servers with a coordinator. In brackets: to "
        "make messages into bytes and back, in addition; ratios are without and with it. Hubbub's times hold it. "
        "Training, top-k and moving the model on are left out. Round is the time that passes with all parties in "
        "one process, which in Hubbub also write to disk and sync; memory is by how much that process grew, with "
        "the updates that it reads. Hubbub and Flower take turns, and of several turns it is the medians. "
        "≈: scaled up from a part."
    )
    return Sheet("Peers: time of a round", columns, rows, note)


def _lay_out_deployed(report: PeersReport) -> Sheet:
    rows = tuple(
        (
            f"{each.parameters:,}",
            f"Flower SecAgg+ {each.version}",
            ", ".join(map(show_seconds, each.rounds_s)),
            show_seconds(each.run_s),
        )
        for each in report.deployed
    )
    note = (
        "A SuperLink and a SuperNode for each client as processes of this machine, without training; rounds as "
        "the ServerApp's clock tells, and the run from `flwr run` to the end of its last round."
    )
    return Sheet("Peers: deployed rounds", ("N", "system", "rounds", "run"), rows, note)


def _find_base(costs: Sequence[PeerCost]) -> dict[int, PeerCost]:
    return {each.parameters: each for each in costs if each.system == BASE}


def _name(cost: PeerCost) -> str:
    return f"≈ {cost.system}" if cost.is_scaled else cost.system


def _ratio(value: float, base: float) -> str:
    ratio = value / base
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 0.1 else f"{ratio:.3f}"


def _show_ratios(own_s: float, wire_s: float, base_s: float) -> str:
    least = _ratio(own_s, base_s)
    return f"{least} to {_ratio(own_s + wire_s, base_s)}" if wire_s else least


def _show_times(own_s: float, wire_s: float) -> str:
    return f"{show_seconds(own_s)} ({show_seconds(wire_s)})" if wire_s else show_seconds(own_s)
