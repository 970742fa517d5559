"""Options of `hubbub demo` and `simulate`. The command's help needs them: this module imports nothing slow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hubbub.run_options import Option, Rounds, RunOptions, TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions(RunOptions):
    """A run, and the federation in this process that it takes place in."""

    strategy: Annotated[
        str | None,
        Option(help="How updates are aggregated.", shown_default="recommended for the size of the model"),
    ] = None
    rounds: Rounds = 5
    seed: Annotated[int, Option(min=0, help="Fixes everything, the clients' secrets too.")] = 0
    data: Annotated[
        str, Option(help="mnist, digits, cifar10, a folder, or auto: CIFAR-10 for alexnet; MNIST, else digits.")
    ] = "auto"
    partition: Annotated[
        str,
        Option(
            help="How lenet's and alexnet's data are dealt out: iid, dirichlet:A such as dirichlet:0.5, or"
            " classes:K: K classes to a client."
        ),
    ] = "iid"
    clients: Annotated[int, Option(help="Clients (the paper's C), at least 2.")] = 5
    servers: Annotated[int, Option(help="Aggregators (the paper's S), at least 2.")] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions(SimulationOptions):
    """A simulation that a command shows."""

    task: TaskName = "lenet"
    out: Annotated[
        Path | None, Option(help="Folder for the model, the history of all rounds and a report as JSON.")
    ] = None
    resume: Annotated[
        bool, Option(flag="--resume", help="Begin with the model in the folder of --out, and save there.")
    ] = False
    json: Annotated[Path | None, Option(help="Write what was measured to this file.")] = None
    log: Annotated[Path | None, Option(help="Write the services' log lines to this file.")] = None
    dashboard: Annotated[
        bool, Option(flag="--dashboard", help="Serve the coordinator's page too, until Ctrl-C.")
    ] = False
    open: Annotated[bool, Option(flag="--open", help="Open the page in a browser; with --dashboard.")] = False
    port: Annotated[
        int | None, Option(min=0, max=65535, help="Where the page is served: 8750; 0 is any free port.")
    ] = None
