"""Tasks of the operator's own in a whole federation: one that works, and ones with a bug."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from hubbub.errors import ConfigurationError
from hubbub.messages.manifest import Manifest
from hubbub.run_options import RunOptions
from hubbub.runtime.runner import Transition
from hubbub_coordinator.accounts import account
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import Parties, make_parties, start_federation
from hubbub_trainer.learning.registry import Shelf
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.learning.torch_learner import OwnTask
from hubbub_trainer.learning.torch_task import Batch, Data, Site, TorchTask
from hubbub_trainer.planning import draw_up_manifest


class Stripes(TorchTask):
    """Has buffers, which differ from client to client, and a frozen layer."""

    learning_rate: ClassVar[float] = 0.1

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 16).requires_grad_(False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)
        )

    def data(self, site: Site) -> Data:
        inputs = torch.randn(300, 6, generator=torch.Generator().manual_seed(site.index))
        labels = (inputs[:, ::2].sum(dim=1) > 0).long()
        return Data(train=(inputs[:200], labels[:200]), test=(inputs[200:], labels[200:]))


class Blemished(Stripes):
    """One client has a sample that is not finite, which only its own log may tell."""

    name = "blemished"

    def data(self, site: Site) -> Data:
        data = super().data(site)
        if site.index == 1:
            data.train[0].fill_(float("nan"))
        return data


class Strange(Stripes):
    """Fails at every client."""

    name = "strange"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        del model, batch
        raise KeyError("patient 4711")


def load_ours(name: str) -> Task:
    if name == "synthetic:300":
        return SyntheticTask(300)
    raise ConfigurationError(f"there is no task {name!r}")


def draw_up(task: Task, parties: Parties, *, rounds: int) -> Manifest:
    options = RunOptions(strategy="sec-union", rho=0.3, local_steps=10, rounds=rounds, seed=3)
    return draw_up_manifest(task, options, roster=parties.roster)


async def test_clients_with_frozen_layers_and_buffers_end_with_the_same_model(tmp_path: Path) -> None:
    task, parties, accounts = OwnTask(Stripes(), data=""), make_parties(clients=3, servers=2), []
    manifest = draw_up(task, parties, rounds=6)

    def watch(moment: Transition) -> None:
        if moment.after is rounds.State.RELEASED and isinstance(moment.data, rounds.CoordinatorRound):
            accounts.append(account(moment.data))

    async with start_federation(
        manifest, parties=parties, folder=tmp_path, load_task=Shelf([task], load_ours), demo_seed=1, observer=watch
    ) as federation:
        state, _ = await federation.run(manifest)
        digests = federation.model_digests(manifest)

    assert state is runs.State.COMPLETED
    assert len(set(digests.values())) == 1
    assert accounts[-1].metrics["accuracy"] > max(0.8, accounts[0].metrics["accuracy"])


@pytest.mark.parametrize("broken", [Blemished(), Strange()], ids=["not-finite", "exception"])
async def test_a_task_with_a_bug_fails_no_run_and_its_owner_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: TorchTask
) -> None:
    task, parties = OwnTask(broken, data=""), make_parties(clients=3, servers=2)
    manifest = draw_up(task, parties, rounds=2)

    async with start_federation(
        manifest, parties=parties, folder=tmp_path, load_task=Shelf([task], load_ours), demo_seed=1
    ) as federation:
        state, data = await federation.run(manifest)
        digests = federation.model_digests(manifest)

    assert (state, data.released) == (runs.State.COMPLETED, 2)
    assert len(set(digests.values())) == 1
    assert "Traceback" in caplog.text
