"""`hubbub demo --dashboard`: the coordinator's page beside the run, and after it until the user has had enough."""

import asyncio
import io
import secrets
import shlex
import signal
import socket
import stat
import subprocess
import sys
import webbrowser
from functools import partial
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from hubbub.errors import ConfigurationError, ProtocolError
from hubbub_coordinator.api.access import Tokens
from hubbub_local.demo import LINGERING, run_demo
from hubbub_local.options import DemoOptions
from hubbub_local.serving import PAGE_FILE, Dashboard
from hubbub_trainer.policy import Policy
from support.command_line import run_hubbub
from support.patience import HANG_S
from support.processes import wait_until

COMMAND = ("-c", "from hubbub_cli.main import main; main()", "demo", "--dashboard", "--port", "0")
QUICK = ("--task", "synthetic:300", "--clients", "3", "--rounds", "2", "--local-steps", "3")
OPTIONS = DemoOptions(task="synthetic:300", clients=3, rounds=1, local_steps=3, dashboard=True, port=0)


def find(lines: list[str], heading: str) -> str:
    (found,) = (line for line in lines if line.startswith(f"{heading} "))
    return found.removeprefix(heading).strip()


def test_the_page_outlives_the_run_takes_another_and_ends_with_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, *COMMAND, *QUICK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            lines = list(iter(partial(next, process.stdout), f"{LINGERING}\n"))
            url, _, token = find(lines, "Dashboard").partition("/#token=")
            command = shlex.split(find(lines, "Commands"))
            file = Path(command[-1])
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert '"completed"' in run_hubbub(*command[1:], "--json").check_done()
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
                assert "<title>Hubbub</title>" in client.get("/", headers={"Authorization": ""}).text
                (first,) = client.get("/api/v1/runs").json()["items"]
                manifest = client.get(f"/api/v1/runs/{first['run']}").json()["manifest"]
                changes = {"strategy": "sec-union", "nonce": secrets.token_hex(16)}
                second = client.post("/api/v1/runs", json={**manifest, **changes})
                assert second.status_code == 201, second.text
                path = f"/api/v1/runs/{second.json()['run']}"
                wait_until(lambda: client.get(path).json()["state"] == "completed", "it ends")
                with client.stream("GET", "/api/v1/events/stream") as events:
                    next(events.iter_raw())
                    process.send_signal(signal.SIGINT)
                    rest, complaints = process.communicate(timeout=HANG_S)
        finally:
            process.kill()

    assert (process.returncode, complaints) == (0, "")
    assert first["state"] == "completed"
    assert "All 3 clients hold the same model" in "".join(lines)
    assert rest == "", "the terminal is about the demo's own run"
    assert url.startswith("http://127.0.0.1:")
    assert [line for line in lines if token in line] == [f"Dashboard  {url}/#token={token}\n"]
    assert not file.exists()


async def test_a_run_that_failed_can_be_looked_at_before_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stern = partial(Policy, approve_tasks=("another",), min_clients=2)
    monkeypatch.setattr(Policy, "for_demo", lambda digest: stern(roster_sha256=digest))
    shown = io.StringIO()
    running = asyncio.create_task(run_demo(OPTIONS, Console(file=shown, width=200)))
    while LINGERING not in shown.getvalue():
        await asyncio.wait({running}, timeout=0.02)
        assert not running.done()
    lines = shown.getvalue().splitlines()
    url, _, token = find(lines, "Dashboard").partition("/#token=")
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.get("/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
    # Before this, the line above: whoever reads it can press Ctrl-C at once.
    signal.raise_signal(signal.SIGINT)

    with pytest.raises(ProtocolError, match="the run failed"):
        await running
    assert [run["state"] for run in answer.json()["items"]] == ["failed"]
    assert any(line.startswith("the run failed: ") for line in lines)
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_DFL


async def test_a_port_that_is_taken_is_named_before_anything_is_begun() -> None:
    shown = io.StringIO()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = DemoOptions(task="synthetic:300", dashboard=True, port=port)

        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: .*; choose another with --port"):
            await run_demo(options, Console(file=shown))

    assert "Dashboard" not in shown.getvalue()


async def test_without_the_flag_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nobody asked for a dashboard")

    monkeypatch.setattr(socket, "create_server", refuse)
    shown = io.StringIO()

    await run_demo(DemoOptions(task="synthetic:300", clients=3, rounds=1, local_steps=3), Console(file=shown))

    assert "Dashboard" not in shown.getvalue()


@pytest.mark.parametrize("options", [DemoOptions(port=8751), DemoOptions(open=True)])
async def test_what_needs_a_dashboard_is_refused_without_one(options: DemoOptions) -> None:
    with pytest.raises(ConfigurationError, match="add --dashboard"):
        await run_demo(options, Console(file=io.StringIO()))


DASHBOARD = Dashboard("http://127.0.0.1:1", Tokens(read="r" * 43, change="c" * 43))


async def test_a_browser_gets_a_private_file_that_leads_to_the_page_and_not_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_page(uri: str) -> bool:
        opened.append(uri)
        return True

    monkeypatch.setenv("BROWSER", "anything")
    monkeypatch.setattr(webbrowser, "open", open_page)

    found = await DASHBOARD.open_browser(tmp_path)

    page = tmp_path / PAGE_FILE
    assert found
    assert opened == [page.as_uri()]
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert f'content="0; url={DASHBOARD.link}"' in page.read_text("utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
async def test_no_browser_takes_over_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", pytest.fail)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)

    assert not await DASHBOARD.open_browser(tmp_path)
