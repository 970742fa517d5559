"""Report: all results about the peers of one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from benchmarks.machine import Machine
from benchmarks.peers.contest import PeerCost

if TYPE_CHECKING:  # flwr need not be installed.
    from benchmarks.peers.flower_deployed import DeployedRounds


@dataclass(slots=True, kw_only=True)
class PeersReport:
    """Results, filled system by system; `remarks` says what was left out."""

    date: str
    command: str
    machine: Machine
    costs: list[PeerCost] = field(default_factory=list)
    deployed: list[DeployedRounds] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON."""
        return asdict(self)
