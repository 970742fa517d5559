"""The federation in one process gives, after every round, the very model of the plaintext algorithm."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.runtime.runner import Transition
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.verified import Verified
from hubbub_aggregator.journal import PhaseOutcome
from hubbub_coordinator import accounts
from hubbub_coordinator.events import DeadlinePassed, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import Connect, Federation, start_federation
from hubbub_trainer.learning.networks import LenetTask
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.workspace import digest
from support.builders import make_manifest
from support.held_task import HeldTask, Silence
from support.held_transport import Hold, connect_held
from support.parties import parties_of
from support.plain_federation import Method, PlainFederation
from support.plain_run import run_plainly
from support.thorough import part_of
from support.two_phases import NAME, TwoPhases
from support.wrapped_learner import WrappedLearner, WrappedTask

TASK = SyntheticTask(1_003)
SEED = 7
DEMO_SEED = 11
History = dict[int, tuple[list[str], int]]
"""Round to the digests of the clients' models and |V|."""


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


def plain(manifest: Manifest, task: Task = TASK) -> PlainFederation:
    return run_plainly(manifest, task, demo_seed=DEMO_SEED)


def written(folder: Path, manifest: Manifest, client: PartyId) -> dict[int, str]:
    """The digests that a trainer wrote down on its own disk, by round."""
    lines = (folder / client / "runs" / manifest.run_id / "rounds.jsonl").read_text("utf-8").splitlines()
    return {entry["round"]: entry["model_sha256"] for entry in map(json.loads, lines)}


def check_models(folder: Path, manifest: Manifest, expected: Mapping[int, str | list[str]]) -> None:
    """Compare what all clients wrote down with the one model of a round, or with each client's own."""
    for place, client in enumerate(manifest.clients):
        own = {number: each if isinstance(each, str) else each[place] for number, each in expected.items()}
        assert written(folder, manifest, client) == own, client


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
async def test_every_round_equals_the_plaintext_algorithm(tmp_path: Path, clients: int, servers: int) -> None:
    metrics = tuple(map(MetricClaim.of, TASK.metrics))
    manifest = manifest_for(clients=clients, servers=servers, rounds_wanted=4, metrics=metrics)
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
    assert results[-1].metrics["accuracy"] > results[0].metrics["accuracy"]


# Every strategy -----------------------------------------------------------------------------------------

BLOCKS = ((16, 1), (16, 2), (100, 3), (7, 9))
"""Of how many indices, and q."""
METHODS: dict[str, dict[str, object]] = {
    **{name: {"strategy": name} for name in STRATEGIES},
    **{f"sec-union, q = {q}": {"strategy": "sec-union", "q": q} for q in (2, 9, 32)},
    **{
        f"{name}, {field} = {value}": {"strategy": name, field: value}
        for name in part_of(("sec-union", "partial-sec-union", "topbinary-direct"), 0)
        for field, value in (("alpha_rule", "mean"), ("feedback", "paper"))
    },
    "sec-union, all indices": {"strategy": "sec-union", "q": 3, "rho": 1.0},
    "sec-union, one index": {"strategy": "sec-union", "q": 3, "rho": 0.001},
    # Of 1,003 indices the last block is short in all of these; 100 of them are six blocks, one block or fourteen.
    **{
        f"sec-union, blocks of {block}, q = {q}, {wire}": {
            "strategy": "sec-union",
            "q": q,
            "block": block,
            "wire": wire,
        }
        for (block, q), wire in part_of([*product(BLOCKS, ("paper", "compact"))], 0, 3, 4, 7)
    },
    **{
        f"{name}, momentum": {"strategy": name, "server_momentum": 0.9}
        for name in ("sec-union", "shared-mask", "secure-fedavg", "fedavg")
    },
    "sec-union, blocks, mean": {"strategy": "sec-union", "q": 2, "block": 16, "alpha_rule": "mean"},
    "sec-union, all blocks": {"strategy": "sec-union", "q": 3, "block": 17, "rho": 1.0},
    "topbinary-sep, all indices": {"strategy": "topbinary-sep", "rho": 1.0},
}


def play(reference: PlainFederation, numbers: Iterable[int], *, without: dict[int, int] | None = None) -> History:
    """Play these rounds, each without the client that is named for it."""
    history: History = {}
    for number in numbers:
        everybody = range(len(reference.clients))
        reference.play_round(number, [index for index in everybody if (without or {}).get(number) != index])
        history[number] = (reference.digests(), reference.union.size)
    return history


def check_history(folder: Path, manifest: Manifest, results: list[accounts.Account], expected: History) -> None:
    check_models(folder, manifest, {number: models for number, (models, _) in expected.items()})
    assert {result.round: result.union_size for result in results} == {
        number: size for number, (_, size) in expected.items()
    }


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
async def test_every_round_of_every_strategy_equals_its_plaintext_algorithm(
    tmp_path: Path, method: dict[str, object]
) -> None:
    manifest = manifest_for(clients=4, servers=2, rounds_wanted=3, chunk_bytes=1_024, **method)
    async with federation_for(manifest, tmp_path) as federation:
        state, run = await federation.run(manifest)
        assert state is runs.State.COMPLETED, run.reason
        results = check_costs(federation, manifest)
    expected = play(plain(manifest), (1, 2, 3))
    assert len({models[0] for models, _ in expected.values()}) == 3
    check_history(tmp_path, manifest, results, expected)


def test_a_strategy_without_a_plaintext_twin_is_compared_with_none() -> None:
    with pytest.raises(LookupError, match="new-union has no plaintext twin"):
        PlainFederation(
            TASK,
            clients=2,
            rho=0.1,
            local_steps=1,
            seed=SEED,
            alpha_max=1.0,
            batch_seed=lambda *_: 0,
            method=Method(strategy="new-union"),
        )


@pytest.mark.parametrize("q", [1, 3])
async def test_feedback_brings_back_what_the_union_lost(tmp_path: Path, q: int) -> None:
    """With the paper's letter it is gone: the two histories part after the first round."""
    ends = {}
    for feedback in ("lost", "paper"):
        manifest = manifest_for(
            clients=4, servers=2, rounds_wanted=2, strategy="sec-union", q=q, feedback=feedback
        )
        history = play(plain(manifest), (1, 2))
        async with federation_for(manifest, tmp_path / feedback) as federation:
            await federation.run(manifest)
            check_history(tmp_path / feedback, manifest, check_costs(federation, manifest), history)
        ends[feedback] = history
    assert ends["lost"][1] == ends["paper"][1]
    assert ends["lost"][2] != ends["paper"][2]


async def test_partial_sec_union_tells_each_client_how_many_indices_only_one_chose(tmp_path: Path) -> None:
    manifest = manifest_for(clients=4, servers=2, rounds_wanted=2, strategy="partial-sec-union")
    async with federation_for(manifest, tmp_path) as federation:
        await federation.run(manifest)
    reference = plain(manifest)
    for number in (1, 2):
        reference.play_round(number)
        assert reference.alone_share is not None
        assert 0 < reference.alone_share < 1
        for client in manifest.clients:
            lines = (tmp_path / client / "runs" / manifest.run_id / "rounds.jsonl").read_text("utf-8").splitlines()
            assert json.loads(lines[number - 1])["alone_share"] == reference.alone_share


async def test_momentum_lives_on_as_in_the_plaintext_algorithm(tmp_path: Path) -> None:
    task = LenetTask(data="digits", cache_folder=tmp_path, announce=print)
    manifest = manifest_for(
        clients=3,
        servers=2,
        rounds_wanted=2,
        task=task.name,
        parameters=task.count_parameters(),
        initial_model_sha256=digest(task.initial_model(SEED)),
        chunk_bytes=2**14,
    )
    async with federation_for(manifest, tmp_path, task=task) as federation:
        state, _ = await federation.run(manifest)
        assert state is runs.State.COMPLETED
    reference, expected = plain(manifest, task), {}
    for number in (1, 2):
        reference.play_round(number)
        expected[number] = reference.digest()
    check_models(tmp_path, manifest, expected)
    forgetful = plain(manifest, task)
    for number in (1, 2):
        for client in forgetful.clients:
            client.memory = None
        forgetful.play_round(number)
    assert forgetful.digest() != expected[2], "that momentum lives on makes a difference here"


# Clients that drop out ----------------------------------------------------------------------------------


@asynccontextmanager
async def federation_for(
    manifest: Manifest,
    folder: Path,
    silence: Silence | None = None,
    watch: Callable[[Transition], None] | None = None,
    task: Task = TASK,
    connect: Connect | None = None,
) -> AsyncIterator[Federation]:
    """A federation whose deadlines pass, without waiting, as soon as only silent clients are missing."""
    silence = silence or Silence()
    held_task = HeldTask(task, silence)

    def observe(moment: Transition) -> None:
        if watch is not None:
            watch(moment)
        if not isinstance(moment.data, rounds.CoordinatorRound):
            return
        data = moment.data
        held = {manifest.clients[index] for index in silence.held(data.number)}
        if isinstance(moment.event, ReceiptArrived) and held and set(data.missing()) == held:
            federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        if moment.after in {rounds.State.APPLYING, rounds.State.VOID}:
            silence.lift(data.number)

    async with start_federation(
        manifest,
        parties=parties_of(manifest),
        folder=folder,
        load_task=held_task.load,
        demo_seed=DEMO_SEED,
        connect=connect,
        observer=observe,
    ) as federation:
        try:
            yield federation
        finally:
            silence.lift_all()  # Or their threads would outlive the test.


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


@pytest.mark.parametrize(("strategy", "block"), [*((name, 1) for name in sorted(STRATEGIES)), ("sec-union", 16)])
async def test_with_every_strategy_a_client_left_out_steps_along_and_says_it_later(
    tmp_path: Path, strategy: str, block: int
) -> None:
    """But for sums of numbers, which nobody keeps: what it says later, it counts anew."""
    manifest = manifest_for(
        clients=4,
        servers=2,
        rounds_wanted=4,
        min_clients=3,
        strategy=strategy,
        q=2,
        block=block,
        chunk_bytes=1_024,
    )
    silent = {2: 3, 3: 0}
    silence = Silence(*((index, number) for number, index in silent.items()))
    async with federation_for(manifest, tmp_path, silence) as federation:
        state, run = await federation.run(manifest)
        assert (state, run.released, run.void) == (runs.State.COMPLETED, 4, 0)
        results = check_costs(federation, manifest)
    check_history(tmp_path, manifest, results, play(plain(manifest), range(1, 5), without=silent))
    assert [len(result.members) for result in results] == [4, 3, 3, 4]


# Weights ------------------------------------------------------------------------------------------------


@dataclass
class UnevenLearner(WrappedLearner):
    """A learner that says how many samples it has."""

    index: int

    @property
    def samples(self) -> int:
        return (60, 25, 10, 5_000)[self.index]


class UnevenTask(WrappedTask):
    """A task whose clients have data of very different sizes."""

    def learner(self, *, index: int, clients: int, seed: int) -> UnevenLearner:
        return UnevenLearner(super().learner(index=index, clients=clients, seed=seed), index)


@pytest.mark.parametrize("wire", ["compact", "paper"])
@pytest.mark.parametrize("strategy", ["secure-fedavg", "no-union", "sec-union", "shared-mask", "fedavg"])
async def test_updates_are_weighed_by_samples_over_the_whole_cohorts_whoever_is_missing(
    tmp_path: Path, strategy: str, wire: str
) -> None:
    uneven = UnevenTask(TASK)
    method = {"strategy": strategy, "weights": "samples", "max_samples": 40, "wire": wire, "chunk_bytes": 1_024}
    manifest = manifest_for(clients=4, servers=2, rounds_wanted=3, min_clients=3, **method)
    async with federation_for(manifest, tmp_path, Silence((0, 2)), task=uneven) as federation:
        state, run = await federation.run(manifest)
        assert state is runs.State.COMPLETED, run.reason
        results = check_costs(federation, manifest)
    reference = plain(manifest, uneven)
    expected = play(reference, (1, 2, 3), without={2: 0})
    check_history(tmp_path, manifest, results, expected)
    equal = play(plain(manifest.model_copy(update={"weights": "equal"}), uneven), (1, 2, 3), without={2: 0})
    assert expected != equal


@pytest.mark.parametrize(
    ("strategy", "block"), [("no-union", 1), ("sec-union", 1), ("sec-union", 16), ("partial-sec-union", 1)]
)
async def test_rounds_whose_mean_factor_is_clamped_equal_the_plaintext_ones(
    tmp_path: Path, strategy: str, block: int
) -> None:
    """Bounds so tight that the rule matters in every round, and a client that is left out of one."""
    bounds: dict[str, object] = {"kappa": 1.5, "first_factor_bound": 0.01, "factor_floor": 0.001}
    method: dict[str, object] = {"strategy": strategy, "q": 2, "block": block, "chunk_bytes": 1_024}
    manifest = manifest_for(clients=4, servers=2, rounds_wanted=4, min_clients=3, **method, **bounds)
    async with federation_for(manifest, tmp_path, Silence((3, 2))) as federation:
        state, run = await federation.run(manifest)
        assert state is runs.State.COMPLETED, run.reason
        results = check_costs(federation, manifest)
    reference = plain(manifest)
    check_history(tmp_path, manifest, results, play(reference, range(1, 5), without={2: 3}))
    assert reference.means == pytest.approx([0.01, 0.015, 0.015, 0.0225])
    for client in manifest.clients:
        lines = (tmp_path / client / "runs" / manifest.run_id / "rounds.jsonl").read_text("utf-8").splitlines()
        assert all(0 < json.loads(line)["scale"] < 1 for line in lines), "the owner may know"


@pytest.mark.parametrize("momentum", [0.0, 0.5])
async def test_a_void_round_leaves_no_trace_and_the_next_one_is_good(tmp_path: Path, momentum: float) -> None:
    manifest = manifest_for(clients=3, servers=2, rounds_wanted=3, min_clients=3, server_momentum=momentum)
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


async def test_void_rounds_beyond_the_limit_fail_the_run(tmp_path: Path) -> None:
    manifest = manifest_for(clients=3, servers=2, rounds_wanted=2, min_clients=3, max_void_rounds=1)
    async with federation_for(manifest, tmp_path, Silence((1, 1), (1, 2))) as federation:
        state, run = await federation.run(manifest)
    assert state is runs.State.FAILED
    assert "2 rounds were void" in run.reason
    untouched = digest(TASK.initial_model(SEED))
    assert federation.model_digests(manifest) == dict.fromkeys(manifest.clients, untouched)


async def test_a_deadline_that_really_passes_leaves_a_client_out(tmp_path: Path) -> None:
    """The one test that lets the clock do it: 60 s of patience for others, 1 s for the round."""
    manifest = manifest_for(clients=3, servers=2, rounds_wanted=1, min_clients=2, phase_timeout_s=1.0)
    gate = Silence((2, 1))
    task = HeldTask(TASK, gate)

    def observe(moment: Transition) -> None:
        if moment.after is rounds.State.APPLYING:
            gate.lift_all()

    async with start_federation(
        manifest,
        parties=parties_of(manifest),
        folder=tmp_path,
        load_task=task.load,
        demo_seed=DEMO_SEED,
        observer=observe,
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
    monkeypatch.setitem(STRATEGIES, NAME, Verified(TwoPhases()))


@pytest.mark.usefixtures("_two_phases")
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


TWO_PHASES = sorted(
    (name, phase.name, block)
    for block in (1, 16)
    for name, strategy in STRATEGIES.items()
    for phase in strategy.phases
    if len(strategy.phases) > 1 and not (strategy.repeats and phase is strategy.phases[-1])
    if block == 1 or name == "sec-union"
)
"""But for a sum that is void after its union: that ends the run."""


@pytest.mark.parametrize(("strategy", "phase", "block"), TWO_PHASES)
async def test_a_round_that_is_void_in_either_phase_is_void_at_all_aggregators(
    tmp_path: Path, strategy: str, phase: str, block: int
) -> None:
    """A member that is missing in the union could be left out, were the others enough; later it cannot.

    In bonawitz it could, in every phase.
    """
    manifest = manifest_for(
        clients=3,
        servers=3,
        rounds_wanted=3,
        min_clients=3 if phase == "union" or strategy == "bonawitz" else 2,
        strategy=strategy,
        q=2,
        block=block,
        chunk_bytes=1_024,
    )
    void, absent = 2, manifest.clients[1]
    hold = Hold((absent, void, phase))

    def let_time_pass(moment: Transition) -> None:
        data = moment.data
        if not isinstance(data, rounds.CoordinatorRound) or data.number != void:
            return
        waits_in_vain = data.current.name == phase and moment.after is rounds.State.COLLECTING
        if waits_in_vain and isinstance(moment.event, ReceiptArrived) and data.missing() == (absent,):
            federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        if moment.after is rounds.State.VOID:
            hold.lift(void)  # Its shares arrive when all is over, and change nothing.

    async with federation_for(manifest, tmp_path, watch=let_time_pass, connect=connect_held(hold)) as federation:
        state, run = await federation.run(manifest)
        assert (state, run.released, run.void) == (runs.State.COMPLETED, 3, 1)
        verdicts = [each for each, _ in federation.coordinator.find_rounds(manifest.run_id)]
        assert verdicts == [rounds.State.RELEASED, rounds.State.VOID, rounds.State.RELEASED, rounds.State.RELEASED]
        results = check_costs(federation, manifest)
        key = Key("phase", manifest.run_id, void, phase)
        assert [aggregator.journal.find(key) for aggregator in federation.aggregators] == [PhaseOutcome(())] * 3
    check_history(tmp_path, manifest, results, play(plain(manifest), (1, 3, 4)))


@pytest.mark.parametrize("phase", [phase.name for phase in STRATEGIES["bonawitz"].phases])
async def test_a_client_may_leave_every_phase_of_bonawitz(tmp_path: Path, phase: str) -> None:
    """Its numbers are in the sum if it has sent them; then only its help to unmask is missing."""
    manifest = manifest_for(
        clients=4, servers=2, rounds_wanted=3, min_clients=2, strategy="bonawitz", chunk_bytes=1_024
    )
    short, absent = 2, manifest.clients[1]
    hold = Hold((absent, short, phase))

    def let_time_pass(moment: Transition) -> None:
        data = moment.data
        if not isinstance(data, rounds.CoordinatorRound) or data.number != short:
            return
        waits_in_vain = data.current.name == phase and moment.after is rounds.State.COLLECTING
        if waits_in_vain and isinstance(moment.event, ReceiptArrived) and data.missing() == (absent,):
            federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        if data.current.name == phase and moment.after is rounds.State.RELEASING:
            hold.lift(short)  # Its set comes when the phase is closed without it.

    async with federation_for(manifest, tmp_path, watch=let_time_pass, connect=connect_held(hold)) as federation:
        state, run = await federation.run(manifest)
        assert (state, run.released, run.void) == (runs.State.COMPLETED, 3, 0), run.reason
        results = check_costs(federation, manifest)
    without = {} if phase == "unmask" else {short: 1}
    check_history(tmp_path, manifest, results, play(plain(manifest), (1, 2, 3), without=without))
