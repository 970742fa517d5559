import asyncio
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from hubbub import __version__
from hubbub.errors import ConfigurationError
from hubbub.runtime import runner, serving
from hubbub.runtime.health import Vitals, answering, create_app
from hubbub.transport.topology import inbox
from support.aio import aio
from support.measured_run import logging_as_json
from support.parties import COORDINATOR
from support.probe import KEY, Go, Note, ProbeShell, probe

PROBLEM = "application/problem+json"


@asynccontextmanager
async def asking(vitals: Vitals) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(vitals))
    async with httpx.AsyncClient(transport=transport, base_url="http://party") as client:
        yield client


def check_problem(answer: httpx.Response, detail: str) -> None:
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert answer.headers["content-type"] == PROBLEM
    assert answer.json() == {
        "title": "Service Unavailable",
        "status": 503,
        "detail": detail,
        "instance": answer.request.url.path,
    }


@aio
async def test_a_party_on_its_way_to_the_broker_is_alive_and_not_ready() -> None:
    async with asking(Vitals()) as client:
        alive = await client.get("/healthz")

        assert (alive.status_code, alive.json()) == (200, {"status": "ok", "version": __version__})
        for page in ("/readyz", "/metrics"):
            check_problem(await client.get(page), "there is no connection to the broker yet")


@aio
async def test_a_party_that_runs_is_ready_and_an_outage_makes_it_unready_but_not_dead() -> None:
    vitals = Vitals()
    async with probe() as service, asking(vitals) as client:
        vitals.watch(service.runner)
        ready = await client.get("/readyz")
        service.broker.stop()
        cut_off, still_alive = await client.get("/readyz"), await client.get("/healthz")
        service.broker.start()
        again = await client.get("/readyz")

    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    check_problem(
        cut_off,
        f"there is no connection to the broker; nothing is received from the queue {inbox(COORDINATOR)}",
    )
    assert still_alive.status_code == 200
    assert again.status_code == 200


@aio
async def test_a_party_whose_broker_is_short_of_memory_is_not_ready_until_the_alarm_is_over() -> None:
    vitals = Vitals()
    async with probe() as service, asking(vitals) as client:
        vitals.watch(service.runner)
        service.broker.block()
        blocked, still_alive = await client.get("/readyz"), await client.get("/healthz")
        metrics = await client.get("/metrics")
        service.broker.unblock()
        again = await client.get("/readyz")

    check_problem(blocked, "the broker takes no messages: it is short of memory or disk")
    assert "hubbub_broker_blocked 1.0" in metrics.text
    assert "hubbub_ready 0.0" in metrics.text
    assert (still_alive.status_code, again.status_code) == (200, 200)


@aio
async def test_a_party_that_takes_no_more_events_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    vitals, gate = Vitals(), asyncio.Event()
    async with probe(ProbeShell(gate=gate)) as service, asking(vitals) as client:
        vitals.watch(service.runner)
        feeding = asyncio.create_task(service.runner.feed(KEY, Go((Note("hangs"),))))
        await service.shell.entered.wait()
        monkeypatch.setattr(runner, "STALL_S", 0.0)
        answer = await client.get("/healthz")
        gate.set()
        await feeding

    check_problem(answer, "one event has taken 0 s: a disk or database may hang; start this party again")


@aio
async def test_metrics_come_in_the_form_that_is_asked_for() -> None:
    vitals = Vitals()
    async with probe() as service, asking(vitals) as client:
        vitals.watch(service.runner)
        plain = await client.get("/metrics")
        open_metrics = await client.get(
            "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
        )

    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert plain.headers["content-type"].count("charset") == 1
    assert re.search(r"^hubbub_ready 1.0$", plain.text, re.MULTILINE)
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


@aio
async def test_any_other_page_or_method_is_a_problem_too() -> None:
    async with asking(Vitals()) as client:
        missing, wrong = await client.get("/api/v1/runs"), await client.post("/metrics")

    for answer, status in ((missing, 404), (wrong, 405)):
        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
        assert answer.json()["detail"] == "there are /healthz, /readyz and /metrics here, to GET"


@aio
async def test_a_free_port_is_taken_and_named_in_the_log_and_given_back() -> None:
    with logging_as_json(level="info") as stream:
        async with answering(Vitals(), "127.0.0.1", 0, "HUBBUB_X_METRICS_PORT"):
            found = re.search(r"health and metrics at (http://127\.0\.0\.1:(\d+))", stream.getvalue())
            assert found
            async with httpx.AsyncClient(trust_env=False) as client:
                answer = await client.get(f"{found[1]}/healthz")
    with socket.create_server(("127.0.0.1", int(found[2]))):
        pass

    assert answer.status_code == 200
    assert "server" not in answer.headers


@aio
async def test_what_is_refused_is_in_the_metrics() -> None:
    vitals = Vitals()
    with logging_as_json(level="info") as stream:
        async with (
            probe() as service,
            answering(vitals, "127.0.0.1", 0, "HUBBUB_X_METRICS_PORT"),
            httpx.AsyncClient(trust_env=False) as client,
        ):
            found = re.search(r"health and metrics at (http://127\.0\.0\.1:\d+)", stream.getvalue())
            assert found
            early = await client.request("TRACE", f"{found[1]}/")
            vitals.watch(service.runner)
            late = await client.request("TRACE", f"{found[1]}/")
            metrics = await client.get(f"{found[1]}/metrics")

    assert (early.status_code, late.status_code) == (405, 405)
    assert 'hubbub_requests_refused_total{reason="trace"} 1.0' in metrics.text, "since there are metrics"


@aio
async def test_a_port_that_is_taken_is_a_clear_mistake_in_the_settings() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(
            ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}.*HUBBUB_X_METRICS_PORT to a free port"
        ):
            async with answering(Vitals(), "127.0.0.1", port, "HUBBUB_X_METRICS_PORT"):
                raise AssertionError("it listens where somebody else does")


@aio
async def test_signals_are_left_to_the_process() -> None:
    """The server would take SIGTERM for itself and end before the broker connection is closed."""
    before = signal.getsignal(signal.SIGTERM)

    async with serving.answering(create_app(Vitals()), serving.listen("127.0.0.1", 0, advice="")) as address:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{address}/healthz")

        assert answer.status_code == httpx.codes.OK
        assert signal.getsignal(signal.SIGTERM) is before
