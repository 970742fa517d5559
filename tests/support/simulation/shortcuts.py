"""What would be computed anew in every history with the same outcome, and is remembered instead.

All of it follows from its arguments alone, so no history runs otherwise for it: a signature that its owner made is
good, a learner that is given the same model and batches learns the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from pydantic import TypeAdapter

from hubbub import parameters
from hubbub.crypto import signing
from hubbub.crypto.signing import SigningKey
from hubbub.protocol.compression import count_kept
from hubbub.protocol.fixed_point import FixedPoint
from hubbub.protocol.metrics import Scores
from hubbub.store import event_codec
from hubbub.trust import signed
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Theta, Training


def take_shortcuts(patch: pytest.MonkeyPatch) -> None:
    """Remember, for as long as the patch lasts."""
    # Every start of a service would make them anew, which takes longer than all else in a history.
    patch.setattr(event_codec, "TypeAdapter", _adapt)
    # A manifest works these out whenever it is asked for its parameters.
    patch.setattr(parameters, "count_kept", _count_kept)
    patch.setattr(FixedPoint, "for_cohort", _for_cohort)
    _remember_signatures(patch)


_count_kept = cache(count_kept)
_for_cohort = cache(FixedPoint.for_cohort)


@cache
def _adapt_once(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape, config=event_codec._CONFIG)


def _adapt(shape: Any, *, config: object) -> TypeAdapter[Any]:
    del config
    return _adapt_once(shape)


def _remember_signatures(patch: pytest.MonkeyPatch) -> None:
    """What was signed here need not be verified; all else is."""
    made: set[tuple[bytes, bytes, str, bytes]] = set()
    sign, verify = SigningKey.sign, signing.verify

    def sign_noted(key: SigningKey, domain: str, message: bytes) -> bytes:
        signature = sign(key, domain, message)
        made.add((key.public, signature, domain, message))
        return signature

    def verify_others(public: bytes, signature: bytes, domain: str, message: bytes) -> bool:
        return (public, signature, domain, message) in made or verify(public, signature, domain, message)

    patch.setattr(SigningKey, "sign", sign_noted)
    patch.setattr(signed, "verify", verify_others)


class QuickLearner(SyntheticLearner):
    """Knows what it learnt from a model when it was last given it."""

    def __init__(self, inner: SyntheticLearner) -> None:
        super().__init__(inner._world, parameters=inner._parameters, training=inner._training, test=inner._test)
        self._trained: dict[tuple[bytes, int, int], Theta] = {}
        self._scores: dict[bytes, Scores] = {}

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        known = (theta.tobytes(), steps, seed)
        if known not in self._trained:
            training = super().train(theta, steps=steps, seed=seed, progress=progress, memory=memory)
            self._trained[known] = training.theta
        return Training(theta=self._trained[known].copy(), memory=None)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        known = theta.tobytes()
        if known not in self._scores:
            self._scores[known] = super().evaluate(theta, memory=memory)
        return self._scores[known]


class QuickTask(SyntheticTask):
    """Makes its data once for all histories."""

    def __init__(self, parameters: int) -> None:
        super().__init__(parameters)
        self._learners: dict[tuple[int, int, int], QuickLearner] = {}

    def learner(self, *, index: int, clients: int, seed: int) -> QuickLearner:
        who = (index, clients, seed)
        if who not in self._learners:
            self._learners[who] = QuickLearner(super().learner(index=index, clients=clients, seed=seed))
        return self._learners[who]
