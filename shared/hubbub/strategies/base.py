"""The interface of a strategy: its phases, and each side of them.

A strategy says which phases a round has and what each side does in them. The services know no strategy by name: a
trainer asks it what to contribute and hands it the sums, an aggregator asks it whether declared vectors are
admissible and how to add them, the coordinator asks it for the phases and the predicted cost. Everything here is
pure: no I/O, no clock, and randomness arrives as a stream. To add a strategy, write a subclass of `Strategy` and
one of `ClientRound` in a file of this package, and add the strategy to the registry.

To an aggregator every phase is the same: collect share sets, receive a member set, add, release. Three small
functions on residues, which act chunk by chunk, describe a phase:

    deal       a client's values to one share per aggregator of the phase
    combine    one more share into the running total of an aggregator
    recombine  the aggregators' totals to what the clients decode

Additive sharing is the default for all three, and needs the memory of one chunk. Such a phase may use the compact
wire, where residues are added as digits of words (`hubbub.protocol.dense`): in a ring that is no power of two the
members' values have to add up to less than m, without wrapping. In a `GatheringPhase` a server computes on whole
vectors of single clients (as in the plaintext baselines). Its `Gathering` is fed one client after the other and
says what is released to whom, which may be other vectors than were sent.

The helpers at the end serve several strategies, most of all those that compress with TopBinary (Beguier et al.,
section 3.1).

A phase may close over fewer members than the one before if it has a `threshold`. A strategy needs that when
clients can help to take out what a missing one has put in. What a protocol between clients needs besides is handed
in: a client's place in the cohort and `PeerCiphers`, to the server the same ciphers and the `RoundSoFar`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import BadUpdate, PeerError, RejectReason
from hubbub.ids import Weights
from hubbub.parameters import Parameters
from hubbub.protocol import sharing
from hubbub.protocol.aggregate import NO_HISTORY, History
from hubbub.protocol.compression import Indices
from hubbub.protocol.costs import Headcount
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import RandomStream, Residues
from hubbub.protocol.tags import CoefficientsIn, Kind

Theta = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """Result of a phase that an aggregator sends to a client."""

    vectors: tuple[Vector, ...]
    values: tuple[Digits, ...] = field(repr=False)
    possible: bool = field(default=True, repr=False)
    """False if no residues add up to what was released: then the values are in their rings but wrong."""
    members: tuple[int, ...] = ()
    """Places in the cohort of the clients that the phase was closed over; clients fill it in."""


class PeerCiphers(Protocol):
    """Cryptography between two clients, and for a server that is given a client's key."""

    def public_key(self, private: bytes) -> bytes:
        """Return the public key of 32 random bytes."""

    def agree(self, private: bytes, public: bytes, salt: bytes = b"") -> bytes:
        """Return the key that follows from one side's private and the other side's public key, and from a salt.

        Raises `PeerError` for a public key with which all agree on the same.
        """

    def expand(self, key: bytes) -> RandomStream:
        """Begin the stream of a key."""

    def seal(self, key: bytes, plaintext: bytes, *context: bytes | int) -> bytes:
        """Encrypt and authenticate. With the same key, a context is used for one plaintext only."""

    def open(self, key: bytes, sealed: bytes, *context: bytes | int) -> bytes:
        """Decrypt; raise `PeerError` if it was sealed with another key or context."""


@dataclass(frozen=True, slots=True)
class RoundSoFar:
    """A round as the server has it when it computes on a phase."""

    members: Mapping[str, tuple[int, ...]]
    """Places of the members of this phase and of those before, by phase."""
    read_again: Callable[[str, Sequence[Vector]], Iterator[Sequence[Residues]]] = field(repr=False)
    """Reads the vectors that each member has sent in an earlier phase that is `kept`."""
    ciphers: PeerCiphers


class Gathering(Protocol):
    """Server's side of a phase in which it computes on whole vectors."""

    def add(self, values: Sequence[Digits], weight: int) -> None:
        """Add one member's vectors; the members come in manifest order."""

    def finish(self, client: int) -> Release:
        """Return the release to the client at this place of the cohort; equal releases are one object."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One collect-add-release cycle of a round.

    Names are unique within a strategy. A phase's first vector counts as traffic under the phase's name.
    """

    name: str
    tagged: Kind | None = None
    """Kind of the tags that verify its sums; None for none, which a phase that gathers must have."""
    kept: bool = False
    """True if servers keep what members send until the strategy's last phase is over, to read it again."""
    personal: bool = False
    """True if clients are sent different vectors by design. Transcripts then have the members alone."""

    def tags_in(self, parameters: Parameters) -> Kind | None:
        """Return the kind of tags in a run, or None if it has none."""
        return self.tagged if parameters.verified else None

    def aggregators(self, named: Sequence[T]) -> tuple[T, ...]:
        """Return those of the manifest's aggregators that take part, in order."""
        return tuple(named)

    def quorum(self, servers: int) -> int:
        """Return how many of so many aggregators are enough to release the sum; by default all."""
        return servers

    def threshold(self, clients: int) -> int | None:
        """Return how many of the cohort must be members of a phase that may lose some; None if it may not."""
        del clients
        return None

    def may_close(self, members: Collection[object], before: Collection[object], clients: int) -> bool:
        """Tell whether a phase can be closed over these, after others of the round were over `before`."""
        fewest, now, earlier = self.threshold(clients), frozenset(members), frozenset(before)
        if fewest is None:
            return not earlier or now == earlier
        return len(now) >= fewest and (not earlier or now <= earlier)

    def deal(self, values: Digits, modulus: int, servers: int, stream: RandomStream) -> list[Residues]:
        """Split a client's values into one share for each aggregator."""
        return sharing.split(values, modulus, servers, stream)

    def combine(self, total: Residues, share: Residues, modulus: int) -> None:
        """Add a share into an aggregator's total, in place."""
        sharing.accumulate(total, share, modulus)

    def recombine(self, totals: Mapping[int, Residues], modulus: int) -> Residues:
        """Turn the aggregators' totals, by place, into the sum over the members."""
        return sharing.recombine(list(totals.values()), modulus)

    @property
    def shares(self) -> bool:
        """True if clients deal additive shares, which the compact wire can carry."""
        return type(self).deal is Phase.deal and type(self).combine is Phase.combine and not self.gathers

    @property
    def gathers(self) -> bool:
        """True if a server computes on whole vectors, and may send different ones to different clients."""
        return type(self).gather is not Phase.gather

    def gather(self, parameters: Parameters, so_far: RoundSoFar) -> Gathering | None:
        """Begin to compute on whole vectors; return None if the phase adds chunk by chunk."""
        del parameters, so_far
        return None


@dataclass(frozen=True, slots=True)
class PlainPhase(Phase):
    """Phase in which only the first server takes part, and sees what each client sends."""

    def aggregators(self, named: Sequence[T]) -> tuple[T, ...]:
        """Return the first one."""
        return tuple(named[:1])

    def deal(self, values: Digits, modulus: int, servers: int, stream: RandomStream) -> list[Residues]:
        """Return the values in the clear."""
        del modulus, servers, stream
        return [values.astype(np.uint32, copy=False)]

    def recombine(self, totals: Mapping[int, Residues], modulus: int) -> Residues:
        """Return the one total."""
        del modulus
        return totals[0]


@dataclass(frozen=True, slots=True)
class GatheringPhase(PlainPhase):
    """Phase in which the first server computes on whole vectors."""

    begin: Callable[[Parameters], Gathering] = field(kw_only=True)

    def gather(self, parameters: Parameters, so_far: RoundSoFar) -> Gathering:
        """Begin to compute."""
        del so_far
        return self.begin(parameters)


@dataclass(frozen=True, slots=True, eq=False)
class ClientInput:
    """A client's input to a round. It is secret, so it does not print."""

    theta: Theta = field(repr=False)
    update: Theta = field(repr=False)
    accumulator: Theta = field(repr=False)
    samples: int
    stream: RandomStream = field(repr=False)
    """Randomness of the strategy, other than for shares; derived from the client's own secret."""
    history: History = field(default=NO_HISTORY, repr=False)
    """Mean factors of the rounds before, from the last conclusion; the same at all clients."""
    silent: bool = False
    """True if training failed here. The client takes part and contributes nothing: zeros with α = 0. Its
    accumulator stays as it was. The others see a member like any other."""
    shared: RandomStream | None = field(default=None, repr=False)
    """Randomness that is the same at all clients, anew in each round; no server has it."""
    mask: Indices | None = field(default=None, repr=False)
    """The coordinates that were trained, if the strategy draws a mask."""
    weight: float | None = field(default=None, repr=False)
    """This client's number of samples over that of the whole cohort; None if all clients count the same."""
    coefficients: CoefficientsIn | None = field(default=None, repr=False)
    """Secret coefficients of the tags in this round, required if the run's sums are verified."""
    place: int = 0
    """This client's place in the cohort, counted from 0."""
    ciphers: PeerCiphers | None = field(default=None, repr=False)
    """Cryptography for what clients send each other through the servers."""
    progress: Callable[[str, int, int], None] = field(default=lambda *_: None, repr=False)
    """Called during work that takes seconds: what it is, how much is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A client's state at the end of a round; model and accumulator do not print."""

    theta: Theta = field(repr=False)
    accumulator: Theta = field(repr=False)
    union_size: int
    alone_share: float | None = None
    """Share of V's indices that a single client chose, as far as this client can tell. It is never sent: it may
    depend on the client's own input."""
    changed: int = 0
    """Count of the client's numbers that were clipped or left out. It is never sent, either."""
    history: History = field(default=NO_HISTORY, repr=False)
    """History including this round's mean factor, if the strategy has factors."""
    scale: float = 1.0
    """Factor by which the mean factor was clamped; 1 if it was not. It is never sent, either."""


@dataclass(frozen=True, slots=True, eq=False)
class Restriction:
    """Ascending index list that vectors are restricted to."""

    indices: Indices
    bits: NDArray[np.uint8] | None = None
    """The same as packed bits, the first lowest, if already computed; all after the last index are zero."""


class ClientRound(Protocol):
    """One client's side of one round. It holds the client's secrets, so it does not print them."""

    weight: int = 1
    """This client's weight in an average; 1 if all count the same."""

    def vectors(self, phase: str) -> tuple[Vector, ...]:
        """Describe what this client sends in a phase, once the phases before it are absorbed."""

    def contribute(self, phase: str) -> tuple[Digits, ...]:
        """Return this client's values, one vector for each of `vectors(phase)`."""

    def restricted_to(self, phase: str) -> tuple[Restriction, ...]:
        """Return every index list, of this round or an earlier one, that the phase's vectors are restricted to."""
        del phase
        return ()

    def plausible(self, phase: str, release: Release, members: int) -> bool:
        """Say whether `members` clients can have what a phase released; change nothing."""

    def absorb(self, phase: str, release: Release, members: int) -> None:
        """Use what a phase released over `members` clients. `Verified` has checked that it is plausible."""

    def conclude(self, *, took_part: bool) -> Conclusion:
        """Apply the round. A client that was left out keeps its whole update in its accumulator."""


Support = Literal["dense", "mask", "union", "lossy union"]
"""The indices that a sum is over: all; a drawn mask; those that clients chose; those less some that are lost."""
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

    name: str
    """The name in manifests."""
    phases: tuple[Phase, ...]
    """The phases of a round, in order."""
    support: Support
    """The indices that the last phase sums over; q and blocks are for a union that loses some."""
    usual_rho: float = 0.1
    """ρ of a run that does not ask for another."""
    usual_weights: Weights = "equal"
    """Weights of a run that does not ask for others."""
    uses_rho: bool = True
    """False if clients send a value for every index, whatever ρ is."""
    reveals: str = ""
    """A sentence on what a server learns of a single client; empty if nothing."""
    own_models: bool = False
    """True if each client applies the sum in its own way, so that models differ. What clients agree on is then the
    model that the run begins with, and the sums since."""
    needs: tuple[str, str] | None = None
    """Module that only clients of this strategy need, and the extra that brings it."""
    repeats: bool = False
    """True if a client contributes the same in every round, because nothing is learnt.

    Then two sums over different members, or two unions around a void round, subtract to one client's input.
    """

    def exposure(self, parameters: Parameters) -> Exposure:
        """Tell what servers and clients learn in a run."""

    def draw_mask(self, parameters: Parameters, tensors: Sequence[int], stream: RandomStream) -> Indices | None:
        """Draw the coordinates that clients train in a round; None, as by default, for all of them.

        The model is made of tensors of these sizes. The stream is the same at all clients, and no server has it.
        """
        del parameters, tensors, stream
        return None

    def begin(self, parameters: Parameters, mine: ClientInput) -> ClientRound:
        """Begin a client's round after local training."""

    def admit(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Raise `PeerError` for vectors that no honest client declares in this phase."""

    def admit_release(self, parameters: Parameters, phase: str, vectors: Sequence[Vector]) -> None:
        """Raise `PeerError` for vectors that no honest aggregator releases in this phase.

        By default they are those of the clients: a sum has the shape of its summands.
        """
        self.admit(parameters, phase, vectors)

    def union_size(self, released: Sequence[Vector]) -> int:
        """Return |V|, from the vectors that the last phase released; by default the length of the first.

        It is not asked of a strategy whose support is dense.
        """
        return released[0].length

    def predict_bits(self, parameters: Parameters, heads: Headcount, union_size: int) -> Mapping[str, int]:
        """Compute the payload of a round by the formula of the wire mode, by what it counts as."""


def admit_exactly(expected: Sequence[Vector], declared: Sequence[Vector]) -> None:
    """Raise `PeerError` if declared vectors differ from the expected ones."""
    admit_up_to(expected, declared)
    for have, want in zip(declared, expected, strict=True):
        if have.length != want.length:
            raise PeerError(
                RejectReason.WRONG_LENGTH,
                f"{have.name} has {have.length} elements where the manifest asks for {want.length}",
            )


def admit_up_to(largest: Sequence[Vector], declared: Sequence[Vector]) -> None:
    """Raise `PeerError` for declared vectors with other names or rings, or longer than these."""
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
    """Raise `BadUpdate` if the update has another length than the run's model."""
    if mine.update.shape != (parameters.model_size,):
        raise BadUpdate(
            f"the update has shape {mine.update.shape} where the run has {parameters.model_size} parameters"
        )


def weigh(parameters: Parameters, mine: ClientInput) -> Theta:
    """Scale a client's update by C·w_i, so that a mean over clients weighs it.

    Raises `BadUpdate` if it has another length than the run's model.
    """
    check_length(parameters, mine)
    if mine.weight is None:
        return mine.update
    # An overflow becomes infinity, which the compression refuses.
    with np.errstate(over="ignore", invalid="ignore"):
        weighed: Theta = mine.update * np.float32(parameters.clients * mine.weight)
    return weighed


def add_up(parameters: Parameters, mine: ClientInput) -> Theta:
    """Compute X = U + δ, a client's weighed update plus its accumulator; raise `BadUpdate` for a wrong length."""
    update = weigh(parameters, mine)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted: Theta = update + mine.accumulator
    return wanted


def speak(mine: ClientInput, wanted: Theta) -> Theta:
    """Return the input of a client's contribution: X, or zeros if the client is silent."""
    return np.zeros_like(wanted) if mine.silent else wanted


def require(found: T | None) -> T:
    """Return what the round's sums gave, or raise `BadUpdate` if they were not absorbed yet."""
    if found is None:
        raise BadUpdate("a round is concluded after its sums were absorbed, not before")
    return found
