"""Wrong words on the command line: what was meant, perhaps, and what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

from hubbub.errors import ConfigurationError


def suggest(word: str, known: Sequence[str]) -> str:
    """Ask whether a similar word was meant; nothing if none is similar."""
    lower = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), lower, n=1)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def one_of(what: str, *known: str) -> Callable[[str], str]:
    """Make a check of an option that takes one of a few words."""

    def check(word: str) -> str:
        if word not in known:
            raise ConfigurationError(
                f"there is no {what} {word!r}; choose one of: {', '.join(known)}{suggest(word, known)}"
            )
        return word

    return check


def check_strategy(word: str) -> str:
    """Refuse a strategy that there is not."""
    return one_of("strategy", *list_strategies())(word)


def list_strategies() -> tuple[str, ...]:
    """All that can be run."""
    from hubbub.strategies.registry import STRATEGIES  # noqa: PLC0415  (Help should not wait for numpy.)

    return tuple(STRATEGIES)


def complete_strategy(incomplete: str) -> list[str]:
    """For the shell."""
    return [name for name in list_strategies() if name.startswith(incomplete)]


class Suggesting(TyperGroup):
    """The command as a whole: where Typer says which values there are, it also says which was meant, perhaps."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and complete what is said about a wrong value."""
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
    """The value that pydantic complained about."""
    from pydantic import ValidationError  # noqa: PLC0415  (Only who errs waits for it.)

    cause = error.__cause__
    found = cause.errors()[0]["input"] if isinstance(cause, ValidationError) else None
    return found if isinstance(found, str) else None
