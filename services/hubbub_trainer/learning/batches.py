"""Which sample is used when: the share of a client, and the order of its batches.

Both come from numpy's generator with an explicit seed, so that they are the same in every thread and process.
"""

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, DataError
from hubbub_trainer.learning.task import check_client

# The paper keeps 10k of MNIST's 60k training images for validation (section 5.1); other sets keep the
# same part.
_HELD_OUT_ONE_IN = 6

# Sets the draws that deal out the data apart from other draws with the same public seed.
_DEAL = 0x6465616C


def deal_training_samples(count: int, *, index: int, clients: int, seed: int) -> NDArray[np.int64]:
    """Choose the samples of a client out of `count`: shuffle, hold out a sixth, deal out the rest evenly."""
    check_client(index, clients)
    share = (count - count // _HELD_OUT_ONE_IN) // clients
    if share == 0:
        raise DataError(
            f"{count} training samples are too few for {clients} clients: use more data or fewer clients"
        )
    shuffled = np.random.default_rng([_DEAL, seed]).permutation(count)
    return shuffled[index * share : (index + 1) * share]


def slice_test_samples(count: int, *, index: int, clients: int) -> slice:
    """Choose the client's part of the test set: contiguous slices, all about as long, that cover it."""
    check_client(index, clients)
    if count < clients:
        raise DataError(f"{count} test samples are too few for {clients} clients: use more data or fewer clients")
    return slice(index * count // clients, (index + 1) * count // clients)


def order_batches(samples: int, *, steps: int, batch_size: int, seed: int) -> NDArray[np.int64]:
    """Return a row of sample numbers per step: consecutive pieces of fresh permutations, joined.

    A batch may begin in one permutation and end in the next, so all batches are full, however few samples
    there are.
    """
    if steps < 1:
        raise ConfigurationError(f"a round needs at least one local step, not {steps}")
    needed = steps * batch_size
    generator = np.random.default_rng(seed)
    passes = [generator.permutation(samples) for _ in range(-(-needed // samples))]
    return np.concatenate(passes)[:needed].reshape(steps, batch_size)
