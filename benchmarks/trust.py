"""Overhead of sealing, signing and transcripts in a round: bytes of its messages, CPU time of its protocol.

Every operation of `hubbub.crypto` that a round uses is timed where it is called, in the CPU time of the calling
thread; so are training and evaluation, which are not part of the protocol. The rest of the process's time is the
protocol without them. Nothing is switched off: the product has no such switch.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

from benchmarks.steps import CLIENTS, RHO, SERVERS
from hubbub.crypto.sealing import CHUNK_OVERHEAD, Kem, share_overhead
from hubbub.ids import PartyId
from hubbub.messages.codec import decode
from hubbub.messages.envelope import Envelope
from hubbub.messages.rounds import ClosePhase, SumChunk
from hubbub.messages.shares import SetReceived, ShareChunk, SignedReceipt
from hubbub.messages.wire_form import Directory
from hubbub.run_options import RunOptions
from hubbub.runtime.runner import Transition
from hubbub.transport.base import Address
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology
from hubbub_coordinator.phases import round as rounds
from hubbub_local.federation import make_parties, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest

P = ParamSpec("P")
R = TypeVar("R")

ROUNDS = 4
"""Rounds of one run; the first opens files and is left out."""

# The functions that are timed: sealing, opening, signing, verifying, hashing payloads, transcripts.
TRUST = (
    "hubbub.trust.seals.seal",
    "hubbub.crypto.sealing.SealingKey.open",
    "hubbub.crypto.sealing.ChunkKey.encrypt",
    "hubbub.crypto.sealing.ChunkKey.decrypt",
    "hubbub.crypto.signing.SigningKey.sign",
    "hubbub.trust.signed.verify",
    "hubbub.messages.codec._covered",
    "hubbub.crypto.key_derivation.Transcript.note",
    "hubbub_trainer.workspace.Workspace.model_hmac",
)
LEARNING = (
    "hubbub_trainer.learning.synthetic.SyntheticLearner.train",
    "hubbub_trainer.learning.synthetic.SyntheticLearner.evaluate",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustCost:
    """Overhead for one strategy at one size: medians over rounds, summed over all parties."""

    parameters: int
    strategy: str
    rounds: int
    trust_s: float
    rest_s: float
    trust_bytes: int
    rest_bytes: int

    @property
    def time_added(self) -> float:
        """Added CPU time, as a fraction of the protocol's time without it."""
        return self.trust_s / self.rest_s

    @property
    def bytes_added(self) -> float:
        """Added bytes, as a fraction of all messages' bytes without them."""
        return self.trust_bytes / self.rest_bytes


@dataclass(frozen=True, slots=True)
class _Reading:
    process_s: float
    trust_s: float
    learning_s: float
    sent: int
    trust_bytes: int


@dataclass(slots=True)
class _Meter:
    """Meter that sums over all threads and is read at the end of every round."""

    trust_s: float = 0.0
    learning_s: float = 0.0
    sent: int = 0
    trust_bytes: int = 0
    readings: list[_Reading] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, moment: Transition) -> None:
        if isinstance(moment.data, rounds.CoordinatorRound) and moment.after is rounds.State.RELEASED:
            reading = _Reading(time.process_time(), self.trust_s, self.learning_s, self.sent, self.trust_bytes)
            self.readings.append(reading)

    def count(self, frame: bytes, directory: Directory) -> None:
        with self.lock:
            self.sent += len(frame)
            self.trust_bytes += _trust_bytes(decode(frame, directory))

    def time_trust(self, call: Callable[P, R], /, *arguments: P.args, **named: P.kwargs) -> R:
        began_s = time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            with self.lock:
                self.trust_s += time.thread_time() - began_s

    def time_learning(self, call: Callable[P, R], /, *arguments: P.args, **named: P.kwargs) -> R:
        began_s = time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            with self.lock:
                self.learning_s += time.thread_time() - began_s


def _trust_bytes(envelope: Envelope) -> int:
    """Return the bytes of a frame that are due to signatures, seals and transcripts."""
    own = len(envelope.signature)
    match envelope.body:
        case ShareChunk(transcript=transcript):
            return own + share_overhead(Kem.X25519) + _field_bytes(transcript)
        case SumChunk(wrapped_key=wrapped):
            return own + CHUNK_OVERHEAD + _field_bytes(wrapped)
        case SetReceived(receipt=signed):
            return own + _receipt_bytes(signed)
        case ClosePhase(receipts=receipts):
            # The transcript that receipts have in common is sent once.
            transcripts = {each.receipt.transcript for each in receipts}
            return (
                own + sum(_field_bytes(each.signature) for each in receipts) + sum(map(_field_bytes, transcripts))
            )
    return own


def _field_bytes(text: str) -> int:
    """Return the bytes that a hexadecimal field takes in a frame: two before its own, which are up to 255."""
    return 2 + len(text) // 2


def _receipt_bytes(signed: SignedReceipt) -> int:
    return _field_bytes(signed.receipt.transcript) + _field_bytes(signed.signature)


class _CountingTransport(MemoryTransport):
    def __init__(self, meter: _Meter, directory: Directory, broker: MemoryBroker, topology: Topology) -> None:
        super().__init__(broker, topology)
        self._meter = meter
        self._directory = directory

    async def publish(self, address: Address, body: bytes) -> None:
        self._meter.count(body, self._directory)
        await super().publish(address, body)


@contextmanager
def _timed(meter: _Meter) -> Iterator[None]:
    with ExitStack() as stack:
        for names, timer in ((TRUST, meter.time_trust), (LEARNING, meter.time_learning)):
            for name in names:
                patcher = patch(name)
                original = patcher.get_original()[0]
                stack.enter_context(patch(name, _wrap(timer, original)))
        yield


def _wrap(timer: Callable[..., R], original: Callable[..., R]) -> Callable[..., R]:
    """Wrap a call in a timer, as a function so that it still binds as a method."""

    def timed(*arguments: object, **named: object) -> R:
        return timer(original, *arguments, **named)

    return timed


def measure_trust(parameters: int, strategy: str, runs_wanted: int) -> TrustCost:
    """Run a federation in this process that many times, and measure all rounds but each first."""
    pairs: list[tuple[_Reading, _Reading]] = []
    for _ in range(runs_wanted):
        meter = _Meter()
        with _timed(meter):
            asyncio.run(_run(parameters, strategy, meter))
        pairs += zip(meter.readings[:-1], meter.readings[1:], strict=True)
    trust_s = [after.trust_s - before.trust_s for before, after in pairs]
    others_s = [after.process_s - before.process_s for before, after in pairs]
    learning_s = [after.learning_s - before.learning_s for before, after in pairs]
    rest_s = [o - t - n for o, t, n in zip(others_s, trust_s, learning_s, strict=True)]
    trust_bytes = [after.trust_bytes - before.trust_bytes for before, after in pairs]
    sent = [after.sent - before.sent for before, after in pairs]
    return TrustCost(
        parameters=parameters,
        strategy=strategy,
        rounds=len(pairs),
        trust_s=statistics.median(trust_s),
        rest_s=statistics.median(rest_s),
        trust_bytes=round(statistics.median(trust_bytes)),
        rest_bytes=round(statistics.median(sent)) - round(statistics.median(trust_bytes)),
    )


async def _run(parameters: int, strategy: str, meter: _Meter) -> None:
    task, broker = SyntheticTask(parameters), MemoryBroker()
    parties = make_parties(clients=CLIENTS, servers=SERVERS)
    options = RunOptions(strategy=strategy, rho=RHO, local_steps=1, rounds=ROUNDS, seed=0)
    manifest = draw_up_manifest(task, options, roster=parties.roster)

    def connect(_: PartyId, topology: Topology) -> _CountingTransport:
        return _CountingTransport(meter, parties.roster.directory(manifest.run_id), broker, topology)

    with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as folder:
        async with start_federation(
            manifest,
            parties=parties,
            folder=Path(folder),
            load_task=lambda _: task,
            demo_seed=0,
            connect=connect,
            observer=meter.observe,
        ) as federation:
            await federation.complete(manifest)
