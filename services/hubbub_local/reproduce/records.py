"""Results of the runs, round by round, and their file `results.json`, which is complete at any moment."""

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
from hubbub.disk import replacing
from hubbub.errors import ConfigurationError, ProtocolError
from hubbub_coordinator.accounts import Account
from hubbub_local.reproduce.plan import METHODS, Method, Settings, list_changes

FILE = "results.json"
ADDITIONS = ("tags", "scores")
"""Traffic that the paper does not have, and its tables do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A released round. Bits count the paper's vectors, bytes all traffic; both are of all parties."""

    round: int
    accuracy: float
    union_size: int
    payload_bits: int
    predicted_bits: int
    wire_bytes: int
    protocol_cpu_s: Mapping[str, float]
    """CPU time by party, without training and evaluation; empty if the process did not see the whole round."""
    training_cpu_s: float | None
    """CPU time of all clients' training; None likewise."""

    @classmethod
    def of(
        cls, account: Account, protocol_cpu_s: Mapping[str, float], training_cpu_s: float | None
    ) -> RoundRecord:
        """Build the record of a round from the coordinator's account and the CPU times."""
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
    """A run of one method with one seed. `finished` is false for a run that was stopped, to be gone on with."""

    name: str
    seed: int
    finished: bool = False
    reached: bool = False
    model_sha256: str = ""
    drift: float | None = None
    """The largest distance of a client's model from the mean of all, over its norm; None if they share one model.

    Then `model_sha256` is that of the first client's.
    """
    by_round: tuple[RoundRecord, ...] = ()

    @property
    def method(self) -> Method:
        """Method of the run."""
        return METHODS[self.name]

    @property
    def label(self) -> str:
        """Name in reports."""
        return f"{self.method.label}, seed {self.seed}"

    @property
    def payload_bits(self) -> int:
        """Payload of all rounds."""
        return sum(each.payload_bits for each in self.by_round)

    @property
    def predicted_bits(self) -> int:
        """Payload of all rounds, by the formulas."""
        return sum(each.predicted_bits for each in self.by_round)

    def cpu_s(self, role: str) -> list[float]:
        """Return for each party of a role its mean CPU time per round, without training and evaluation."""
        whole = [each.protocol_cpu_s for each in self.by_round if each.protocol_cpu_s]
        names = sorted({name for each in whole for name in each if name.startswith(role)})
        return [fmean(each.get(name, 0.0) for each in whole) for name in names]

    def describe(self, target: float) -> str:
        """Describe the run's progress in words."""
        rounds = f"{len(self.by_round)} round{'' if len(self.by_round) == 1 else 's'}"
        if self.reached:
            return f"reached {100 * target:g} % after {rounds}"
        how = "stopped" if self.finished else "was cut off"
        return f"{how} after {rounds} at {100 * self.by_round[-1].accuracy:.1f} %, target not reached"


@dataclass(slots=True, kw_only=True)
class Results:
    """Content of the file."""

    settings: Settings
    machine: dict[str, str | int]
    """Versions, number of cores, and the date of the first run."""
    results: list[RunRecord]

    def find(self, name: str, seed: int) -> RunRecord | None:
        """Return the record of a run; None if there is none."""
        return next((each for each in self.results if (each.name, each.seed) == (name, seed)), None)

    def keep(self, record: RunRecord, folder: Path) -> None:
        """Add or replace the record of a run, and save the file."""
        known = self.find(record.name, record.seed)
        self.results = [*(each for each in self.results if each is not known), record]
        self.save(folder)

    def save(self, folder: Path) -> None:
        """Write the file atomically, a line for each run."""
        head = {"settings": asdict(self.settings), "machine": self.machine}
        # The name implies the method's fields, but other programs cannot know that.
        runs = ",\n".join(json.dumps({**asdict(each.method), **asdict(each)}) for each in self.results)
        text = f'{json.dumps(head, indent=1)[:-2]},\n "results": [\n{runs}\n ]\n}}\n'
        try:
            with replacing(folder / FILE) as file:
                file.write(text.encode())
        except OSError as error:
            raise ConfigurationError(f"{folder / FILE} cannot be written: {error.strerror}") from None


_RESULTS = TypeAdapter(Results)


def open_results(folder: Path, settings: Settings, *, resume: bool) -> Results:
    """Begin in an empty folder or, with `resume`, go on with the results there if their settings match."""
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
    results = Results(settings=settings, machine=machine, results=[])
    results.save(folder)
    return results


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
