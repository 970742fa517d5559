"""Options of a run, each declared once: name, type, default, bounds and help text.

The commands make flags of them (`hubbub_cli.run_options`), and `hubbub_trainer.planning` makes a manifest's fields
of them, which checks their values. This module imports nothing that takes long.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from hubbub.ids import AlphaRule, Feedback, Weights, WireMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option on the command line, as a field's annotation; fields without one have no flag."""

    help: str
    flag: str | None = None
    """The flag, if it is not the field's name."""
    min: int | None = None
    max: int | None = None
    noun: str = ""
    """Name of the thing in the error about an unknown word, where the type is a choice of words."""
    shown_default: str | None = None
    """Text in place of the default in the help."""


TaskName = Annotated[
    str,
    Option(flag="--task", help="lenet, alexnet, synthetic, synthetic:N, or your own: a file, or module:Name."),
]
Rounds = Annotated[int, Option(min=1, help="Rounds to run.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything about a run but its task and its parties. None leaves a value to the manifest's default."""

    strategy: Annotated[str | None, Option(help="How updates are aggregated.")] = "no-union"
    """None for the one that is recommended for the model."""
    wire: Annotated[
        WireMode,
        Option(
            help="Wire mode: compact (seeded, masked, dense) or paper, the encoding that the paper counts.",
            noun="wire mode",
        ),
    ] = "compact"
    rounds: Rounds = 20
    local_steps: Annotated[int, Option(min=1, help="Local steps a round (the paper's E).")] = 100
    learning_rate: Annotated[
        float | None,
        Option(
            help="Learning rate of local training.",
            shown_default="the task's own; higher with shared-mask",
        ),
    ] = None
    server_momentum: Annotated[
        float,
        Option(
            help="Part of a round's movement that goes on in the next, from 0 to 0.99. Try 0.5 where clients'"
            " data differ much."
        ),
    ] = 0.0
    weights: Annotated[
        Weights | None,
        Option(
            help="Weight of a client's update: equal, or samples (as much as it has samples, which nobody sees).",
            noun="weights",
            shown_default="equal; samples with fedavg and secure-fedavg",
        ),
    ] = None
    max_samples: Annotated[
        int | None, Option(min=1, help="Most samples that a client counts as, with --weights samples.")
    ] = None
    rho: Annotated[
        float | None,
        Option(
            help="Share of the parameters that a client sends (the paper's ρ), unless it sends all.",
            shown_default="0.1; 0.03 with shared-mask; more for small models",
        ),
    ] = None
    q: Annotated[
        int | None,
        Option(
            help="Bits of a mark in sec-union, 1 to 32.",
            shown_default="1, or more if many indices would be lost",
        ),
    ] = None
    block: Annotated[
        int,
        Option(
            help="Neighbouring indices that sec-union chooses together; more than 1 is cheaper and shows clients"
            " more."
        ),
    ] = 1
    bits: Annotated[
        int,
        Option(
            min=1,
            max=4,
            help="Bits of a coordinate's change in shared-mask; 1 is cheaper and shows clients more.",
        ),
    ] = 2
    number_bits: Annotated[
        int,
        Option(min=32, max=64, help="Bits in which sum and sparse-sum add numbers: 32, or 64 for finer units."),
    ] = 32
    alpha_rule: Annotated[
        AlphaRule,
        Option(
            flag="--alpha",
            help="Scaling factor: norm (the paper's) or mean (of the chosen entries).",
            noun="scaling factor",
        ),
    ] = "norm"
    feedback: Annotated[
        Feedback,
        Option(
            help="Indices that sec-union lost: lost (they come back) or paper (Alg. 2 to the letter).",
            noun="feedback",
        ),
    ] = "lost"
    alpha_max: Annotated[
        float | None, Option(help="Largest scaling factor; of sum and sparse-sum, the largest number.")
    ] = None
    verified: bool = True
    seed: Annotated[
        int | None,
        Option(
            min=0,
            shown_default="drawn anew",
            help="Public seed: initial model and partition of the data. Data owners let one run begin from a"
            " model.",
        ),
    ] = None
    min_clients: Annotated[int | None, Option(help="Fewest organisations in a released sum.")] = None
    evaluate_every: Annotated[
        int,
        Option(
            min=0, help="Sum up scores after this many released rounds each, and after the last one; 0: never."
        ),
    ] = 1
    target: Annotated[
        float | None,
        Option(help="Complete the run when the task's first metric reaches it, such as an accuracy of 0.98."),
    ] = None
    patience: Annotated[
        int,
        Option(
            min=0,
            help="Complete the run after this many scored rounds in which the first metric was no better than"
            " before; 0: never.",
        ),
    ] = 0
    phase_timeout_s: Annotated[
        float | None,
        Option(flag="--phase-timeout", help="Seconds that a phase may take before it closes without the late."),
    ] = None

    def given(self) -> dict[str, object]:
        """Return the values that are not None, by the names that they have in a manifest."""
        values = {field.name: getattr(self, field.name) for field in fields(RunOptions)}
        return {name: value for name, value in values.items() if value is not None}
