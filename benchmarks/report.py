"""Report: all results of one run of the benchmarks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from benchmarks.compact import CompactTiming
from benchmarks.deployed import ProcessRounds
from benchmarks.disturbed import DisturbedRate
from benchmarks.footprint import Footprints
from benchmarks.growth import Growth
from benchmarks.interface import LoadTimes, PageTime, Restart
from benchmarks.learning import TrainingTime
from benchmarks.machine import Machine
from benchmarks.peers.report import PeersReport
from benchmarks.refusals import RefusalRate
from benchmarks.rounds import RoundTimes
from benchmarks.sizes import SizedRound
from benchmarks.threads import ThreadsTiming
from benchmarks.timing import Timing
from benchmarks.trust import TrustCost


@dataclass(slots=True, kw_only=True)
class Report:
    """Results, filled part by part; `remarks` says what was left out."""

    date: str
    command: str
    machine: Machine
    repeats: int
    compact: dict[int, list[CompactTiming]] = field(default_factory=dict)
    threads: ThreadsTiming | None = None
    signs: dict[int, list[Timing]] = field(default_factory=dict)
    factors: list[Timing] = field(default_factory=list)
    chunk_sizes: dict[int, dict[int, list[Timing]]] = field(default_factory=dict)
    sizes: list[SizedRound] = field(default_factory=list)
    processes: list[ProcessRounds] = field(default_factory=list)
    growth: Growth | None = None
    footprints: Footprints | None = None
    peers: PeersReport | None = None
    rounds: list[RoundTimes] = field(default_factory=list)
    trust: list[TrustCost] = field(default_factory=list)
    refusals: list[RefusalRate] = field(default_factory=list)
    training: list[TrainingTime] = field(default_factory=list)
    load: LoadTimes | None = None
    disturbed: list[DisturbedRate] = field(default_factory=list)
    pages: list[PageTime] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON; sizes become keys."""
        return asdict(self)
