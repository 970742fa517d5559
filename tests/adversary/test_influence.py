"""One or two clients of five are corrupt and push the model as far as they can, all indices the same way.

Nothing in the sums gives them away: a factor of alpha_max is allowed, and so is a sum of five at an index where
the others said nothing, whoever gave the five. What bounds them is the clamp on the mean factor. The numbers that
are expected here stand in docs/threat-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

import numpy as np
import pytest
from numpy.linalg import norm

from hubbub.messages.manifest import Manifest
from hubbub.protocol.compression import Indices
from hubbub.strategies.base import Theta
from hubbub.strategies.secure import SecureRound
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.round_jobs import RoundJobs
from hubbub_trainer.saved_model import read_kept_model
from hubbub_trainer.workspace import Learnt, OpenRound, Workspace, digest
from support.builders import make_manifest
from support.parties import parties_of
from support.plain_federation import PlainFederation
from support.plain_run import run_plainly
from support.recorder import inner_of

TASK = SyntheticTask(5_003)
SEED, DEMO_SEED = 7, 11
CLIENTS, LAST = 5, 6
RULE_OFF: dict[str, object] = {"kappa": 1e9, "first_factor_bound": 1e9}


def manifest_for(strategy: str, **changes: object) -> Manifest:
    fields: dict[str, object] = {
        "min_clients": CLIENTS,
        "parameters": TASK.count_parameters(),
        "task": TASK.name,
        "seed": SEED,
        "initial_model_sha256": digest(TASK.initial_model(SEED)),
        "strategy": strategy,
        "q": 3,
        "local_steps": 10,
        "rounds": LAST,
        # Where so many pluses make a sum wrap, tags end the run.
        "verified": False,
    }
    return make_manifest(clients=CLIENTS, servers=2, **{**fields, **changes})


def corrupt_some(
    monkeypatch: pytest.MonkeyPatch, manifest: Manifest, corrupt: int, *, rounds: range = range(LAST, LAST + 1)
) -> None:
    """Let the last clients of the cohort send the largest factor; the first of them gives five pluses an index.

    It does so at every index, or where V is agreed on before, at those that it has marked.
    """
    begin, names = RoundJobs._begin, manifest.clients[CLIENTS - corrupt :]

    def begin_corruptly(jobs: RoundJobs, space: Workspace, learnt: Learnt, *, mask: Indices | None) -> OpenRound:
        opened = begin(jobs, space, learnt, mask=mask)
        if jobs.me in names and jobs.key.round in rounds:
            mine, parameters = inner_of(opened.client_round), manifest.protocol_parameters
            assert isinstance(mine, SecureRound)
            mine._factor = parameters.fixed_point.to_ring(parameters.alpha_max)
            everywhere = np.ones_like(mine._signs) if manifest.strategy == "no-union" else mine._signs != 0
            mine._signs = (everywhere * (CLIENTS if jobs.me == names[0] else 0)).astype(np.int8)
        return opened

    monkeypatch.setattr(RoundJobs, "_begin", begin_corruptly)


def play_honestly(manifest: Manifest, rounds: int) -> PlainFederation:
    reference = run_plainly(manifest, TASK, demo_seed=DEMO_SEED)
    for number in range(1, rounds + 1):
        reference.play_round(number)
    return reference


async def end_of(manifest: Manifest, folder: Path) -> Theta:
    """The model that the run ends with, at all clients alike."""
    async with start_federation(
        manifest, parties=parties_of(manifest), folder=folder, load_task=lambda _: TASK, demo_seed=DEMO_SEED
    ) as federation:
        state, run = await federation.run(manifest)
        assert state is runs.State.COMPLETED, run.reason
        assert len(set(federation.model_digests(manifest).values())) == 1
    return read_kept_model(folder / manifest.clients[0] / "runs" / manifest.run_id).theta


@dataclass(frozen=True)
class Push:
    """How far the model moved in the last round, and would have moved with honest clients."""

    largest: float
    length: float
    honest_largest: float
    honest_length: float
    bound: float


async def push(monkeypatch: pytest.MonkeyPatch, folder: Path, manifest: Manifest, corrupt: int) -> Push:
    """All are honest until the last round."""
    corrupt_some(monkeypatch, manifest, corrupt)
    moved = await end_of(manifest, folder)
    reference = play_honestly(manifest, LAST - 1)
    before, bound = reference.theta, manifest.kappa * median_low(reference.means)
    reference.play_round(LAST)
    step, honest = moved - before, reference.theta - before
    return Push(
        largest=float(np.abs(step).max()),
        length=float(norm(step)),
        honest_largest=float(np.abs(honest).max()),
        honest_length=float(norm(honest)),
        bound=bound,
    )


each_number = pytest.mark.parametrize("corrupt", [1, 2])


@pytest.mark.parametrize(
    ("strategy", "corrupt", "largest", "length"),
    [
        ("no-union", 1, 3.30, 224.0),
        ("no-union", 2, 6.48, 444.0),
        ("sec-union", 1, 3.31, 75.1),
        ("sec-union", 2, 6.48, 144.0),
    ],
)
async def test_without_the_rule_every_corrupt_client_adds_its_part_of_alpha_max(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, corrupt: int, largest: float, length: float
) -> None:
    found = await push(monkeypatch, tmp_path, manifest_for(strategy, **RULE_OFF), corrupt)

    assert (found.largest, found.length) == pytest.approx((largest, length), rel=0.02)
    assert found.largest > corrupt * 16 / CLIENTS


@pytest.mark.parametrize(
    ("strategy", "corrupt", "largest", "length"),
    [
        ("no-union", 1, 0.423, 28.7),
        ("no-union", 2, 0.423, 29.0),
        ("sec-union", 1, 0.436, 9.91),
        ("sec-union", 2, 0.436, 9.71),
    ],
)
async def test_with_the_rule_no_number_of_the_model_moves_further_than_the_clamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, corrupt: int, largest: float, length: float
) -> None:
    """Two corrupt clients move it no further than one; with honest ones the round would move it less."""
    found = await push(monkeypatch, tmp_path, manifest_for(strategy), corrupt)

    assert found.largest == pytest.approx(found.bound, rel=1e-5)
    assert (found.largest, found.length) == pytest.approx((largest, length), rel=0.02)
    assert (found.honest_largest, found.honest_length) == pytest.approx((0.1, 1.5), rel=0.1)


@each_number
async def test_the_first_round_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corrupt: int
) -> None:
    manifest = manifest_for("no-union", rounds=1)
    corrupt_some(monkeypatch, manifest, corrupt, rounds=range(1, 2))

    moved = await end_of(manifest, tmp_path)

    step = moved - TASK.initial_model(manifest.seed)
    assert np.abs(step).max() == pytest.approx(manifest.first_factor_bound, rel=1e-5)
