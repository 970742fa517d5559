"""Appendix D, neural network architectures: N follows from the layers."""

from hubbub_trainer.learning.networks import LENET
from hubbub_trainer.learning.task import count_elements


def convolution(inputs: int, filters: int, kernel: int) -> int:
    return filters * (inputs * kernel * kernel + 1)


def connected(inputs: int, outputs: int) -> int:
    return outputs * (inputs + 1)


def halve(side: int, kernel: int, stride: int, padding: int) -> int:
    """The side of what a pooling gives."""
    return (side + 2 * padding - kernel) // stride + 1


def test_lenet_has_61706_parameters() -> None:
    """Section 5.1: N = 61,706, from Table 6 and from the network that is trained."""
    layers = [
        convolution(1, 6, 5),
        convolution(6, 16, 5),
        connected(5 * 5 * 16, 120),
        connected(120, 84),
        connected(84, 10),
    ]

    assert sum(layers) == 61_706
    assert count_elements(LENET) == 61_706


def test_lenet_s_layers_have_the_shapes_of_the_table() -> None:
    """Table 6: filters, kernels and output shapes."""
    weights = tuple(LENET.values())[::2]

    assert weights == ((6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84))
    first = halve(28 + 2 * 2 - 5 + 1, 2, 2, 0)
    second = halve(first - 5 + 1, 2, 2, 0)
    assert (first, second) == (14, 5)
    assert second * second * 16 == 400


def test_alexnet_has_1756426_parameters() -> None:
    """Section 5.1: N = 1,756,426, from Table 7; pooling and normalisation have none."""
    first = halve(32, 3, 2, 1)
    second = halve(first, 3, 2, 1)
    layers = [
        convolution(3, 64, 5),
        convolution(64, 64, 5),
        connected(second * second * 64, 384),
        connected(384, 192),
        connected(192, 10),
    ]

    assert (first, second) == (16, 8)
    assert sum(layers) == 1_756_426
