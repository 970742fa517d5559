"""The paper's AlexNet on CIFAR-10: 1,756,426 parameters, trained as in section 5.2.

Here is what needs no torch. `alexnet_training` has the rest and is imported when the first learner is made.
"""

from typing import TYPE_CHECKING

from hubbub_trainer.learning.datasets import COLOUR
from hubbub_trainer.learning.extras import require
from hubbub_trainer.learning.image_task import ImageTask, Shapes, count_parameters

if TYPE_CHECKING:
    from hubbub_trainer.learning.alexnet_training import AlexnetLearner

SHAPES: Shapes = (
    (64, 3, 5, 5),
    (64,),
    (64, 64, 5, 5),
    (64,),
    (384, 4096),
    (384,),
    (192, 384),
    (192,),
    (10, 192),
    (10,),
)
"""Two convolutions, three fully connected layers."""

PARAMETERS = count_parameters(SHAPES)


class AlexnetTask(ImageTask):
    """AlexNet on CIFAR-10, or on other colour images of 32×32 pixels."""

    name = "alexnet"
    shapes = SHAPES
    choice = COLOUR
    # The paper trains on 40k of CIFAR-10's 50k training images, 8k per client of five (section 5.1).
    held_out_one_in = 5

    def learner(self, *, index: int, clients: int, seed: int) -> "AlexnetLearner":
        """Deal out the client's data, and import torch."""
        require("torch", wanted_by=f"task {self.name}", extra="trainer")
        hand = self.deal(index=index, clients=clients, seed=seed)
        from hubbub_trainer.learning.alexnet_training import AlexnetLearner  # noqa: PLC0415  # Torch.

        return AlexnetLearner(hand)
