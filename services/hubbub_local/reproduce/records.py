"""What a run came to, round by round, and the file that keeps it: `results.json`, whole at any moment."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from pydantic import TypeAdapter, ValidationError

from hubbub import __version__
from hubbub.disk import replace_file
from hubbub.errors import ConfigurationError, ProtocolError
from hubbub_coordinator.accounts import Account
from hubbub_local.reproduce.plan import METHODS, Method, Settings, list_changes

FILE = "results.json"
ADDITIONS = ("tags", "scores")
"""What is sent here and not in the paper, so that its tables do not count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A released round. Bits are those of the paper's vectors, bytes all that travels; both are of all parties."""

    round: int
    accuracy: float
    union_size: int
    payload_bits: int
    predicted_bits: int
    wire_bytes: int
    protocol_cpu_s: Mapping[str, float]
    """By party, without training and evaluation."""
    training_cpu_s: float
    """Of all clients."""

    @classmethod
    def of(cls, account: Account, protocol_cpu_s: Mapping[str, float], training_cpu_s: float) -> RoundRecord:
        """Put together what the coordinator and the clocks say of a round."""
        if "accuracy" not in account.metrics:
            raise ProtocolError(f"round {account.round} has no accuracy")
        papers = [cost for name, cost in account.costs.items() if name not in ADDITIONS]
        return cls(
            round=account.round,
            accuracy=account.metrics["accuracy"],
            union_size=account.union_size,
            payload_bits=sum(cost.payload_bits for cost in papers),
            predicted_bits=sum(cost.predicted_bits for cost in papers),
            wire_bytes=sum(cost.wire_bytes for cost in account.costs.values()),
            protocol_cpu_s=protocol_cpu_s,
            training_cpu_s=training_cpu_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One method with one seed. `finished` is false for a run that was cut off: it is begun again."""

    name: str
    seed: int
    finished: bool = False
    reached: bool = False
    model_sha256: str = ""
    by_round: tuple[RoundRecord, ...] = ()

    @property
    def method(self) -> Method:
        """What was run."""
        return METHODS[self.name]

    @property
    def label(self) -> str:
        """The run as people call it."""
        return f"{self.method.label}, seed {self.seed}"

    @property
    def payload_bits(self) -> int:
        """Of all rounds."""
        return sum(each.payload_bits for each in self.by_round)

    @property
    def predicted_bits(self) -> int:
        """The same by the formulas."""
        return sum(each.predicted_bits for each in self.by_round)

    def cpu_s(self, role: str) -> list[float]:
        """The mean over the rounds of each party of a role, without training and evaluation."""
        names = sorted({name for each in self.by_round for name in each.protocol_cpu_s if name.startswith(role)})
        return [fmean(each.protocol_cpu_s.get(name, 0.0) for each in self.by_round) for name in names]

    def describe(self, target: float) -> str:
        """How far it got, in words."""
        rounds = f"{len(self.by_round)} round{'' if len(self.by_round) == 1 else 's'}"
        if self.reached:
            return f"reached {100 * target:g} % after {rounds}"
        how = "stopped" if self.finished else "was cut off"
        return f"{how} after {rounds} at {100 * self.by_round[-1].accuracy:.1f} %, target not reached"


@dataclass(slots=True, kw_only=True)
class Results:
    """What is in the file."""

    settings: Settings
    machine: dict[str, str | int]
    """Where and when the first run was begun."""
    results: list[RunRecord]

    def find(self, name: str, seed: int) -> RunRecord | None:
        """A run that is known so far."""
        return next((each for each in self.results if (each.name, each.seed) == (name, seed)), None)

    def keep(self, record: RunRecord, folder: Path) -> None:
        """Write down how far a run is."""
        known = self.find(record.name, record.seed)
        self.results = [*(each for each in self.results if each is not known), record]
        self.save(folder)

    def save(self, folder: Path) -> None:
        """Write the file, a line for each run; a crash leaves what was there before or this."""
        head = {"settings": asdict(self.settings), "machine": self.machine}
        # The name says it already, but not to other programs.
        runs = ",\n".join(json.dumps({**asdict(each.method), **asdict(each)}) for each in self.results)
        text = f'{json.dumps(head, indent=1)[:-2]},\n "results": [\n{runs}\n ]\n}}\n'
        try:
            replace_file(folder / FILE, text.encode())
        except OSError as error:
            raise ConfigurationError(f"{folder / FILE} cannot be written: {error.strerror}") from None


_RESULTS = TypeAdapter(Results)


def open_results(folder: Path, settings: Settings, *, resume: bool) -> Results:
    """Begin in an empty folder, or go on with what is there if that is wanted and fits."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
        if not is_empty and resume:
            return _reopen(folder, settings)
    except OSError as error:
        raise ConfigurationError(f"--out: {error.filename} cannot be used: {error.strerror}") from None
    if not is_empty:
        raise ConfigurationError(
            f"{folder} is not empty: go on with what is there with --resume, or choose another folder with --out"
        )
    machine: dict[str, str | int] = {
        "hubbub": __version__,
        "python": platform.python_version(),
        "cores": os.cpu_count() or 1,
        "begun": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    return Results(settings=settings, machine=machine, results=[])


def _reopen(folder: Path, settings: Settings) -> Results:
    try:
        kept = _RESULTS.validate_json((folder / FILE).read_bytes())
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise ConfigurationError(f"{folder / FILE} is damaged ({why}): choose another folder with --out") from None
    both = {"hubbub": (kept.machine.get("hubbub"), __version__), **list_changes(kept.settings, settings)}
    changes = [f"{name} {after} instead of {before}" for name, (before, after) in both.items() if before != after]
    if changes:
        raise ConfigurationError(
            f"{folder} holds runs with other settings: {'; '.join(changes)}. Give the same settings, or choose"
            " another folder with --out"
        )
    return kept
