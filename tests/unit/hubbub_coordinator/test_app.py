"""A body that stops on the way to the coordinator's interface, which is answered by a real server."""

import asyncio
import logging
from pathlib import Path

import pytest

from hubbub.runtime.web_server import Limits, answering, listen
from hubbub_coordinator.api import app
from support.coordinator_scene import TOKENS, running_scene

LIMITS = Limits(connections=10, request_s=0.05)


async def ask(port: int, request: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.encode())
        return (await reader.read()).decode()
    finally:
        writer.close()


async def test_a_slow_body_is_given_up_and_is_no_error_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    token = f"Authorization: Bearer {TOKENS.change}"
    listener = listen("127.0.0.1", 0, advice="another test has it")
    port = listener.getsockname()[1]
    async with (
        running_scene(tmp_path) as scene,
        answering(app.create_app(scene.coordinator, TOKENS), listener, limits=LIMITS),
    ):
        slow = await ask(port, f"POST /api/v1/runs HTTP/1.1\r\n{token}\r\nContent-Length: 99\r\n\r\n{{")
        traced = await ask(port, "TRACE /api/v1/runs HTTP/1.1\r\nHost: x\r\n\r\n")

    assert slow.startswith("HTTP/1.1 408 ")
    assert traced.startswith("HTTP/1.1 405 "), "without a token too"
    assert [record.getMessage() for record in caplog.records] == [
        "closed a connection from 127.0.0.1: a request did not come in time",
        "closed a connection from 127.0.0.1: TRACE is answered nowhere",
    ]


async def test_what_is_refused_is_in_the_coordinators_metrics(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0, advice="another test has it")
    port = listener.getsockname()[1]
    async with running_scene(tmp_path) as scene, app.answering(scene.coordinator, TOKENS, listener):
        await ask(port, "TRACE / HTTP/1.1\r\nHost: x\r\n\r\n")
        headers = f"Host: x\r\nAuthorization: Bearer {TOKENS.read}\r\nConnection: close"
        metrics = await ask(port, f"GET /metrics HTTP/1.1\r\n{headers}\r\n\r\n")

    assert 'hubbub_requests_refused_total{reason="trace"} 1.0' in metrics
