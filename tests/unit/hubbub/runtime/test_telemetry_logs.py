"""Which log lines name their run, round, phase and party: those of a whole run, and those of what goes wrong."""

import asyncio
import io
import json

import pytest

from hubbub.errors import BrokerUnreachable, RejectReason, StorageFailed
from hubbub.ids import Role
from hubbub.machine.effects import CountRefusal, Job, Key, Publish, SetTimer
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import RunEnded
from hubbub.runtime import runner
from hubbub_coordinator.phases.run import State as RunState
from support.aio import aio
from support.forgetful_store import Disk, ForgetfulStore
from support.measured_run import Line, Measured, logging_as_json, measure_run
from support.parties import COORDINATOR
from support.probe import (
    KEY,
    MANIFEST,
    OTHER,
    Go,
    Note,
    Ponder,
    ProbeShell,
    Rang,
    State,
    go,
    go_by_kind,
    probe,
)

PLACE = {"party": COORDINATOR, "run": KEY.run, "round": KEY.round, "phase": KEY.phase}


def lines_with(stream: io.StringIO, text: str) -> list[Line]:
    found = [json.loads(line) for line in stream.getvalue().splitlines() if text in line]
    return [line for line in found if text in str(line["message"])]


def place_of(line: Line) -> dict[str, object]:
    return {name: line[name] for name in ("party", "run", "round", "phase") if name in line}


async def line_with(stream: io.StringIO, text: str) -> Line:
    while not (found := lines_with(stream, text)):  # noqa: ASYNC110  (Nobody announces a line.)
        await asyncio.sleep(0)
    return found[0]


# A whole run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure_run(tmp_path_factory.mktemp("federation"))


def test_every_line_of_a_run_names_its_party_and_its_run(measured: Measured) -> None:
    ours = [line for line in measured.lines if str(line["logger"]).startswith("hubbub")]

    assert measured.state is RunState.COMPLETED
    assert {line["party"] for line in ours} == set(measured.registries)
    assert [line for line in ours if line.get("run") != measured.manifest.run_id] == []


def test_every_line_of_a_round_names_its_round_and_every_line_of_a_phase_both(measured: Measured) -> None:
    steps = [line for line in measured.lines if line["logger"] == "hubbub.runtime.runner"]
    rounds = [line for line in steps if str(line["message"]).startswith("round takes")]
    phases = [line for line in steps if str(line["message"]).startswith("phase takes")]

    assert rounds
    assert phases
    assert {line.get("round") for line in (*rounds, *phases)} == {1, 2}
    assert {line.get("phase") for line in phases} == {"union", "signs", "scores"}


# What goes wrong ---------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.runtime.effects.PAUSE_S", 0.0)


@aio
async def test_a_job_that_fails_in_a_thread_says_where() -> None:
    def fail(_: Ponder) -> object:
        raise ZeroDivisionError

    with logging_as_json() as stream:
        async with probe(ProbeShell(job=fail)) as service:
            await service.runner.feed(KEY, Go((Ponder("hard"),)))
            line = await line_with(stream, "Ponder failed")

    assert place_of(line) == PLACE


@aio
async def test_a_job_that_is_taken_up_again_after_a_restart_says_where() -> None:
    disk, held = Disk(), asyncio.Event()

    def fail(_: Ponder) -> object:
        raise ZeroDivisionError

    with logging_as_json() as stream:
        async with probe(ProbeShell(job_gate=held), store=ForgetfulStore(disk)) as service:
            await service.runner.feed(KEY, Go((Ponder("hard"),)))
        async with probe(ProbeShell(job=fail), store=ForgetfulStore(disk), fresh=False):
            line = await line_with(stream, "Ponder failed")

    assert place_of(line) == PLACE


@aio
async def test_a_job_that_is_begun_again_says_where() -> None:
    attempts: list[Job] = []

    def be_away_once(job: Ponder) -> object:
        attempts.append(job)
        if len(attempts) == 1:
            raise BrokerUnreachable("nobody is there")
        return Rang(0.0)

    with logging_as_json() as stream:
        async with probe(ProbeShell(job=be_away_once)) as service:
            await service.runner.feed(KEY, Go((Ponder("hard"),)))
            line = await line_with(stream, "tried again")

    assert place_of(line) == PLACE


@aio
async def test_an_effect_that_is_tried_again_says_where() -> None:
    attempts: list[object] = []

    def be_full_once(effect: object) -> None:
        attempts.append(effect)
        if len(attempts) == 1:
            raise StorageFailed("the disk is full")

    with logging_as_json() as stream:
        async with probe(ProbeShell(effect=be_full_once)) as service:
            await service.runner.feed(KEY, Go((Note("write"),)))

    (line,) = lines_with(stream, "tried again")
    assert place_of(line) == PLACE


@aio
async def test_a_timer_that_rings_for_a_machine_that_is_over_says_where() -> None:
    with logging_as_json() as stream:
        async with probe() as service:
            service.runner.feed_soon(OTHER, Rang(0.0))
            await service.runner.feed(KEY, Go((SetTimer("alarm", 0.0, Rang),)))

    (line,) = lines_with(stream, "which is over or never began")
    assert place_of(line) == {"party": COORDINATOR, "run": OTHER.run, "round": OTHER.round}


@aio
async def test_a_message_that_comes_after_the_end_says_where() -> None:
    with logging_as_json() as stream:
        async with probe() as service:
            await service.runner.feed(KEY, Go(then=State.OVER))
            await service.send()
            line = await line_with(stream, "changes nothing")

    assert place_of(line) == PLACE


@aio
async def test_a_message_that_is_refused_says_where_and_why() -> None:
    with logging_as_json() as stream:
        async with probe(ProbeShell(events=go_by_kind)) as service:
            await service.send(RunEnded(outcome="failed", reason=""))
            line = await line_with(stream, "refused")

    assert place_of(line) == PLACE
    assert line["reason"] == RejectReason.WRONG_RECIPIENT.value


@aio
async def test_what_the_shell_says_while_it_looks_at_a_message_has_the_messages_place() -> None:
    def talk(_: object) -> list[tuple[Key, object]]:
        runner.log.info("I had a look")
        return []

    with logging_as_json() as stream:
        async with probe(ProbeShell(events=talk)) as service:
            await service.send()
            line = await line_with(stream, "I had a look")

    assert place_of(line) == PLACE


@aio
async def test_a_refusal_without_a_delivery_and_a_missing_inbox_say_where() -> None:
    refusal = CountRefusal(RejectReason.CONTRADICTION, "sum-chunk", MANIFEST.aggregators[0], "two sums")

    with logging_as_json() as stream:
        async with probe() as service:
            message = Publish(MANIFEST.clients[1], Role.CLIENT, RoundOpened())
            await service.runner.feed(KEY, Go((refusal, message)))

    for text in ("two sums", "has no inbox yet"):
        (line,) = lines_with(stream, text)
        assert place_of(line) == PLACE


@aio
async def test_a_bug_in_a_step_says_where() -> None:
    with logging_as_json() as stream:
        async with probe(ProbeShell(events=go())) as service:
            service.runner.feed_soon(KEY, "no event at all")
            line = await line_with(stream, "could not be taken")

    assert place_of(line) == PLACE


def test_two_parties_in_one_process_are_told_apart(measured: Measured) -> None:
    steps = [line for line in measured.lines if str(line["message"]).startswith("run takes")]

    by_party = {party: [line for line in steps if line["party"] == party] for party in measured.registries}
    # The coordinator's machine knows events that no other has, and the other way round.
    assert all("PartyJoined" not in str(line["message"]) for line in by_party[measured.manifest.clients[0]])
    assert any("PartyJoined" in str(line["message"]) for line in by_party[measured.manifest.coordinator])
