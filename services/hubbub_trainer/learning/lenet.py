"""The paper's LeNet on images of handwritten digits: 61,706 parameters, trained as in section 5.2.

Here is what needs no torch. `lenet_training` has the rest and is imported when the first learner is made.
"""

from typing import TYPE_CHECKING

from hubbub_trainer.learning.datasets import GREY
from hubbub_trainer.learning.extras import require
from hubbub_trainer.learning.image_task import ImageTask, Shapes, count_parameters

if TYPE_CHECKING:
    from hubbub_trainer.learning.lenet_training import LenetLearner

SHAPES: Shapes = (
    (6, 1, 5, 5),
    (6,),
    (16, 6, 5, 5),
    (16,),
    (120, 400),
    (120,),
    (84, 120),
    (84,),
    (10, 84),
    (10,),
)
"""Two convolutions, three fully connected layers."""

PARAMETERS = count_parameters(SHAPES)


class LenetTask(ImageTask):
    """LeNet on MNIST, or on other grey images of 28×28 pixels."""

    name = "lenet"
    shapes = SHAPES
    choice = GREY

    def learner(self, *, index: int, clients: int, seed: int) -> "LenetLearner":
        """Deal out the client's data, and import torch."""
        require("torch", wanted_by=f"task {self.name}", extra="trainer")
        hand = self.deal(index=index, clients=clients, seed=seed)
        from hubbub_trainer.learning.lenet_training import LenetLearner  # noqa: PLC0415  # Torch.

        return LenetLearner(hand)
