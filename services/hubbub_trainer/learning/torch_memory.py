"""What goes on from round to round at one client: the optimiser's state and the model's buffers, as one vector.

The trainer keeps it with the model and gives it back; it never leaves the machine. It is written as safetensors,
in which no code can hide, behind its length in bytes, and filled up to whole float32 values.
"""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from hubbub_trainer.learning.task import Theta

_LENGTH_BYTES = 8
_WORD_BYTES = 4
_TENSOR, _NUMBER, _BUFFER = "optimiser", "number", "buffer"


def name_buffer(name: str) -> str:
    """What a buffer is called in it."""
    return f"{_BUFFER}.{name}"


def pack(model: nn.Module, optimiser: torch.optim.Optimizer) -> Theta | None:
    """Write down what the next round goes on with; None if there is nothing."""
    found = {name_buffer(name): each for name, each in model.named_buffers()}
    for place, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                found[f"{_TENSOR}.{place}.{key}"] = value
            elif isinstance(value, (int, float)):
                found[f"{_NUMBER}.{place}.{key}"] = torch.tensor(float(value), dtype=torch.float64)
            elif value is not None:
                raise TypeError(
                    f"the optimiser keeps {key!r} as {type(value).__name__}, which cannot be written down"
                )
    if not found:
        return None
    content = save({name: each.detach().cpu().contiguous().clone() for name, each in found.items()})
    padding = bytes(-len(content) % _WORD_BYTES)
    return np.frombuffer(len(content).to_bytes(_LENGTH_BYTES, "little") + content + padding, dtype="<f4").copy()


def unpack(memory: Theta | None) -> dict[str, Tensor]:
    """Read what was written down."""
    if memory is None:
        return {}
    content = memory.tobytes()
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    found: dict[str, Tensor] = load(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
    return found


def restore(optimiser: torch.optim.Optimizer, kept: dict[str, Tensor]) -> None:
    """Give an optimiser back what it knew."""
    state: dict[int, dict[str, object]] = {}
    for name, value in kept.items():
        kind, _, rest = name.partition(".")
        if kind == _BUFFER:
            continue
        place, _, key = rest.partition(".")
        state.setdefault(int(place), {})[key] = value if kind == _TENSOR else value.item()
    if state:
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
