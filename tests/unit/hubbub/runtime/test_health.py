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
from hubbub.runtime import runner
from hubbub.runtime.health import Vitals, answering, create_app
from hubbub.transport.topology import inbox
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


async def test_a_party_on_its_way_to_the_broker_is_alive_and_not_ready() -> None:
    async with asking(Vitals()) as client:
        alive = await client.get("/healthz")

        assert (alive.status_code, alive.json()) == (200, {"status": "ok", "version": __version__})
        for page in ("/readyz", "/metrics"):
            check_problem(await client.get(page), "there is no connection to the broker yet")


async def test_an_outage_or_a_shortage_of_the_broker_makes_a_party_unready_but_not_dead() -> None:
    vitals = Vitals()
    silent = f"nothing is received from the queue {inbox(COORDINATOR)}"
    async with probe() as service, asking(vitals) as client:
        vitals.runner, broker = service.runner, service.broker
        for begin, end, detail, gauge in (
            (broker.stop, broker.start, f"there is no connection to the broker; {silent}", "connected 0.0"),
            (
                *(broker.block, broker.unblock),
                *("the broker takes no messages: it is short of memory or disk", "blocked 1.0"),
            ),
        ):
            begin()
            check_problem(await client.get("/readyz"), detail)
            assert (await client.get("/healthz")).status_code == 200
            metrics = (await client.get("/metrics")).text
            assert f"hubbub_broker_{gauge}\n" in metrics
            assert "hubbub_ready 0.0\n" in metrics
            end()
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


async def test_a_party_that_takes_no_more_events_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    vitals, gate = Vitals(), asyncio.Event()
    async with probe(ProbeShell(gate=gate)) as service, asking(vitals) as client:
        vitals.runner = service.runner
        feeding = asyncio.create_task(service.runner.feed(KEY, Go((Note("hangs"),))))
        await service.shell.entered.wait()
        before = await client.get("/healthz")
        monkeypatch.setattr(runner, "STALL_S", 0.0)
        stalled = await client.get("/healthz")
        gate.set()
        await feeding
        await service.runner.feed(KEY, Go())
        after = await client.get("/healthz")

    assert (before.status_code, after.status_code) == (200, 200)
    check_problem(stalled, "one event has taken 0 s: a disk or database may hang; start this party again")


async def test_metrics_come_in_the_form_that_is_asked_for() -> None:
    vitals = Vitals()
    async with probe() as service, asking(vitals) as client:
        vitals.runner = service.runner
        plain = await client.get("/metrics")
        open_metrics = await client.get(
            "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
        )

    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert plain.headers["content-type"].count("charset") == 1
    assert re.search(r"^hubbub_ready 1.0$", plain.text, re.MULTILINE)
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


async def test_any_other_page_or_method_is_a_problem_too() -> None:
    async with asking(Vitals()) as client:
        missing, wrong = await client.get("/api/v1/runs"), await client.post("/metrics")

    for answer, status in ((missing, 404), (wrong, 405)):
        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
        assert answer.json()["detail"] == "there are /healthz, /readyz and /metrics here, to GET"


async def test_a_free_port_is_named_in_the_log_and_given_back_and_refusals_are_in_the_metrics() -> None:
    vitals = Vitals()
    before = signal.getsignal(signal.SIGTERM)
    with logging_as_json(level="info") as stream:
        async with (
            probe() as service,
            answering(vitals, "127.0.0.1", 0, "HUBBUB_X_METRICS_PORT"),
            httpx.AsyncClient(trust_env=False) as client,
        ):
            found = re.search(r"health and metrics at (http://127\.0\.0\.1:(\d+))", stream.getvalue())
            assert found
            alive = await client.get(f"{found[1]}/healthz")
            # It is the process that ends the broker connection after the last answer.
            assert signal.getsignal(signal.SIGTERM) is before
            early = await client.request("TRACE", f"{found[1]}/")
            vitals.runner = service.runner
            late = await client.request("TRACE", f"{found[1]}/")
            metrics = await client.get(f"{found[1]}/metrics")

    with socket.create_server(("127.0.0.1", int(found[2]))):
        pass
    assert (alive.status_code, early.status_code, late.status_code) == (200, 405, 405)
    assert "server" not in alive.headers
    assert 'hubbub_requests_refused_total{reason="trace"} 1.0' in metrics.text, "since there are metrics"


async def test_a_port_that_is_taken_is_a_clear_mistake_in_the_settings() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(
            ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}.*HUBBUB_X_METRICS_PORT to a free port"
        ):
            async with answering(Vitals(), "127.0.0.1", port, "HUBBUB_X_METRICS_PORT"):
                raise AssertionError("it listens where somebody else does")
