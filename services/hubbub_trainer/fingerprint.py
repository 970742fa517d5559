"""Fingerprint of a model: digests of its parts, by which two models are compared.

A part is at most 1,024 consecutive values of one tensor, so that a change at one place changes one part and not
the whole model. Parts start over at every tensor: a tensor has the same parts in every model. A task that does not
give its layout has one tensor.

Two models are the same if they share more than half of their parameters, counted in the smaller of the two. Parts
whose values are all equal, such as biases of zero, are in many models and do not count; in a model that has no
other parts they do. A model with a changed value in every part is another one, however near it is.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hubbub_trainer.learning.task import HasLayout, Task, Theta
from hubbub_trainer.workspace import digest

PART_VALUES = 1_024
_DIGEST_BYTES, _COUNT_BYTES = hashlib.sha256().digest_size, 8


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests of a model's parts, each with the number of parameters in parts of that digest."""

    model: str
    """SHA-256 of the whole model, which names it."""
    parts: Mapping[bytes, int]

    @classmethod
    def of(cls, theta: Theta, tensors: Sequence[int]) -> Fingerprint:
        """Take a model's fingerprint; `tensors` are the sizes of the tensors that θ is made of, in order."""
        values = np.ascontiguousarray(theta, dtype="<f4")
        varied: Counter[bytes] = Counter()
        constant: Counter[bytes] = Counter()
        start = 0
        for size in tensors:
            for begin in range(start, start + size, PART_VALUES):
                part = values[begin : min(begin + PART_VALUES, start + size)]
                bits = part.view(np.uint32)
                kind = constant if (bits == bits[0]).all() else varied
                kind[hashlib.sha256(part.data).digest()] += part.size
            start += size
        return cls(digest(theta), varied or constant)

    def is_same(self, other: Fingerprint) -> bool:
        """Return whether the two share more than half of the parameters that count in the smaller one."""
        shared = sum(min(count, other.parts.get(part, 0)) for part, count in self.parts.items())
        return 2 * shared > min(sum(self.parts.values()), sum(other.parts.values()))

    def pack(self) -> bytes:
        """Write the parts as bytes."""
        return b"".join(part + count.to_bytes(_COUNT_BYTES, "big") for part, count in self.parts.items())

    @classmethod
    def unpack(cls, model: str, packed: bytes) -> Fingerprint:
        """Read what `pack` has written."""
        step = _DIGEST_BYTES + _COUNT_BYTES
        entries = (packed[start : start + step] for start in range(0, len(packed), step))
        return cls(model, {each[:_DIGEST_BYTES]: int.from_bytes(each[_DIGEST_BYTES:], "big") for each in entries})


def tensor_sizes(task: Task) -> tuple[int, ...]:
    """Return the sizes of the tensors in a task's θ; that of θ itself if the task gives no layout."""
    sizes = tuple(math.prod(shape) for shape in task.layout.values()) if isinstance(task, HasLayout) else ()
    whole = task.count_parameters()
    return sizes if sum(sizes) == whole else (whole,)
