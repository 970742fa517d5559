"""The coordinator's machines, fed event by event, without a runner."""

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

from hubbub.ids import PartyId, SetId
from hubbub.machine.effects import Key
from hubbub.machine.table import Kind, step
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import RoundApplied
from hubbub.messages.shares import Receipt, SignedReceipt, Traffic, VectorClaim
from hubbub.protocol.metrics import CLASSIFICATION, regression
from hubbub.runtime.runner import Transition
from hubbub_coordinator.events import Began, ReceiptArrived, SumReleased, UpdateApplied
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases.round import CoordinatorRound
from support.builders import MODEL_HMAC, SIGNATURE, TRANSCRIPT, name_sets

T = TypeVar("T")

CLASSIFIED = tuple(map(MetricClaim.of, CLASSIFICATION))
REGRESSED = tuple(map(MetricClaim.of, regression(0.0, 10.0)))
"""Metrics of a run, as its manifest has them."""


def make_round(manifest: Manifest, number: int = 1, **fields: Any) -> CoordinatorRound:
    """A round of the manifest's run; before anything has happened in it, but for the fields that are given."""
    return CoordinatorRound(run=Key("run", manifest.run_id), number=number, manifest=manifest, **fields)


def make_signed(
    aggregator: PartyId,
    client: PartyId,
    set_id: SetId,
    vectors: tuple[VectorClaim, ...],
    transcript: str = TRANSCRIPT,
) -> SignedReceipt:
    """A receipt with a signature that nobody made: it is checked before a machine sees the receipt."""
    return sign_sets(aggregator, {client: set_id}, vectors, transcript)


def sign_sets(
    aggregator: PartyId,
    sets: Mapping[PartyId, SetId],
    vectors: tuple[VectorClaim, ...],
    transcript: str = TRANSCRIPT,
) -> SignedReceipt:
    """The same for several sets."""
    receipt = Receipt(aggregator=aggregator, sets=name_sets(sets), vectors=vectors, transcript=transcript)
    return SignedReceipt(receipt=receipt, signature=SIGNATURE)


class Play(Generic[T]):
    """A machine; `feed` gives what `tell` makes of the step."""

    def __init__(self, kind: Kind[Any, Any], key: Key, data: Any, tell: Callable[[Transition], T]) -> None:
        self.kind, self.key, self.data = kind, key, data
        self.state: Enum = kind.initial
        self.sequence = 0
        self._tell = tell

    def feed(self, event: object) -> T:
        before, earlier = self.state, self.data
        result = step(self.kind.table, self.state, self.data, event)
        self.state, self.data = result.state, result.data
        self.sequence += 1
        moment = Transition(self.sequence, self.key, before, event, self.state, self.data, 0.0, earlier)
        return self._tell(moment)


class RoundPlay(Play[T]):
    """A round, with the events that most of its steps are."""

    def __init__(
        self, manifest: Manifest, tell: Callable[[Transition], T], number: int = 1, **fields: Any
    ) -> None:
        self.manifest = manifest
        data = make_round(manifest, number, **fields)
        super().__init__(rounds.KIND, Key("round", manifest.run_id, number), data, tell)

    def begin(self) -> T:
        return self.feed(Began(at_s=100.0))

    def receive(self, client: PartyId, server: PartyId, phase: str, at_s: float = 110.0) -> T:
        set_id = SetId(f"{self.manifest.clients.index(client):032x}")
        signed = make_signed(server, client, set_id, self._claim(phase))
        return self.feed(ReceiptArrived(at_s=at_s, phase=phase, receipt=signed))

    def deliver(self, *but: PartyId, phase: str = "", at_s: float = 110.0) -> None:
        """Have all clients but some deliver the current phase, or the one that is named, to all aggregators."""
        phase = phase or self.data.current.name
        for client in self.manifest.clients:
            for server in self.manifest.aggregators:
                if client not in but:
                    self.receive(client, server, phase, at_s)

    def release_at(
        self, server: PartyId, at_s: float = 113.0, *, phase: str = "", members: Collection[PartyId] = ()
    ) -> T:
        phase = phase or self.data.current.name
        return self.feed(
            SumReleased(
                at_s=at_s,
                phase=phase,
                aggregator=server,
                members=frozenset(members) or self.data.current_members,
                vectors=self._claim(phase),
                traffic=(Traffic(counts_as=phase, direction="down", payload_bits=800, wire_bytes=150),),
            )
        )

    def release(self, at_s: float = 113.0) -> None:
        """Have all aggregators release the current phase."""
        phase = self.data.current.name
        for server in self.manifest.aggregators:
            self.release_at(server, at_s, phase=phase)

    def apply(self, client: PartyId, *, model_hmac: str = MODEL_HMAC, counts_as: str = "signs") -> T:
        rows = (Traffic(counts_as=counts_as, direction="up", payload_bits=24, wire_bytes=7),)
        report = RoundApplied(model_hmac=model_hmac, traffic=rows)
        return self.feed(UpdateApplied(at_s=130.0, client=client, report=report))

    def play_to_applying(self) -> None:
        """Play a round of two phases until all its sums are out: at 110, 113, 120 and 121 seconds."""
        self.begin()
        for delivered_s, released_s in ((110.0, 113.0), (120.0, 121.0)):
            self.deliver(at_s=delivered_s)
            self.release(released_s)

    def play_to_scores(self) -> None:
        """Play a scored round until its scores phase is open."""
        self.play_to_applying()
        for client in self.manifest.clients:
            self.apply(client)

    def _claim(self, phase: str) -> tuple[VectorClaim, ...]:
        lengths = {"union": self.manifest.parameters, "signs": 8, "scores": 2}
        moduli = {"union": 2, "signs": 7, "scores": 2**32}
        return (VectorClaim(name=phase, length=lengths[phase], modulus=moduli[phase]),)
