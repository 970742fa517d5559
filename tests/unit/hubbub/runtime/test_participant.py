"""A party that is asked to take part: what it has against it, its one key for the run, and the end of both."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path

import pytest

from hubbub.errors import Code, LocalError, Objection, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Job, Key, Persist
from hubbub.machine.table import STAY, Kind, Step, Table, To
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.runs import GroupConfirmed, PartyFailed, RunEnded, RunKey, RunProposed
from hubbub.runtime.event_log import Transition
from hubbub.runtime.participant import Participant
from hubbub.runtime.runner import KeyedEvent, RunningMachine
from hubbub.runtime.state_folder import STATE_FILE
from hubbub.transport.base import Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import topology_for
from hubbub.trust.audit import read_log
from hubbub.trust.seals import Stage
from hubbub.trust.signed import check_run_key
from support.aio import until
from support.builders import make_envelope, make_manifest
from support.parties import COORDINATOR, identity_of, roster_of, seals_of
from support.refusals import refusing
from support.stand_in import StandIn, stand_in

MANIFEST = make_manifest()
ME = MANIFEST.clients[0]
RUN = Key("run", MANIFEST.run_id)
ROUND = Key("round", MANIFEST.run_id, 1, "signs")


class State(Enum):
    ASKED = auto()
    TAKING_PART = auto()
    OVER = auto()


@dataclass(frozen=True)
class Proposed:
    """The proposal's event."""


@dataclass(frozen=True)
class KeysArrived:
    """Everybody's keys are here."""

    publics: Mapping[PartyId, bytes]


@dataclass(frozen=True)
class Ended:
    """The run is over."""


@dataclass(frozen=True)
class RememberRun(Persist):
    """Never join this run again."""


@dataclass(frozen=True)
class Answer:
    """The answer of the party."""

    objections: tuple[Objection, ...] = ()
    run_key: RunKey | None = None
    publics: Mapping[PartyId, bytes] = field(default_factory=dict)


def consider(data: Answer, event: Proposed) -> Step[State, Answer]:
    del event
    return Step(State.OVER, data) if data.objections else Step(State.TAKING_PART, data, (RememberRun(),))


def note_keys(data: Answer, event: KeysArrived) -> Step[State, Answer]:
    return Step(State.TAKING_PART, replace(data, publics=event.publics))


def end(data: Answer, event: Ended) -> Step[State, Answer]:
    del event
    return Step(State.OVER, data)


TABLE: Table[State, Answer] = {
    State.ASKED: {Proposed: To(consider, State.TAKING_PART, State.OVER)},
    State.TAKING_PART: {
        Proposed: STAY,
        KeysArrived: To(note_keys, State.TAKING_PART),
        Ended: To(end, State.OVER),
    },
    State.OVER: {},
}
KIND = Kind(TABLE, State.ASKED, Answer, lambda *_: ())


class Guest(Participant):
    """A client that keeps its answer in its machine."""

    against: tuple[Objection, ...] = ()

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[KeyedEvent]:
        del size, now_s
        run = Key("run", envelope.run)
        if isinstance(envelope.body, RunProposed):
            return self._receive_proposal(run, envelope, envelope.body, Proposed())
        if self._is_past(run, envelope):
            return self._ignore(envelope)
        self._joined(run, Answer)
        return [(run, Ended())]

    def persist(self, key: Key, effect: Persist, payload: bytes) -> None:
        del payload
        assert isinstance(effect, RememberRun)
        self._remember_run(key.run)

    async def perform(self, key: Key, effect: Effect) -> None:
        raise NotImplementedError

    async def work(self, key: Key, job: Job) -> object:
        raise NotImplementedError

    def describe(self, moment: Transition) -> str:
        del moment
        return ""

    def _object(self, manifest: Manifest) -> tuple[Objection, ...]:
        del manifest
        return self.against

    def _invite(
        self, run: Key, manifest: Manifest, *, objections: tuple[Objection, ...], run_key: RunKey | None
    ) -> None:
        del manifest
        self.runner.add(run, Answer(objections, run_key))

    def propose(self, manifest: Manifest = MANIFEST, sender: PartyId = COORDINATOR) -> Answer:
        envelope = make_envelope(RunProposed(manifest=manifest), sender=sender, recipient=ME, manifest=manifest)
        run = Key("run", manifest.run_id)
        assert self.receive(envelope, size=0, now_s=0.0) == [(run, Proposed())]
        return self._joined(run, Answer)

    def count_late(self, kind: str) -> float | None:
        return self.counters.registry.get_sample_value("hubbub_messages_late_total", {"kind": kind})


def make_guest(folder: Path, transport: Transport | None = None) -> Guest:
    return Guest(
        identity=identity_of(MANIFEST, ME),
        roster=roster_of(MANIFEST),
        transport=transport or MemoryTransport(MemoryBroker(), topology_for(ME, Role.CLIENT)),
        folder=folder,
        kinds={"run": KIND, "round": KIND},
    )


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    party = make_guest(tmp_path)
    yield party
    party.close()


def retire(guest: Guest, key: Key = RUN) -> None:
    guest.retire(key, RunningMachine(KIND, State.OVER, None))


OBJECTION = Objection(Code.POLICY_APPROVAL, "it is not approved")


def test_who_has_nothing_against_a_run_makes_one_key_and_vouches_for_it(guest: Guest, tmp_path: Path) -> None:
    answer, other = guest.propose(), guest.propose(make_manifest(seed=8)).run_key

    assert answer.objections == ()
    assert answer.run_key
    assert answer.run_key.party == ME
    check_run_key(roster_of(MANIFEST), MANIFEST.run_id, answer.run_key)
    assert guest.propose() == answer, "a second proposal makes no second key"
    assert other
    assert other.public_key != answer.run_key.public_key
    assert read_log(tmp_path / "audit.jsonl").party == ME


def test_who_objects_makes_no_key_and_another_role_in_the_manifest_is_objected_to(guest: Guest) -> None:
    others = make_manifest(aggregators=(ME, *MANIFEST.aggregators), cohort=MANIFEST.cohort[1:], min_clients=2)
    objection = Objection(Code.PROTOCOL_MANIFEST, f"the manifest does not name {ME} as client")
    assert guest.propose(others) == Answer((objection,))
    guest.against = (OBJECTION,)

    assert guest.propose() == Answer(guest.against)
    with pytest.raises(LocalError, match="there is no key"):
        guest._seal_of(ROUND)


def test_a_proposal_is_its_coordinators_and_what_is_sealed_of_a_round_and_phase(guest: Guest) -> None:
    with refusing(RejectReason.WRONG_SENDER):
        guest.propose(sender=MANIFEST.clients[1])
    assert guest.runner.machines == {}
    guest.propose()

    assert guest._seal_of(ROUND)[1] == Stage(MANIFEST.run_id, 1, "signs")
    assert guest._seal_of(ROUND, "union")[1] == Stage(MANIFEST.run_id, 1, "union")
    assert guest._seal_of(ROUND)[0] is guest._seal_of(ROUND, "union")[0]


def test_with_the_run_but_not_with_a_round_its_key_and_all_its_machines_are_gone(guest: Guest) -> None:
    guest.propose()
    other = make_manifest(seed=8)
    guest.propose(other)
    guest.runner.add(ROUND, Answer())

    retire(guest, Key("round", MANIFEST.run_id, 2))
    guest._seal_of(ROUND)
    retire(guest)

    assert list(guest.runner.machines) == [Key("run", other.run_id)]
    with pytest.raises(LocalError, match="the run is over"):
        guest._seal_of(ROUND)
    guest._seal_of(Key("round", other.run_id, 1))


# A restart ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(folder: Path, broker: MemoryBroker) -> AsyncIterator[Guest]:
    """A guest that takes part in the traffic; when it ends, it has only stopped, as after a crash."""
    async with MemoryTransport(broker, topology_for(ME, Role.CLIENT)) as transport:
        guest = make_guest(folder, transport)
        try:
            await guest.runner.start()
            yield guest
        finally:
            await guest.runner.stop()
            guest.close()


async def say(coordinator: StandIn, body: Message) -> None:
    await coordinator.say(body, to=ME, role=Role.CLIENT, run=MANIFEST.run_id)


PROPOSAL = RunProposed(manifest=MANIFEST)
ENDED = RunEnded(outcome="cancelled", reason="an operator cancelled it")


def where(guest: Guest) -> Enum | None:
    live = guest.runner.machines.get(RUN)
    return live.state if live else None


def lose_state(folder: Path) -> None:
    for path in folder.glob(f"{STATE_FILE}*"):
        path.unlink()


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob(f"{STATE_FILE}*"))


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[MemoryBroker, StandIn]]:
    broker = MemoryBroker()
    async with (
        stand_in(broker, COORDINATOR, Role.COORDINATOR) as coordinator,
        MemoryTransport(broker, topology_for(ME, Role.CLIENT)),
    ):
        yield broker, coordinator


@asynccontextmanager
async def taking_part(folder: Path, broker: MemoryBroker, coordinator: StandIn) -> AsyncIterator[Guest]:
    """A guest that runs and has joined."""
    async with running(folder, broker) as guest:
        await say(coordinator, PROPOSAL)
        await until(lambda: where(guest) is State.TAKING_PART)
        yield guest


async def join(folder: Path, broker: MemoryBroker, coordinator: StandIn) -> None:
    async with taking_part(folder, broker, coordinator):
        pass


async def test_after_a_restart_it_has_the_same_key_and_everybodys_keys(tmp_path: Path) -> None:
    others = {name: seals.claim for name, seals in seals_of(MANIFEST).items() if name != ME}
    publics = {name: bytes.fromhex(claim.public_key) for name, claim in others.items()}
    async with scene() as (broker, coordinator):
        async with taking_part(tmp_path, broker, coordinator) as guest:
            await guest.runner.feed(RUN, KeysArrived(publics))
            before = guest._seal_of(ROUND)[0]
            guest._accept_keys(MANIFEST.run_id, publics)
        async with running(tmp_path, broker) as guest:
            after = guest._seal_of(ROUND)[0]

            assert after is not before
            assert after.claim == before.claim == guest._joined(RUN, Answer).run_key
            assert after.public(MANIFEST.clients[1]) == publics[MANIFEST.clients[1]]


async def test_a_death_before_the_answer_is_kept_is_no_reason_to_refuse_the_run(tmp_path: Path) -> None:
    async with scene() as (broker, coordinator):
        first = make_guest(tmp_path)
        key = first.propose().run_key
        first._remember_run(MANIFEST.run_id)
        first.close()  # Its event was never kept.

        async with running(tmp_path, broker) as guest:
            assert guest.runner.machines == {}
            await say(coordinator, PROPOSAL)
            await until(lambda: where(guest) is State.TAKING_PART)

            assert guest._joined(RUN, Answer) == Answer((), key)


def count_lost(guest: Guest) -> float | None:
    return guest.counters.registry.get_sample_value("hubbub_runs_lost_total")


async def test_a_loss_is_said_at_every_start_and_to_the_coordinator_alone_until_it_has_ended_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scene() as (broker, coordinator),
        stand_in(broker, MANIFEST.clients[1], Role.CLIENT) as peer,
    ):
        await join(tmp_path, broker, coordinator)
        async with running(tmp_path, broker) as guest:
            await asyncio.gather(*guest.runner.effects.jobs)
            assert (count_lost(guest), coordinator.heard) == (0, []), "nothing is lost yet"
        lose_state(tmp_path)
        async with running(tmp_path, broker) as guest:
            ((envelope, body),) = await coordinator.hear(PartyFailed)
            assert (envelope.run, envelope.sender, body.code) == (MANIFEST.run_id, ME, Code.DISK_LOST)
            assert count_lost(guest) == 1
            await say(coordinator, RoundOpened())
            await coordinator.hear(PartyFailed, 2)
            await until(lambda: guest.count_late("round-opened"))
            confirmed = GroupConfirmed(confirmation="c0" * 32)
            await peer.say(confirmed, to=ME, role=Role.CLIENT, run=MANIFEST.run_id)
            await until(lambda: guest.count_late("group-confirmed"))
            assert count_lost(guest) == 2, "only a coordinator is told"
            assert guest.runner.machines == {}
        assert "has lost what it knew of it" in caplog.text
        async with running(tmp_path, broker) as guest:
            await coordinator.hear(PartyFailed, 3)
            await say(coordinator, ENDED)
            await until(lambda: guest.count_late("run-ended"))
        async with running(tmp_path, broker) as guest:
            await asyncio.gather(*guest.runner.effects.jobs)
            assert (len(coordinator.heard), len(peer.heard)) == (3, 0)
            answer = guest.propose()
    assert answer.run_key is None
    (objection,) = answer.objections
    assert objection.code is Code.PROTOCOL_JOINED_BEFORE
    assert "has taken part in this run before, and a run is joined once" in objection.sentence


async def test_an_order_in_a_run_that_it_knows_nothing_of_is_refused_and_answered(tmp_path: Path) -> None:
    async with scene() as (broker, coordinator), running(tmp_path, broker) as guest:
        await say(coordinator, ENDED)  # Asks for nothing.
        await say(coordinator, RoundOpened())
        ((envelope, body),) = await coordinator.hear(PartyFailed)
        await until(lambda: guest.counters.rejections(RejectReason.UNKNOWN_RUN) == 2)

        assert (envelope.run, body.code) == (MANIFEST.run_id, Code.DISK_LOST)


def test_lost_tombstones_are_put_back_from_the_audit_log(tmp_path: Path) -> None:
    guest = make_guest(tmp_path)
    ended = make_manifest(seed=8).run_id
    for run in (MANIFEST.run_id, ended):
        guest._audit.append("joined", run=run)
    guest._audit.append("ended", run=ended, outcome="completed")
    guest.close()
    shutil.rmtree(tmp_path / "tombstones")

    again = make_guest(tmp_path)
    again.close()

    assert set(again._tombstones) == {MANIFEST.run_id, ended}
    assert again._tombstones.find_open() == [MANIFEST.run_id]


async def test_a_run_that_ended_is_over_also_after_a_restart_and_nothing_is_answered(tmp_path: Path) -> None:
    async with scene() as (broker, coordinator):
        async with running(tmp_path, broker) as guest:
            await say(coordinator, PROPOSAL)
            await say(coordinator, ENDED)
            await until(lambda: RUN in guest._over)
            for body in (RoundOpened(), PROPOSAL):
                await say(coordinator, body)
                await until(lambda kind=body.kind: guest.count_late(kind))  # type: ignore[misc]  # Its own default.
            assert guest.runner.machines == {}
        async with running(tmp_path, broker) as guest:
            assert guest.runner.machines == {}
            await say(coordinator, RoundOpened())
            await until(lambda: guest.count_late("round-opened"))
            await asyncio.gather(*guest.runner.effects.jobs)

        assert coordinator.heard == []


async def test_a_run_that_was_refused_leaves_nothing_and_may_be_proposed_again(tmp_path: Path) -> None:
    async with scene() as (broker, coordinator):
        async with running(tmp_path, broker) as guest:
            guest.against = (OBJECTION,)
            await say(coordinator, PROPOSAL)
            await until(lambda: RUN in guest._over)
            assert len(guest._tombstones) == 0
            await say(coordinator, PROPOSAL)
            await until(lambda: guest.count_late("run-proposed"))
        await join(tmp_path, broker, coordinator)


async def test_with_the_end_of_the_run_its_secrets_and_events_are_gone_from_every_file(tmp_path: Path) -> None:
    other = make_manifest(seed=8)
    async with scene() as (broker, coordinator), taking_part(tmp_path, broker, coordinator) as guest:
        guest._vault.put(MANIFEST.run_id, "group", b"open-sesame" * 1_000)
        guest._vault.put(other.run_id, "group", b"another run's")
        run_key = guest._vault.get(MANIFEST.run_id, "run key")
        assert run_key
        assert run_key in bytes_on_disk(tmp_path)
        assert MANIFEST.run_id.encode() in bytes_on_disk(tmp_path)

        await say(coordinator, ENDED)
        await until(lambda: RUN in guest._over)
        traces = (run_key, b"open-sesame", MANIFEST.run_id.encode())

        # Deleting comes first, overwriting right after it.
        await until(lambda: not any(trace in bytes_on_disk(tmp_path) for trace in traces))

        assert b"another run's" in bytes_on_disk(tmp_path)


async def test_a_death_before_cleaning_up_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as (broker, coordinator):
        async with taking_part(tmp_path, broker, coordinator) as guest:
            run_key = guest._vault.get(MANIFEST.run_id, "run key")
            assert run_key
            with monkeypatch.context() as patch:
                patch.setattr(Guest, "retire", lambda *_: False)
                await guest.runner.feed(RUN, Ended())
        async with running(tmp_path, broker) as guest:
            await until(lambda: not guest._store.read())

            assert RUN in guest._over
            assert guest._tombstones.has_ended(MANIFEST.run_id)
            assert run_key not in bytes_on_disk(tmp_path)
