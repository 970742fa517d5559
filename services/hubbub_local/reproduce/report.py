"""What a report says: our numbers beside the paper's, how far each run got, and what was counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from hubbub.strategies.blocks import REVEALS
from hubbub_local.reproduce.document import (
    Column,
    Document,
    Fact,
    Facts,
    Heading,
    Listing,
    Paragraph,
    Part,
    Points,
    Table,
)
from hubbub_local.reproduce.plan import Method, Settings, describe_changes, list_methods, papers_settings
from hubbub_local.reproduce.plots import Plot
from hubbub_local.reproduce.progress import Machine
from hubbub_local.reproduce.records import BITS, RunRecord, show_share

NONE = "–"
MILLISECONDS = 1000

COUNTED = (
    (
        "**Rounds** end with the first whose accuracy, on the official test set of the data, is at least the"
        " target; `> 5` is a run that stopped after 5 rounds without reaching it. Where there are several seeds, a"
        " cell has one number for each."
    ),
    "**|V|** is the mean over the rounds, and over the seeds.",
    (
        "**Payload** is what the formulas count: elements times bits per element, and seeds where there are any,"
        " of all parties, measured where it was sent. **On the wire** adds what they do not count: headers,"
        " signatures, seals and padding. Sums of scores are in neither: the paper has none. The paper's column is"
        " of its own wire mode."
    ),
    (
        "**CPU** is measured where the paper has only +, ++ and +++. It is the CPU time of the threads that worked"
        " for a party, in one round: checking and signing messages, compressing, dealing, sealing, opening and"
        " adding shares, keeping state on disk. Waiting is not in it, nor is a network: all parties run in one"
        " process here. Joining the run is not of any round and is left out."
    ),
    (
        "**A client's** figure is the mean over the clients, without local training and evaluation, which are"
        " shown apart. **A server's** is that of the busiest: where a server sees plaintext, only the first has"
        " work."
    ),
    (
        "**Local training** that two runs share, to the bit, is done once; it counts with the CPU time that it"
        " took when it was done."
    ),
)

LETTER = (
    "“To the letter” is the paper's Algorithm 2, in which indices that SecUnion loses are gone. Without these"
    " words a client keeps them in its error accumulator, and they come back in the next round."
)
BLOCKS = (
    "“Blocks” are of so many neighbouring indices: clients choose them together, and all speak about every index"
    f" of a block that is in V. It takes less and shows clients more: {REVEALS}."
)


def write_document(
    settings: Settings, machine: Machine, records: Sequence[RunRecord], plots: Sequence[Plot], command: str
) -> Document:
    """All parts in order."""
    table = settings.table
    ordered = _order(records)
    parts: list[Part] = [
        Paragraph(_introduce(settings, machine, ordered)),
        Facts(_find_facts(settings, ordered)),
        Heading("Beside the paper"),
        _compare(settings, ordered),
        Paragraph(
            f"The paper's columns are those of its {table.source} (Beguier, Andreux, Tramel: Efficient Sparse"
            f" Secure Aggregation for Federated Learning). {_name_differences(settings)}"
        ),
        *_explain_labels(ordered),
        Heading("How far each run got"),
        Points(
            [
                f"{record.method.label}, seed {record.seed}: {record.describe(settings.target)}"
                for record in ordered
            ]
        ),
        Heading("Plots"),
        *plots,
        Heading("Computing"),
        _tabulate_computing(ordered),
        Paragraph(_judge_meter(ordered)),
        Heading("What is counted"),
        Points(COUNTED),
        Heading("Again"),
        Listing(command),
        Paragraph("`results.json` beside this file has every round of every run."),
    ]
    data = table.data if settings.data == settings.dataset else settings.data
    return Document(f"{table.network} on {data} to {show_share(settings.target)}", parts)


def _order(records: Sequence[RunRecord]) -> list[RunRecord]:
    """As the methods are listed, then by seed."""
    places = list(list_methods())
    return sorted(records, key=lambda record: (places.index(record.name), record.seed))


def _by_method(records: Sequence[RunRecord]) -> list[tuple[Method, list[RunRecord]]]:
    names = dict.fromkeys(record.name for record in records)
    found = [[record for record in records if record.name == name] for name in names]
    return [(runs[0].method, runs) for runs in found]


def _introduce(settings: Settings, machine: Machine, records: Sequence[RunRecord]) -> str:
    seeds = sorted({record.seed for record in records})
    numbers = ", ".join(map(str, seeds))
    return (
        f"{_count(len(_by_method(records)), 'way')} to aggregate, each through the real services and their"
        f" protocol in one process: C = {settings.clients} clients, S = {settings.servers} servers,"
        f" E = {settings.local_steps} local steps a round, ρ = {settings.rho:g}, data `{settings.data}`, partition"
        f" `{settings.partition}`, wire mode `{settings.wire}`,"
        f" {'seeds' if len(seeds) > 1 else 'seed'} {numbers}, at most"
        f" {_count(settings.max_rounds, 'round')}. Begun on {machine.begun} on {_count(machine.cores, 'core')}"
        f" with Python {machine.python}, Hubbub {machine.hubbub}."
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


# The numbers that matter -----------------------------------------------------------------------------------


_FORMULAS = {"paper": "the paper's formulas", "compact": "the compact wire's formulas"}


def _find_facts(settings: Settings, records: Sequence[RunRecord]) -> list[Fact]:
    reached = sum(record.reached for record in records)
    exact = [record for record in records if record.payload_bits == record.predicted_bits]
    facts = [
        Fact(f"{reached} of {len(records)}", f"runs reached {show_share(settings.target)}"),
        Fact(f"{len(exact)} of {len(records)}", f"runs cost what {_FORMULAS[settings.wire]} say, to the bit"),
    ]
    cheapest = _find_cheapest(records)
    if cheapest is not None:
        method, bits = cheapest
        size = f"{_in_unit(settings, bits):.2f} {settings.table.unit}"
        facts.append(Fact(size, f"the least to reach it while servers learn nothing: {method.label}"))
    best = max(records, key=lambda record: record.accuracy)
    facts.append(Fact(f"{100 * best.accuracy:.2f} %", f"the best accuracy: {best.method.label}, seed {best.seed}"))
    return facts


def _find_cheapest(records: Sequence[RunRecord]) -> tuple[Method, float] | None:
    """Among private strategies of which every seed reached the target."""
    means = [
        (fmean(run.payload_bits for run in runs), method)
        for method, runs in _by_method(records)
        if method.is_private and all(run.reached for run in runs)
    ]
    if not means:
        return None
    bits, method = min(means, key=lambda each: each[0])
    return method, bits


def _in_unit(settings: Settings, bits: float) -> float:
    return bits / BITS / settings.table.unit_bytes


# Tables ------------------------------------------------------------------------------------------------------


def _compare(settings: Settings, records: Sequence[RunRecord]) -> Table:
    unit = settings.table.unit
    columns = (
        Column("strategy"),
        *(Column("rounds", each) for each in ("ours", "paper")),
        *(Column("mean |V|", each) for each in ("ours", "paper")),
        *(Column(f"payload, {unit}", each) for each in ("ours", "paper")),
        Column("on the wire", unit),
        *(Column("CPU a round", each) for each in ("client", "server", "paper")),
    )
    return Table(columns, [_compare_one(settings, method, runs) for method, runs in _by_method(records)])


def _compare_one(settings: Settings, method: Method, runs: Sequence[RunRecord]) -> list[str]:
    printed = settings.table.rows.get(method.name)
    union = f"{fmean(run.mean_union for run in runs):,.0f}" if method.has_union else NONE
    printed_union = printed.union_size if printed else None
    return [
        method.label,
        _each(runs, lambda run: str(run.rounds) if run.reached else f"> {run.rounds}"),
        str(printed.rounds) if printed else NONE,
        union,
        NONE if printed_union is None else f"{printed_union:,}",
        _each(runs, lambda run: f"{_in_unit(settings, run.payload_bits):.2f}"),
        f"{printed.size:.2f}" if printed else NONE,
        _each(runs, lambda run: f"{_in_unit(settings, BITS * run.wire_bytes):.2f}"),
        _show_cpu(fmean(run.client_cpu_s for run in runs)),
        _show_cpu(fmean(run.server_cpu_s for run in runs)),
        printed.computing if printed else NONE,
    ]


def _tabulate_computing(records: Sequence[RunRecord]) -> Table:
    columns = (
        Column("strategy"),
        *(Column("a client", each) for each in ("protocol", "training", "evaluation")),
        Column("the busiest server"),
        Column("the coordinator"),
    )
    rows = [
        [
            method.label,
            *(
                _show_cpu(fmean(seconds))
                for seconds in (
                    [run.client_cpu_s for run in runs],
                    [run.training_cpu_s for run in runs],
                    [run.evaluation_cpu_s for run in runs],
                    [run.server_cpu_s for run in runs],
                    [run.coordinator_cpu_s for run in runs],
                )
            ),
        ]
        for method, runs in _by_method(records)
    ]
    return Table(columns, rows)


def _each(runs: Sequence[RunRecord], show: Callable[[RunRecord], str]) -> str:
    return ", ".join(show(run) for run in runs)


def _show_cpu(seconds: float) -> str:
    """With as many digits as a measurement of CPU time deserves."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{MILLISECONDS * seconds:.0f} ms"


# Words -------------------------------------------------------------------------------------------------------


def _name_differences(settings: Settings) -> str:
    # How long we are ready to wait is no setting of the paper's.
    usual = replace(papers_settings(settings.dataset), max_rounds=settings.max_rounds)
    changes = describe_changes(usual, settings)
    if not changes:
        return "The settings are the paper's, which does not say whether it normalises inputs; here they are."
    return f"**The settings are not the paper's**: {'; '.join(f'`{change}`' for change in changes)}."


def _explain_labels(records: Sequence[RunRecord]) -> list[Part]:
    parts: list[Part] = []
    if any(record.strategy == "sec-union" for record in records):
        parts.append(Paragraph(LETTER))
    if any(record.block > 1 for record in records):
        parts.append(Paragraph(BLOCKS))
    return parts


def _judge_meter(records: Sequence[RunRecord]) -> str:
    rounds = [each for record in records for each in record.by_round]
    share = sum(each.attributed_cpu_s for each in rounds) / sum(each.process_cpu_s for each in rounds)
    return (
        f"CPU time in one round, the mean over rounds and seeds. The meters found an owner for {100 * share:.0f} %"
        " of the CPU time of the process in these rounds; the rest went into the event loop itself and the"
        " interpreter."
    )
