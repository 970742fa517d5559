"""Queries to a coordinator that several commands share: find a run, list runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hubbub.errors import ConfigurationError, HubbubError
from hubbub.rest import SHOWN_DIGITS
from hubbub_cli.client import Client, Endpoint, Json, read_token
from hubbub_cli.suggestions import suggest

T = TypeVar("T")

RUNS = "/api/v1/runs"
LATEST = "latest"
MIN_PREFIX = 4
RUN_ID_DIGITS = 64
PAGE = 200
COMPLETION_S = 1.0
"""Timeout of a shell completion."""


def find_endpoint(url: str, token_file: Path | None, ca_file: Path | None) -> Endpoint:
    """Make an endpoint from the options; raise `ConfigurationError` without a token file."""
    if token_file is None:
        raise ConfigurationError(
            "the coordinator asks for a token: name the file that holds it with --token-file (HUBBUB_TOKEN_FILE)"
        )
    return Endpoint(url=url, token=read_token(token_file), ca_file=ca_file)


def ask(endpoint: Endpoint, question: Callable[[Client], Awaitable[T]]) -> T:
    """Open a client, and return the result of one question."""

    async def open_and_ask() -> T:
        async with Client(endpoint) as client:
            return await question(client)

    return asyncio.run(open_and_ask())


async def find_run(client: Client, name: str) -> str:
    """Return the id of a run from its name: an id, the beginning of one, or latest."""
    wanted = name.lower()
    if wanted == LATEST:
        newest = (await client.get(RUNS, {"limit": 1}))["items"]
        if not newest:
            raise ConfigurationError("this coordinator has no run yet: begin one with `hubbub run submit`")
        return str(newest[0]["run"])
    if not set(wanted) <= set("0123456789abcdef") or not MIN_PREFIX <= len(wanted) <= RUN_ID_DIGITS:
        raise ConfigurationError(
            f"{name!r} cannot name a run: give at least {MIN_PREFIX} of the {RUN_ID_DIGITS} hexadecimal digits of"
            f" its id, or {LATEST}{suggest(name, [LATEST])}"
        )
    if len(wanted) == RUN_ID_DIGITS:
        return wanted
    everything, _ = await list_runs(client, (), sys.maxsize)
    found = [str(run["run"]) for run in everything if str(run["run"]).startswith(wanted)]
    if not found:
        raise ConfigurationError(f"there is no run {name} here: `hubbub run list` shows those that there are")
    if len(found) > 1:
        shown = ", ".join(run[: len(wanted) + MIN_PREFIX] for run in found[:MIN_PREFIX])
        raise ConfigurationError(f"{len(found)} runs begin with {name}: give more digits ({shown})")
    return found[0]


async def list_runs(client: Client, states: Sequence[str], limit: int) -> tuple[list[Json], int]:
    """Read the newest runs page by page; return them and the total number."""
    found: list[Json] = []
    cursor: dict[str, object] = {}
    while True:
        page = await client.get(RUNS, {"limit": min(PAGE, limit - len(found)), "state": list(states), **cursor})
        found += page["items"]
        if page["next"] is None or len(found) >= limit:
            return found, int(page["total"])
        cursor = {"after": page["next"]}


def name_runs(url: str, token_file: Path | None, ca_file: Path | None) -> list[tuple[str, str]]:
    """Return the newest runs with their states for shell completion; none if the coordinator is slow or away."""

    async def look() -> Json:
        async with asyncio.timeout(COMPLETION_S), Client(endpoint, answer_s=COMPLETION_S) as client:
            return await client.get(RUNS, {"limit": 50})

    try:
        endpoint = find_endpoint(url, token_file, ca_file)
        found = asyncio.run(look())["items"]
    except (HubbubError, TimeoutError):
        return []
    return [(str(each["run"])[:SHOWN_DIGITS], str(each["state"])) for each in found]
