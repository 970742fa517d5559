"""What every strategy that compresses with TopBinary has in common (Beguier et al., section 3.1)."""

from __future__ import annotations

import numpy as np

from hubbub.errors import BadUpdate
from hubbub.parameters import Parameters
from hubbub.strategies.base import ClientInput, T, Theta


def check_length(parameters: Parameters, mine: ClientInput) -> None:
    """Refuse an update of another length than the run has."""
    if mine.update.shape != (parameters.parameters,):
        raise BadUpdate(
            f"the update has shape {mine.update.shape} where the run has {parameters.parameters} parameters"
        )


def add_up(parameters: Parameters, mine: ClientInput) -> Theta:
    """X = U + δ: what a client wants to say, of the length that the run has."""
    check_length(parameters, mine)
    # What overflows here is refused by the compression, as infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        wanted: Theta = mine.update + mine.accumulator
    return wanted


def speak(mine: ClientInput, wanted: Theta) -> Theta:
    """What a client's contribution is computed from: X, or zeros if it has nothing to say."""
    return np.zeros_like(wanted) if mine.silent else wanted


def require(found: T | None) -> T:
    """The next model, or what else is there once the round's sums are."""
    if found is None:
        raise BadUpdate("a round is concluded after its sums were absorbed, not before")
    return found
