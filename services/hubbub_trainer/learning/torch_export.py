"""A model as torch's own file: a state_dict, without code in it."""

from __future__ import annotations

import io

import torch

from hubbub_trainer.learning.exporting import Arrays


def write_state_dict(arrays: Arrays) -> bytes:
    """For `torch.load(file, weights_only=True)`."""
    content = io.BytesIO()
    torch.save({name: torch.tensor(each) for name, each in arrays.items()}, content)
    return content.getvalue()
