"""What a run came to, round by round: as it is kept, printed as JSON and reported on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from hubbub.errors import ProtocolError
from hubbub_coordinator.accounts import Account
from hubbub_local.reproduce.measuring import EVALUATION, PROTOCOL, TRAINING, Reading
from hubbub_local.reproduce.plan import Method

Json = dict[str, object]
BITS = 8
ADDITIONS = ("tags", "scores")
"""What is sent here and not in the paper, so that its tables do not count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A released round. Bits and bytes are of all parties, wherever they go.

    Bits are those of the paper's vectors, which its tables count; bytes are all that travels, `ADDITIONS` too.
    """

    round: int
    accuracy: float
    loss: float
    union_size: int
    payload_bits: int
    predicted_bits: int
    wire_bytes: int
    wall_s: float
    protocol_cpu_s: Mapping[str, float]
    """By party, without training and evaluation."""
    training_cpu_s: float
    """Of all clients; what was taken from the cache counts as it was measured when it was trained."""
    evaluation_cpu_s: float
    process_cpu_s: float
    attributed_cpu_s: float
    """What the process spent in this round, and how much of it is known to be somebody's."""


def record_round(account: Account, spent: Reading, wall_s: float) -> RoundRecord:
    """Put together what the coordinator and the meter say of a round."""
    costs = account.costs.values()
    papers = [cost for name, cost in account.costs.items() if name not in ADDITIONS]
    missing = [name for name in ("accuracy", "loss") if name not in account.metrics]
    if missing:
        raise ProtocolError(f"round {account.round} has no {' and no '.join(missing)}")
    return RoundRecord(
        round=account.round,
        accuracy=account.metrics["accuracy"],
        loss=account.metrics["loss"],
        union_size=account.union_size,
        payload_bits=sum(cost.payload_bits for cost in papers),
        predicted_bits=sum(cost.predicted_bits for cost in papers),
        wire_bytes=sum(cost.wire_bytes for cost in costs),
        wall_s=wall_s,
        protocol_cpu_s=spent.by_party(PROTOCOL),
        training_cpu_s=spent.total(TRAINING),
        evaluation_cpu_s=spent.total(EVALUATION),
        process_cpu_s=spent.process_s,
        attributed_cpu_s=spent.attributed_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One method with one seed. `finished` is false for a run that was cut off: it is begun again."""

    name: str
    strategy: str
    q: int
    feedback: str
    seed: int
    block: int = 1
    finished: bool = False
    reached: bool = False
    model_sha256: str = ""
    by_round: tuple[RoundRecord, ...] = ()

    @property
    def method(self) -> Method:
        """What was run."""
        return Method(name=self.name, strategy=self.strategy, q=self.q, feedback=self.feedback, block=self.block)

    @property
    def rounds(self) -> int:
        """How many were done."""
        return len(self.by_round)

    @property
    def accuracy(self) -> float:
        """Of the last round."""
        return self.by_round[-1].accuracy

    @property
    def mean_union(self) -> float:
        """E|V|."""
        return fmean(each.union_size for each in self.by_round)

    @property
    def payload_bits(self) -> int:
        """Of all rounds."""
        return sum(each.payload_bits for each in self.by_round)

    @property
    def predicted_bits(self) -> int:
        """The same by the formulas."""
        return sum(each.predicted_bits for each in self.by_round)

    @property
    def wire_bytes(self) -> int:
        """Of all rounds, as encoded and sealed."""
        return sum(each.wire_bytes for each in self.by_round)

    @property
    def client_cpu_s(self) -> float:
        """Of one client in one round, without training and evaluation: the mean over clients and rounds."""
        return fmean(self._mean_by_party("client-").values())

    @property
    def server_cpu_s(self) -> float:
        """Of the busiest server in one round: where servers see plaintext, only the first has work."""
        return max(self._mean_by_party("aggregator-").values())

    @property
    def coordinator_cpu_s(self) -> float:
        """Of the coordinator in one round."""
        return max(self._mean_by_party("coordinator").values())

    @property
    def training_cpu_s(self) -> float:
        """Of one client in one round."""
        return fmean(each.training_cpu_s for each in self.by_round) / self._clients

    @property
    def evaluation_cpu_s(self) -> float:
        """Of one client in one round: its slice of the test set."""
        return fmean(each.evaluation_cpu_s for each in self.by_round) / self._clients

    @property
    def _clients(self) -> int:
        return len(self._mean_by_party("client-"))

    def _mean_by_party(self, prefix: str) -> dict[str, float]:
        parties = {name for each in self.by_round for name in each.protocol_cpu_s if name.startswith(prefix)}
        return {name: fmean(each.protocol_cpu_s.get(name, 0.0) for each in self.by_round) for name in parties}

    def describe(self, target: float) -> str:
        """How far it got, in words."""
        if not self.by_round:
            return "cut off in its first round"
        rounds = f"{self.rounds} round{'' if self.rounds == 1 else 's'}"
        if self.reached:
            return f"reached {show_share(target)} after {rounds}"
        how = "stopped" if self.finished else "was cut off"
        return f"{how} after {rounds} at {100 * self.accuracy:.1f} %, target not reached"

    def summarise(self) -> Json:
        """For programs, without the rounds."""
        return {
            "strategy": self.strategy,
            "name": self.name,
            "q": self.q,
            "feedback": self.feedback,
            "block": self.block,
            "seed": self.seed,
            "finished": self.finished,
            "rounds": self.rounds,
            "reached": self.reached,
            **(self._measured() if self.by_round else {}),
            "model_sha256": self.model_sha256,
        }

    def _measured(self) -> Json:
        return {
            "accuracy": self.accuracy,
            "mean_union": self.mean_union,
            "total_bytes": to_bytes(self.payload_bits),
            "predicted_bytes": to_bytes(self.predicted_bits),
            "wire_bytes": self.wire_bytes,
            "client_cpu_s": self.client_cpu_s,
            "server_cpu_s": self.server_cpu_s,
            "coordinator_cpu_s": self.coordinator_cpu_s,
            "training_cpu_s": self.training_cpu_s,
            "evaluation_cpu_s": self.evaluation_cpu_s,
        }


def show_share(share: float) -> str:
    """A target as people read it: 98 %."""
    return f"{100 * share:g} %"


def to_bytes(bits: int) -> float:
    """Bytes, whole where they are."""
    return bits // BITS if bits % BITS == 0 else bits / BITS
