"""`simulate` as a script or notebook uses it, and what it refuses."""

import asyncio
import os
import signal
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from contextlib import closing
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from hubbub.errors import ConfigurationError, LocalError, ProtocolError
from hubbub.protocol.metrics import Metric, Scores
from hubbub_coordinator.accounts import Account
from hubbub_local import simulate
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import Theta, Training, flatten_tensors, name_tensors
from hubbub_trainer.learning.torch_task import Batch, Data, Site, TorchTask
from hubbub_trainer.saved_model import Headline
from hubbub_trainer.workspace import digest
from support.patience import HANG_S
from support.program import run_python
from support.wrapped_learner import WrappedLearner

QUICK: dict[str, Any] = {"strategy": "no-union", "clients": 3, "rounds": 2, "local_steps": 3}


class Halves(TorchTask):
    """Has a buffer, and a frozen layer that follows from the seed."""

    learning_rate: ClassVar[float] = 0.1

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.BatchNorm1d(8), nn.Linear(8, 2))

    def data(self, site: Site) -> Data:
        inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(site.index))
        labels = (inputs[:, 0] > 0).long()
        return Data(train=(inputs[:80], labels[:80]), test=(inputs[80:], labels[80:]))


class Headed(Halves):
    """Clients agree on the body alone: their labels contradict each other."""

    learning_rate: ClassVar[float] = 0.3
    personal: ClassVar[tuple[str, ...]] = ("head.*",)

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(body=nn.Linear(4, 4), head=nn.Linear(4, 2)))

    def data(self, site: Site) -> Data:
        inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(site.index))
        labels = ((inputs[:, 0] > 0).long() + site.index) % 2
        return Data(train=(inputs[:80], labels[:80]), test=(inputs[80:], labels[80:]))


class Shared(Headed):
    personal: ClassVar[tuple[str, ...]] = ()


class Passing(Halves):
    """Its weights go up by 0.3 in a round, and pass the best place."""

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("distance", high=9.0, higher_is_better=False),)
    momentum: ClassVar[float] = 0.0

    def model(self) -> nn.Module:
        linear = nn.Linear(10, 1, bias=False)
        nn.init.zeros_(linear.weight)
        return linear

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        del batch
        return -next(model.parameters()).sum()

    def evaluate_all(self, model: nn.Module, batches: Iterable[Batch]) -> Scores:
        assert sum(len(targets) for _, targets in batches) == 40
        return {"distance": (abs(float(next(model.parameters()).mean()) - 0.7), 1)}


class Scheduled(Halves):
    """Keeps still after the first round, and notes which it is asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def schedule(self, number: int, rounds: int) -> float:
        self.asked.append((number, rounds))
        return 1.0 if number == 1 else 0.0


class Broken(Halves):
    """Passes its trial, and fails when it is trained on more than one batch."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        if len(self.seen) > 1:
            raise ValueError("a bug")
        self.seen.append(0)
        return super().loss(model, batch)

    def __init__(self) -> None:
        self.seen: list[int] = []


class NeedsAnswers(Halves):
    def __init__(self, answers: int) -> None:
        self.answers = answers


def test_the_result_has_the_model_the_history_and_the_costs() -> None:
    result = simulate("synthetic:300", **QUICK)

    assert (str(result.model.dtype), result.model.shape) == ("float32", (300,))
    assert result.digest == digest(result.model)
    assert [each.round for each in result.history] == [1, 2]
    assert all(len(each.members) == 3 and each.union_size == 300 for each in result.history)
    assert result.metrics == result.history[-1].metrics
    assert result.metrics.keys() == {"accuracy", "loss"}
    bits = sum(cost.payload_bits for each in result.history for cost in each.costs.values())
    assert 8 * result.costs.payload_bytes == bits
    assert result.costs.payload_bytes < result.costs.wire_bytes < result.costs.all_bytes
    assert result.costs.bytes_by_kind["group-contribution"] > 0
    assert np.array_equal(np.concatenate([each.ravel() for each in result.tensors().values()]), result.model)
    assert not result.reached, "the run has no target"
    assert f"synthetic:300, no-union, 2 rounds, accuracy {result.metrics['accuracy']:.2%}" in repr(result)
    assert str(result.model[0]) not in repr(result)


@pytest.mark.parametrize("task", [Halves, Halves()])
def test_a_task_of_ones_own_gives_a_model_for_pytorch(task: Any) -> None:
    result = simulate(task, **QUICK)

    model = Halves().model()
    model.load_state_dict(result.state_dict())
    trained = torch.cat([each.detach().ravel() for each in model.parameters() if each.requires_grad])
    assert np.array_equal(trained.numpy(), result.model)
    assert result.state_dict()["1.num_batches_tracked"] == 6, (
        "the first client has trained two rounds of three steps"
    )
    assert result.manifest.task == "halves"


def test_the_best_model_is_that_of_the_best_round_and_the_last_is_still_the_last() -> None:
    result = simulate(Passing, **{**QUICK, "rounds": 4, "strategy": "fedavg"})
    unscored = simulate(Passing, **{**QUICK, "rounds": 1, "strategy": "fedavg"}, evaluate_every=0)

    distances = [each.metrics["distance"] for each in result.history]
    assert distances == pytest.approx([0.4, 0.1, 0.2, 0.5])
    assert result.best is not None
    assert result.best.headline == Headline(round=2, metric="distance", value=distances[1])
    assert result.best.theta == pytest.approx(np.full(10, 0.6))
    assert result.model == pytest.approx(np.full(10, 1.2))
    assert result.state_dict(best=True)["weight"].tolist()[0] == pytest.approx([0.6] * 10)
    assert result.state_dict()["weight"].tolist()[0] == pytest.approx([1.2] * 10)
    assert unscored.best is None
    with pytest.raises(ConfigurationError, match="was not scored, so there is no best model"):
        unscored.tensors(best=True)


@pytest.mark.parametrize("strategy", ["no-union", "sec-union", "shared-mask", "secure-fedavg"])
def test_clients_share_a_body_and_keep_their_heads(strategy: str) -> None:
    more = {"sec-union": {"q": 4, "rho": 0.5}, "secure-fedavg": {}}.get(strategy, {"rho": 0.5})
    options = {**QUICK, "strategy": strategy, "rounds": 6, "local_steps": 20, "clients": 2, **more}
    result, one_head = simulate(Headed, **options), simulate(Shared, **options)

    assert result.model.shape == (20,), "N is the body's"
    assert result.tensors().keys() == {"body.weight", "body.bias", "head.weight", "head.bias"}
    assert np.array_equal(flatten_tensors(result.task, result.tensors()), result.model), "as --resume reads it"
    untrained = name_tensors(result.task, result.model, seed=result.manifest.seed, buffers={})
    assert not np.array_equal(result.tensors()["head.weight"], untrained["head.weight"]), (
        "the client's own is saved"
    )
    assert result.metrics["accuracy"] > 0.8
    assert one_head.metrics["accuracy"] < 0.7


def test_a_schedule_hears_of_every_round_at_every_client() -> None:
    task = Scheduled()

    once, twice = (simulate(task, **{**QUICK, "rounds": rounds, "strategy": "fedavg"}) for rounds in (1, 2))

    in_runs = Counter(each for each in task.asked if each[1] < 100)  # The trial pretends to have 100.
    assert in_runs == {(1, 1): 3, (1, 2): 3, (2, 2): 3}
    assert once.digest == twice.digest, "a rate of 0 moves nothing in the second round"


def test_an_object_that_is_no_torch_task_is_taken_as_it_is_and_ends_at_its_target() -> None:
    result = simulate(SyntheticTask(300), **{**QUICK, "rounds": 9}, target=0.01)

    assert result.reached
    assert len(result.history) < 9
    assert result.history[-1].metrics["accuracy"] >= 0.01


class ConstantLearner(WrappedLearner):
    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        del theta, memory
        return {"accuracy": (1.0, 4), "loss": (1.0, 1)}


class Constant(SyntheticTask):
    """Trains, and is always as good."""

    def learner(self, *, index: int, clients: int, seed: int) -> ConstantLearner:  # type: ignore[override]
        return ConstantLearner(super().learner(index=index, clients=clients, seed=seed))


def test_a_run_that_does_not_improve_ends_after_its_patience_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = simulate(Constant(300), **{**QUICK, "rounds": 9}, patience=2)
    moving = simulate("synthetic:300", **{**QUICK, "rounds": 3}, patience=2)

    plateau = "accuracy was no better than 25.00% in the last 2 scored rounds"
    assert (len(result.history), result.reason) == (3, f"{plateau}, which is the patience of the run")
    assert result.stalled.startswith(f"{plateau}; docs/")
    assert not result.reached
    assert ", stalled;" in repr(result)
    assert (moving.reason, moving.stalled) == ("all 3 rounds are done", "")
    logged = [each.getMessage() for each in caplog.records if each.name == "hubbub_coordinator.service"]
    assert [line for line in logged if "stalled" in line] == [
        f"run {result.manifest.run_id} is stalled: {result.stalled}"
    ]


def test_a_run_in_which_nothing_changes_says_so_when_it_fails() -> None:
    """Trainers leave after the second such round."""
    still = {**QUICK, "strategy": "sec-union", "rounds": 9}
    with pytest.raises(ProtocolError, match=r"policy-void-rounds.*It was stalled: .*\|V\| is 0"):
        simulate("synthetic:300", **still, learning_rate=1e-30)


def test_a_run_can_begin_with_anothers_model_and_draws_other_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, drawn = SyntheticLearner.train, list[int]()

    def train(learner: SyntheticLearner, theta: Theta, *, seed: int, **rest: Any) -> Training:
        drawn.append(seed)
        return original(learner, theta, seed=seed, **rest)

    monkeypatch.setattr(SyntheticLearner, "train", train)
    first = simulate("synthetic:300", **QUICK)
    seeds = set(drawn)
    drawn.clear()

    more = simulate("synthetic:300", initial_model=first.model, **QUICK)
    others = set(drawn)
    again = simulate("synthetic:300", initial_model=first.model, **QUICK)

    assert (len(seeds), len(others)) == (6, 6), "three clients in two rounds"
    assert seeds.isdisjoint(others)
    assert more.manifest.initial_model_sha256 == first.digest
    assert more.manifest.run_id != first.manifest.run_id
    assert more.history[-1].metrics["loss"] < first.history[-1].metrics["loss"]
    assert again.digest == more.digest
    with pytest.raises(LocalError, match="flat float32 vector of 400 elements"):
        simulate("synthetic:400", initial_model=first.model, **QUICK)


async def test_it_works_while_an_event_loop_is_running_in_this_thread() -> None:
    inside = simulate("synthetic:300", **QUICK)

    assert [each.round for each in inside.history] == [1, 2]


def test_an_interrupt_in_a_notebook_ends_the_run_too() -> None:
    called: list[int] = []
    taken = threading.Event()

    def interrupt(last: Account) -> None:
        called.append(last.round)
        if last.round == 1:
            os.kill(os.getpid(), signal.SIGINT)
            # Without this a busy machine may be done with all rounds before its main thread gets to it.
            assert taken.wait(HANG_S)

    def take(number: int, frame: FrameType | None) -> None:
        taken.set()
        signal.default_int_handler(number, frame)

    async def run_cell() -> None:
        simulate("synthetic:300", progress=interrupt, **{**QUICK, "rounds": 100})

    # Not asyncio.run, which turns an interrupt into a cancellation; a notebook does not.
    loop = asyncio.new_event_loop()
    before = signal.signal(signal.SIGINT, take)
    try:
        with closing(loop), pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(run_cell())
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(called) < 100
    assert [each.name for each in threading.enumerate() if each.name.startswith("simulate")] == []


def test_progress_is_a_line_for_each_round_or_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    called: list[Account] = []

    result = simulate("synthetic:300", progress=called.append, **QUICK)
    quiet = capsys.readouterr()
    simulate("synthetic:300", progress=True, **QUICK)
    shown = capsys.readouterr()

    assert tuple(called) == result.history
    assert (quiet.out, quiet.err) == ("", "")
    assert shown.out == ""
    assert [line.partition(",")[0] for line in shown.err.splitlines()] == [
        f"round {each.round} of 2: accuracy {each.metrics['accuracy']:.2%}" for each in result.history
    ]


def test_what_the_callers_function_raises_ends_the_run_and_is_raised() -> None:
    called: list[int] = []

    def stop(last: Account) -> None:
        called.append(last.round)
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        simulate("synthetic:300", progress=stop, **{**QUICK, "rounds": 9})
    assert called == [1]


def test_a_task_that_fails_in_a_run_raises() -> None:
    with pytest.raises(ProtocolError, match="no-union failed: the task failed"):
        simulate(Broken, **QUICK)


@pytest.mark.parametrize(
    ("task", "options", "complaint"),
    [
        ("synthetic:300", {"client": 3}, "simulate has no option 'client'; did you mean 'clients'"),
        ("synthetic:300", {"out": "folder"}, "simulate has no option 'out'"),
        ("synthetic:300", {"clients": 1}, "a cohort needs at least 2 clients"),
        ("synthetic:300", {"strategy": "nonsense"}, "there is no strategy 'nonsense'"),
        ("synthetic:300", {"partition": "dirichlet:0.5"}, "generates each client's data"),
        ("nonsense", {}, "there is no task 'nonsense'"),
        (Halves, {"partition": "dirichlet:0.5"}, "the task halves gets each client's data itself"),
        (NeedsAnswers, {}, "NeedsAnswers could not be made: TypeError"),
        (42, {}, "int is no task"),
    ],
)
def test_what_cannot_be_is_said_in_words(task: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        simulate(task, **{**QUICK, **options})


def test_importing_simulate_waits_for_nothing_until_it_is_used() -> None:
    code = "import sys, hubbub_local; print('numpy' in sys.modules); hubbub_local.simulate; hubbub_local.Result"

    done = run_python("-c", code)

    assert (done.stdout, done.stderr) == ("False\n", "")
