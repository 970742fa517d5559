"""An aggregator shifts a sum into the impossible, and the coordinator listens to how clients refuse it.

What a client decodes is the sum plus the shift. If the refusal tells what was decoded, the coordinator subtracts
the shift and has the sum, which no server may learn. So a refusal is one code, whatever was summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import Code, FalseSum, PeerError, RejectReason
from hubbub.ids import Role
from hubbub.machine.effects import Failed, Publish, Tell
from hubbub.machine.table import Step, To
from hubbub.messages.codec import KINDS
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import MaskedChunk, SumChunk
from hubbub.messages.runs import PartyFailed
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import Release
from hubbub.strategies.verified import VerifiedRound
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.reasons import tell_failure
from hubbub_trainer.events import RoundBroken
from hubbub_trainer.learning.task import ProgressCallback, Theta, Training
from hubbub_trainer.phases.round import TRANSITIONS, ClientRound, State
from support.corrupt_party import TASK, Rewrite, Scene, corrupt_federation, draw_up, is_said
from support.frames import encode
from support.wrapped_learner import WrappedLearner, WrappedTask

CORRUPT = draw_up().aggregators[1]
RING = 1 << 32
DELTA = RING - (1 << 29)
"""Added to a sum of factors below an eighth of the ring, it gives more than the members can have."""


# Clients whose data differ --------------------------------------------------------------------------------


@dataclass
class ScaledLearner(WrappedLearner):
    """A learner that goes so many times as far, and so has other factors."""

    scale: float

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        training = self.inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)
        further = theta + np.float32(self.scale) * (training.theta - theta)
        return replace(training, theta=further.astype(np.float32))


@dataclass
class ScaledTask(WrappedTask):
    """The task of the manifest, on other data."""

    scale: float

    def learner(self, *, index: int, clients: int, seed: int) -> ScaledLearner:
        return ScaledLearner(self.inner.learner(index=index, clients=clients, seed=seed), self.scale)


# The attack -----------------------------------------------------------------------------------------------


def shift(values: list[Residues]) -> None:
    values[1] += np.uint32(DELTA)


def shift_factors(scene: Scene) -> Rewrite:
    """Whoever adds up the shares, or combines the sums, adds DELTA to the sum of the factors."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if is_said(envelope, SumChunk, phase="signs"):
            return [scene.change_sum(envelope, shift)]
        if is_said(envelope, MaskedChunk, phase="signs"):
            return [scene.change_masked(envelope, shift)]
        return [envelope]

    return rewrite


def told_to_the_coordinator(scene: Scene) -> list[Envelope]:
    """What clients have told it since the first round was opened."""
    clients, coordinator = scene.manifest.clients, scene.manifest.coordinator
    return [each for each in scene.sent if each.sender in clients and each.recipient == coordinator and each.round]


def frame_of(envelope: Envelope) -> bytes:
    """The bytes of a message, but for who says it: one of them may be faster."""
    return encode(replace(envelope, sender=envelope.recipient, signature=b""))


# A client that says what it found -------------------------------------------------------------------------


class WordyPartyFailed(PartyFailed):
    """The message with a sentence in it."""

    reason: str = ""


class WordyFalseSum(FalseSum):
    """A refusal that is as helpful as any other error."""

    def __init__(self, decoded: int) -> None:
        PeerError.__init__(self, RejectReason.FALSE_SUM, f"the factors cannot add up to {decoded}")


@pytest.fixture
def wordy_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients explain to their owner what is wrong with a sum."""
    absorb = VerifiedRound.absorb

    def absorb_or_explain(self: VerifiedRound, phase: str, release: Release, members: int) -> None:
        try:
            absorb(self, phase, release, members)
        except FalseSum:
            raise WordyFalseSum(int(release.values[1][0])) from None

    monkeypatch.setattr(VerifiedRound, "absorb", absorb_or_explain)


@pytest.fixture
def sentences_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is switched off: what fails a client is told to the coordinator in words."""

    def fail_in_words(data: ClientRound, event: Failed) -> Step[State, ClientRound]:
        body = WordyPartyFailed(code=event.code, reason=event.why)
        tell = Publish(data.manifest.coordinator, Role.COORDINATOR, body)
        return Step(State.FAILED, data, (tell, Tell(data.run, RoundBroken(number=data.key.round))))

    monkeypatch.setitem(KINDS, PartyFailed.kind, WordyPartyFailed)
    # A row of a table may be any mapping; this one is a dictionary.
    row = TRANSITIONS[State.DECODING]
    assert isinstance(row, dict)
    monkeypatch.setitem(row, Failed, To(fail_in_words, State.FAILED))


def draw_up_round(wire: str) -> Manifest:
    """One phase, so that the factors are in the first sum that is released."""
    return draw_up(strategy="no-union", wire=wire)


WIRES = pytest.mark.parametrize("wire", ["paper", "compact"])
"""On the compact wire the combiner of the first round is the one that shifts."""


@pytest.mark.usefixtures("wordy_errors", "sentences_leave")
@pytest.mark.parametrize("scale", [1.0, 2.0])
@WIRES
async def test_without_the_rule_the_coordinator_subtracts_the_shift_and_has_the_sum(
    tmp_path: Path, wire: str, scale: float
) -> None:
    manifest = draw_up_round(wire)
    async with corrupt_federation(
        manifest, tmp_path, {CORRUPT: shift_factors}, task=ScaledTask(TASK, scale)
    ) as scene:
        state, _ = await scene.run()

        assert state is runs.State.FAILED
        said = [each.body for each in told_to_the_coordinator(scene)]
        words = {body.reason for body in said if isinstance(body, WordyPartyFailed)}
        (decoded,) = {int(reason.rpartition(" ")[2]) for reason in words}
        assert (decoded - DELTA) % RING == scene.true_sum(1, "signs")[1][0] > 0


@pytest.mark.usefixtures("wordy_errors")
@WIRES
async def test_what_reaches_the_coordinator_is_the_same_whatever_was_summed(tmp_path: Path, wire: str) -> None:
    manifest = draw_up_round(wire)
    sums, frames = [], []
    for scale in (1.0, 2.0):
        folder = tmp_path / f"{scale}"
        async with corrupt_federation(
            manifest, folder, {CORRUPT: shift_factors}, task=ScaledTask(TASK, scale)
        ) as scene:
            state, run = await scene.run()

            assert state is runs.State.FAILED
            assert run.failed_party is not None
            assert run.reason == tell_failure(run.failed_party, Code.PROTOCOL_FALSE_SUM)
            sums.append(int(scene.true_sum(1, "signs")[1][0]))
            frames.append({frame_of(each) for each in told_to_the_coordinator(scene)})
    assert sums[0] != sums[1]
    assert frames[0] == frames[1]
    assert len(frames[0]) == 1, "one code, and nothing else"
