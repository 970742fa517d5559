"""Services that are killed in the middle of what they do, over a real RabbitMQ, and a broker that is.

Where they are killed is read off their tables. Here every state of every machine has its turn once, at one point
of one transition out of it; tests/soak has all transitions of all parties at all points.
"""

import asyncio
from itertools import cycle
from pathlib import Path

import pytest

from hubbub.ids import PartyId, Role
from hubbub.strategies.registry import find_strategy
from hubbub_trainer.learning.synthetic import SyntheticTask
from support.failpoints import Action, Failpoint, Point
from support.one_process import run_in_one_process
from support.plain_run import run_plainly
from support.private_node import PrivateNode
from support.processes import ProcessFederation, SharedBroker
from support.thorough import only_thorough, part_of
from support.transitions import WHY_NOT, WHY_SELDOM, Row, is_certain, list_rows, list_states, record_rows

DEMO_SEED = 7
TRAINERS = 3

Plan = dict[PartyId, list[Failpoint]]


def federation_at(url: str, folder: Path, *, forked: bool = False) -> ProcessFederation:
    return ProcessFederation(SharedBroker(url), folder, trainers=TRAINERS, demo_seed=DEMO_SEED, forked=forked)


# Where --------------------------------------------------------------------------------------------------


def rows_to_die_in() -> list[Row]:
    """Out of each state, the first transition that every run takes."""
    first: dict[tuple[Role, str, str], Row] = {}
    for row in filter(is_certain, list_rows()):
        first.setdefault((row.role, row.kind, row.state), row)
    return list(first.values())


def plan_deaths(federation: ProcessFederation) -> tuple[Plan, int]:
    """Plan who dies where, parties and points in turn, one in each round; and how many rounds it takes."""
    victims = {
        Role.COORDINATOR: cycle([federation.coordinator_name]),
        Role.AGGREGATOR: cycle(federation.aggregator_names),
        Role.CLIENT: cycle(federation.trainer_names),
    }
    plan: Plan = {}
    number = 0
    for row, point in zip(rows_to_die_in(), cycle(Point)):
        number += row.recurs
        failpoint = Failpoint(
            kind=row.kind, state=row.state, event=row.event, point=point, round=number if row.recurs else 0
        )
        plan.setdefault(next(victims[row.role]), []).append(failpoint)
    plan[next(victims[Role.AGGREGATOR])].append(AWAITING)
    return plan, number


AWAITING = Failpoint(kind="phase", state="awaiting", event="PartialArrived", point=Point.PERSISTED)
"""A combiner's death: in whichever round another's sum comes after its own order, as it does in nearly all."""


VOID = {
    Role.COORDINATOR: (
        Failpoint(kind="run", state="running", event="PauseRequested", point=Point.KEPT),
        Failpoint(kind="round", state="collecting", event="DeadlinePassed", point=Point.KEPT),
        Failpoint(kind="round", state="voiding", event="VoidConfirmed", point=Point.PERFORMED),
        Failpoint(kind="run", state="paused", event="ResumeRequested", point=Point.KEPT),
    ),
    Role.AGGREGATOR: (Failpoint(kind="phase", state="collecting", event="VoidOrdered", point=Point.PERSISTED),),
    Role.CLIENT: (
        Failpoint(kind="round", state="waiting", event="VoidAnnounced", point=Point.SETTLED),
        Failpoint(kind="round", state="closing", event="Closed", point=Point.KEPT),
    ),
}
"""Deaths in a round that is void, in a run that an operator pauses."""
LEAVING = Failpoint(kind="run", state="leaving", event="RoundOver", point=Point.KEPT)
"""The death of a client that has missed the end."""
CATCHING_UP = (
    Failpoint(kind="catchup", state="asking", event="PeerVouched", point=Point.KEPT),
    Failpoint(kind="catchup", state="checking", event="SnapshotTaken", point=Point.BEFORE),
)
"""The deaths of a client whose inbox has overflowed."""


def test_rows_that_a_run_takes_are_those_that_are_said_to_be(tmp_path: Path) -> None:
    federation = federation_at("", tmp_path)
    manifest = federation.draw_up(rounds=3)

    taken = record_rows(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)

    rows = list_rows()
    assert taken >= {row for row in rows if is_certain(row)}
    assert not {row for row in taken if row.event in WHY_NOT}
    assert WHY_NOT.keys() <= {row.event for row in rows}
    assert WHY_SELDOM.keys() <= set(rows)


def test_a_party_dies_in_every_state_of_every_machine() -> None:
    here = {(row.role, row.kind, row.state) for row in rows_to_die_in()}
    rare = {
        (role, failpoint.kind, failpoint.state) for role, failpoints in VOID.items() for failpoint in failpoints
    }
    late = {(Role.CLIENT, failpoint.kind, failpoint.state) for failpoint in (LEAVING, *CATCHING_UP)}
    late.add((Role.AGGREGATOR, AWAITING.kind, AWAITING.state))

    # That one takes a second run; tests/unit/hubbub_trainer/test_succession.py has the deaths in it.
    elsewhere = {(Role.CLIENT, "admission", "inheriting")}
    assert here | rare | late | elsewhere == list_states()
    assert not elsewhere & (here | rare | late)


# Deaths -------------------------------------------------------------------------------------------------


@pytest.mark.broker
def test_run_whose_parties_are_killed_in_every_state_ends_with_the_model_of_one_process(
    amqp_url: str, tmp_path: Path
) -> None:
    federation = federation_at(amqp_url, tmp_path, forked=True)
    plan, rounds = plan_deaths(federation)
    for name, failpoints in plan.items():
        federation.inject(name, failpoints)
    with federation:
        # What recurs between two rounds has its turn at the end of the last but one at the latest.
        manifest = federation.draw_up(rounds=rounds + 2)

        run = federation.submit(manifest)
        digests = federation.finish(run)

        assert federation.pending() == {}
        assert federation.read_run(run).rounds_void == 0
        put_aside = asyncio.run(SharedBroker(amqp_url).dead_letters(federation.roster))
        assert not any(put_aside.values()), "a restart sends nothing that is refused"
    assert digests == run_in_one_process(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)
    assert len(set(digests.values())) == 1


@pytest.mark.broker
def test_void_round_and_a_pause_with_deaths_in_them_are_followed_by_the_rounds_that_they_should(
    amqp_url: str, tmp_path: Path
) -> None:
    federation = federation_at(amqp_url, tmp_path, forked=True)
    federation.allow("shared-mask")
    absent = federation.trainer_names[-1]
    halt = Failpoint(kind="round", state="training", event="Trained", point=Point.BEFORE, action=Action.HALT)
    federation.inject(absent, [halt])
    federation.inject(federation.coordinator_name, VOID[Role.COORDINATOR])
    federation.inject(federation.aggregator_names[0], VOID[Role.AGGREGATOR])
    federation.inject(federation.trainer_names[0], VOID[Role.CLIENT])
    with federation:
        # The next round has a mask of its own.
        manifest = federation.draw_up(rounds=2, strategy="shared-mask", phase_timeout_s=15.0)
        run = federation.submit(manifest)
        federation.wait_until_hit(absent, halt)
        federation.order(run, "pause")

        federation.wait_for(run, lambda view: view.state == "paused")
        federation.services[absent].go_on()
        federation.wait_until_hit(federation.trainer_names[0], VOID[Role.CLIENT][0])
        federation.wait_until_connected()
        federation.order(run, "resume")
        digests = federation.finish(run)

        assert federation.pending() == {}
        assert federation.read_run(run).rounds_void == 1
    plain = run_plainly(manifest, SyntheticTask(), demo_seed=DEMO_SEED)
    for number in (2, 3):
        plain.play_round(number)
    assert set(digests.values()) == {plain.digest()}


@pytest.mark.broker
def test_parties_that_are_killed_in_every_phase_of_bonawitz_come_to_the_sums_of_one_process(
    amqp_url: str, tmp_path: Path
) -> None:
    """A client that has sent shares sends the same again; the server has what it needs of the phases before."""
    federation = federation_at(amqp_url, tmp_path, forked=True)
    federation.allow("bonawitz")
    phases = [phase.name for phase in find_strategy("bonawitz").phases]
    server = [
        Failpoint(kind="phase", state=state, event=event, point=point, phase=phase)
        for phase in phases
        for state, event, point in (
            ("collecting", "CloseOrdered", Point.PERSISTED),
            ("summing", "SumSent", Point.BEFORE),
        )
    ]
    federation.inject(federation.aggregator_names[0], server)
    for number, name in enumerate(federation.trainer_names, start=1):
        # What is kept is not done again, so that each death is one phase later than the one before.
        deaths = [
            Failpoint(kind="round", state=state, event=event, point=point, round=number)
            for state, event in (("sharing", "SharesSent"), ("decoding", "Decoded"))
            for point in (Point.KEPT, Point.PERFORMED, Point.SETTLED)
        ]
        federation.inject(name, deaths)
    with federation:
        manifest = federation.draw_up(rounds=TRAINERS + 1, strategy="bonawitz")
        run = federation.submit(manifest)
        digests = federation.finish(run)

        assert federation.pending() == {}
        assert federation.read_run(run).rounds_void == 0
    assert digests == run_in_one_process(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)
    assert len(set(digests.values())) == 1


@only_thorough
@pytest.mark.broker
def test_client_that_misses_the_end_and_dies_over_it_comes_to_hold_the_model_of_the_others(
    amqp_url: str, tmp_path: Path
) -> None:
    federation = federation_at(amqp_url, tmp_path, forked=True)
    late = federation.trainer_names[-1]
    halt = Failpoint(kind="round", state="queued", event="Go", point=Point.BEFORE, round=2, action=Action.HALT)
    federation.inject(late, [halt, LEAVING])
    with federation:
        manifest = federation.draw_up(rounds=3, phase_timeout_s=4.0, min_clients=2)
        run = federation.submit(manifest)
        federation.wait_for(run, lambda view: view.state == "completed")

        federation.services[late].go_on()
        digests = federation.finish(run)

        assert federation.pending() == {}
        assert federation.read_run(run).rounds_void == 0
    plain = run_plainly(manifest, SyntheticTask(), demo_seed=DEMO_SEED)
    plain.play_round(1)
    for number in (2, 3):
        plain.play_round(number, members=[0, 1])
    assert set(digests.values()) == {plain.digest()}


@pytest.mark.broker
def test_client_whose_inbox_has_overflowed_and_that_dies_over_it_comes_to_hold_the_model_of_the_others(
    amqp_url: str, tmp_path: Path
) -> None:
    federation, rounds = federation_at(amqp_url, tmp_path), 20
    late = federation.trainer_names[-1]
    halt = Failpoint(kind="round", state="queued", event="Go", point=Point.BEFORE, round=2, action=Action.HALT)
    federation.inject(late, [halt, *CATCHING_UP])
    with federation:
        manifest = federation.draw_up(rounds=rounds, phase_timeout_s=3.0, min_clients=2)
        run = federation.submit(manifest)
        federation.wait_until_hit(late, halt)
        federation.stopped.add(late)
        federation.kill(late)
        federation.wait_for_round(run, 3)
        assert asyncio.run(SharedBroker(amqp_url).lose_waiting(late)) > 0
        federation.stopped.remove(late)
        federation.restart(late)

        digests = federation.finish(run)

        assert federation.pending() == {}
        assert federation.read_run(run).rounds_void == 0
        assert late in federation.read_round(run, rounds).members, "it takes part again"
    assert len(set(digests.values())) == 1


# A broker that dies -------------------------------------------------------------------------------------


def plan_outages(federation: ProcessFederation) -> list[tuple[PartyId, Failpoint]]:
    """Plan who stands still where, in the order of a run, so that the broker can be killed just then."""
    coordinator, aggregator = federation.coordinator_name, federation.aggregator_names[0]

    def halt(kind: str, state: str, event: str, number: int = 0, phase: str = "") -> Failpoint:
        return Failpoint(
            kind=kind, state=state, event=event, point=Point.KEPT, round=number, phase=phase, action=Action.HALT
        )

    every_phase = [
        (coordinator, halt("run", "enrolling", "PartyJoined")),
        (coordinator, halt("run", "agreeing", "PartyReady")),
        (aggregator, halt("phase", "collecting", "ChunkArrived", 1, "union")),
        (aggregator, halt("phase", "summing", "SumSent", 2, "union")),
        (aggregator, halt("phase", "collecting", "ChunkArrived", 3, "signs")),
        (aggregator, halt("phase", "summing", "SumSent", 4, "signs")),
        (coordinator, halt("round", "applying", "UpdateApplied", 5)),
    ]
    return part_of(every_phase, 2, 5)


@pytest.mark.broker
def test_broker_that_is_killed_in_every_phase_changes_nothing(private_node: PrivateNode, tmp_path: Path) -> None:
    federation = federation_at(private_node.url, tmp_path, forked=True)
    outages = plan_outages(federation)
    for name in {name for name, _ in outages}:
        federation.inject(name, [failpoint for victim, failpoint in outages if victim == name])
    with federation:
        private_node.settle()
        manifest = federation.draw_up(rounds=6)
        run = federation.submit(manifest)
        for name, failpoint in outages:
            federation.wait_until_hit(name, failpoint)
            private_node.kill()
            federation.services[name].go_on()
            private_node.start()
        digests = federation.finish(run)

        assert federation.read_run(run).rounds_void == 0
    assert digests == run_in_one_process(manifest, federation.parties, tmp_path / "alone", demo_seed=DEMO_SEED)
