"""A learner's scores of a classification, by name."""

from typing import NamedTuple

from hubbub_trainer.learning.task import Learner, Theta


class Classified(NamedTuple):
    """Sums over the examples, and their number."""

    correct: int
    loss: float
    examples: int


def read_scores(learner: Learner, theta: Theta) -> Classified:
    """Evaluate a model; both metrics are over the same examples."""
    scores = learner.evaluate(theta)
    (correct, examples), (loss, same) = scores["accuracy"], scores["loss"]
    assert isinstance(correct, float | int)
    assert isinstance(loss, float)
    assert examples == same
    return Classified(int(correct), loss, int(examples))
