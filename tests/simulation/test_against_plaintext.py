"""The federation in one process gives, after every round, the very model of the plaintext algorithm."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubbub.crypto.secret import ClientSecret
from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Moment
from hubbub.strategies.registry import STRATEGIES
from hubbub_coordinator import accounts
from hubbub_coordinator.events import DeadlinePassed, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import Federation, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.workspace import digest
from support.aio import aio
from support.builders import make_manifest
from support.held_task import HeldTask, Silence
from support.plain_federation import PlainFederation
from support.two_phases import NAME, TwoPhases

TASK = SyntheticTask(1_003)
SEED = 7
DEMO_SEED = 11


def manifest_for(*, clients: int, servers: int, rounds_wanted: int, **overrides: object) -> Manifest:
    fields: dict[str, object] = {
        "parameters": TASK.count_parameters(),
        "task": TASK.name,
        "local_steps": 3,
        "seed": SEED,
        "initial_model_sha256": digest(TASK.initial_model(SEED)),
        "chunk_bytes": 256,
    }
    return make_manifest(clients=clients, servers=servers, rounds=rounds_wanted, **{**fields, **overrides})


def plain(manifest: Manifest) -> PlainFederation:
    def batch_seed(index: int, number: int) -> int:
        secret = ClientSecret.for_demo(DEMO_SEED, index)
        return secret.seed_for("batches", run=manifest.run_id, round_number=number)

    return PlainFederation(
        TASK,
        clients=len(manifest.clients),
        rho=manifest.rho,
        local_steps=manifest.local_steps,
        seed=manifest.seed,
        alpha_max=manifest.alpha_max,
        batch_seed=batch_seed,
    )


def written(folder: Path, manifest: Manifest, client: PartyId) -> dict[int, str]:
    """The digests that a trainer wrote down on its own disk, by round."""
    lines = (folder / client / "runs" / manifest.run_id / "rounds.jsonl").read_text("utf-8").splitlines()
    return {entry["round"]: entry["model_sha256"] for entry in map(json.loads, lines)}


def check_models(folder: Path, manifest: Manifest, expected: dict[int, str]) -> None:
    for client in manifest.clients:
        assert written(folder, manifest, client) == expected, client


def check_costs(federation: Federation, manifest: Manifest) -> list[accounts.Account]:
    found = []
    for state, data in federation.coordinator.find_rounds(manifest.run_id):
        if state is rounds.State.RELEASED:
            found.append(accounts.account(data))
            for name, cost in found[-1].costs.items():
                assert cost.payload_bits == cost.predicted_bits > 0, (data.number, name)
                # What a client that was left out sends too late is payload, and counted by nobody as it arrives.
                if len(found[-1].members) == len(manifest.clients):
                    assert cost.wire_bytes * 8 >= cost.payload_bits
    return found


@pytest.mark.parametrize(("clients", "servers"), [(3, 2), (3, 3), (5, 2), (5, 3)])
@aio
async def test_every_round_equals_the_plaintext_algorithm(tmp_path: Path, clients: int, servers: int) -> None:
    manifest = manifest_for(clients=clients, servers=servers, rounds_wanted=4)
    async with federation_for(manifest, tmp_path) as federation:
        state, _ = await federation.run(manifest)
        assert state is runs.State.COMPLETED
        results = check_costs(federation, manifest)
    reference, expected = plain(manifest), {}
    for number in range(1, 5):
        reference.play_round(number)
        expected[number] = reference.digest()
    assert len(set(expected.values())) == 4
    check_models(tmp_path, manifest, expected)
    assert federation.model_digests(manifest) == dict.fromkeys(manifest.clients, expected[4])
    bits = (2 * clients).bit_length()
    for result in results:
        assert result.members == manifest.clients
        assert result.costs["signs"].payload_bits == 2 * servers * clients * 1_003 * bits
        assert result.costs["factors"].payload_bits == 2 * servers * clients * 32
    assert results[-1].accuracy > results[0].accuracy


# Clients that drop out ----------------------------------------------------------------------------------


@asynccontextmanager
async def federation_for(
    manifest: Manifest, folder: Path, silence: Silence | None = None, watch: Callable[[Moment], None] | None = None
) -> AsyncIterator[Federation]:
    """A federation whose deadlines pass, without waiting, as soon as only silent clients are missing."""
    silence = silence or Silence()
    task = HeldTask(TASK, silence)

    def observe(moment: Moment) -> None:
        if watch is not None:
            watch(moment)
        if not isinstance(moment.data, rounds.Round):
            return
        data = moment.data
        held = {manifest.clients[index] for index in silence.held(data.number)}
        if isinstance(moment.event, ReceiptArrived) and held and set(data.missing()) == held:
            federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        if moment.after in {rounds.State.APPLYING, rounds.State.VOID}:
            silence.lift(data.number)

    async with start_federation(
        manifest, folder=folder, load_task=task.load, demo_seed=DEMO_SEED, observer=observe
    ) as federation:
        try:
            yield federation
        finally:
            silence.lift_all()  # Or their threads would outlive the test.


@aio
async def test_a_client_left_out_keeps_its_update_and_the_history_equals_the_plaintext_one(tmp_path: Path) -> None:
    manifest = manifest_for(clients=5, servers=3, rounds_wanted=5, min_clients=3)
    silent = {2: 4, 3: 0}  # Round -> client; in round 4 both send again what they could not send then.
    silence = Silence(*((index, number) for number, index in silent.items()))
    async with federation_for(manifest, tmp_path, silence) as federation:
        state, run = await federation.run(manifest)
        assert (state, run.released, run.void) == (runs.State.COMPLETED, 5, 0)
        results = check_costs(federation, manifest)
    reference, expected = plain(manifest), {}
    for number in range(1, 6):
        members = [index for index in range(5) if silent.get(number) != index]
        reference.play_round(number, members)
        expected[number] = reference.digest()
        assert results[number - 1].members == tuple(manifest.clients[index] for index in members)
    check_models(tmp_path, manifest, expected)
    forgetful = plain(manifest)
    for number in range(1, 6):
        forgetful.play_round(number, [index for index in range(5) if silent.get(number) != index])
        if number in silent:
            forgetful.clients[silent[number]].delta[:] = 0
    assert forgetful.digest() != expected[5], "that it keeps its update makes a difference here"


@aio
async def test_a_void_round_leaves_no_trace_and_the_next_one_is_good(tmp_path: Path) -> None:
    manifest = manifest_for(clients=3, servers=2, rounds_wanted=3, min_clients=3)
    void = 2
    async with federation_for(manifest, tmp_path, Silence((1, void))) as federation:
        state, run = await federation.run(manifest)
        assert (state, run.released, run.void) == (runs.State.COMPLETED, 3, 1)
        found = federation.coordinator.find_rounds(manifest.run_id)
        assert [each for each, _ in found] == [
            rounds.State.RELEASED,
            rounds.State.VOID,
            rounds.State.RELEASED,
            rounds.State.RELEASED,
        ]
        check_costs(federation, manifest)
    reference, expected = plain(manifest), {}
    for number in (1, 3, 4):
        reference.play_round(number)
        expected[number] = reference.digest()
    check_models(tmp_path, manifest, expected)
    kept = plain(manifest)
    for number in (1, 2, 3):
        kept.play_round(number)
    assert kept.digest() != expected[4], "after a void round the batches are fresh"


@aio
async def test_void_rounds_beyond_the_limit_fail_the_run(tmp_path: Path) -> None:
    manifest = manifest_for(clients=3, servers=2, rounds_wanted=2, min_clients=3, max_void_rounds=1)
    async with federation_for(manifest, tmp_path, Silence((1, 1), (1, 2))) as federation:
        state, run = await federation.run(manifest)
    assert state is runs.State.FAILED
    assert "2 rounds were void" in run.reason
    untouched = digest(TASK.initial_model(SEED))
    assert federation.model_digests(manifest) == dict.fromkeys(manifest.clients, untouched)


@aio
async def test_a_deadline_that_really_passes_leaves_a_client_out(tmp_path: Path) -> None:
    """The one test that lets the clock do it: 60 s of patience for others, 1 s for the round."""
    manifest = manifest_for(clients=3, servers=2, rounds_wanted=1, min_clients=2, phase_timeout_s=1.0)
    gate = Silence((2, 1))
    task = HeldTask(TASK, gate)

    def observe(moment: Moment) -> None:
        if moment.after is rounds.State.APPLYING:
            gate.lift_all()

    async with start_federation(
        manifest, folder=tmp_path, load_task=task.load, demo_seed=DEMO_SEED, observer=observe
    ) as federation:
        try:
            state, _ = await federation.run(manifest)
        finally:
            gate.lift_all()
        assert state is runs.State.COMPLETED
        ((_, data),) = federation.coordinator.find_rounds(manifest.run_id)
        assert data.members == frozenset(manifest.clients[:2])


# A strategy with two phases -----------------------------------------------------------------------------


@pytest.fixture
def _two_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, NAME, TwoPhases())


@pytest.mark.usefixtures("_two_phases")
@aio
async def test_two_phases_go_through_the_same_services(tmp_path: Path) -> None:
    manifest = manifest_for(clients=4, servers=2, rounds_wanted=3, min_clients=3, strategy=NAME)
    async with federation_for(manifest, tmp_path, Silence((3, 2))) as federation:
        state, _ = await federation.run(manifest)
        assert state is runs.State.COMPLETED
        found = federation.coordinator.find_rounds(manifest.run_id)
    reference, expected = plain(manifest), {}
    for number in (1, 2, 3):
        reference.play_round(number, [0, 1, 2] if number == 2 else None)
        expected[number] = reference.digest()
    check_models(tmp_path, manifest, expected)
    assert [[record.ended for record in data.records] for _, data in found] == [
        [frozenset(manifest.aggregators)] * 2
    ] * 3
