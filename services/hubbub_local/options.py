"""Options of `hubbub demo`. The command's help needs them, so this module imports nothing that takes long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hubbub.run_options import Option, Rounds, RunOptions, TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions(RunOptions):
    """A run, and the federation in this process that it takes place in."""

    strategy: Annotated[
        str | None,
        Option(help="How updates are aggregated.", shown_default="recommended for the size of the model"),
    ] = None
    rounds: Rounds = 5
    seed: Annotated[int, Option(min=0, help="Fixes everything, the clients' secrets too.")] = 0
    task: TaskName = "lenet"
    data: Annotated[
        str, Option(help="mnist, digits, cifar10, a folder, or auto: CIFAR-10 for alexnet; MNIST, else digits.")
    ] = "auto"
    clients: Annotated[int, Option(help="Clients (the paper's C), at least 2.")] = 5
    servers: Annotated[int, Option(help="Aggregators (the paper's S), at least 2.")] = 2
    json: Annotated[Path | None, Option(help="Write what was measured to this file.")] = None
    log: Annotated[Path | None, Option(help="Write the services' log lines to this file.")] = None
    dashboard: Annotated[
        bool, Option(flag="--dashboard", help="Serve the coordinator's page too, until Ctrl-C.")
    ] = False
    port: Annotated[
        int | None, Option(min=0, max=65535, help="Where the page is served: 8750; 0 is any free port.")
    ] = None
