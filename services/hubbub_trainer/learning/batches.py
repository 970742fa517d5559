"""Partition of the samples over clients, and the order of a client's batches.

Both come from numpy's generator with an explicit seed, so that they are the same in every thread and process.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, DataError
from hubbub_trainer.learning.task import check_client

# The paper keeps 10k of MNIST's 60k training images for validation (section 5.1); other sets keep the
# same part if a task does not say otherwise.
HELD_OUT_ONE_IN = 6

# Each kind of draw from the public seed is set apart from the others by a number of its own.
_DEAL = 0x6465616C
_PROPORTIONS = 0x70726F70
_CLASSES = 0x636C6173

# A batch's worth: a client with less would show the same images several times a step.
_LEAST_SAMPLES = 64

# Outside of these bounds numpy's draws come to nothing, or to even parts.
_LEAST_ALPHA, _MOST_ALPHA = 1e-3, 1e6
_SOME_CLASSES = re.compile("classes:([1-9][0-9]{0,2})")


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition of the training samples over clients. Every partition deals out the same samples.

    `iid`: evenly, at random. `dirichlet:A`: of each class, clients get parts in proportions that are drawn from
    Dirichlet(A, ..., A): the smaller A is, the more they differ in classes and in number. A client that
    this leaves with fewer than 64 samples, or than an even share if that is less, gets the missing ones one by one
    from the client that has most.

    `classes:K`: every client has samples of K classes. The classes, in random order, are dealt out in turn, K to
    each client; clients that have the same class share its samples evenly.
    """

    alpha: float | None = None
    """The A of Dirichlet's distribution, if proportions are drawn from it."""
    classes: int | None = None
    """The K of `classes:K`."""

    @classmethod
    def parse(cls, text: str) -> "Partition":
        """Parse a partition, such as `iid`, `dirichlet:0.5` or `classes:2`."""
        if text == "iid":
            return cls()
        if found := _SOME_CLASSES.fullmatch(text):
            return cls(classes=int(found[1]))
        kind, _, number = text.partition(":")
        try:
            alpha = float(number) if kind == "dirichlet" else math.nan
        except ValueError:
            alpha = math.nan
        if not _LEAST_ALPHA <= alpha <= _MOST_ALPHA:
            raise ConfigurationError(
                f"there is no partition {text!r}: choose iid, or dirichlet:A with a number A between "
                f"{_LEAST_ALPHA:g} and {_MOST_ALPHA:g}, such as dirichlet:0.5, or classes:K with a whole number K "
                "of classes for each client, such as classes:2"
            )
        return cls(alpha)

    def __str__(self) -> str:
        if self.classes is not None:
            return f"classes:{self.classes}"
        return "iid" if self.alpha is None else f"dirichlet:{self.alpha:g}"

    def deal(
        self,
        labels: NDArray[np.uint8],
        *,
        index: int,
        clients: int,
        seed: int,
        held_out_one_in: int = HELD_OUT_ONE_IN,
    ) -> NDArray[np.int64]:
        """Choose the samples of a client out of those with these labels."""
        count = len(labels)
        check_client(index, clients)
        share = _even_share(count, clients, held_out_one_in)
        pool = _shuffle(count, seed)[: share * clients]
        if self.classes is not None:
            generator = np.random.default_rng([_CLASSES, seed])
            return _deal_some_classes(pool, labels, clients, self.classes, generator)[index]
        if self.alpha is None:
            return deal_training_samples(
                count, index=index, clients=clients, seed=seed, held_out_one_in=held_out_one_in
            )
        hands = _deal_by_class(pool, labels, clients, self.alpha, np.random.default_rng([_PROPORTIONS, seed]))
        _even_out(hands, min(share, _LEAST_SAMPLES))
        return np.array(hands[index], dtype=np.int64)


def deal_training_samples(
    count: int, *, index: int, clients: int, seed: int, held_out_one_in: int = HELD_OUT_ONE_IN
) -> NDArray[np.int64]:
    """Choose the samples of a client out of `count`: shuffle, hold out a part, deal out the rest evenly."""
    check_client(index, clients)
    share = _even_share(count, clients, held_out_one_in)
    return _shuffle(count, seed)[index * share : (index + 1) * share]


def _even_share(count: int, clients: int, held_out_one_in: int) -> int:
    share = (count - count // held_out_one_in) // clients
    if share == 0:
        raise DataError(
            f"{count} training samples are too few for {clients} clients: use more data or fewer clients"
        )
    return share


def _shuffle(count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng([_DEAL, seed]).permutation(count)


def _deal_by_class(
    pool: NDArray[np.int64],
    labels: NDArray[np.uint8],
    clients: int,
    alpha: float,
    generator: np.random.Generator,
) -> list[list[int]]:
    """Return every client's samples, in random order."""
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels[pool]):
        members = pool[labels[pool] == label]
        proportions = generator.dirichlet(np.full(clients, alpha))
        ends = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        for part, piece in zip(parts, np.split(members, ends), strict=True):
            part.append(piece)
    return [generator.permutation(np.concatenate(part)).tolist() for part in parts]


def _deal_some_classes(
    pool: NDArray[np.int64],
    labels: NDArray[np.uint8],
    clients: int,
    wanted: int,
    generator: np.random.Generator,
) -> list[NDArray[np.int64]]:
    """Return every client's samples, which are of `wanted` classes, in random order."""
    classes = generator.permutation(np.unique(labels[pool]))
    if not len(classes) <= wanted * clients <= len(classes) * clients:
        least = -(-len(classes) // clients)
        raise ConfigurationError(
            f"classes:{wanted} does not fit {clients} clients and {len(classes)} classes: give each client at "
            f"least {least} classes, so that every class has a client, and at most {len(classes)}"
        )
    # Consecutive places of the cycle are different classes.
    places = np.arange(wanted * clients).reshape(clients, wanted) % len(classes)
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for place, label in enumerate(classes):
        holders = np.flatnonzero((places == place).any(axis=1))
        members = pool[labels[pool] == label]
        if len(members) < len(holders):
            raise DataError(
                f"class {label} has {len(members)} training samples for {len(holders)} clients: use more data or "
                "fewer clients"
            )
        for holder, piece in zip(holders, np.array_split(members, len(holders)), strict=True):
            parts[holder].append(piece)
    return [generator.permutation(np.concatenate(part)) for part in parts]


def _even_out(hands: list[list[int]], least: int) -> None:
    """Fill up clients with fewer than `least` samples, one by one, from the client that has most."""
    for hand in hands:
        while len(hand) < least:
            hand.append(max(hands, key=len).pop())


def slice_test_samples(count: int, *, index: int, clients: int) -> slice:
    """Choose the client's part of the test set: clients' slices are contiguous, about equal, and cover it."""
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
