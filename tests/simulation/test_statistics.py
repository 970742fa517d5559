"""Sums of numbers through the whole federation in one process: what comes out, what stays, when clients leave."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.run_options import RunOptions
from hubbub.runtime.runner import Transition
from hubbub.strategies.base import Theta
from hubbub_coordinator import accounts
from hubbub_coordinator.events import DeadlinePassed, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import make_parties, start_federation
from hubbub_trainer.planning import draw_up_manifest
from hubbub_trainer.saved_model import read_kept_model
from hubbub_trainer.workspace import digest
from support.builders import make_manifest
from support.held_transport import Hold, connect_held
from support.numbers_task import NumbersTask, RangedTask
from support.parties import parties_of

N = 300
OUT_OF_RANGE = 54_321.0


def numbers_of(*said: dict[int, float]) -> list[Theta]:
    inputs = []
    for numbers in said:
        inputs.append(np.zeros(N, np.float32))
        inputs[-1][list(numbers)] = list(numbers.values())
    return inputs


TASK = NumbersTask(numbers_of({0: 400.0, 7: 2.0}, {0: 380.0, 9: -1.5}, {0: 420.0, 7: 1.0, 200: OUT_OF_RANGE}))


def draw_up(strategy: str, **overrides: object) -> Manifest:
    fields: dict[str, object] = {
        "parameters": N,
        "task": TASK.name,
        "rho": 0.1,
        "alpha_max": 1_000.0,
        "initial_model_sha256": digest(TASK.initial_model(0)),
        "chunk_bytes": 256,
        **overrides,
    }
    return make_manifest(clients=3, servers=2, strategy=strategy, **fields)


def notes_of(folder: Path, manifest: Manifest, client: PartyId) -> dict[str, object]:
    (line,) = (folder / client / "runs" / manifest.run_id / "rounds.jsonl").read_text("utf-8").splitlines()
    found: dict[str, object] = json.loads(line)
    return found


@pytest.mark.parametrize("strategy", ["sum", "sparse-sum"])
@pytest.mark.parametrize(("number_bits", "wire"), [(32, "paper"), (64, "paper"), (64, "compact")])
async def test_everybody_ends_with_the_sum_and_only_a_client_itself_knows_what_was_clipped(
    tmp_path: Path, strategy: str, number_bits: int, wire: str
) -> None:
    manifest = draw_up(strategy, rounds=1, number_bits=number_bits, wire=wire)
    async with start_federation(
        manifest, parties=parties_of(manifest), folder=tmp_path, load_task=lambda _: TASK, demo_seed=None
    ) as federation:
        state, run = await federation.run(manifest)
        ((_, data),) = federation.coordinator.find_rounds(manifest.run_id)
        shown = accounts.account(data)

    assert state is runs.State.COMPLETED, run.reason
    for client in manifest.clients:
        model = read_kept_model(tmp_path / client / "runs" / manifest.run_id).theta
        found = {int(index): float(model[index]) for index in np.flatnonzero(model)}
        assert found == {0: 1_200.0, 7: 3.0, 9: -1.5, 200: 1_000.0}
    changed = [notes_of(tmp_path, manifest, client).get("changed") for client in manifest.clients]
    assert changed == [None, None, 1]
    assert (shown.metrics, shown.union_size) == ({}, 4 if strategy == "sparse-sum" else N)
    for cost in shown.costs.values():
        assert cost.payload_bits == cost.predicted_bits > 0
    for other in (manifest.coordinator, *manifest.aggregators, *manifest.clients[:2]):
        for path in (tmp_path / other).rglob("*.*"):
            assert b"changed" not in path.read_bytes(), path


YEARS = [np.random.default_rng(clinic).integers(1930, 2020, 300 + clinic) for clinic in range(3)]
"""Years of birth: their mean is large, and their variance small beside it."""
BASE = 2.0**16


def split_moments(years: NDArray[np.int64]) -> Theta:
    """Count, sum and sum of squares; the last two in high and low digits, because a model has 24 binary digits."""
    moments = np.array([years.size, years.sum(), (years**2).sum()], np.float64)
    return np.concatenate([moments[:1], *divmod(moments[1:], BASE)]).astype(np.float32)


@pytest.mark.parametrize(
    ("strategy", "number_bits", "ranges"),
    [
        ("sum", 32, (1e4, 2.0**24, 2.0**24, BASE, BASE)),
        ("sparse-sum", 32, (1e4, 2.0**24, 2.0**24, BASE, BASE)),
        ("sparse-sum", 64, (2.0**40,) * 5),
    ],
)
async def test_a_variance_beside_a_large_mean_comes_out_right(
    tmp_path: Path, strategy: str, number_bits: int, ranges: tuple[float, ...]
) -> None:
    task, parties = (
        RangedTask([split_moments(years) for years in YEARS], ranges=ranges),
        make_parties(clients=3, servers=2),
    )
    options = RunOptions(strategy=strategy, rho=1.0, number_bits=number_bits, local_steps=1, rounds=1, seed=0)
    manifest = draw_up_manifest(task, options, roster=parties.roster)
    async with start_federation(
        manifest, parties=parties, folder=tmp_path, load_task=lambda _: task, demo_seed=None
    ) as federation:
        state, run = await federation.run(manifest)

    assert state is runs.State.COMPLETED, run.reason
    assert [each.largest for each in manifest.ranges for _ in range(each.count)] == [*ranges]
    model = read_kept_model(tmp_path / manifest.clients[0] / "runs" / manifest.run_id).theta.astype(np.float64)
    patients, total, squares = model[0], *(model[1:3] * BASE + model[3:])
    assert squares / patients - (total / patients) ** 2 == pytest.approx(np.concatenate(YEARS).var(), rel=1e-9)


def test_a_range_that_would_round_whole_numbers_makes_no_manifest_unless_words_are_long() -> None:
    task, parties = RangedTask(TASK.inputs, ranges=(2.0**40,) * N), make_parties(clients=3, servers=2)
    long = RunOptions(strategy="sum", number_bits=64)

    with pytest.raises(ConfigurationError, match=r"sums of whole numbers are not exact: .* or number_bits = 64"):
        draw_up_manifest(task, replace(long, number_bits=32), roster=parties.roster)
    with pytest.raises(ConfigurationError, match="a range is above alpha_max"):
        draw_up_manifest(task, replace(long, alpha_max=2.0**39), roster=parties.roster)
    with pytest.raises(ConfigurationError, match="these are no ranges: largest: "):
        draw_up_manifest(replace(task, ranges=(0.0,) * N), long, roster=parties.roster)
    assert draw_up_manifest(task, long, roster=parties.roster).number_bits == 64
    assert not draw_up_manifest(task, RunOptions(strategy="secure-fedavg"), roster=parties.roster).ranges


@pytest.mark.parametrize("ranges", [(1_000.0,) * N, (1.0,) * N])
async def test_a_trainer_whose_task_has_other_ranges_joins_no_run(
    tmp_path: Path, ranges: tuple[float, ...]
) -> None:
    """Its numbers would be cut off, or be expected to be."""
    manifest, task = draw_up("sum", rounds=1), RangedTask(TASK.inputs, ranges=ranges)
    async with start_federation(
        manifest, parties=parties_of(manifest), folder=tmp_path, load_task=lambda _: task, demo_seed=None
    ) as federation:
        state, run = await federation.run(manifest)

    assert (state, "protocol-task" in run.reason) == (runs.State.FAILED, True)


async def test_a_client_says_its_numbers_no_second_time_after_a_union_without_a_sum(tmp_path: Path) -> None:
    """The next union, without a member of this one, would give away all of that member's indices."""
    manifest = draw_up("sparse-sum", rounds=1, min_clients=2)
    absent = manifest.clients[1]
    hold = Hold((absent, 1, "values"))

    def let_time_pass(moment: Transition) -> None:
        data = moment.data
        if not isinstance(data, rounds.CoordinatorRound) or data.number != 1:
            return
        in_vain = data.current.name == "values" and moment.after is rounds.State.COLLECTING
        if in_vain and isinstance(moment.event, ReceiptArrived) and data.missing() == (absent,):
            federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        if moment.after is rounds.State.VOID:
            hold.lift(1)

    async with start_federation(
        manifest,
        parties=parties_of(manifest),
        folder=tmp_path,
        load_task=lambda _: TASK,
        demo_seed=None,
        connect=connect_held(hold),
        observer=let_time_pass,
    ) as federation:
        state, run = await federation.run(manifest)
        released = [
            record.released is not None and bool(record.released)
            for _, data in federation.coordinator.find_rounds(manifest.run_id)
            for record in data.records
        ]

    assert state is runs.State.FAILED
    assert "(policy-void-rounds)" in run.reason
    assert released.count(True) == 1, "one union, and no other"
