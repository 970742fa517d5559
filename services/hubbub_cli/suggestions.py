"""Suggestions for wrong values on the command line: similar words, and the possible ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

from hubbub.errors import ConfigurationError


def suggest(word: str, known: Sequence[str]) -> str:
    """Return a question that suggests a similar word; empty if none is similar."""
    lower = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), lower, n=1)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def one_of(what: str, *known: str) -> Callable[[str], str]:
    """Make a callback for an option that takes one of a few words."""

    def check(word: str) -> str:
        if word not in known:
            raise ConfigurationError(
                f"there is no {what} {word!r}; choose one of: {', '.join(known)}{suggest(word, known)}"
            )
        return word

    return check


def check_strategy(word: str | None) -> str | None:
    """Raise `ConfigurationError` if no strategy has this name; None is for one that is not given."""
    return None if word is None else one_of("strategy", *list_strategies())(word)


def list_strategies() -> tuple[str, ...]:
    """Return the names of all strategies."""
    from hubbub.strategies.registry import STRATEGIES  # noqa: PLC0415  (Help should not wait for numpy.)

    return tuple(STRATEGIES)


def complete_strategy(incomplete: str) -> list[str]:
    """Return the strategies for shell completion."""
    return [name for name in list_strategies() if name.startswith(incomplete)]


class Suggesting(TyperGroup):
    """Command group that adds a suggestion to Typer's list of possible values."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and add a suggestion to the error about a wrong value."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            choices = getattr(getattr(error.param, "type_descriptor", None), "choices", None)
            given = _find_input(error)
            if choices and given is not None:
                known = [str(getattr(choice, "value", choice)) for choice in choices]
                error.message = f"there is no {given!r}; choose one of: {', '.join(known)}{suggest(given, known)}"
            raise


def _find_input(error: typer.BadParameter) -> str | None:
    """Return the value that pydantic refused."""
    from pydantic import ValidationError  # noqa: PLC0415  (Only an error needs it.)

    cause = error.__cause__
    found = cause.errors()[0]["input"] if isinstance(cause, ValidationError) else None
    return found if isinstance(found, str) else None
