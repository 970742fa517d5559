"""Nobody but the clients decides, or knows, which coordinates a shared mask has.

The coordinator draws up manifests as it likes, and may try many. If a mask followed from one, it could choose
which coordinates are summed, and a server would know them. So the mask follows from the group secret alone.
"""

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from hubbub.messages.manifest import Manifest
from hubbub.protocol.compression import Indices
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import start_federation
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.workspace import digest
from support.builders import make_manifest
from support.parties import parties_of

SEED, ROUNDS, CLIENTS = 7, 3, 3


@dataclass
class Masks:
    """The masks that the clients trained on, in order, by client."""

    seen: dict[int, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    lock: threading.Lock = field(default_factory=threading.Lock)


class ObservedTask(SyntheticTask):
    """A task that notes which coordinates its learners may move."""

    def __init__(self, masks: Masks) -> None:
        super().__init__(1_003)
        self.masks = masks

    def learner(self, *, index: int, clients: int, seed: int) -> "ObservedLearner":
        return ObservedLearner(super().learner(index=index, clients=clients, seed=seed), index, self.masks)


class ObservedLearner(SyntheticLearner):
    def __init__(self, inner: SyntheticLearner, index: int, masks: Masks) -> None:
        vars(self).update(vars(inner))
        self._index, self._masks = index, masks

    def adjusted(self, *, learning_rate: float | None, movable: Indices | None) -> "ObservedLearner":
        assert movable is not None
        with self._masks.lock:
            self._masks.seen[self._index].append(tuple(movable.tolist()))
        return super().adjusted(learning_rate=learning_rate, movable=movable)


def draw_up(task: Task) -> Manifest:
    return make_manifest(
        clients=CLIENTS,
        servers=2,
        rounds=ROUNDS,
        strategy="shared-mask",
        parameters=task.count_parameters(),
        task=task.name,
        local_steps=1,
        seed=SEED,
        initial_model_sha256=digest(task.initial_model(SEED)),
    )


async def run_secretly(folder: Path) -> tuple[Manifest, dict[int, list[tuple[int, ...]]]]:
    """Run with secrets of the clients' own, as outside of a demo."""
    task = ObservedTask(Masks())
    manifest = draw_up(task)
    async with start_federation(
        manifest, parties=parties_of(manifest), folder=folder, load_task=lambda _: task, demo_seed=None
    ) as federation:
        state, run = await federation.run(manifest)
        assert state is runs.State.COMPLETED, run.reason
    return manifest, task.masks.seen


async def test_one_manifest_gives_all_clients_one_mask_and_another_in_every_round_and_federation(
    tmp_path: Path,
) -> None:
    (manifest, first), (again, second) = [await run_secretly(tmp_path / name) for name in ("first", "second")]

    assert manifest == again, "all that a coordinator chooses is the same"
    for seen in (first, second):
        assert len(seen) == CLIENTS
        assert all(masks == seen[0] for masks in seen.values())
    masks = first[0] + second[0]
    assert len(masks) == len(set(masks)) == 2 * ROUNDS
    assert all(len(mask) == manifest.protocol_parameters.kept for mask in masks)
