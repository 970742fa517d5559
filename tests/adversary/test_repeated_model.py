"""Two looks at clients that train from one and the same model, in cohorts with and without one of them.

In two runs that begin from one model, or in two rounds of which the first moves nothing. Each attack is carried
out with the rule switched off, and then with what a data owner has by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from hubbub.errors import Code
from hubbub.ids import PartyId
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import SumChunk
from hubbub.messages.runs import GroupContribution, RunEnded, RunJoined, RunRefused
from hubbub.messages.shares import ShareChunk
from hubbub.policy import NO_LIMIT
from hubbub.protocol.compression import top_binary
from hubbub.protocol.ring import Residues
from hubbub_coordinator.phases import run as runs
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Theta, Training
from hubbub_trainer.phases import participation
from hubbub_trainer.policy import Policy
from hubbub_trainer.workspace import Workspace, digest
from support import corrupt_party
from support.builders import make_cohort, make_manifest
from support.corrupt_coordinator import Scene, scene_of
from support.corrupt_party import Rewrite, corrupt_federation
from support.held_task import Silence
from support.parties import make_parties
from support.wrapped_learner import WrappedLearner

# Two runs -------------------------------------------------------------------------------------------------


@dataclass
class WholeBatchLearner(WrappedLearner):
    """A client that learns from all of its data in every step: its update follows from the model alone."""

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        del seed
        return self.inner.train(theta, steps=steps, seed=0, progress=progress, memory=memory)


class WholeBatchTask(SyntheticTask):
    """A task without chance."""

    def learner(self, *, index: int, clients: int, seed: int) -> WholeBatchLearner:  # type: ignore[override]
        return WholeBatchLearner(super().learner(index=index, clients=clients, seed=seed))


TASK, SEED, STEPS = WholeBatchTask(203), 7, 3
INITIAL = TASK.initial_model(SEED)
NAMES = tuple(PartyId(f"client-{number}") for number in range(1, 5))
OTHERS, VICTIM = NAMES[:3], NAMES[3]
AGGREGATORS = (PartyId("aggregator-1"), PartyId("aggregator-2"))
EVERYBODY = make_parties(tuple((name, f"org-{number}") for number, name in enumerate(NAMES, 1)), AGGREGATORS)
ENDED = RunEnded(outcome="failed", reason="it has seen enough")


def draw_up(clients: Sequence[PartyId], nonce: str) -> Manifest:
    return make_manifest(
        clients=len(clients),
        cohort=make_cohort(NAMES)[: len(clients)],
        roster_sha256=EVERYBODY.roster.digest,
        parameters=TASK.count_parameters(),
        task=TASK.name,
        seed=SEED,
        initial_model_sha256=digest(INITIAL),
        local_steps=STEPS,
        min_clients=3,
        nonce=nonce * 32,
    )


WITH, WITHOUT, WITH_AGAIN = draw_up(NAMES, "1"), draw_up(OTHERS, "2"), draw_up(NAMES, "3")


def policy(**limits: object) -> Policy:
    """The default, but that manifests of the task need no approval of their own."""
    default = Policy(roster_sha256=EVERYBODY.roster.digest, approve_tasks=(TASK.name,))
    return default.model_copy(update=limits)


async def play(scene: Scene, manifest: Manifest) -> None:
    """One round of a run, and its end."""
    scene.coordinator.manifest = manifest
    await scene.coordinator.enrol()
    await scene.coordinator.play_round(1)


def read_signs(scene: Scene, manifest: Manifest) -> NDArray[np.int64]:
    """The sum of the members' signs, as any client of a run has it: one sign moves the model by one unit."""
    folder = scene.surroundings.folder / OTHERS[0] / "runs" / manifest.run_id
    moved: Theta = load_file(folder / "state-000001.safetensors")["theta"] - INITIAL
    unit = np.abs(moved[moved != 0]).min()
    signs: NDArray[np.int64] = np.rint(moved / unit).astype(np.int64)
    return signs


async def test_without_the_rule_two_runs_from_one_model_subtract_to_the_victims_update(tmp_path: Path) -> None:
    learner = TASK.learner(index=3, clients=4, seed=SEED)
    trained = learner.train(INITIAL, steps=STEPS, seed=1, progress=lambda *_: None)
    chosen = top_binary(trained.theta - INITIAL, WITH.protocol_parameters.kept)

    async with scene_of(
        WITH, tmp_path, task=TASK, parties=EVERYBODY, policy=policy(max_runs_per_model=NO_LIMIT)
    ) as scene:
        for manifest in (WITH, WITHOUT):
            await play(scene, manifest)
        difference = read_signs(scene, WITH) - read_signs(scene, WITHOUT)

    assert np.count_nonzero(difference) > 0
    np.testing.assert_array_equal(difference, chosen.signs)


@pytest.mark.parametrize("second", [WITHOUT, WITH_AGAIN], ids=["without", "with-again"])
async def test_by_default_nobody_begins_a_second_run_from_a_model_and_nothing_of_it_leaves(
    tmp_path: Path, second: Manifest
) -> None:
    async with scene_of(WITH, tmp_path, task=TASK, parties=EVERYBODY, policy=policy()) as scene:
        coordinator = scene.coordinator
        await play(scene, WITH)
        await coordinator.tell(ENDED, coordinator.everybody)
        coordinator.manifest = second
        await coordinator.propose()
        refusals = await coordinator.hear(RunRefused, len(second.clients))

        assert {envelope.sender for envelope, _ in refusals} == set(second.clients)
        assert {body.code for _, body in refusals} == {Code.POLICY_LEDGER}
        assert not said_by_clients(scene, second)


async def test_nor_does_it_help_to_begin_without_the_victim(tmp_path: Path) -> None:
    """The victim knows nothing of the first run. Those who were in it refuse the second."""
    async with scene_of(WITH, tmp_path, task=TASK, parties=EVERYBODY, policy=policy()) as scene:
        coordinator = scene.coordinator
        await play(scene, WITHOUT)
        await coordinator.tell(ENDED, coordinator.everybody)
        coordinator.manifest = WITH
        await coordinator.propose()
        refusals = await coordinator.hear(RunRefused, len(OTHERS))
        joined = await coordinator.hear(RunJoined, len(AGGREGATORS) + 1)

        assert {envelope.sender for envelope, _ in refusals} == set(OTHERS)
        assert {envelope.sender for envelope, _ in joined} == {VICTIM, *AGGREGATORS}
        assert not [each for each in said_by_clients(scene, WITH) if not isinstance(each.body, RunJoined)]


def said_by_clients(scene: Scene, manifest: Manifest) -> list[Envelope]:
    """Keys, parts of the group secret and shares of a run, from whichever client."""
    kinds = (RunJoined, GroupContribution, ShareChunk)
    sent = [each for kind in kinds for each in scene.sent(kind)]
    return [each for each in sent if each.run == manifest.run_id and each.sender in NAMES]


# Two rounds -----------------------------------------------------------------------------------------------

STILL = corrupt_party.draw_up(strategy="no-union", rounds=4)
CORRUPT = STILL.aggregators[1]


def move_nothing(values: list[Residues]) -> None:
    """No factor, no step."""
    values[1][:] = 0


def keep_still(scene: corrupt_party.Scene) -> Rewrite:
    """One aggregator shifts every sum, by what a client on its side knows; with momentum from round 2 on."""
    first = 2 if scene.manifest.server_momentum else 1

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        still = isinstance(envelope.body, SumChunk) and envelope.round >= first
        return [scene.change_sum(envelope, move_nothing) if still else envelope]

    return rewrite


async def run_still(
    folder: Path, manifest: Manifest = STILL
) -> tuple[corrupt_party.Scene, runs.State, runs.CoordinatorRun]:
    """Every round is released and moves nothing; the second, and the fourth, are without the victim."""
    victim = manifest.clients[0]
    async with corrupt_federation(
        manifest,
        folder,
        {CORRUPT: keep_still},
        overdue=lambda data: data.number in {2, 4} and data.missing() == (victim,),
        silence=Silence((0, 2), (0, 4)),
    ) as scene:
        state, run = await scene.run()
    return scene, state, run


async def test_without_the_rule_clients_train_from_one_model_as_often_as_a_corrupt_pair_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participation, "is_small", lambda *_: False)

    scene, state, run = await run_still(tmp_path)

    assert (state, run.released, run.void) == (runs.State.COMPLETED, 4, 0)
    assert set(scene.digests().values()) == {STILL.initial_model_sha256}, "it never moved"


async def test_who_has_given_two_shares_from_a_model_that_does_not_move_leaves_the_run(tmp_path: Path) -> None:
    scene, state, run = await run_still(tmp_path)

    assert state is runs.State.FAILED
    assert run.released <= 2, "what is told first, that it was applied or that somebody leaves, is open"
    assert f"({Code.POLICY_VOID_ROUNDS})" in run.reason
    assert not [each for each in scene.sent if isinstance(each.body, SumChunk) and each.round > 2]


MOVING = corrupt_party.draw_up(strategy="no-union", rounds=4, server_momentum=0.9)


async def test_a_round_in_which_momentum_alone_moves_the_model_counts_as_one_that_moved_nothing(
    tmp_path: Path,
) -> None:
    """The first round is honest. From then on a corrupt pair gives sums of zero, and the model goes on moving."""
    scene, state, run = await run_still(tmp_path, MOVING)

    assert state is runs.State.FAILED
    assert f"({Code.POLICY_VOID_ROUNDS})" in run.reason
    assert not [each for each in scene.sent if isinstance(each.body, SumChunk) and each.round > 3]


async def test_were_the_movement_of_the_model_judged_momentum_would_hide_that_the_sums_are_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Workspace.advance

    def forget_the_sums(space: Workspace, *state: Any, most_step: float = math.inf, **more: Any) -> None:
        del most_step
        advance(space, *state, **more)

    monkeypatch.setattr(Workspace, "advance", forget_the_sums)

    _, state, run = await run_still(tmp_path, MOVING)

    assert (state, run.released, run.void) == (runs.State.COMPLETED, 4, 0)
