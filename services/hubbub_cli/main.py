"""The `hubbub` command: one function for each subcommand.

Exit codes: 0 all went well; 1 the run failed; 2 what was asked for cannot be (a wrong flag, value or file).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hubbub import __version__
from hubbub.errors import ConfigurationError, HubbubError
from hubbub.runtime.telemetry import log_as_json
from hubbub_cli.plan import plan

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    help="Federated training with sparse secure aggregation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
manifests = typer.Typer(help="Manifests: what a run is, agreed before it starts.", no_args_is_help=True)
app.add_typer(manifests, name="manifest")

Strategy = Annotated[str, typer.Option(help="How updates are aggregated.")]
Wire = Annotated[str, typer.Option(help="Wire mode: paper, the encoding that the paper counts.")]
TaskName = Annotated[str, typer.Option("--task", help="lenet, synthetic or synthetic:N.")]
Data = Annotated[str, typer.Option(help="mnist, digits, a folder, or auto: MNIST, else digits.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds to run.")]
LocalSteps = Annotated[int, typer.Option(min=1, help="Local steps a round (the paper's E).")]
Q = Annotated[int, typer.Option("--q", help="Bits of a mark in sec-union, 1 to 32.")]
Alpha = Annotated[str, typer.Option(help="Scaling factor: norm (the paper's) or mean (of the chosen entries).")]
Feedback = Annotated[
    str, typer.Option(help="Indices that sec-union lost: lost (they come back) or paper (Alg. 2 to the letter).")
]
Rho = Annotated[float, typer.Option(help="Share of the parameters that a client sends (the paper's ρ).")]
Seed = Annotated[int, typer.Option(min=0, help="Public seed: initial model and partition of the data.")]


def show_version(wanted: bool) -> None:  # noqa: FBT001  (Typer calls it so.)
    """Print the version and leave."""
    if wanted:
        typer.echo(f"hubbub {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[  # noqa: FBT002  (A flag.)
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated training with sparse secure aggregation."""
    del version


@app.command()
def demo(
    strategy: Strategy = "no-union",
    wire: Wire = "paper",
    task: TaskName = "lenet",
    data: Data = "auto",
    clients: Annotated[int, typer.Option(help="Clients (the paper's C), at least 2.")] = 5,
    servers: Annotated[int, typer.Option(help="Aggregators (the paper's S), at least 2.")] = 2,
    rounds: Rounds = 5,
    local_steps: LocalSteps = 100,
    rho: Rho = 0.1,
    q: Q = 1,
    alpha: Alpha = "norm",
    feedback: Feedback = "lost",
    seed: Annotated[int, typer.Option(min=0, help="Fixes everything, the clients' secrets too.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write what was measured to this file.")] = None,
    log: Annotated[Path | None, typer.Option(help="Write the services' log lines to this file.")] = None,
) -> None:
    """Run a whole federation in this process and show it as it goes."""
    from hubbub_local.demo import DemoOptions, run_demo  # noqa: PLC0415  (Help should not wait for numpy.)

    wanted = DemoOptions(
        strategy=strategy,
        wire=wire,
        task=task,
        data=data,
        clients=clients,
        servers=servers,
        rounds=rounds,
        local_steps=local_steps,
        rho=rho,
        q=q,
        alpha_rule=alpha,
        feedback=feedback,
        seed=seed,
        json=json,
    )
    with _log_to(log):
        asyncio.run(run_demo(wanted, Console()))


@contextmanager
def _log_to(path: Path | None) -> Iterator[None]:
    """Send log lines to a file; without one they go nowhere, since the screen shows what matters."""
    try:
        with (path or Path(os.devnull)).open("w", encoding="utf-8") as stream:
            log_as_json("demo", "info", stream)
            yield
    except OSError as error:
        raise ConfigurationError(f"--log: {error.filename} cannot be written: {error.strerror}") from None


app.command()(plan)


@manifests.command("new")
def new_manifest(
    clients: Annotated[str, typer.Option(help="The cohort's names, separated by commas.")],
    aggregators: Annotated[str, typer.Option(help="The aggregators' names, separated by commas.")],
    coordinator: Annotated[str, typer.Option(help="The coordinator's name.")] = "coordinator",
    strategy: Strategy = "no-union",
    wire: Wire = "paper",
    task: TaskName = "lenet",
    rounds: Rounds = 20,
    local_steps: LocalSteps = 100,
    rho: Rho = 0.1,
    q: Q = 1,
    alpha: Alpha = "norm",
    feedback: Feedback = "lost",
    seed: Seed = 0,
    min_clients: Annotated[int | None, typer.Option(help="Fewest members of a released sum.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
) -> None:
    """Draw up a manifest where the task is installed; POST it to a coordinator to begin the run."""
    from hubbub.ids import PartyId  # noqa: PLC0415
    from hubbub_trainer.learning.datasets import default_cache_folder  # noqa: PLC0415
    from hubbub_trainer.learning.registry import load_task  # noqa: PLC0415
    from hubbub_trainer.planning import draw_up_manifest  # noqa: PLC0415

    manifest = draw_up_manifest(
        load_task(task, data="auto", cache_folder=default_cache_folder()),
        clients=[PartyId(name.strip()) for name in clients.split(",")],
        aggregators=[PartyId(name.strip()) for name in aggregators.split(",")],
        coordinator=PartyId(coordinator),
        strategy=strategy,
        wire=wire,
        rho=rho,
        q=q,
        alpha_rule=alpha,
        feedback=feedback,
        local_steps=local_steps,
        rounds=rounds,
        seed=seed,
        min_clients=min_clients,
    )
    text = manifest.model_dump_json(indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}") from None
    typer.echo(f"run {manifest.run_id}\nwritten to {out}")


def main() -> None:
    """Run the command; what goes wrong is told in one line."""
    try:
        app()
    except HubbubError as error:
        Console(stderr=True).print(f"hubbub: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.stderr.write("\nhubbub: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
