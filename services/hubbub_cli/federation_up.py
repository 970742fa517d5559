"""`hubbub federation up` and `status`: starts a trial, shows its first run, tells of its processes."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hubbub.errors import TransportError
from hubbub.ids import Role
from hubbub.rest import RunView
from hubbub_cli.client import Client, read
from hubbub_cli.formatting import count, print_json
from hubbub_cli.run_lookup import RUNS, ask
from hubbub_cli.run_report import describe_metrics, style_of
from hubbub_cli.runs import DEFAULT_URL
from hubbub_cli.trial import Choices, Trial
from hubbub_cli.watch import EXIT_COMPLETED, EXIT_INTERRUPTED, EXIT_NOT_COMPLETED, show_run


@contextmanager
def ending_like_ctrl_c() -> Iterator[None]:
    """Take a closed terminal and SIGTERM for Ctrl-C: nobody is left behind."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: object) -> None:
    # Not SIGINT, which a shell's background jobs ignore.
    raise KeyboardInterrupt


def begin_trial(trial: Trial, choices: Choices, console: Console) -> RunView:
    """Start all processes and begin the first run; if that fails, nothing is left running."""
    with console.status("") as status:
        shown = [""]

        def tell(stage: str) -> None:
            if console.is_terminal:
                status.update(stage)
            elif stage != shown[0]:
                console.print(stage)
            shown[0] = stage

        trial.start(choices, tell)
        try:
            return ask(trial.endpoint, lambda client: trial.begin(client, tell))
        except BaseException:
            tell("ending the processes")
            trial.stop()
            raise


def stay(trial: Trial, run: RunView, console: Console) -> int:
    """Show the run to its end, then wait for Ctrl-C; end all processes and return the exit code."""
    code = EXIT_INTERRUPTED
    try:
        print_addresses(trial, console)
        state = show_run(trial.endpoint, run.run, as_json=False)
        code = EXIT_COMPLETED if state == "completed" else EXIT_NOT_COMPLETED
        for name in trial.find_ended():
            console.print(f"{name} has ended: {trial.background.read_last_line(name)}", style="red")
        print_export(trial, console)
        console.print("\nCtrl-C ends all processes.")
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        end(trial, console)
    return code


def end(trial: Trial, console: Console) -> None:
    """End all processes, and say which had to be killed."""
    running = len(trial.find_running())
    with console.status("ending the processes"):
        killed = trial.stop()
    told = f"; {', '.join(killed)} did not stop and had to be killed" if killed else ""
    console.print(f"all processes have ended{told}" if running else "nothing was running")


def print_addresses(trial: Trial, console: Console) -> None:
    """Print where the coordinator is, with its token, and where the logs are."""
    console.print(f"dashboard    {trial.endpoint.url}, token in {_short(trial.change_token)}")
    console.print(f"logs         {_short(trial.background.logs)}")


def print_next(trial: Trial, console: Console) -> None:
    """Print commands for what comes next."""
    at = [] if trial.endpoint.url == DEFAULT_URL else ["--url", trial.endpoint.url]
    _print_command(console, "watch", "run", "watch", "latest", "--token-file", _short(trial.change_token), *at)
    print_export(trial, console)
    _print_command(console, "end", "federation", "down", _short(trial.folder))


def print_export(trial: Trial, console: Console) -> None:
    """Print the command that exports the model of the last run."""
    trainer = trial.roster.named(Role.CLIENT)[0].name
    place = trial.read_settings(trainer).get("task")
    task = ["--task", _short(Path(str(place)))] if place else []
    folder = _short(trial.state_of(trainer))
    words = ("model", "export", "latest", "--folder", folder, *task, "--out", "model.safetensors")
    _print_command(console, "model", *words)


def _print_command(console: Console, what: str, *words: str) -> None:
    console.print(f"{what:<12} {shlex.join(['hubbub', *words])}")


def _short(path: Path) -> str:
    """Return a path as the user would write it from here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# Status -------------------------------------------------------------------------------------------------


def print_status(trial: Trial, *, as_json: bool) -> bool:
    """Print the processes and the newest run; return whether all parties run."""
    running, ended = trial.find_running(), trial.find_ended()
    run = _find_newest_run(trial) if trial.coordinator not in ended else None
    if as_json:
        parties = {name: {"process": running.get(name)} for name in trial.parties}
        told = {"up": not ended, "url": trial.endpoint.url, "parties": parties}
        print_json(told | {"run": None if run is None else run.model_dump(mode="json")})
        return not ended
    console = Console(highlight=False, soft_wrap=True)
    table = Table("process", "", "last in its log", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in trial.list_processes():
        state = Text(f"runs, {running[name]}", "green") if name in running else Text("does not run", "red")
        table.add_row(
            name, state, Text(trial.background.read_last_line(name), "dim", overflow="ellipsis", no_wrap=True)
        )
    Console(highlight=False).print(table)
    if ended == trial.parties:
        console.print()
        _print_command(console, "start it", "federation", "up", _short(trial.folder))
        return False
    console.print()
    if run is not None:
        line = Text.assemble(f"run          {run.short}  ", (run.state, style_of(run.state)))
        line.append(
            f", {run.rounds_released} of {count(run.rounds_wanted, 'round')}; metrics: {describe_metrics(run)}"
        )
        console.print(line)
    print_addresses(trial, console)
    print_next(trial, console)
    return not ended


def _find_newest_run(trial: Trial) -> RunView | None:
    async def look(client: Client) -> list[RunView]:
        return [read(RunView, each) for each in (await client.get(RUNS, {"limit": 1}))["items"]]

    try:
        return next(iter(ask(trial.endpoint, look)), None)
    except TransportError as error:
        sys.stderr.write(f"hubbub: {error}\n")
        return None
