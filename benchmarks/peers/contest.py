"""The same vectors for every system, and what is noted of each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

SPREAD = 0.01
"""Standard deviation of an update's entries: about what a round of SGD moves a weight by."""


class PeerMissing(Exception):
    """A peer cannot be measured here; the message says why and what to install."""


class SumIsWrong(Exception):
    """A system gave a sum that its own precision does not explain."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One update for each client, in files, so that no system's memory holds those of another."""

    folder: Path
    parameters: int
    clients: int

    def update(self, place: int) -> NDArray[np.float32]:
        """The update of one client."""
        loaded: NDArray[np.float32] = np.load(self.folder / f"update-{place}.npy", mmap_mode="r")
        return loaded

    def add_up(self) -> NDArray[np.float64]:
        """What a sum should be."""
        total = np.zeros(self.parameters)
        for place in range(self.clients):
            total += self.update(place)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCost:
    """One round of one system, over all its clients.

    Times are the processor's. `client_s` is the mean over clients and `server_s` that of one server; what making
    messages into bytes and back took is apart in `client_wire_s` and `server_wire_s`, where it can be told apart.
    """

    system: str
    version: str
    setting: str
    parameters: int
    clients: int
    up_bytes: int
    down_bytes: int
    client_s: float
    server_s: float
    client_wire_s: float = 0.0
    server_wire_s: float = 0.0
    servers: int = 1
    others_s: float = 0.0
    """Of those who are neither clients nor servers: a coordinator."""
    others_bytes: int = 0
    """Of messages that no client sends or gets."""
    payload_bytes: float | None = None
    """Of shares and sums, as the protocol counts them; None if nobody told it apart."""
    wire_bytes: int | None = None
    """Of the messages that carry them, with framing, seals and signatures."""
    wall_s: float
    memory_bytes: int | None
    """By how much the process with all parties in it has grown, at most; None if the system does not tell."""
    largest_error: float
    allowed_error: float
    measured: int
    """How many elements it was measured on; if fewer than there are, bytes and times are scaled up from them."""

    @property
    def total_bytes(self) -> int:
        return self.up_bytes + self.down_bytes + self.others_bytes

    @property
    def is_scaled(self) -> bool:
        return self.measured != self.parameters


@contextmanager
def draw_up_contest(parameters: int, clients: int) -> Iterator[Contest]:
    """Draw the updates; they depend on nothing but a client's place."""
    with tempfile.TemporaryDirectory(prefix="hubbub-peers-") as name:
        folder = Path(name)
        for place in range(clients):
            drawn = np.random.default_rng([place]).standard_normal(parameters, dtype=np.float32)
            drawn *= np.float32(SPREAD)
            np.save(folder / f"update-{place}.npy", drawn)
        yield Contest(folder, parameters, clients)


def load_peer(package: str) -> ModuleType:
    """A peer's package, which need not be there."""
    try:
        return import_module(package)
    except ImportError as error:
        raise PeerMissing(f"{package} does not import ({error}): pip install 'hubbub[peers]'") from None


def name_versions(*packages: str) -> str:
    return ", ".join(f"{package} {version(package)}" for package in packages)


def check_error(system: str, largest: float, allowed: float) -> float:
    """A system that adds wrongly is not worth measuring."""
    if not largest <= allowed:
        raise SumIsWrong(f"{system}: the sum is off by {largest}, and {allowed} is what its precision explains")
    return largest
