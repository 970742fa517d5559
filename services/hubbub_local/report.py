"""Report of a demo, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hubbub.messages.manifest import Manifest
from hubbub.strategies.planner import explain_no_gain
from hubbub_cli.formatting import show_bytes, show_metric
from hubbub_coordinator.accounts import Account
from hubbub_local.demo_board import Durations

Json = dict[str, object]


def write_report(
    manifest: Manifest,
    accounts: Sequence[Account],
    times: Mapping[int, Durations],
    model_sha256: str,
    alone: Mapping[int, float],
    wire: Mapping[str, int],
    *,
    data: str,
) -> Json:
    """Return all measurements as JSON; `wire` has the bytes of all messages, by kind."""
    headline = manifest.headline
    return {
        "run": manifest.run_id,
        "strategy": manifest.strategy,
        "wire": manifest.wire,
        "task": manifest.task,
        "data": data,
        "clients": len(manifest.cohort),
        "servers": len(manifest.aggregators),
        "parameters": manifest.parameters,
        "rho": manifest.rho,
        "local_steps": manifest.local_steps,
        "learning_rate": manifest.learning_rate,
        "server_momentum": manifest.server_momentum,
        "seed": manifest.seed,
        "model_sha256": model_sha256,
        "q": manifest.q,
        "block": manifest.block,
        "bits": manifest.bits,
        "alpha_rule": manifest.alpha_rule,
        "feedback": manifest.feedback,
        "headline": headline and {"name": headline.name, "higher_is_better": headline.higher_is_better},
        "all_wire_bytes": sum(wire.values()),
        "wire_by_kind": dict(wire),
        "rounds": [_write_round(each, times[each.round], alone.get(each.round)) for each in accounts],
    }


def _write_round(each: Account, took: Durations, alone: float | None) -> Json:
    return {
        "round": each.round,
        "metrics": each.metrics,
        # Also here, for programs that read it at its old place.
        **({"accuracy": each.metrics["accuracy"]} if "accuracy" in each.metrics else {}),
        "members": list(each.members),
        "union_size": each.union_size,
        "alone_share": alone,
        "phases": {
            name: {
                "payload_bits": cost.payload_bits,
                "predicted_bits": cost.predicted_bits,
                "wire_bytes": cost.wire_bytes,
            }
            for name, cost in each.costs.items()
        },
        "seconds": {
            "training": took.training_s,
            "evaluation": took.evaluation_s,
            "protocol": took.protocol_s,
        },
    }


def draw_report(
    manifest: Manifest,
    accounts: Sequence[Account],
    times: Mapping[int, Durations],
    model_sha256: str,
    alone: Mapping[int, float],
    wire: Mapping[str, int],
    drift: float | None = None,
) -> RenderableType:
    """Draw the headline metric by round, and communication measured, predicted and against FedAvg."""
    closing = Text(f"All {len(manifest.cohort)} clients hold the same model, SHA-256 {model_sha256[:16]}…")
    if drift is not None:
        closing = Text(
            f"Each of the {len(manifest.cohort)} clients holds a model of its own, as {manifest.strategy} has it: "
            f"they are up to {drift:.1%} away from their mean."
        )
    sent, fedavg = sum(wire.values()), sum(each.fedavg_wire_bytes for each in accounts)
    parts: list[RenderableType] = [
        draw_rounds(manifest, accounts, times, alone),
        _draw_cost(manifest, accounts, sent, fedavg),
        Text(),
    ]
    no_gain = explain_no_gain(manifest.strategy, manifest.parameters)
    if sent >= fedavg and no_gain:
        comparison = (
            f"{no_gain}: all messages take {show_bytes(sent)}, and those of uncompressed FedAvg would take "
            f"{show_bytes(fedavg)}"
        )
        if manifest.strategy != "secure-fedavg":
            secure = sum(each.secure_fedavg_wire_bytes for each in accounts)
            comparison += f" in the clear and {show_bytes(secure)} by a secure sum (secure-fedavg)"
        parts.append(Text(f"{comparison}.", style="yellow"))
    return Group(*parts, closing)


def draw_rounds(
    manifest: Manifest, accounts: Sequence[Account], times: Mapping[int, Durations], alone: Mapping[int, float]
) -> Table:
    """Draw the headline metric, payload and time of each round."""
    caption = "alone: the share of V that a single client chose, as far as clients can tell" if alone else None
    table = Table(title="Rounds", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, caption=caption)
    extra = ("alone",) if alone else ()
    names = [manifest.headline.name] if manifest.headline else []
    for column in ("round", "members", *names, "|V|", *extra, "payload", "training", "protocol"):
        table.add_column(column, justify="right")
    for each in accounts:
        payload = sum(cost.payload_bits for cost in each.costs.values()) / 8
        table.add_row(
            str(each.round),
            str(len(each.members)),
            *(show_metric(name, each.metrics.get(name)) for name in names),
            f"{each.union_size:,}",
            *([f"{alone[each.round]:.1%}" if each.round in alone else "-"] if alone else []),
            show_bytes(payload),
            f"{times[each.round].training_s:.2f} s",
            f"{times[each.round].protocol_s:.2f} s",
        )
    return table


def _draw_cost(manifest: Manifest, accounts: Sequence[Account], sent: int, fedavg: int) -> Table:
    title = f"Communication of all parties, wire mode {manifest.wire} (MB = 2^20 bytes)"
    caption = "all messages: orders, receipts, keys too; FedAvg: scored rounds, by formula"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, caption=caption)
    table.add_column("")
    for column in ("payload measured", "payload predicted", "on the wire"):
        table.add_column(column, justify="right")
    names = list(dict.fromkeys(name for each in accounts for name in each.costs))
    sums = {
        name: tuple(
            sum(getattr(each.costs[name], field) for each in accounts if name in each.costs)
            for field in ("payload_bits", "predicted_bits", "wire_bytes")
        )
        for name in names
    }
    for name, (payload, predicted, wire) in sums.items():
        table.add_row(name, show_bytes(payload / 8), show_bytes(predicted / 8), show_bytes(wire))
    payload, predicted, wire = (sum(column) for column in zip(*sums.values(), strict=True))
    table.add_section()
    table.add_row(
        f"{manifest.strategy} in all",
        show_bytes(payload / 8),
        show_bytes(predicted / 8),
        show_bytes(wire),
        style="bold",
    )
    table.add_row("all messages", "", "", show_bytes(sent))
    fedavg_payload = sum(each.fedavg_bits for each in accounts) / 8
    table.add_row("uncompressed FedAvg", "", show_bytes(fedavg_payload), show_bytes(fedavg))
    table.add_row("against FedAvg", compare(payload / 8, fedavg_payload), "", compare(sent, fedavg))
    return table


def compare(ours: float, fedavg: float) -> str:
    """Compare a size with FedAvg's, in words."""
    return f"{fedavg / ours:.1f} times less" if ours <= fedavg else f"{ours / fedavg:.1f} times more"
