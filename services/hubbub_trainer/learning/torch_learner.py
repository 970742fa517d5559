"""Task and learner of a user's PyTorch task: flat vectors in, flat vectors out.

The memory holds a client's optimiser state, and the model's buffers and personal parameters, as one vector. The
trainer keeps it with the model and passes it back; it never leaves the machine. Its format is safetensors, which
can hold no code, after the length in bytes, and padded to whole float32 values.

User code runs one call at a time in the whole process: torch's generator belongs to the process, so two that train
at once would draw from each other, and a user's code need not be thread-safe.
"""

from __future__ import annotations

import io
import logging
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.utils.data import default_collate

from hubbub.errors import ConfigurationError
from hubbub.parameters import KAPPA
from hubbub.protocol.compression import Indices
from hubbub.protocol.metrics import Metric, Scores
from hubbub_trainer.learning.batches import order_batches
from hubbub_trainer.learning.own_code import own_code
from hubbub_trainer.learning.task import (
    AdjustableLearner,
    Arrays,
    ProgressCallback,
    RoundLearner,
    TaskFailed,
    Theta,
    Training,
    check_client,
    check_scores,
    check_theta,
    count_elements,
    report_progress,
)
from hubbub_trainer.learning.torch_task import (
    Batch,
    Data,
    Samples,
    Site,
    TorchTask,
    evaluates_at_once,
    find_range,
    has_own_evaluation,
    metrics_of,
    name_of,
)

log = logging.getLogger(__name__)

StateDict: TypeAlias = dict[str, Tensor]

# Names in the memory begin with one of these.
_TENSOR, _NUMBER, _LOCAL = "optimiser", "number", "buffer"
_LENGTH_BYTES = 8
_TRIAL_ROUNDS = 100
_LOWEST_FACTOR = 2 / KAPPA
"""A schedule's last factor, as a part of its median, that leaves the steps of a converging model large enough."""
_WORD_BYTES = 4


# The memory ---------------------------------------------------------------------------------------------


def pack(local: StateDict, optimiser: torch.optim.Optimizer | None) -> Theta | None:
    """Write the memory for the next round: the model's local state and the optimiser's; None if there is none."""
    found = {f"{_LOCAL}.{name}": each for name, each in local.items()}
    states = optimiser.state_dict()["state"] if optimiser else {}
    for place, state in states.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                found[f"{_TENSOR}.{place}.{key}"] = value
            elif isinstance(value, (int, float)):
                found[f"{_NUMBER}.{place}.{key}"] = torch.tensor(float(value), dtype=torch.float64)
            elif value is not None:
                raise TypeError(
                    f"the optimiser keeps {key!r} as {type(value).__name__}, which cannot be written down"
                )
    if not found:
        return None
    # The momentum of sparse gradients is sparse at first.
    content = save({name: each.detach().cpu().to_dense().contiguous().clone() for name, each in found.items()})
    padding = bytes(-len(content) % _WORD_BYTES)
    return np.frombuffer(len(content).to_bytes(_LENGTH_BYTES, "little") + content + padding, dtype="<f4").copy()


def unpack(memory: Theta | None) -> dict[str, Tensor]:
    """Read what `pack` has written."""
    if memory is None:
        return {}
    content = memory.tobytes()
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    found: dict[str, Tensor] = load(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
    return found


def restore(optimiser: torch.optim.Optimizer, kept: dict[str, Tensor]) -> None:
    """Load the kept state into an optimiser."""
    state: dict[int, dict[str, object]] = {}
    for name, value in kept.items():
        kind, _, rest = name.partition(".")
        if kind == _LOCAL:
            continue
        place, _, key = rest.partition(".")
        state.setdefault(int(place), {})[key] = value if kind == _TENSOR else value.item()
    if state:
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


# Adjusted training --------------------------------------------------------------------------------------


def find_rate(optimiser: torch.optim.Optimizer) -> float:
    """Return an optimiser's learning rate, the largest if its groups have several."""
    return max(float(group["lr"]) for group in optimiser.param_groups)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Make this the optimiser's learning rate; groups keep their proportions."""
    largest = find_rate(optimiser)
    for group in optimiser.param_groups:
        group["lr"] = rate * (group["lr"] / largest)


def find_factor(task: TorchTask, number: int, rounds: int) -> float:
    """Return the factor that a task's schedule gives a round's learning rate; raise `ValueError` if it is none."""
    factor = float(task.schedule(number, rounds))
    if not (math.isfinite(factor) and factor >= 0):
        raise ValueError(
            f"`schedule` must return a factor of the learning rate, 0 or more, not {factor} in round {number}"
        )
    return factor


class _Held:
    """The coordinates of θ that must not move, with the values that they keep."""

    def __init__(self, shared: Sequence[nn.Parameter], theta: Theta, movable: Indices | None) -> None:
        self._pieces: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        if movable is None:
            return
        stays = np.ones(theta.size, dtype=np.bool_)
        stays[movable] = False
        for (each, held), (_, start) in zip(_split(shared, stays), _split(shared, theta), strict=True):
            self._pieces.append((each, held, start))

    def clear_gradients(self) -> None:
        """Set their gradients to zero."""
        for each, held, _ in self._pieces:
            if each.grad is not None:
                each.grad.masked_fill_(held, 0)

    def put_back(self) -> None:
        """Undo what the optimiser has done to them."""
        with torch.no_grad():
            for each, held, start in self._pieces:
                each.copy_(torch.where(held, start, each))


# Task and learner ---------------------------------------------------------------------------------------


class OwnTask:
    """A task of the operator's own."""

    def __init__(self, task: TorchTask, *, data: str) -> None:
        self._task = task
        self._data = data
        self._metrics = metrics_of(task)

    @property
    def name(self) -> str:
        """The name that manifests carry."""
        return name_of(self._task)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that the task declares; none once it is known to have no test samples."""
        return self._metrics

    @cached_property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The parameters that θ is made of, in order."""
        return {name: tuple(each.shape) for name, each in self._shared(self._make_model(0)).items()}

    def find_learning_rate(self) -> float:
        """Return the rate of the task's optimiser, which may be one of its own."""
        model = self._make_model(0)
        with own_code("while it made its optimiser"):
            return find_rate(self._task.optimiser(iter(_trained(model).values())))

    def count_parameters(self) -> int:
        """Return N."""
        return count_elements(self.layout)

    def initial_model(self, seed: int) -> Theta:
        """Make the model that a run starts from."""
        return _flatten([*self._shared(self._make_model(seed)).values()])

    def learner(self, *, index: int, clients: int, seed: int) -> TorchLearner:
        """Make the learner of one client, with its data and a model."""
        check_client(index, clients)
        model = self._make_model(seed)
        with own_code("while it got its data"):
            found = self._task.data(Site(data=self._data, index=index, clients=clients, seed=seed))
            if not isinstance(found, Data):
                raise TypeError(f"`data` must return Data(train=..., test=...), not {type(found).__name__}")
            training, test = _Table(found.train, "train"), None
            if found.test is not None and self._metrics:
                test = _Table(found.test, "test")
        if test is None and self._metrics:
            self._metrics = ()
            log.info(
                "task %r has no test samples, so nothing is scored: it takes part only in runs without scores. "
                "Say so with `metrics = ()` in the class, or draw runs up with --evaluate-every 0",
                self.name,
            )
        return TorchLearner(self._task, model, training, test)

    def name_tensors(self, theta: Theta, *, seed: int, buffers: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the whole model by the names of its state_dict; `buffers` also has its personal parameters."""
        model = self._make_model(seed)
        _put([*self._shared(model).values()], theta)
        state = model.state_dict()
        given = {name: torch.tensor(each) for name, each in buffers.items() if name in state}
        # numpy has no bfloat16.
        return {
            name: (each.float() if each.dtype is torch.bfloat16 else each).cpu().numpy()
            for name, each in {**state, **given}.items()
        }

    def _make_model(self, seed: int) -> nn.Module:
        with own_code("while it made its model"), _seeded(seed):
            model = self._task.model()
            if not isinstance(model, nn.Module):
                raise TypeError(f"`model` must return a torch.nn.Module, and returned {type(model).__name__}")
        trained = _trained(model)
        wrong = {str(each.dtype) for each in trained.values()} - {"torch.float32"}
        if wrong:
            raise ConfigurationError(
                f"the model of task {self.name!r} has trained parameters of {', '.join(sorted(wrong))}: make it "
                "with float32, and set mixed_precision to compute with less"
            )
        self._check_personal(list(trained))
        if not any(each.numel() for each in self._shared(model).values()):
            raise ConfigurationError(
                f"the model of task {self.name!r} has no parameters that require gradients"
                f"{' and are not personal' * bool(self._task.personal)}: nothing can be trained together"
            )
        return model

    def _shared(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters that θ is made of."""
        return find_shared(self._task, model)

    def _check_personal(self, trained: Sequence[str]) -> None:
        if not isinstance(self._task.personal, tuple):
            raise ConfigurationError(f"`personal` of task {self.name!r} must be a tuple of names or patterns")
        unused = [each for each in self._task.personal if not any(fnmatchcase(name, each) for name in trained)]
        if unused:
            raise ConfigurationError(
                f"`personal` of task {self.name!r} has {unused[0]!r}, which is no parameter that is trained; "
                f"there are {', '.join(trained)}"
            )


class _Table:
    """Samples that can be taken by row."""

    def __init__(self, samples: Samples, what: str) -> None:
        if isinstance(samples, tuple) and len({len(each) for each in samples}) != 1:
            raise ValueError(f"the tensors of `{what}` must all have a row for each sample")
        self._samples = samples
        self._count = len(samples[0]) if isinstance(samples, tuple) else len(samples)  # type: ignore[arg-type]  # Sized, or it says so.
        if what == "train" and not self._count:
            raise ValueError("there are no training samples")

    def __len__(self) -> int:
        return self._count

    def take(self, rows: NDArray[np.int64], device: torch.device) -> Batch:
        """Collate some samples."""
        if isinstance(self._samples, tuple):
            which = torch.from_numpy(rows)
            return tuple(each.index_select(0, which).to(device) for each in self._samples)
        return _move(default_collate([self._samples[int(row)] for row in rows]), device)

    def targets(self, limit: int) -> Tensor:
        """Return the targets of all samples; of a data set that is not made of tensors only the first `limit`."""
        if isinstance(self._samples, tuple):
            return self._samples[1]
        found: Tensor = self.take(np.arange(min(limit, self._count)), torch.device("cpu"))[1]
        return found


class _Batches:
    """The first samples of a table, batch by batch, each made when it is asked for."""

    def __init__(self, table: _Table, samples: int, size: int, device: torch.device) -> None:
        self._table = table
        self._samples = samples
        self._size = size
        self._device = device

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, self._samples, self._size):
            rows = np.arange(start, min(start + self._size, self._samples))
            yield self._table.take(rows, self._device)


def _move(batch: Batch, device: torch.device) -> Batch:
    match batch:
        case Tensor():
            return batch.to(device)
        case dict():
            return {name: _move(each, device) for name, each in batch.items()}
        case tuple() | list():
            return [_move(each, device) for each in batch]
        case _:
            return batch


class TorchLearner(AdjustableLearner, RoundLearner):
    """One client's side of a user's task. Outside a run its schedule is not asked."""

    def __init__(self, task: TorchTask, model: nn.Module, training: _Table, test: _Table | None) -> None:
        self._task = task
        self._training = training
        self._test = test
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(automatic if task.device == "auto" else task.device)
        self._model = model.to(self._device)
        shared = find_shared(task, model)
        self._shared = [*shared.values()]
        self._parameters = sum(each.numel() for each in self._shared)
        personal = {name: each for name, each in _trained(model).items() if name not in shared}
        # Buffers and personal parameters; a round without a memory begins with their first values.
        self._local: StateDict = {**dict(model.named_buffers()), **personal}
        self._first = {name: each.detach().clone() for name, each in self._local.items()}

    @property
    def samples(self) -> int:
        """The number of training samples that this client holds."""
        return len(self._training)

    @property
    def examples(self) -> int:
        """The number of test samples that this client scores."""
        return 0 if self._test is None else len(self._test)

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Take steps with the task's optimiser, which continues from the memory.

        If only some coordinates move, or the task does not keep its optimiser, that begins afresh, and the memory
        is the buffers alone.
        """
        check_theta(theta, self._parameters)
        order = order_batches(self.samples, steps=steps, batch_size=self._task.batch_size, seed=seed)
        with own_code("in training"), _seeded(seed):
            torch.set_num_threads(self._task.threads)
            kept = unpack(memory)
            self._load(theta, kept)
            optimiser = self._task.optimiser(iter(_trained(self._model).values()))
            goes_on = self._task.keep_optimiser and self.movable is None
            if goes_on:
                restore(optimiser, kept)
            if self.learning_rate is not None:
                set_rate(optimiser, self.learning_rate)
            if self.place is not None:
                factor = find_factor(self._task, *self.place)
                for group in optimiser.param_groups:
                    group["lr"] *= factor
            held = _Held(self._shared, theta, self.movable)
            self._model.train()
            for number, rows in enumerate(report_progress(order, progress), start=1):
                self._step(optimiser, self._training.take(rows, self._device), number, held)
                held.put_back()
            trained = _flatten(self._shared)
            if not np.isfinite(trained).all():
                raise ArithmeticError("the model is not finite any more: try a smaller learning rate")
            return Training(theta=trained, memory=pack(self._local, optimiser if goes_on else None))

    def _step(self, optimiser: torch.optim.Optimizer, batch: Batch, number: int, held: _Held) -> None:
        optimiser.zero_grad(set_to_none=True)
        with self._precision():
            loss = self._task.loss(self._model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise TypeError("`loss` must return a tensor with one element, the mean loss of the batch")
        if not torch.isfinite(loss):
            raise ArithmeticError(
                f"the loss is {loss.item()} at step {number}: try a smaller learning rate, and look for samples "
                "that are not finite"
            )
        loss.backward()  # type: ignore[no-untyped-call]  # So torch has it.
        if self._task.max_gradient_norm is not None:
            for each in self._model.parameters():
                if each.grad is not None:
                    # torch cannot clip sparse ones.
                    each.grad = each.grad.to_dense()
            held.clear_gradients()
            nn.utils.clip_grad_norm_(self._model.parameters(), self._task.max_gradient_norm)
        optimiser.step()

    def try_out(self, theta: Theta) -> None:
        """Train on one batch, score one batch, and warn of a regression's targets that are out of range."""
        if self._test is not None and not self.examples:
            raise TaskFailed(
                "there are no test samples, so nothing can be scored: give some, or leave `test` of Data out"
            )
        self._try_schedule()
        self.in_round(1, _TRIAL_ROUNDS).train(theta, steps=1, seed=0, progress=lambda _done, _steps: None)
        if self._test is None:
            return
        some = self.examples
        if not evaluates_at_once(self._task):
            some = min(some, self._task.evaluation_batch_size)
        check_scores(metrics_of(self._task), self._evaluate(theta, None, some))
        if self._task.metrics == "regression" and not has_own_evaluation(self._task):
            for what, table in (("training", self._training), ("test", self._test)):
                self._warn_of_targets(what, table)

    def _try_schedule(self) -> None:
        """Warn if the rate falls so low that clients would take some of the last rounds for standing still."""
        with own_code("in its schedule"):
            factors = [find_factor(self._task, number + 1, _TRIAL_ROUNDS) for number in range(_TRIAL_ROUNDS)]
        if factors[-1] < _LOWEST_FACTOR * statistics.median_low(factors):
            log.warning(
                "`schedule` ends at less than %g of its median: trainers count rounds in which the model hardly "
                "moves like void ones, and leave after a few; let it end higher",
                _LOWEST_FACTOR,
            )

    def _warn_of_targets(self, what: str, table: _Table) -> None:
        low, high = find_range(self._task)
        targets = table.targets(self._task.evaluation_batch_size)
        outside = int((~((targets >= low) & (targets <= high))).sum())
        if outside:
            log.warning(
                "%d of %d %s targets are outside target_range, %g to %g: scores cut them to it",
                outside,
                targets.numel(),
                what,
                low,
                high,
            )

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Score `theta` on this client's test samples, with this client's buffers."""
        return self._evaluate(theta, memory, self.examples)

    def _evaluate(self, theta: Theta, memory: Theta | None, samples: int) -> Scores:
        check_theta(theta, self._parameters)
        if self._test is None:
            return {}
        batches = _Batches(self._test, samples, self._task.evaluation_batch_size, self._device)
        with own_code("in its evaluation"), torch.inference_mode():
            torch.set_num_threads(self._task.threads)
            self._load(theta, unpack(memory))
            self._model.eval()
            with self._precision():
                return self._task.evaluate_all(self._model, batches)

    def buffers(self, memory: Theta | None) -> dict[str, NDArray[Any]]:
        """Return the model's buffers and personal parameters, as training left them."""
        kept = unpack(memory)
        found = {name: kept.get(f"{_LOCAL}.{name}", each) for name, each in self._first.items()}
        return {name: each.cpu().numpy() for name, each in found.items()}

    def remember(self, buffers: Mapping[str, NDArray[Any]]) -> Theta | None:
        """Return a memory that holds these buffers and personal parameters; those that do not fit are left out."""
        given = {name: torch.tensor(each) for name, each in buffers.items() if name in self._first}
        fitting = {name: each for name, each in given.items() if each.shape == self._first[name].shape}
        return pack(fitting, None)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._task.mixed_precision)

    def _load(self, theta: Theta, kept: dict[str, Tensor]) -> None:
        _put(self._shared, theta)
        with torch.no_grad():
            for name, each in self._local.items():
                each.copy_(kept.get(f"{_LOCAL}.{name}", self._first[name]))


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, shared or not."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def find_shared(task: TorchTask, model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that θ is made of."""
    return {
        name: each
        for name, each in _trained(model).items()
        if not any(fnmatchcase(name, pattern) for pattern in task.personal)
    }


def _put(shared: Sequence[nn.Parameter], theta: Theta) -> None:
    """Copy θ into a model's parameters."""
    with torch.no_grad():
        for each, piece in _split(shared, theta):
            each.copy_(piece)


def _split(shared: Sequence[nn.Parameter], vector: NDArray[Any]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Give each parameter that θ is made of its piece of a vector, on the parameter's device."""
    flat, place = torch.from_numpy(vector.copy()), 0
    for each in shared:
        yield each, flat[place : place + each.numel()].view_as(each).to(each.device)
        place += each.numel()


def _flatten(shared: Sequence[nn.Parameter]) -> Theta:
    pieces = [each.detach().cpu().reshape(-1).numpy() for each in shared]
    return np.concatenate(pieces).astype(np.float32)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Have torch draw from this seed, and leave its generator as it was."""
    devices: list[Any] = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed % 2**63)
        yield


def make_state_dict(arrays: Arrays) -> StateDict:
    """Return a state_dict, for `load_state_dict` of the task's model."""
    return {name: torch.tensor(each) for name, each in arrays.items()}


def write_state_dict(arrays: Arrays) -> bytes:
    """Write a state_dict for `torch.load(file, weights_only=True)`. It has no code in it."""
    content = io.BytesIO()
    torch.save(make_state_dict(arrays), content)
    return content.getvalue()
