"""One phase at one aggregator, as events fed to its machine and the effects that come out."""

from collections.abc import Sequence
from typing import Self

from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import CountRefusal, Key, Publish
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ClosePhase, OrderRefused
from hubbub.messages.shares import Receipt, declare
from hubbub.protocol.layout import Vector
from hubbub.strategies.registry import find_strategy
from hubbub_aggregator.events import ChunkArrived, ChunkChecked, CloseOrdered
from hubbub_aggregator.phases.accumulation import KIND, Accumulation, GiveReceipt, State
from support.builders import TRANSCRIPT, make_manifest, name_sets
from support.machine_play import MachinePlay

SHORT = (Vector("signs", 100, 9),)
LONG = (Vector("signs", 101, 9),)
CHUNKS = 2
AT_S = 50.0
OTHER_TRANSCRIPT = "7b" * 32


def set_of(client: PartyId) -> SetId:
    return SetId(f"{int(client.rsplit('-', 1)[1]):032x}")


class Play(MachinePlay[State, Accumulation]):
    """One phase at the first aggregator."""

    def __init__(
        self,
        manifest: Manifest | None = None,
        required: frozenset[PartyId] = frozenset(),
        *,
        combiner: PartyId | None = None,
    ) -> None:
        self.manifest = manifest or make_manifest(clients=4, servers=3, min_clients=3)
        self.run = Key("run", self.manifest.run_id)
        data = Accumulation(
            me=self.manifest.aggregators[0],
            key=Key("phase", self.manifest.run_id, 1, find_strategy(self.manifest.strategy).phases[-1].name),
            run=self.run,
            manifest=self.manifest,
            servers=self.manifest.aggregators,
            combiner=combiner,
            required_members=required,
        )
        super().__init__(KIND, data, self.manifest.coordinator)

    def chunk(
        self,
        client: PartyId,
        index: int,
        *,
        set_id: SetId | None = None,
        vectors: tuple[Vector, ...] = SHORT,
        weight: int = 1,
        transcript: str = TRANSCRIPT,
        seeded: bool = False,
        checked: bool = False,
    ) -> None:
        self.feed(
            ChunkArrived(
                client=client,
                set_id=set_id or set_of(client),
                vectors=vectors,
                weight=weight,
                transcript=transcript,
                index=index,
                chunks=1 if seeded else CHUNKS,
                wire_bytes={"signs": 10},
                at_s=AT_S,
                seed=b"sealed" if seeded else b"",
                checked=checked,
            )
        )

    def deliver(
        self, *clients: PartyId, vectors: tuple[Vector, ...] = SHORT, transcript: str = TRANSCRIPT
    ) -> Self:
        """Whole, good sets."""
        for client in clients:
            for index in range(CHUNKS):
                self.chunk(client, index, vectors=vectors, transcript=transcript)
            for index in range(CHUNKS):
                self.check(client, index)
        return self

    def check(self, client: PartyId, index: int, *, asked: int = 0) -> None:
        self.feed(ChunkChecked(client=client, index=index, at_s=AT_S, asked=asked))

    def receipt(self, server: PartyId, *clients: PartyId) -> Receipt:
        """For sets like the one of the first client that is here, or for one like the others' if none is."""
        here = self.data.sets.get(clients[0])
        return Receipt(
            aggregator=server,
            sets=name_sets({client: set_of(client) for client in clients}),
            vectors=declare(here.vectors if here else SHORT),
            transcript=here.transcript if here else TRANSCRIPT,
        )

    def receipts(self, members: Sequence[PartyId]) -> tuple[Receipt, ...]:
        """One for each set; what they say is the same as if each were for several."""
        return tuple(self.receipt(server, member) for member in members for server in self.manifest.aggregators)

    def order(self, members: Sequence[PartyId], receipts: Sequence[Receipt] | None = None) -> None:
        shown = self.receipts(members) if receipts is None else receipts
        self.feed(CloseOrdered(members=tuple(members), receipts=tuple(shown)))

    def given(self) -> list[Receipt]:
        return [effect.receipt for effect in self.of(GiveReceipt)]

    def expect_refusal(self, reason: RejectReason, kind: str = ClosePhase.kind) -> None:
        """The order was answered, counted as the coordinator's, and nothing else."""
        answer, counted = self.effects
        (refusal,) = self.said()
        assert isinstance(refusal, OrderRefused)
        assert refusal.reason is reason
        assert answer == Publish(self.manifest.coordinator, Role.COORDINATOR, refusal)
        assert isinstance(counted, CountRefusal)
        assert (counted.reason, counted.kind, counted.sender) == (reason, kind, self.manifest.coordinator)
        assert counted.explanation, "for our own log"
