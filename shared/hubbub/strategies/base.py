"""What a strategy is.

A strategy says which phases a round has and what each side does in them. The services know no strategy by
name: a trainer asks it what to contribute and hands it the sums, an aggregator asks it whether declared
vectors are admissible and how to add them, the coordinator asks it for the phases and the predicted cost.
Everything here is pure: no I/O, no clock, and randomness arrives as a stream. Adding a strategy is a class in a
file of this package and its name in the registry.

Seen by an aggregator every phase is the same: collect share sets, be told a member set, add, release. A phase
is described by three small functions on residues, which act chunk by chunk:

    deal       a client's values to one share per aggregator of the phase
    combine    one more share into the running total of an aggregator
    recombine  the aggregators' totals to what the clients decode

Additive sharing is the default for all three, and memory is that of a chunk. Such a phase may travel compactly,
where residues are added as digits of words (`hubbub.protocol.dense`): in a ring that is no power of two the
members' values have to add up to less than m, without wrapping. A phase in which a server computes on whole
vectors of single clients (the plaintext baselines do) gives a `Gathering` instead, which is fed one client after
the other and says what is released to whom; it may have other vectors than were sent.

How other protocols fit
    *Practical Secure Aggregation* (Bonawitz et al., 2017) has one server, so four phases on the first aggregator.
    advertise, a gathering: every client sends its public keys, the release is all of them. share-keys, a
    gathering: client i sends C ciphertexts, the release to client j is the j-th of each, which is why `finish` is
    told for whom. masked: `combine` adds masked inputs mod 2^32, chunk by chunk. unmask, a gathering: the clients
    that are left send the shares that they hold, which give the masks and so the sum. A phase there may close over
    fewer members than the one before; here that is forbidden, so such a phase needs a flag that allows it, and
    privacy then rests on that protocol's own threshold.
    *EaSTLy* has one phase. With threshold sharing, `deal` makes Shamir shares over a prime field, `combine` adds
    them and `recombine` interpolates. With Paillier, `deal` encrypts to a key that the clients share, elements are
    ciphertexts cut into 32-bit residues, and a gathering multiplies them.

What every strategy that compresses with TopBinary has in common (Beguier et al., section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import BadUpdate, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import sharing
from hubbub.protocol.aggregate import NO_HISTORY, History
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.protocol.tags import CoefficientsIn, Kind

Theta = NDArray[np.float32]
Indices = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """What an aggregator gives a client at the end of a phase."""

    vectors: tuple[Vector, ...]
    values: tuple[Digits, ...] = field(repr=False)
    possible: bool = field(default=True, repr=False)
    """Whether residues can add up to what was released at all; if not, the values are in their rings but wrong."""


class Gathering(Protocol):
    """A server's side of a phase in which it computes on whole vectors."""

    def add(self, values: Sequence[Digits], weight: int) -> None:
        """Take in one member's vectors; the members come in manifest order."""

    def finish(self, client: int) -> Release:
        """What the client at this place of the cohort is given; the same object where it is the same."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One collect-add-release cycle of a round.

    Names are unique within a strategy. What a phase's first vector counts as is the phase's name.
    """

    name: str
    tagged: Kind | None = None
    """The kind of tags that its sums are verified with; None if it carries no tags, as it has to if it gathers."""

    def aggregators(self, named: Sequence[T]) -> tuple[T, ...]:
        """Which of the manifest's aggregators take part, in order."""
        return tuple(named)

    def deal(self, values: Digits, modulus: int, servers: int, stream: RandomStream) -> list[Residues]:
        """Split a client's values into one share for each aggregator."""
        return sharing.split(values, modulus, servers, stream)

    def combine(self, total: Residues, share: Residues, modulus: int) -> None:
        """Add a share into an aggregator's total, in place."""
        sharing.accumulate(total, share, modulus)

    def recombine(self, totals: Sequence[Residues], modulus: int) -> Residues:
        """Turn the aggregators' totals into the sum over the members."""
        return sharing.recombine(totals, modulus)

    @property
    def shares(self) -> bool:
        """Whether clients deal additive shares, which the compact wire can carry for less."""
        return type(self).deal is Phase.deal and type(self).combine is Phase.combine and not self.gathers

    @property
    def gathers(self) -> bool:
        """Whether a server computes on whole vectors, and clients may be sent different ones."""
        return type(self).gather is not Phase.gather

    def gather(self, parameters: Parameters) -> Gathering | None:
        """Begin to compute on whole vectors; None where the phase adds chunk by chunk."""
        del parameters
        return None


@dataclass(frozen=True, slots=True)
class PlainPhase(Phase):
    """A phase in which the first server alone takes part, and sees what each client sends."""

    def aggregators(self, named: Sequence[T]) -> tuple[T, ...]:
        """The first one."""
        return tuple(named[:1])

    def deal(self, values: Digits, modulus: int, servers: int, stream: RandomStream) -> list[Residues]:
        """Hide nothing."""
        del modulus, servers, stream
        return [values.astype(np.uint32, copy=False)]

    def recombine(self, totals: Sequence[Residues], modulus: int) -> Residues:
        """There is one total."""
        del modulus
        return totals[0]


@dataclass(frozen=True, slots=True, eq=False)
class ClientInput:
    """What a client goes into a round with. It is secret, so it does not print."""

    theta: Theta = field(repr=False)
    update: Theta = field(repr=False)
    accumulator: Theta = field(repr=False)
    samples: int
    stream: RandomStream = field(repr=False)
    """For what a strategy draws at random, other than shares: it follows from the client's own secret."""
    history: History = field(default=NO_HISTORY, repr=False)
    """Mean factors of the rounds before, as the last conclusion had it; the same at all clients."""
    silent: bool = False
    """Training failed here. The client takes part and contributes nothing: zeros with α = 0. Its accumulator stays
    as it was. The others see a member like any other."""
    coefficients: CoefficientsIn | None = field(default=None, repr=False)
    """The secret coefficients of tags in this round. A run whose sums are verified needs them."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a client holds when a round is over; model and accumulator do not print."""

    theta: Theta = field(repr=False)
    accumulator: Theta = field(repr=False)
    union_size: int
    alone_share: float | None = None
    """Of V's indices, the share that a single client chose, as far as this client can tell. It stays here: it may
    depend on the client's own input."""
    changed: int = 0
    """How many of the client's numbers were clipped or left out to be sent at all. It stays here, too."""
    history: History = field(default=NO_HISTORY, repr=False)
    """With this round's mean factor, where a strategy has factors."""
    scale: float = 1.0
    """What the mean factor was scaled by to keep its bound; 1 where it was not clamped. It stays here, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Restriction:
    """An index list, ascending, that vectors are restricted to."""

    indices: Indices
    bits: NDArray[np.uint8] | None = None
    """The same as packed bits, the first lowest, if they are at hand; all after the last index are zero."""


class ClientRound(Protocol):
    """One client's side of one round. It holds the client's secrets, so it does not print them."""

    @property
    def weight(self) -> int:
        """How much this client counts in an average; 1 where all count alike."""

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """What this client sends in a phase; known once the phases before it are absorbed."""

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """This client's values, one vector for each of `vectors(phase)`."""

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """Every index list, of this round or an earlier one, that the phase's vectors are restricted to."""

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Tell whether so many members can have what a phase released; nothing of it is taken in."""

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Take in what a phase released over that many members. It is plausible; `Verified` has seen to that."""

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply the round. A client that was left out keeps its whole update in its accumulator."""


Support = Literal["dense", "union", "lossy union"]
"""The indices that a sum is over: all, those that somebody chose, or those less some that the union loses."""
ServersLearn = Literal["nothing", "indices"]
NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Information that one server, or all but one, gets of the clients; and that clients get besides V."""

    updates: bool = False
    indices: bool = False
    sums: bool = False
    clients_learn: str = NOTHING

    @property
    def servers_learn(self) -> str:
        """The most telling thing that a server learns."""
        if self.updates:
            return "updates"
        return "indices" if self.indices else "sums" if self.sums else NOTHING

    def within(self, level: ServersLearn) -> bool:
        """Tell whether servers learn no more than that."""
        return not self.updates and not self.sums and (level == "indices" or not self.indices)


class Strategy(Protocol):
    """A way to aggregate, for every party."""

    @property
    def name(self) -> str:
        """What manifests and users call it."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a round, in order."""

    @property
    def reveals(self) -> str:
        """What a server learns of a single client; empty if nothing."""

    @property
    def repeats(self) -> bool:
        """Whether a client says the same again in every round, because it does not learn.

        Then two sums over different members, or two unions around a void round, subtract to what one client said.
        """

    @property
    def support(self) -> Support:
        """The indices that the last phase sums over; q and blocks are for a union that loses some."""

    def exposure(self, parameters: Parameters) -> Exposure:
        """Tell what servers and clients learn in a run."""

    def begin(self, parameters: Parameters, mine: ClientInput) -> ClientRound:
        """Begin a client's round after local training."""

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Refuse, with `PeerError`, vectors that no honest client declares in this phase."""

    def admit_release(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Refuse, with `PeerError`, vectors that no honest aggregator releases in this phase."""

    def union_size(self, released: Sequence[Vector]) -> int:
        """|V|, from the vectors that the last phase released."""

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Payload of a round by the formula of the wire mode, by what it counts as."""


def admit_exactly(expected: Sequence[Vector], declared: Sequence[Vector]) -> None:
    """Refuse declared vectors that differ from the expected ones, saying in what."""
    admit_up_to(expected, declared)
    for have, want in zip(declared, expected, strict=True):
        if have.length != want.length:
            raise PeerError(
                RejectReason.WRONG_LENGTH,
                f"{have.name} has {have.length} elements where the manifest asks for {want.length}",
            )


def admit_up_to(largest: Sequence[Vector], declared: Sequence[Vector]) -> None:
    """Refuse declared vectors with other names or rings, or longer than these."""
    if [vector.name for vector in declared] != [vector.name for vector in largest]:
        names = ", ".join(vector.name for vector in largest)
        raise PeerError(RejectReason.WRONG_LENGTH, f"the set must hold exactly the vectors {names}")
    for have, limit in zip(declared, largest, strict=True):
        if have.length > limit.length:
            raise PeerError(
                RejectReason.WRONG_LENGTH,
                f"{have.name} has {have.length} elements where at most {limit.length} are possible",
            )
        if have.modulus != limit.modulus:
            raise PeerError(
                RejectReason.WRONG_RING,
                f"{have.name} is over Z_{have.modulus} where the manifest asks for Z_{limit.modulus}",
            )


def check_length(parameters: Parameters, mine: ClientInput) -> None:
    """Refuse an update of another length than the run has."""
    if mine.update.shape != (parameters.parameters,):
        raise BadUpdate(
            f"the update has shape {mine.update.shape} where the run has {parameters.parameters} parameters"
        )


def add_up(parameters: Parameters, mine: ClientInput) -> Theta:
    """X = U + δ: what a client wants to say, of the length that the run has."""
    check_length(parameters, mine)
    # What overflows here is refused by the compression, as infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        wanted: Theta = mine.update + mine.accumulator
    return wanted


def speak(mine: ClientInput, wanted: Theta) -> Theta:
    """What a client's contribution is computed from: X, or zeros if it has nothing to say."""
    return np.zeros_like(wanted) if mine.silent else wanted


def require(found: T | None) -> T:
    """The next model, or what else is there once the round's sums are."""
    if found is None:
        raise BadUpdate("a round is concluded after its sums were absorbed, not before")
    return found
