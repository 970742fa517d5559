"""Wire plan of a phase: the recipient of each share, the aggregators that release, and the encoding of vectors.

`paper` is Alg. 1 to the letter: a full share to every aggregator, and every aggregator's sum to every client.

`compact` costs (2·C + S - 1)·n·log2 m instead of 2·S·C·n·⌈log2 m⌉. Of a client's S shares all but one are sent as
seeds; the aggregator that receives the full share rotates with client and round. The aggregators send their sums
to one of them, the combiner, which rotates with round and phase. It adds them up and sends one masked sum to each
client. It needs no stand-in: a phase is released with all S sums or not at all, so that without the combiner there
is nothing to combine. Phases that share no secrets go the paper's way in either mode.

The scores phase is the same for every strategy, and comes after the strategy's own phases.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, WireMode
from hubbub.parameters import Parameters
from hubbub.protocol import tags
from hubbub.protocol.layout import DENSE, WHOLE_BITS, Chunk, Encoding, Vector, plan_chunks
from hubbub.protocol.metrics import ScoreSheet
from hubbub.strategies.base import Phase, admit_exactly
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.scores import SCORES


class Agreed(Protocol):
    """The part of a manifest that a phase's plan and vectors depend on."""

    @property
    def strategy(self) -> str:
        """The strategy's name."""

    @property
    def wire(self) -> WireMode:
        """The wire mode."""

    @property
    def chunk_bytes(self) -> int:
        """The size of the largest chunk."""

    @property
    def clients(self) -> tuple[PartyId, ...]:
        """The cohort, in order."""

    @property
    def aggregators(self) -> tuple[PartyId, ...]:
        """All aggregators, in order."""

    @property
    def is_scored(self) -> bool:
        """True if there is a scores phase."""

    @property
    def protocol_parameters(self) -> Parameters:
        """The strategy's parameters."""

    @property
    def score_sheet(self) -> ScoreSheet:
        """The encoding of the scores."""


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """Wire plan of one phase of a run."""

    phase: Phase
    place: int
    """Place of the phase in its round."""
    clients: tuple[PartyId, ...]
    aggregators: tuple[PartyId, ...]
    """All aggregators of the run, in order."""
    wire: WireMode
    chunk_bytes: int

    @property
    def servers(self) -> tuple[PartyId, ...]:
        """The aggregators that take part, in order."""
        return self.phase.aggregators(self.aggregators)

    @property
    def quorum(self) -> int:
        """The number of them that is enough to release the sum."""
        return self.phase.quorum(len(self.servers))

    @property
    def void_quorum(self) -> int:
        """The number of aggregators that is enough to void it: all, or all but too few to release it."""
        return len(self.servers) - self.quorum + 1 if self.quorum < len(self.servers) else len(self.aggregators)

    def may_close(self, members: Collection[PartyId], before: Collection[PartyId] = ()) -> bool:
        """Tell whether the phase can be closed over these after others in the round were over `before`."""
        return self.phase.may_close(members, before, len(self.clients))

    def check_members(self, members: Collection[PartyId], before: Collection[PartyId] = ()) -> None:
        """Raise `PeerError` if it cannot."""
        if self.may_close(members, before):
            return
        if self.may_lose and set(members) <= set(before or members):
            raise PeerError(
                RejectReason.TOO_FEW_MEMBERS, f"{len(members)} members are fewer than {self.phase.name} needs"
            )
        raise PeerError(
            RejectReason.DIFFERENT_MEMBERS,
            f"{self.phase.name} is released over {'no others than' if self.may_lose else 'the same members as'} "
            "the phases before it",
        )

    @property
    def may_lose(self) -> bool:
        """True if the phase may lose members of the one before."""
        return self.phase.threshold(len(self.clients)) is not None

    @property
    def compact(self) -> bool:
        """True if shares and sums take the compact form."""
        return self.wire == "compact" and self.phase.shares

    @property
    def encoding(self) -> Encoding:
        """The encoding of residues."""
        return DENSE if self.compact else WHOLE_BITS

    def plan(self, vectors: Sequence[Vector]) -> tuple[Chunk, ...]:
        """Cut these vectors into chunks."""
        return plan_chunks(vectors, self.chunk_bytes, self.encoding)

    def full_share_holder(self, client: PartyId, round_number: int) -> PartyId:
        """Return the aggregator that gets a client's full share; the others get seeds."""
        return self.servers[(self.clients.index(client) + round_number) % len(self.servers)]

    def combiner(self, round_number: int) -> PartyId:
        """Return the aggregator that adds up the sums of all."""
        return self.servers[(self.place + round_number) % len(self.servers)]

    def releasers(self, round_number: int) -> tuple[PartyId, ...]:
        """Return the aggregators that send sums to clients: the combiner alone, or all."""
        return (self.combiner(round_number),) if self.compact else self.servers


def phases_of(manifest: Agreed, *, is_scored: bool = True) -> tuple[Phase, ...]:
    """Return the phases of a round: the strategy's, then the scores if this round has them."""
    scores = (SCORES,) if manifest.is_scored and is_scored else ()
    return find_strategy(manifest.strategy).phases + scores


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasedRound:
    """A round, and the phase that it is in."""

    manifest: Agreed
    is_scored: bool = False
    """True if a scores phase follows when the round is released."""
    phase: int = 0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The strategy's phases, and the scores if there are any."""
        return phases_of(self.manifest, is_scored=self.is_scored)

    @property
    def current(self) -> Phase:
        """The phase that the round is in."""
        return self.phases[self.phase]

    @property
    def scoring(self) -> bool:
        """True in the scores phase."""
        return self.current is SCORES

    @property
    def in_last_phase(self) -> bool:
        """True in the last of the strategy's phases."""
        return self.phase + 1 == len(phases_of(self.manifest, is_scored=False))


def plan_phase(manifest: Agreed, phase_name: str) -> PhasePlan:
    """Plan a phase of a run; raise `PeerError` if the run has no phase of this name."""
    phases = phases_of(manifest)
    names = [phase.name for phase in phases]
    if phase_name not in names:
        raise PeerError(RejectReason.UNKNOWN_PHASE, f"the run has no phase {phase_name!r}")
    place = names.index(phase_name)
    return PhasePlan(
        phase=phases[place],
        place=place,
        clients=manifest.clients,
        aggregators=manifest.aggregators,
        wire=manifest.wire,
        chunk_bytes=manifest.chunk_bytes,
    )


def score_vectors(manifest: Agreed) -> tuple[Vector, ...]:
    """Describe the vectors of the scores phase: the metrics and, if sums are verified, their tags."""
    own = (manifest.score_sheet.vector,)
    return (*own, tags.describe("integers", own)) if manifest.protocol_parameters.verified else own


def admit(manifest: Agreed, phase: str, vectors: Sequence[Vector]) -> None:
    """Raise `PeerError` for vectors that no honest client declares in this phase."""
    if phase == SCORES.name:
        admit_exactly(score_vectors(manifest), vectors)
    else:
        find_strategy(manifest.strategy).admit(manifest.protocol_parameters, phase, vectors)


def admit_release(manifest: Agreed, phase: str, vectors: Sequence[Vector]) -> None:
    """Raise `PeerError` for vectors that no honest aggregator releases in this phase."""
    if phase == SCORES.name:
        admit_exactly(score_vectors(manifest), vectors)
    else:
        find_strategy(manifest.strategy).admit_release(manifest.protocol_parameters, phase, vectors)
