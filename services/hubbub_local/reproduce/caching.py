"""Local training that several runs share, where that changes nothing.

A task's `train` gives the same bits for the same model, memory, steps and seed of the batches, on the same
client's data. So what came out can be kept under a digest of all of these, and be given to another run that asks
for the very same: the first round of every strategy that begins with the same seed, all rounds of strategies that
compute the same sums by different protocols, and the rounds of a run that was cut off and is begun again. What is
kept tells as much of the data as an update does, so it is for public data alone and is removed at the end.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hubbub.disk import replace_file
from hubbub.protocol.metrics import Metric, Scores
from hubbub_local.reproduce.measuring import BOOKKEEPING, EVALUATION, TRAINING, Meter
from hubbub_trainer.learning.task import Learner, ProgressCallback, Task, Theta, Training

LIMIT_BYTES = 2 * 2**30
"""Beyond this the entries that were not used for longest go."""
_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What came out of local training, and the CPU seconds that went in; it does not print."""

    training: Training
    cpu_s: float


class TrainingCache:
    """A folder of results; any thread may use it."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._changing = threading.Lock()
        self.hits = 0
        self.misses = 0

    def find(self, key: str) -> Trained | None:
        """What was kept under a key. A damaged file counts as none: it is trained again."""
        path = self._path(key)
        found = None
        with suppress(OSError, SafetensorError, KeyError, ValueError):
            found = _read(path)
            path.touch()  # Used now: the oldest goes first.
        with self._changing:
            self.hits += found is not None
            self.misses += found is None
        return found

    def keep(self, key: str, trained: Trained) -> None:
        """Keep a result, and let the oldest go if there is too much. A full disk is no reason to end a run."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path(key), _write(trained))
            with self._changing:
                self._shrink()

    def clear(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _shrink(self) -> None:
        by_age = sorted((path.stat().st_mtime_ns, path) for path in self._folder.glob(f"*{_SUFFIX}"))
        excess = sum(path.stat().st_size for _, path in by_age) - self._limit_bytes
        for _, path in by_age:
            if excess <= 0:
                return
            excess -= path.stat().st_size
            path.unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"


def _write(trained: Trained) -> bytes:
    theta, memory = trained.training.theta, trained.training.memory
    tensors = {"theta": theta} if memory is None else {"theta": theta, "memory": memory}
    return save(tensors, {"cpu_s": repr(trained.cpu_s), "sha256": _digest(theta, memory)})


def _read(path: Path) -> Trained:
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()
        theta: Theta = file.get_tensor("theta")
        memory: Theta | None = file.get_tensor("memory") if "memory" in file.keys() else None  # noqa: SIM118
    if _digest(theta, memory) != about["sha256"]:
        raise ValueError(f"{path} is damaged")
    return Trained(Training(theta=theta, memory=memory), float(about["cpu_s"]))


def _digest(*parts: str | Theta | None) -> str:
    """SHA-256 over parts, each with its length, so that no two lists of parts run together to the same bytes."""
    digest = hashlib.sha256()
    for part in parts:
        content = b"" if part is None else part.encode() if isinstance(part, str) else part.tobytes()
        # To have no memory is not the same as an empty one.
        digest.update(b"-" if part is None else len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


class CachedTask:
    """A task whose learners ask the cache first, and whose training and evaluation are measured apart."""

    def __init__(
        self, inner: Task, *, data: str, partition: str, cache: TrainingCache | None, meter: Meter
    ) -> None:
        self._inner = inner
        self._about = (data, partition)
        self._cache = cache
        self._meter = meter

    @property
    def name(self) -> str:
        """That of the task itself: a manifest knows of no cache."""
        return self._inner.name

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Those of the task itself."""
        return self._inner.metrics

    def count_parameters(self) -> int:
        """Return N."""
        return self._inner.count_parameters()

    def initial_model(self, seed: int) -> Theta:
        """Make the model that a run starts from."""
        return self._inner.initial_model(seed)

    def learner(self, *, index: int, clients: int, seed: int) -> CachedLearner:
        """Make a client's learner; what makes its data its own goes into every key."""
        inner = self._inner.learner(index=index, clients=clients, seed=seed)
        about = _digest(self.name, *self._about, str(index), str(clients), str(seed))
        return CachedLearner(inner, about, self._cache, self._meter)


class CachedLearner:
    """One client's learner."""

    def __init__(self, inner: Learner, about: str, cache: TrainingCache | None, meter: Meter) -> None:
        self._inner = inner
        self._about = about
        self._cache = cache
        self._meter = meter

    @property
    def samples(self) -> int:
        """The number of training samples that this client holds."""
        return self._inner.samples

    @property
    def examples(self) -> int:
        """The number of examples that are scored."""
        return self._inner.examples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        """Train, or give what the same training gave before."""
        with self._meter.timing(BOOKKEEPING):
            key = _digest(self._about, theta, memory, str(steps), str(seed))
            found = self._cache.find(key) if self._cache else None
        if found is not None:
            self._meter.add_saved(TRAINING, found.cpu_s)
            progress(steps, steps)
            return found.training
        began_s = time.thread_time()
        with self._meter.timing(TRAINING):
            training = self._inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)
        if self._cache:
            with self._meter.timing(BOOKKEEPING):
                self._cache.keep(key, Trained(training, time.thread_time() - began_s))
        return training

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        """Score a model; this is never taken from anywhere."""
        with self._meter.timing(EVALUATION):
            return self._inner.evaluate(theta, memory=memory)
