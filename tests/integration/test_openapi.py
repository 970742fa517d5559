"""Everything that the interface's description allows, and much that it does not, asked of a running coordinator.

Some hundreds of requests here, drawn in the same way each time; `make soak` draws many thousands anew.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis import Response
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.schemas import BaseSchema

from hubbub.ids import RunId
from hubbub.messages.manifest import Manifest
from support.live_coordinator import TOKENS, LiveCoordinator, live_coordinator, make_run
from support.patience import HANG_S
from support.program import run_python

WANTED = os.environ.get("HUBBUB_API_EXAMPLES")
EXAMPLES = int(WANTED or "5")
"""Requests of each kind for each route, beside those at the edges of what it takes."""
DEADLINE_S = HANG_S + 10 * EXAMPLES
STREAM = "/api/v1/events/stream"
RUNS = "/api/v1/runs"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCoordinator]:
    with live_coordinator(tmp_path_factory.mktemp("live"), (0, 2)) as started:
        yield started


@pytest.fixture(scope="module")
def known(live: LiveCoordinator) -> list[RunId]:
    """A run that is over, and three that are paused after their second round."""
    over = live.submit(make_run(1, rounds=1))
    live.wait_until(over, "completed")
    paused = []
    # One after the other: who is silent still takes one of the few places to train in.
    for number in (2, 3, 4):
        run = live.submit(make_run(number, rounds=3))
        live.wait_until(run, "round 2 collecting")
        live.pause(run)
        live.silence.lift(2)
        live.wait_until(run, "paused")
        live.silence.hold_again(2)
        paused.append(run)
    return [over, *paused]


# Whatever may be asked --------------------------------------------------------------------------------------


def test_every_answer_to_whatever_may_be_asked_is_as_described(
    live: LiveCoordinator, known: list[RunId], tmp_path: Path
) -> None:
    """No failure of the server, no answer that is not described, nothing wrong taken, nothing right refused."""
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(write_settings(make_run(), known), encoding="utf-8")

    asked = run_python(
        *("-m", "schemathesis.cli", "--config-file", settings, "run", f"{live.url}/openapi.json"),
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "115"},
        timeout_s=DEADLINE_S,
    )

    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert "Tested: 20" in asked.stdout, "every route, and this test must know of each: " + asked.stdout
    for phase in ("Coverage", "Fuzzing", "Stateful"):
        assert f"✅ {phase}" in asked.stdout, asked.stdout


def write_settings(manifest: Manifest, known: list[RunId]) -> str:
    """Settings of the requests: everything at random, and now and then what there is."""
    words = {
        "runs": known,
        "rounds": [1, 2],
        "coordinators": [manifest.coordinator],
        "aggregators": list(manifest.aggregators),
        "clients": list(manifest.clients),
        "strategies": [manifest.strategy],
        "rosters": [manifest.roster_sha256],
        "tasks": [manifest.task],
    }
    places = {
        "path.run": "runs",
        "query.run": "runs",
        "path.number": "rounds",
        "query.party": "clients",
        "body.coordinator": "coordinators",
        "body.aggregators[*]": "aggregators",
        "body.cohort[*].name": "clients",
        "body.strategy": "strategies",
        "body.roster_sha256": "rosters",
        "body.task": "tasks",
    }
    lines = [
        *(() if WANTED else ("seed = 1",)),
        f"request-timeout = {HANG_S:g}",
        "[auth.openapi.token]",
        f'bearer = "{TOKENS.change}"',
        "[generation]",
        f"max-examples = {EXAMPLES}",
        'database = "none"',
        "[checks]",
        "enabled = true",
        *(f"[dictionaries.{name}]\nvalues = {json.dumps(values)}" for name, values in words.items()),
        "[parameters]",
        *(f'"{place}" = {{ dictionary = "{name}", probability = 0.6 }}' for place, name in places.items()),
        # Not every rule of a manifest can be said in a schema: that its cohort is the roster's, for one.
        "[[operations]]",
        f'include-name = "POST {RUNS}"',
        'checks = { positive_data_acceptance = { expected-statuses = ["2xx", "409", "422"] } }',
        # Whatever does not read is asked for its token first, also where reading is open to all.
        "[[operations]]",
        'include-path = ["/healthz", "/readyz"]',
        "checks = { unsupported_method = { enabled = false } }",
        # A stream has no end, and none that is about the future a first event: it is asked for what has happened.
        "[[operations]]",
        f'include-path = "{STREAM}"',
        "max-stream-events = 2",
        'parameters = { "header.Last-Event-ID" = "0" }',
    ]
    return "\n".join(lines) + "\n"


# What is described ------------------------------------------------------------------------------------------


CONFORMANCE = [
    *(not_a_server_error, status_code_conformance, content_type_conformance),
    *(response_headers_conformance, response_schema_conformance),
]


@dataclass(frozen=True, slots=True)
class Asker:
    """Sends what a test wants sent, right or wrong, and holds the answer against the description."""

    described: BaseSchema

    def ask(self, question: str, *, token: str = TOKENS.change, **parts: Any) -> Response:
        """Ask `POST /path`; the parts are `body`, `headers`, `query` and `path_parameters`."""
        method, _, path = question.partition(" ")
        case = self.described[path][method].Case(**parts)
        headers = {"Authorization": f"Bearer {token}"}
        return case.call_and_validate(headers=headers, checks=CONFORMANCE, timeout=HANG_S)


@pytest.fixture(scope="module")
def asker(live: LiveCoordinator) -> Asker:
    settings = schemathesis.Config.from_dict({"max-stream-events": 2})
    return Asker(schemathesis.openapi.from_url(f"{live.url}/openapi.json", config=settings))


def test_what_becomes_of_a_run_that_is_submitted_is_described(live: LiveCoordinator, asker: Asker) -> None:
    """These take a manifest of this very roster, which nobody draws at random."""
    body, other = (make_run(number, rounds=3).model_dump(mode="json") for number in (11, 12))
    key, submit = {"Idempotency-Key": "the-first"}, f"POST {RUNS}"
    place = {"run": make_run(11, rounds=3).run_id}
    pause, resume, cancel = (f"POST {RUNS}/{{run}}/{verb}" for verb in ("pause", "resume", "cancel"))

    begun = asker.ask(submit, body=body, headers=key)
    again = asker.ask(submit, body=body, headers=key)
    answers = [
        asker.ask(submit, body=other, headers=key),
        asker.ask(submit, body=body),
        asker.ask(submit, body={**other, "coordinator": "somebody-else"}),
        asker.ask(submit, body=other, token=TOKENS.read),
        asker.ask(cancel, path_parameters=place),
        *(asker.ask(verb, path_parameters=place) for verb in (pause, resume, cancel)),
    ]

    assert (begun.status_code, again.status_code) == (201, 200)
    assert begun.headers["location"] == again.headers["location"] == [f"{RUNS}/{place['run']}"]
    assert again.headers["idempotency-replayed"] == ["true"]
    assert [answer.status_code for answer in answers] == [422, 409, 422, 403, 200, 409, 409, 409]
    live.wait_until(place["run"], "cancelled")


def test_the_live_stream_is_described(known: list[RunId], asker: Asker) -> None:
    stream, after = f"GET {STREAM}", {"Last-Event-ID": "0"}

    followed = asker.ask(stream, headers=after, query={"run": known[0]})
    reset = asker.ask(stream, headers={"Last-Event-ID": "9" * 18})
    refused = [
        asker.ask(stream, headers=after, token="t" * 32),
        asker.ask(stream, headers={"Last-Event-ID": "yesterday"}),
        asker.ask(stream, headers=after, query={"run": "0" * 64}),
        asker.ask(stream, headers=after, query={"run": "all"}),
    ]

    assert followed.status_code == reset.status_code == 200
    assert b"event: run-submitted" in followed.content
    assert b"event: reset" in reset.content
    assert [answer.status_code for answer in refused] == [401, 422, 404, 422]
