"""Runs the operator's own code: one call at a time, from seeded generators, and with its errors kept at home.

Global generators belong to the process, so two calls at once would draw from each other's. The text of an
exception may tell of the data, so it stays in this trainer's log.
"""

from __future__ import annotations

import hashlib
import logging
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from hubbub.errors import HubbubError
from hubbub_trainer.learning.task import TaskFailed

log = logging.getLogger(__name__)

OWN_CODE = threading.RLock()
"""Held while code of the operator's own runs."""


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Run code of the operator's own. A failure is logged here in full; others learn only that it failed."""
    with OWN_CODE:
        try:
            yield
        except HubbubError:
            raise
        except Exception:
            log.exception("the task failed %s", what)
            raise TaskFailed(f"the task failed {what}; the log of this trainer says how") from None


def derive_seed(use: str, seed: int) -> bytes:
    """Derive 32 bytes for one use of a seed, from which neither the seed nor those for other uses follow."""
    return hashlib.sha256(f"{use} {seed}".encode()).digest()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch, if that is loaded; restore them afterwards."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002  (That code draws from it.)
        random.seed(derive_seed("random", seed))
        np.random.seed(np.frombuffer(derive_seed("numpy", seed), dtype="<u4"))  # noqa: NPY002  (As above.)
        # This module does not import torch: many tasks do without it.
        torch = sys.modules.get("torch")
        if torch is not None:
            stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
            torch.manual_seed(int.from_bytes(derive_seed("torch", seed)[:8], "little"))
        yield
