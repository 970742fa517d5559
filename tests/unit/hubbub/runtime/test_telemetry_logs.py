"""Log lines name their run, round, phase and party: those of a whole run, and those of what goes wrong."""

import asyncio
import io
import json
import re
from collections.abc import Mapping, Sequence

import pytest

from hubbub.errors import BrokerUnreachable, RejectReason, StorageFailed
from hubbub.ids import Role
from hubbub.machine.effects import CountRefusal, Effect, Publish
from hubbub.messages.envelope import Envelope
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import RunEnded
from hubbub.runtime import runner
from hubbub.runtime.runner import KeyedEvent
from hubbub_coordinator.phases.run import State as RunState
from support.forgetful_store import Disk, ForgetfulStore
from support.measured_run import Line, Measured, logging_as_json, measure_run
from support.parties import COORDINATOR
from support.probe import (
    KEY,
    MANIFEST,
    OTHER,
    Done,
    Failing,
    Go,
    Note,
    Ponder,
    ProbeShell,
    Rang,
    State,
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
    assert {line["party"] for line in ours} == set(measured.counters)
    assert [line for line in ours if line.get("run") != measured.manifest.run_id] == []
    joined = {line["party"] for line in ours if "run takes PartyJoined" in str(line["message"])}
    assert joined == {measured.manifest.coordinator}, (
        "its machine alone knows the event, in one process or several"
    )


def test_every_line_of_a_round_names_its_round_and_every_line_of_a_phase_both(measured: Measured) -> None:
    steps = [line for line in measured.lines if line["logger"] == "hubbub.runtime.runner"]
    rounds = [line for line in steps if str(line["message"]).startswith("round takes")]
    phases = [line for line in steps if str(line["message"]).startswith("phase takes")]

    assert {line.get("round") for line in rounds} == {line.get("round") for line in phases} == {1, 2}
    assert {line.get("phase") for line in phases} == {"union", "signs", "scores"}


def test_trainers_and_aggregators_tell_of_their_progress(measured: Measured) -> None:
    def tell(party: str) -> list[str]:
        lines = [line for line in measured.lines if (line["party"], line["level"]) == (party, "info")]
        return [re.sub(r"\d+\.\d+%?", "N", str(line["message"])) for line in lines]

    parties = "3 clients, 2 aggregators"
    run = f"joined run {measured.manifest.run_id[:12]}: synthetic, sec-union, 2 rounds, {parties}"
    assert tell(measured.manifest.clients[0]) == [
        run,
        "all clients hold the same secret; waiting for the first round",
        *(
            f"round {number}: {told}"
            for number in (1, 2)
            for told in (
                "trained N s",
                "delivered union",
                "delivered signs",
                "applied, 3 of 3 clients in it",
                "delivered scores",
                "accuracy N, loss N over 3 clients",
            )
        ),
        "the run is over: completed",
    ]
    told = {name: tell(name) for name in measured.manifest.aggregators}
    for lines in told.values():
        assert (lines[0], lines[-1]) == (run, "the run is over: completed")
        assert "round 2, signs: closed over 3 of 3 clients" in lines
    released = "round 1, scores: released to the clients"
    assert sum(released in lines for lines in told.values()) == 1, "the combiner alone sends to clients"


# What goes wrong ---------------------------------------------------------------------------------------------


REFUSAL = CountRefusal(RejectReason.CONTRADICTION, "sum-chunk", MANIFEST.aggregators[0], "two sums")


@pytest.mark.parametrize(
    ("wrong", "effect", "text"),
    [
        ({"job": [ZeroDivisionError()]}, Ponder("hard"), "Ponder failed"),
        ({"job": [BrokerUnreachable("nobody is there")]}, Ponder("hard"), "tried again"),
        ({"effect": [StorageFailed("the disk is full")]}, Note("write"), "tried again"),
        ({}, REFUSAL, "two sums"),
        ({}, Publish(MANIFEST.clients[1], Role.CLIENT, RoundOpened()), "has no inbox yet"),
    ],
)
async def test_an_effect_or_a_job_that_fails_is_tried_again_or_refuses_says_where(
    wrong: Mapping[str, list[Exception]], effect: Effect, text: str
) -> None:
    shell = ProbeShell(**{name: Failing(errors[:]) for name, errors in wrong.items()})  # type: ignore[arg-type]  # Either.
    with logging_as_json() as stream:
        async with probe(shell) as service:
            await service.runner.feed(KEY, Go((effect,)))
            line = await line_with(stream, text)

    assert place_of(line) == PLACE


async def test_what_an_effect_or_a_job_logs_itself_says_where() -> None:
    def say(effect: Note | Ponder) -> object:
        runner.log.warning(effect.text)
        return Done("")

    with logging_as_json() as stream:
        async with probe(ProbeShell(effect=say, job=say)) as service:  # type: ignore[arg-type]  # Result unused.
            await service.runner.feed(KEY, Go((Note("an effect"), Ponder("a job"))))
            await service.take(2)

    for text in ("an effect", "a job"):
        assert [place_of(line) for line in lines_with(stream, text)] == [PLACE]


async def test_a_job_that_is_taken_up_again_after_a_restart_says_where() -> None:
    disk, held = Disk(), asyncio.Event()
    with logging_as_json() as stream:
        async with probe(ProbeShell(job_gate=held), store=ForgetfulStore(disk)) as service:
            await service.runner.feed(KEY, Go((Ponder("hard"),)))
        async with probe(ProbeShell(job=Failing([ZeroDivisionError()])), store=ForgetfulStore(disk), fresh=False):
            line = await line_with(stream, "Ponder failed")

    assert place_of(line) == PLACE


async def test_an_event_for_a_machine_that_is_over_and_a_bug_in_a_step_say_where() -> None:
    with logging_as_json() as stream:
        async with probe() as service:
            service.runner.feed_soon(OTHER, Rang(0.0))
            service.runner.feed_soon(KEY, "no event at all")
            over = await line_with(stream, "which is over or never began")
            bug = await line_with(stream, "could not be taken")

    assert place_of(over) == {"party": COORDINATOR, "run": OTHER.run, "round": OTHER.round}
    assert place_of(bug) == PLACE


async def test_a_message_says_where_it_is_looked_at_refused_or_comes_after_the_end() -> None:
    def talk(envelope: Envelope) -> Sequence[KeyedEvent]:
        runner.log.info("I had a look")
        return go_by_kind(envelope)

    with logging_as_json() as stream:
        async with probe(ProbeShell(events=talk)) as service:
            await service.send(RunEnded(outcome="failed", reason=""))
            refused = await line_with(stream, "refused")
            await service.runner.feed(KEY, Go(then=State.OVER))
            await service.send()
            late = await line_with(stream, "changes nothing")

    (looked_at,) = lines_with(stream, "I had a look")
    assert place_of(refused) == place_of(late) == place_of(looked_at) == PLACE
    assert refused["reason"] == RejectReason.WRONG_RECIPIENT.value
