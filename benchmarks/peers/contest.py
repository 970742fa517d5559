"""Contest: the vectors that every system adds, and the costs that are recorded."""

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
    """Raised if a peer cannot be measured here; the message says why and what to install."""


class SumIsWrong(Exception):
    """Raised if a system's sum is off by more than its precision explains."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One update for each client, in files, so that they do not count as a system's memory."""

    folder: Path
    parameters: int
    clients: int

    def update(self, place: int) -> NDArray[np.float32]:
        """Read the update of one client."""
        loaded: NDArray[np.float32] = np.load(self.folder / f"update-{place}.npy", mmap_mode="r")
        return loaded

    def add_up(self) -> NDArray[np.float64]:
        """Return the exact sum."""
        total = np.zeros(self.parameters)
        for place in range(self.clients):
            total += self.update(place)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCost:
    """Cost of one round of one system, over all its clients.

    Times are CPU times. `client_s` is the mean over clients and `server_s` that of one server. Encoding and
    decoding of messages is separate in `client_wire_s` and `server_wire_s`, where it can be told apart.
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
    """CPU time of parties that are neither clients nor servers: a coordinator."""
    others_bytes: int = 0
    """Bytes of messages that no client sends or receives."""
    payload_bytes: float | None = None
    """Bytes of shares and sums, as the protocol counts them; None if not known."""
    wire_bytes: int | None = None
    """Bytes of the messages that carry them, with framing, seals and signatures."""
    wall_s: float
    memory_bytes: int | None
    """Peak growth of the process with all parties in it; None if the system does not report it."""
    largest_error: float
    allowed_error: float
    measured: int
    """Number of elements measured; if fewer than there are, bytes and times are scaled up from them."""

    @property
    def total_bytes(self) -> int:
        return self.up_bytes + self.down_bytes + self.others_bytes

    @property
    def is_scaled(self) -> bool:
        return self.measured != self.parameters


@contextmanager
def draw_up_contest(parameters: int, clients: int) -> Iterator[Contest]:
    """Draw the updates; they depend only on a client's index."""
    with tempfile.TemporaryDirectory(prefix="hubbub-peers-") as name:
        folder = Path(name)
        for place in range(clients):
            drawn = np.random.default_rng([place]).standard_normal(parameters, dtype=np.float32)
            drawn *= np.float32(SPREAD)
            np.save(folder / f"update-{place}.npy", drawn)
        yield Contest(folder, parameters, clients)


def load_peer(package: str) -> ModuleType:
    """Import a peer's package; raise `PeerMissing` if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise PeerMissing(f"{package} does not import ({error}): pip install 'hubbub[peers]'") from None


def name_versions(*packages: str) -> str:
    return ", ".join(f"{package} {version(package)}" for package in packages)


def check_error(system: str, largest: float, allowed: float) -> float:
    """Return the error; raise `SumIsWrong` if it is larger than allowed."""
    if not largest <= allowed:
        raise SumIsWrong(f"{system}: the sum is off by {largest}, and {allowed} is what its precision explains")
    return largest
