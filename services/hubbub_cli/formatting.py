"""Formats numbers and times for people, and answers as JSON for programs; keeps log lines off the terminal."""

from __future__ import annotations

import json
import logging
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
DAY_S = 24 * HOUR_S
COMMENT_COLUMNS = 100

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(content: object) -> None:
    """Print an answer for programs."""
    typer.echo(json.dumps(content, indent=2))


def print_warning(sentence: str) -> None:
    """Print a warning, unless it is empty, on standard error: what is on standard output may be for a program."""
    if sentence:
        typer.secho(f"warning: {sentence}", fg=typer.colors.YELLOW, err=True)


def show_bytes(count: float) -> str:
    """Format a size: 1 MB is 2^20 bytes, as in the paper."""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def show_duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    whole = max(0, round(seconds))
    for unit, size, lower, part in (
        ("d", DAY_S, "h", HOUR_S),
        ("h", HOUR_S, "min", MINUTE_S),
        ("min", MINUTE_S, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"


def show_date(at_s: float) -> str:
    """Format a date and time in the local time zone."""
    return f"{_locally(at_s):%Y-%m-%d %H:%M:%S}"


def show_clock(at_s: float) -> str:
    """Format a time of day in the local time zone."""
    return f"{_locally(at_s):%H:%M:%S}"


def show_metric(name: str, value: float | None) -> str:
    """Format a metric's value, an accuracy as a percentage; a dash if there is none yet."""
    if value is None:
        return "-"
    return f"{value:.2%}" if name == "accuracy" else f"{value:.4g}"


def count(number: int, thing: str) -> str:
    """Format a number of things, in the singular or plural."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def explain_value(name: str, value: object, explanation: str | None) -> list[str]:
    """Format a line of TOML below a comment that explains it; JSON's strings, numbers and lists are TOML's too."""
    comment = " ".join((explanation or "").split())
    lines = textwrap.wrap(comment, COMMENT_COLUMNS, initial_indent="# ", subsequent_indent="# ")
    # JSON's escapes of characters beyond 16 bits are not TOML's: write such characters as they are.
    return [*lines, f"{name} = {json.dumps(value, ensure_ascii=False)}\n"]


def _locally(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC).astimezone()


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Suppress libraries' log lines within the block: what matters is raised as an error."""
    silence = logging.NullHandler()
    logging.getLogger().addHandler(silence)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(silence)
