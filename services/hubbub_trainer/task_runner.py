"""Runs the owner's task, and hides its failures from other parties.

Training or evaluation may fail because of this client's data, on a model that others may have chosen to find that
out. If the run failed with it, or the client stayed away, everybody would learn whose task it was. So the client
goes on as a member like any other, with an empty contribution (`ClientInput.silent`) or the worst score. Only its
owner is told: by an error in the log, by `hubbub_task_failures_total`, and in the notes of the run.

These are failures: an exception of the task, lack of memory, a model that is not finite or of another shape, and
that the process died twice in the same job of one round, which is noted on disk before the job begins. A disk that
fails is not one of them: the write is retried, as everywhere.

A contribution is not sent before all E steps would have been done. The estimate comes from the last round that
succeeded, or else from the steps that were done. Three things remain visible in the timing of messages: the
estimate is not exact, a process that died was away for a while, and a failed evaluation is not padded.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter

from hubbub.errors import BadUpdate, HubbubError, LocalError, StorageFailed
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.protocol.compression import Indices
from hubbub.protocol.metrics import Scores, copy_scores
from hubbub.runtime.clock import Clock
from hubbub_trainer.learning.task import Adjustable, FollowsRounds, Learner, ProgressCallback, TaskFailed
from hubbub_trainer.workspace import Learnt, Workspace

log = logging.getLogger(__name__)

T = TypeVar("T")
Progress = Callable[[PartyId, int, str, int, int], None]
"""Called from a job's thread with the client, the round, what it does, how much is done, and how much there is."""

Sleep = Callable[[float], Awaitable[None]]

TRAINING, EVALUATION = "training", "evaluation"
MOST_BEGINNINGS = 2
"""The most times that a job is begun in a round: once more after a process died in it, and not a third time."""


class Stopping(LocalError):
    """The service is being stopped; training, or what else takes long, is given up."""


class TaskRunner:
    """Runs training and evaluation for one client.

    `slots` bounds how many jobs run at a time; `sleep` waits for the time that a failed training would have taken.
    """

    def __init__(
        self,
        *,
        me: PartyId,
        progress: Progress,
        clock: Clock,
        registry: CollectorRegistry,
        slots: asyncio.Semaphore | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.slots = slots or asyncio.Semaphore(1)
        self.sleep = sleep
        self._me = me
        self._progress = progress
        self._clock = clock
        self._stopping = threading.Event()
        self._failures = Counter(
            "hubbub_task_failures",
            "Failures of this organisation's task, by what it did.",
            ["what"],
            registry=registry,
        )
        for what in (TRAINING, EVALUATION):
            self._failures.labels(what)
        self._failed = 0
        self._told_of_rate = False

    def count_failures(self) -> int:
        """Return the number of failures of the task."""
        return self._failed

    def give_up(self) -> None:
        """Stop the threads that report progress at their next report."""
        self._stopping.set()

    def report(self, key: Key, what: str, done: int, total: int) -> None:
        """Report the progress of a job in a round; raise `Stopping` if the service is being stopped."""
        if self._stopping.is_set():
            raise Stopping("the trainer is being stopped")
        self._progress(self._me, key.round, what, done, total)

    def train(
        self,
        key: Key,
        space: Workspace,
        manifest: Manifest,
        begin: Callable[[Learnt], T],
        *,
        movable: Indices | None = None,
        place: int = 1,
    ) -> tuple[Learnt, T, float]:
        """Train, and begin the round with the update or, if training failed, with nothing.

        With `movable`, a learner that can do so moves only these coordinates; another one moves all of them.
        `place` is the number of this round among those that are released.
        `begin` refuses an update that cannot be sent. The last value is the number of seconds that training would
        still have taken.
        """
        began_s, done, usual_s = self._clock.now_s(), 0, space.record.training_s

        def report(now_done: int, steps: int) -> None:
            nonlocal done
            self.report(key, TRAINING, now_done, steps)
            done = now_done

        try:
            learner = self._prepare(space.learner, manifest, movable, place)
            learnt = self._learn(key, space, manifest, learner, report)
            begun = begin(learnt)
            space.note_training(max(0.0, self._clock.now_s() - began_s))
        except (Exception, SystemExit) as error:  # noqa: BLE001  (It is the owner's code: it may raise anything.)
            self._keep_at_home(key, space, TRAINING, error)
        else:
            return learnt, begun, 0.0
        elapsed_s = max(0.0, self._clock.now_s() - began_s)
        whole_s = usual_s or elapsed_s * manifest.local_steps / max(done, 1)
        # Without a measured step the estimate may be far off, and too long for the phase.
        spare_s = min(max(0.0, whole_s - elapsed_s), manifest.phase_timeout_s / 2)
        nothing = Learnt(np.zeros_like(space.theta), space.memory, silent=True)
        return nothing, begin(nothing), spare_s

    def _prepare(self, learner: Learner, manifest: Manifest, movable: Indices | None, place: int) -> Learner:
        """Return the learner as this round needs it, or as it is if it cannot be adjusted."""
        if isinstance(learner, FollowsRounds):
            learner = learner.in_round(place, manifest.rounds)
        learning_rate = manifest.learning_rate
        if learning_rate is None and movable is None:
            return learner
        if isinstance(learner, Adjustable):
            return learner.adjusted(learning_rate=learning_rate, movable=movable)
        if learning_rate is not None and not self._told_of_rate:
            self._told_of_rate = True
            log.warning(
                "the run asks for a learning rate of %g, which this task cannot be told: it trains with its own, "
                "and nobody else is told",
                learning_rate,
            )
        return learner

    def _learn(
        self, key: Key, space: Workspace, manifest: Manifest, learner: Learner, report: ProgressCallback
    ) -> Learnt:
        _begin(space, TRAINING, key)
        seed = space.secret.seed_for("batches", run=key.run, round_number=key.round)
        training = learner.train(
            space.theta, steps=manifest.local_steps, seed=seed, progress=report, memory=space.memory
        )
        if training.theta.shape != space.theta.shape:
            raise BadUpdate(f"the trained model has shape {training.theta.shape} instead of {space.theta.shape}")
        return Learnt(space.learnt(training.theta), training.memory)

    def evaluate(self, key: Key, space: Workspace) -> Scores:
        """Score the model; if that fails, return no scores, and each counts as the worst."""
        try:
            _begin(space, EVALUATION, key)
            scores = copy_scores(space.learner.evaluate(space.theta, memory=space.memory))
        except (Exception, SystemExit) as error:  # noqa: BLE001  (As above.)
            self._keep_at_home(key, space, EVALUATION, error)
            return {}
        undefined = [name for name, (sums, _) in scores.items() if not np.isfinite(sums).all()]
        if undefined:
            worst = TaskFailed(f"{', '.join(undefined)} is not finite, and counts as the worst")
            self._keep_at_home(key, space, EVALUATION, worst)
        return scores

    def _keep_at_home(self, key: Key, space: Workspace, what: str, error: BaseException) -> None:
        """Report a failure to the owner alone; re-raise an error that is no failure of the task."""
        if isinstance(error, StorageFailed):
            raise error
        if self._stopping.is_set():
            space.take_back()
            raise Stopping("the trainer is being stopped")
        log.error(
            "%s failed in round %d; this client goes on with nothing to say, and nobody else is told: %s",
            what,
            key.round,
            error if isinstance(error, HubbubError) else type(error).__name__,
            # The text of a HubbubError says enough without a traceback.
            exc_info=None if isinstance(error, HubbubError) else error,
        )
        self._failures.labels(what).inc()
        self._failed += 1
        space.note_trouble(key.round, what)


def _begin(space: Workspace, what: str, key: Key) -> None:
    """Note that a job begins; refuse one in which two processes have died."""
    if space.begin(what, key.round) > MOST_BEGINNINGS:
        raise TaskFailed(
            f"the process died {MOST_BEGINNINGS} times during {what} in this round: it is not tried again"
        )
