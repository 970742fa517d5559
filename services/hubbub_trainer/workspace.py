"""What a trainer computes with in a run: the task, the model, the accumulator. It stays on this machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hubbub.crypto.secret import ClientSecret
from hubbub.strategies.base import ClientRound, Theta
from hubbub_trainer.learning.task import Learner


def digest(theta: Theta) -> str:
    """SHA-256 of the model's float32 values, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(theta, dtype="<f4").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """A round without a verdict yet: this client's side of it, and the memory to go on with if it counts."""

    client_round: ClientRound
    memory: Theta | None

    def __repr__(self) -> str:
        return "<OpenRound>"


@dataclass(slots=True)
class Workspace:
    """The state of one client in one run. Nothing of it prints."""

    folder: Path
    learner: Learner
    secret: ClientSecret
    theta: Theta
    accumulator: Theta
    memory: Theta | None = None
    """What the optimiser kept of the last round that counted."""
    rounds: dict[int, OpenRound] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Workspace of {self.theta.size} parameters>"

    def note_round(self, number: int, alone_share: float | None) -> None:
        """Write down, here and nowhere else, which model a round ended with and who chose alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {"round": number, "model_sha256": digest(self.theta), "alone_share": alone_share}
        line = json.dumps(record)
        with (self.folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def save_model(self) -> None:
        """Keep the model and its digest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        np.save(self.folder / "model.npy", self.theta, allow_pickle=False)
        (self.folder / "model.sha256").write_text(digest(self.theta) + "\n", encoding="ascii")
