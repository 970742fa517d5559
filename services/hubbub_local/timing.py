"""How long rounds take, and what of that is training and evaluation, where all parties share one process.

No client tells anybody how long it took. Whoever runs all of them sees it in their steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hubbub.ids import RunId
from hubbub.runtime.runner import Moment
from hubbub_coordinator.accounts import Account
from hubbub_trainer.events import Evaluated, Trained

Place = tuple[RunId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Where a round's time went: the slowest client's training, its evaluation, and all the rest."""

    training_s: float
    evaluation_s: float
    protocol_s: float


@dataclass(slots=True)
class Stopwatch:
    """Observes trainers, and keeps the slowest of each round."""

    _training_s: dict[Place, float] = field(default_factory=lambda: defaultdict(float))
    _evaluation_s: dict[Place, float] = field(default_factory=lambda: defaultdict(float))

    def observe(self, moment: Moment) -> None:
        """Take in a step of a trainer."""
        place = moment.key.run, moment.key.round
        match moment.event:
            case Trained(training_s=training_s):
                self._training_s[place] = max(self._training_s[place], training_s)
            case Evaluated(evaluation_s=evaluation_s):
                self._evaluation_s[place] = max(self._evaluation_s[place], evaluation_s)

    def split(self, run: RunId, account: Account) -> Durations:
        """Split a round's time, once all clients have finished it: the coordinator may hear of it before us."""
        place = run, account.round
        training_s, evaluation_s = self._training_s[place], self._evaluation_s[place]
        return Durations(
            training_s=training_s,
            evaluation_s=evaluation_s,
            protocol_s=max(0.0, account.round_s - training_s - evaluation_s),
        )
