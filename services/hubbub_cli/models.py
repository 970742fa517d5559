"""`hubbub model`: exports trained models from a trainer's folder, for programs that know nothing of Hubbub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from hubbub.errors import ConfigurationError
from hubbub_cli.formatting import AsJson, print_json, show_metric
from hubbub_cli.suggestions import one_of

if TYPE_CHECKING:
    from hubbub_trainer.learning.task import Arrays

models = typer.Typer(help="Models: what completed runs left at a trainer.", no_args_is_help=True)

Folder = Annotated[
    Path,
    typer.Option(envvar="HUBBUB_TRAINER_FOLDER", show_default=False, help="The trainer's folder of state."),
]
SAFETENSORS, STATE_DICT = "safetensors", "state_dict"


@models.command("list")
def list_models(
    folder: Folder,
    as_json: AsJson = False,  # noqa: FBT002  (A flag.)
) -> None:
    """List the models that runs left here, the last first."""
    from hubbub_trainer.saved_model import choose_model, find_models  # noqa: PLC0415  (It imports numpy.)

    kept = [choose_model(folder, run) for run in find_models(folder)]
    if as_json:
        found = [{"run": each.run, "task": each.task, "parameters": each.theta.size} for each in kept]
        print_json({"models": found})
        return
    table = Table("run", "task", "parameters", box=None)
    for each in kept:
        table.add_row(each.run[:12], each.task, f"{each.theta.size:,}")
    Console().print(table if kept else "No run has left a model here.")


@models.command("export")
def export_model(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Where to write it; an existing file is not overwritten.")],
    run: Annotated[
        str, typer.Argument(help="The run's id, its beginning, or latest; not needed if there is but one.")
    ] = "",
    task: Annotated[
        str | None, typer.Option(help="The task it was trained with, if it is your own: a file, or module:Name.")
    ] = None,
    best: Annotated[  # noqa: FBT002  (A flag.)
        bool,
        typer.Option("--best", help="The model of the round with the best first metric, not the last one."),
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="safetensors, or state_dict: for torch.load(..., weights_only=True).",
            callback=one_of("format", SAFETENSORS, STATE_DICT),
        ),
    ] = SAFETENSORS,
) -> None:
    """Write a model by the names of its parameters, readable without Hubbub."""
    from hubbub_trainer.learning.registry import choose_task  # noqa: PLC0415
    from hubbub_trainer.learning.task import name_tensors  # noqa: PLC0415
    from hubbub_trainer.saved_model import choose_model  # noqa: PLC0415  (Help should not wait for numpy.)

    kept = choose_model(folder, run, best=best)
    loaded = choose_task(task or kept.task)
    if loaded.name != kept.task:
        raise ConfigurationError(f"the model is of task {kept.task!r}, and --task is {loaded.name!r}")
    arrays = name_tensors(loaded, kept.theta, seed=kept.seed, buffers=kept.buffers)
    labels = kept.headline.labels() if kept.headline else {}
    _write(out, arrays, form, {"run": kept.run, "task": kept.task, **labels})
    total = sum(each.size for each in arrays.values())
    scored = ""
    if kept.headline:
        value = show_metric(kept.headline.metric, kept.headline.value)
        scored = f", round {kept.headline.round} with {kept.headline.metric} {value},"
    typer.echo(f"{len(arrays)} arrays with {total:,} values of run {kept.run[:12]}{scored} written to {out}")


def _write(out: Path, arrays: Arrays, form: str, labels: dict[str, str]) -> None:
    from safetensors.numpy import save  # noqa: PLC0415  (Help should not wait for numpy.)

    if form == SAFETENSORS:
        content = save(arrays, labels)
    else:
        from hubbub_trainer.learning.torch_learner import write_state_dict  # noqa: PLC0415  (It imports torch.)

        content = write_state_dict(arrays)
    try:
        with out.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise ConfigurationError(f"{out} is there already: give another name, or move it away") from None
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}") from None
