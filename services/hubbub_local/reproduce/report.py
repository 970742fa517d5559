"""Report of a reproduction: a table of our numbers and the paper's, a plot of accuracy, and definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from hubbub.errors import ConfigurationError
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.unions import REVEALS
from hubbub_local.figures import Panel, Points, draw_plot, show_seconds, write_table
from hubbub_local.reproduce.plan import METHODS, PAPERS, Method, Settings, list_changes
from hubbub_local.reproduce.records import Results, RunRecord

REPORT, PLOT = "report.md", "accuracy.svg"
NONE = "–"
LETTER = """\
“To the letter” is the paper's Algorithm 2, in which indices that SecUnion loses are gone. Otherwise a client keeps
them in its error accumulator, and they come back in the next round."""
BLOCKS = f"""\
“Blocks” are of so many neighbouring indices: clients choose them together, and all speak about every index of a
block that is in V. It takes less and shows clients more: {REVEALS}."""
COUNTED = """\
- **Rounds** end with the first whose accuracy on the test set is at least the target; `> 5` is a run that stopped
  after 5 rounds without reaching it. Where there are several seeds, a cell has one number for each.
- **|V|** is the mean over the rounds and the seeds.
- **Payload** is what the formulas count: elements times bits per element, and seeds where there are any, of all
  parties, measured where it was sent. **Wire** adds headers, signatures, seals and padding, and sums of scores and
  tags, which the paper does not have. The paper's column is of its own wire mode.
- **CPU** is the time of the threads that worked for a party in one round, where the paper has only +, ++ and +++.
  Waiting is not in it, nor is a network: all parties run in one process. A client's is the mean over the clients,
  without evaluation and with training apart; a server's is that of the busiest. Rounds in which the process was
  stopped and started again are left out."""

Runs = dict[Method, list[RunRecord]]


def write_report(results: Results, commands: Sequence[str], folder: Path) -> None:
    """Write all files of the report from the results."""
    runs = _by_method(results.results)
    plot = draw_plot("Accuracy on the test set (%): means over the seeds", _draw(results.settings, runs))
    try:
        for name, text in ((REPORT, _write(results, runs, commands)), (PLOT, plot)):
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}") from None


def _by_method(records: Sequence[RunRecord]) -> Runs:
    """Group runs by method, in the order of the methods, then of the seeds."""
    found = {method: [each for each in records if each.name == name] for name, method in METHODS.items()}
    return {method: sorted(runs, key=lambda each: each.seed) for method, runs in found.items() if runs}


def _write(results: Results, runs: Runs, commands: Sequence[str]) -> str:
    settings, machine, records = results.settings, results.machine, results.results
    table = settings.table
    data = table.data if settings.data == settings.dataset else f"`{settings.data}`"
    notes = [
        *([LETTER] if any(method.feedback == "paper" for method in runs) else []),
        *([BLOCKS] if any(method.block > 1 for method in runs) else []),
    ]
    parts = [
        f"# {table.network} on {data} to {100 * settings.target:g} %",
        (
            f"C = {settings.clients} clients, S = {settings.servers} servers, E = {settings.local_steps} local"
            f" steps a round, ρ = {_name_rho(settings, runs)}, partition `{settings.partition}`, wire mode"
            f" `{settings.wire}`, at most {settings.max_rounds} rounds, by the services and their protocol in one"
            f" process. Begun on {machine['begun']} with Hubbub {machine['hubbub']} and Python"
            f" {machine['python']}, cores: {machine['cores']}."
            " `results.json` has every round."
        ),
        "\n".join(["```console", *(f"$ {command}" for command in commands), "```"]),
        "\n".join(f"- {fact}" for fact in _find_facts(settings, records, runs)),
        _compare(settings, runs).rstrip(),
        f"The paper's columns are those of its {table.source}. {_name_differences(settings)}",
        *notes,
        f"![Accuracy by round and by payload]({PLOT})",
        "## What is counted",
        COUNTED,
    ]
    return "\n\n".join(parts) + "\n"


def _name_rho(settings: Settings, runs: Runs) -> str:
    """Return the runs' ρ: that of the settings, or every strategy's own."""
    if settings.rho is not None:
        return f"{settings.rho:g}"
    usual = {method.strategy: STRATEGIES[method.strategy].usual_rho for method in runs}
    most = max(usual.values())
    others = ", ".join(f"{rho:g} with {strategy}" for strategy, rho in usual.items() if rho != most)
    return f"{most:g} ({others})" if others else f"{most:g}"


def _find_facts(settings: Settings, records: Sequence[RunRecord], runs: Runs) -> list[str]:
    exact = sum(each.payload_bits == each.predicted_bits for each in records)
    facts = [
        f"**{sum(each.reached for each in records)} of {len(records)}** runs reached {100 * settings.target:g} %",
        f"**{exact} of {len(records)}** runs cost what the {settings.wire} wire's formulas say, to the bit",
    ]
    private = {
        method.label: fmean(each.payload_bits for each in own)
        for method, own in runs.items()
        if method.is_private and all(each.reached for each in own)
    }
    if private:
        label = min(private, key=lambda each: private[each])
        size = f"{_in_unit(settings, private[label]):.2f} {settings.table.unit}"
        facts.append(f"**{size}** is the least to reach it while servers learn nothing: {label}")
    facts += [f"{each.label}: {each.describe(settings.target)}" for each in records if not each.reached]
    drifts = {
        method.label: ", ".join(f"{100 * run.drift:.1f} %" for run in own if run.drift is not None)
        for method, own in runs.items()
    }
    return facts + [
        f"{label}: clients ended with models of their own, by design: up to {drift} away from their mean"
        for label, drift in drifts.items()
        if drift
    ]


def _in_unit(settings: Settings, bits: float) -> float:
    return bits / 8 / settings.table.unit_bytes


def _compare(settings: Settings, runs: Runs) -> str:
    unit = settings.table.unit
    columns = (
        *("strategy", "rounds", "paper", "mean |V|", "paper", f"payload, {unit}", "paper", f"wire, {unit}"),
        *("client CPU a round", "training", "server CPU", "paper"),
    )
    return write_table(columns, [_compare_one(settings, method, own) for method, own in runs.items()])


def _compare_one(settings: Settings, method: Method, runs: Sequence[RunRecord]) -> list[str]:
    printed = settings.table.rows.get(method.name)

    def each(show: Callable[[RunRecord], str]) -> str:
        return ", ".join(show(run) for run in runs)

    def mean(measure: Callable[[RunRecord], float]) -> float:
        return fmean(measure(run) for run in runs)

    return [
        method.label,
        each(lambda run: f"{'' if run.reached else '> '}{len(run.by_round)}"),
        str(printed.rounds) if printed else NONE,
        f"{mean(lambda run: fmean(one.union_size for one in run.by_round)):,.0f}" if method.has_union else NONE,
        f"{printed.union_size:,}" if printed and printed.union_size else NONE,
        each(lambda run: f"{_in_unit(settings, run.payload_bits):.2f}"),
        f"{printed.size:.2f}" if printed else NONE,
        each(lambda run: f"{_in_unit(settings, 8 * sum(one.wire_bytes for one in run.by_round)):.2f}"),
        *_show_computing(settings, runs),
        printed.computing if printed else NONE,
    ]


def _show_computing(settings: Settings, runs: Sequence[RunRecord]) -> list[str]:
    """Return the mean CPU time a round of a client's protocol and training, and of the busiest server."""
    measured = [run for run in runs if run.cpu_s("client")]
    if not measured:
        return [NONE] * 3
    training = [
        fmean(one.training_cpu_s for one in run.by_round if one.training_cpu_s is not None) for run in measured
    ]
    return [
        show_seconds(fmean(fmean(run.cpu_s("client")) for run in measured)),
        show_seconds(fmean(training) / settings.clients),
        show_seconds(fmean(max(run.cpu_s("aggregator")) for run in measured)),
    ]


def _name_differences(settings: Settings) -> str:
    # The paper has no limit of rounds.
    changes = list_changes(replace(PAPERS[settings.dataset], max_rounds=settings.max_rounds), settings)
    if not changes:
        return "The settings are the paper's, which does not say whether it normalises inputs; here they are."
    told = "; ".join(f"`{flag} {after}` instead of `{before}`" for flag, (before, after) in changes.items())
    return f"**The settings are not the paper's**: {told}."


def _draw(settings: Settings, runs: Runs) -> list[Panel]:
    """Draw lines of means over the seeds, up to the shortest run."""
    by_round: dict[str, Points] = {}
    by_size: dict[str, Points] = {}
    for method, own in runs.items():
        sizes = [accumulate(_in_unit(settings, each.payload_bits) for each in run.by_round) for run in own]
        heights = [[100 * each.accuracy for each in run.by_round] for run in own]
        # Not strict: the mean ends where the shortest run does.
        accuracy = [fmean(one) for one in zip(*heights, strict=False)]
        by_round[method.label] = list(enumerate(accuracy, start=1))
        by_size[method.label] = [
            (fmean(one), y) for one, y in zip(zip(*sizes, strict=False), accuracy, strict=False)
        ]
    target = 100 * settings.target
    label = f"payload sent up to then ({settings.table.unit})"
    return [
        Panel(title="by round", x_label="round", lines=by_round, target=target),
        Panel(title="by payload", x_label=label, lines=by_size, target=target, log_x=True),
    ]
