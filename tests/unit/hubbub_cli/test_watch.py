"""`hubbub run watch`: every event once, over a restart of the coordinator; a picture that fits; a clean end."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from hubbub.rest import EventView, RoundView, RunWithParties
from hubbub_cli.client import Client, Endpoint, read
from hubbub_cli.run_lookup import RUNS, ask
from hubbub_cli.watch import EVENTS, _show_lines
from hubbub_cli.watch_view import Picture, draw
from support.command_line import CODE, Hubbub, start_hubbub
from support.live_coordinator import TOKENS, LiveCoordinator, live_coordinator, make_run
from support.patience import HANG_S

RUN = make_run(rounds=3)


def ask_live(live: LiveCoordinator, path: str, **params: object) -> dict[str, object]:
    endpoint = Endpoint(url=live.url, token=TOKENS.read)

    async def get(client: Client) -> dict[str, object]:
        return await client.get(path, params)

    return ask(endpoint, get)


def list_events(live: LiveCoordinator) -> list[dict[str, object]]:
    items = ask_live(live, EVENTS, run=RUN.run_id, limit=1000)["items"]
    assert isinstance(items, list)
    return items


# Lines -----------------------------------------------------------------------------------------------------


def test_a_run_that_is_over_is_told_from_its_first_event(held: LiveCoordinator, hubbub: Hubbub) -> None:
    held.silence.lift_all()
    held.submit(RUN)
    held.wait_until(RUN.run_id, "completed")

    lines = hubbub("run", "watch", "latest", *held.options("read"))
    objects = hubbub("run", "watch", "latest", *held.options("read"), "--json")

    events = list_events(held)
    assert (lines.code, objects.code) == (0, 0)
    assert [json.loads(line) for line in objects.out.splitlines()] == events
    for line, event in zip(lines.out.splitlines(), events, strict=True):
        place = f"round {event['round']}" if event["round"] else "run"
        assert re.match(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d  {place} ", line)
        assert line.endswith(str(event["text"]))


def test_a_run_that_ends_just_after_it_was_looked_at_is_not_waited_for(held: LiveCoordinator) -> None:
    held.silence.lift_all()
    held.submit(RUN)
    held.wait_until(RUN.run_id, "completed")
    seen = {**ask_live(held, f"{RUNS}/{RUN.run_id}"), "state": "running"}

    class Late(Client):
        """Asks for the run a moment before it ends."""

        async def get(self, path: str, params: Mapping[str, object] | None = None) -> dict[str, object]:
            return seen if path.endswith(RUN.run_id) else await super().get(path, params)

    async def show() -> str:
        async with Late(Endpoint(url=held.url, token=TOKENS.read)) as client, asyncio.timeout(HANG_S):
            return await _show_lines(client, RUN.run_id, as_json=True)

    assert asyncio.run(show()) == "completed"


def test_a_run_that_is_cancelled_is_exit_code_1(held: LiveCoordinator, hubbub: Hubbub) -> None:
    held.submit(RUN)
    held.wait_until(RUN.run_id, "round 2 collecting")
    hubbub("run", "cancel", "latest", *held.options())

    ended = hubbub("run", "watch", "latest", *held.options("read"))

    assert ended.code == 1
    assert ended.out.splitlines()[-1].endswith("the run was cancelled: an operator cancelled it")


def test_over_a_restart_of_the_coordinator_every_event_comes_once(held: LiveCoordinator) -> None:
    held.submit(RUN)
    held.wait_until(RUN.run_id, "round 2 collecting")
    held.pause(RUN.run_id)
    with start_hubbub("run", "watch", "latest", *held.options("read"), "--json") as process:
        assert process.stdout is not None
        told = [json.loads(process.stdout.readline())]
        # What was in the log when it began; the rest of the round comes over the stream.
        while told[-1]["kind"] != "pause-requested":
            told.append(json.loads(process.stdout.readline()))
        held.silence.lift_all()
        while told[-1]["kind"] != "run-paused":
            told.append(json.loads(process.stdout.readline()))

        held.stop()
        held.start()
        held.resume(RUN.run_id)
        out, err = process.communicate(timeout=HANG_S)

    told += map(json.loads, out.splitlines())
    assert process.returncode == 0
    assert told == list_events(held)
    assert told[-1]["kind"] == "run-completed"
    assert "trying again" in err
    assert "connected again; nothing was missed" in err


def test_ctrl_c_leaves_the_run_as_it_is(held: LiveCoordinator) -> None:
    held.submit(RUN)
    held.wait_until(RUN.run_id, "round 2 collecting")
    with start_hubbub("run", "watch", "latest", *held.options("read")) as process:
        assert process.stdout is not None
        while "round 2 was opened" not in process.stdout.readline():
            pass

        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG_S)

    assert process.returncode == 130
    assert err == f"\nThe run goes on. `hubbub run watch {RUN.run_id[:12]}` shows it again.\n"
    assert ask_live(held, f"{RUNS}/{RUN.run_id}")["state"] == "running"


# The picture -----------------------------------------------------------------------------------------------


def test_on_a_terminal_the_last_picture_stays(held: LiveCoordinator) -> None:
    held.silence.lift_all()
    shown = run_on_terminal("run", "submit", held.manifest_file(RUN), *held.options(), "--watch")

    last = shown.rsplit(f"run {RUN.run_id[:12]}", 1)[1]
    assert "completed" in last.splitlines()[0]
    assert "3 of 3" in last
    assert "completed: all 3 rounds are done" in last


def run_on_terminal(*arguments: str | Path) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        # Reading from a terminal whose other end is closed is an error on Linux.
        with suppress(OSError):
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        assert process.wait(HANG_S) == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def see(live: LiveCoordinator) -> Picture:
    detail = read(RunWithParties, ask_live(live, f"{RUNS}/{RUN.run_id}"))
    current = read(RoundView, ask_live(live, f"{RUNS}/{RUN.run_id}/rounds/{detail.round}"))
    picture = Picture(detail, current)
    picture.events.extend(read(EventView, item) for item in list_events(live))
    return picture


def show(picture: Picture, *, columns: int = 80, lines: int = 24) -> list[str]:
    console = Console(width=columns, height=lines, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(draw(picture, console))
    return capture.get().splitlines()


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Picture]:
    """A run in which two of three clients have delivered."""
    with live_coordinator(tmp_path_factory.mktemp("stalled"), (2, 2)) as live:
        live.submit(RUN)
        live.wait_until(RUN.run_id, "round 2 misses client-3")
        yield see(live)


def test_who_is_missing_is_named_with_since_when(stalled: Picture) -> None:
    shown = show(stalled)

    assert re.search(r"waiting for client-3 to deliver signs, for \d+ s now", shown[-1])
    assert "2 of 3 clients delivered" in shown[2]
    assert "1 of 3" in shown[1]
    late = next(line for line in shown if line.startswith("client-3"))
    assert re.search(r", for \d+ s$", late.rstrip())


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (80, 16), (160, 50)])
def test_the_picture_fits(stalled: Picture, columns: int, lines: int) -> None:
    shown = show(stalled, columns=columns, lines=lines)

    assert len(shown) <= lines
    assert max(len(line) for line in shown) <= columns


def test_of_a_hundred_clients_those_who_are_waited_for_are_shown(stalled: Picture) -> None:
    done, _, late = (each for each in stalled.run.participants if each.role == "client")
    many = tuple(
        (done if number < 97 else late).model_copy(update={"name": f"client-{number}"}) for number in range(1, 101)
    )
    run = stalled.run.model_copy(update={"participants": many})

    shown = show(Picture(run, stalled.round, stalled.events))

    assert len(shown) < 24
    assert {f"client-{number}" for number in range(97, 101)} <= {line.split()[0] for line in shown if line.strip()}
    assert any(re.match(r"and \d+ more", line) for line in shown)


def test_a_run_that_does_not_learn_is_told_in_one_more_line(stalled: Picture) -> None:
    run = stalled.run.model_copy(update={"stalled": f"accuracy was no better; {'see the docs ' * 20}"})

    shown = show(Picture(run, stalled.round, stalled.events))

    assert len(shown) <= 24
    assert [line.startswith("stalled: accuracy was no better; see") for line in shown].count(True) == 1
    assert not any("stalled:" in line for line in show(stalled))


def test_a_lost_connection_is_told_and_so_is_its_return(stalled: Picture) -> None:
    picture = Picture(stalled.run, stalled.round, stalled.events)

    picture.tell("the connection was lost; trying again", is_lost=True)
    assert "the connection was lost; trying again (0 s)" in show(picture)[-1]

    picture.tell("connected again; nothing was missed", is_lost=False)
    assert "connected again; nothing was missed" in show(picture)[-1]


def test_the_time_that_is_left_runs_down(stalled: Picture) -> None:
    run = stalled.run.model_copy(update={"remaining_s": 200.0})
    now, later = Picture(run, stalled.round), Picture(run, stalled.round)
    later.seen_at_s -= 60

    assert "about 3 min 20 s left" in show(now)[1]
    assert "about 2 min 20 s left" in show(later)[1]
