"""Flags of a command, made from the fields of `RunOptions`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from hubbub.run_options import Option
from hubbub_cli.suggestions import check_strategy, complete_strategy, one_of


def takes_run_options(
    *, only: Collection[str] | None = None, without: Collection[str] = (), **defaults: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each field of its parameter `options`, a `RunOptions`.

    The command offers those of `only`, or all but `without`; `defaults` take the place of the fields' own. Typer
    reads the flags from the `__signature__`, and fields that are not offered keep their default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        model = hints["options"]
        of_fields = get_type_hints(model, include_extras=True)
        offered = {
            field.name: _make_parameter(field.name, of_fields[field.name], defaults.get(field.name, field.default))
            for field in fields(model)
            if get_origin(of_fields[field.name]) is Annotated
            and field.name not in without
            and (only is None or field.name in only)
        }

        def spread() -> Iterator[Parameter]:
            for own in inspect.signature(command).parameters.values():
                if own.name == "options":
                    yield from offered.values()
                else:
                    yield _make_parameter(own.name, hints[own.name], own.default)

        @wraps(command)
        def call(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in offered}
            command(options=model(**chosen), **given)

        vars(call)["__signature__"] = Signature(list(spread()))
        return call

    return decorate


def _make_parameter(name: str, hint: Any, default: object) -> Parameter:
    """Return a parameter that Typer understands; one that is annotated for Typer already stays as it is."""
    kind, *notes = get_args(hint)
    option = next((each for each in notes if isinstance(each, Option)), None)
    if option is None:
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
    words = get_args(kind) if get_origin(kind) is Literal else ()
    callback = one_of(option.noun, *words) if words else check_strategy if name == "strategy" else None
    info = typer.Option(
        default,
        option.flag or f"--{name.replace('_', '-')}",
        help=option.help,
        min=option.min,
        max=option.max,
        show_default=option.shown_default or True,
        callback=callback,
        autocompletion=complete_strategy if name == "strategy" else None,
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=info, annotation=str if words else kind)
