"""One round of any strategy in pure code: no services, no chunks, no messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest

from hubbub.crypto.peer_ciphers import PEER_CIPHERS
from hubbub.crypto.stream import AesCtrRows, AesCtrStream
from hubbub.errors import PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import tags
from hubbub.protocol.aggregate import NO_HISTORY, History
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues, check_residues, residue_type
from hubbub.strategies.base import (
    ClientInput,
    ClientRound,
    Conclusion,
    Gathering,
    Phase,
    Release,
    RoundSoFar,
    Strategy,
    Theta,
)

N = 300
MASK = np.arange(5, N, 10)
"""As many coordinates as ρ = 0.1 has."""


def setting(
    *,
    clients: int = 5,
    servers: int = 2,
    rho: float = 0.1,
    q: int = 1,
    alpha_max: float = 16.0,
    alpha_rule: str = "norm",
    feedback: str = "lost",
    first_factor_bound: float = 1_000.0,
    verified: bool = True,
) -> Parameters:
    """Parameters under which the first round is not clamped, unless its bound is given."""
    plain = Parameters(model_size=N, clients=clients, servers=servers, rho=rho, q=q, alpha_max=alpha_max)
    plain = replace(plain, first_factor_bound=first_factor_bound, verified=verified)
    return replace(plain, alpha_rule=alpha_rule, feedback=feedback)  # type: ignore[arg-type]  # Literals, as text.


def draw(seed: int, scale: float = 1.0) -> Theta:
    return (np.random.default_rng(seed).standard_normal(N) * scale).astype(np.float32)


def key_of(seed: int) -> bytes:
    return seed.to_bytes(32, "big")


def coefficients(phase: str, vector: str) -> AesCtrRows:
    """The coefficients of all tags, at all clients and in every round."""
    return AesCtrRows(f"{phase} {vector}".encode().ljust(32, b"."))


def make_input(
    seed: int, *, theta: Theta, scale: float = 1.0, update: Theta | None = None, history: History = NO_HISTORY
) -> ClientInput:
    """A client with an update and something in its accumulator; or with this update and nothing in it."""
    return ClientInput(
        theta=theta,
        update=draw(seed, scale) if update is None else update,
        accumulator=draw(seed + 1_000, scale / 10) if update is None else np.zeros(N, np.float32),
        samples=10 + 7 * seed,
        stream=AesCtrStream(key_of(seed)),
        history=history,
        shared=AesCtrStream(key_of(99)),
        mask=MASK,
        coefficients=coefficients,
        ciphers=PEER_CIPHERS,
    )


def play(
    strategy: Strategy,
    parameters: Parameters,
    inputs: Sequence[ClientInput],
    *,
    left_out: Sequence[int] = (),
    gone: Mapping[str, Sequence[int]] | None = None,
) -> list[Conclusion]:
    """Deal, combine and recombine, or gather, phase after phase; everybody absorbs, members contribute.

    `gone` are those who are no longer members from a phase on.
    """
    mask = strategy.draw_mask(parameters, (parameters.model_size,), AesCtrStream(key_of(0)))
    rounds = [
        strategy.begin(parameters, replace(mine, mask=mask, place=place)) for place, mine in enumerate(inputs)
    ]
    here, so_far = [place for place in range(len(rounds)) if place not in left_out], Server()
    for phase in strategy.phases:
        here = [place for place in here if place not in (gone or {}).get(phase.name, ())]
        members = [rounds[place] for place in here]
        gathering = so_far.begin(phase, parameters, {place: rounds[place] for place in here})
        summed = None if gathering is not None else add_up(phase, parameters, members)
        for place, each in enumerate(rounds):
            release = summed or (gathering.finish(place) if gathering is not None else None)
            assert release is not None
            strategy.admit_release(parameters, phase.name, release.vectors)
            each.absorb(phase.name, replace(release, members=tuple(here)), len(members))
    return [each.conclude(took_part=place not in left_out) for place, each in enumerate(rounds)]


@dataclass(slots=True)
class Server:
    """What a server has of a round: who the members were, and all that they sent."""

    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sent: dict[str, list[tuple[Digits, ...]]] = field(default_factory=dict)

    def describe(self) -> RoundSoFar:
        return RoundSoFar(self.members, self._read_again, PEER_CIPHERS)

    def begin(self, phase: Phase, parameters: Parameters, members: Mapping[int, ClientRound]) -> Gathering | None:
        """A phase that gathers, with all that these members send."""
        self.members[phase.name] = tuple(members)
        gathering = phase.gather(parameters, self.describe())
        if gathering is not None:
            self.sent[phase.name] = [member.contribute(phase.name) for member in members.values()]
            for values, member in zip(self.sent[phase.name], members.values(), strict=True):
                gathering.add(values, member.weight)
        return gathering

    def _read_again(self, phase: str, vectors: Sequence[Vector]) -> Iterator[Sequence[Residues]]:
        for values in self.sent[phase]:
            assert [vector.length for vector in vectors] == [each.size for each in values]
            yield [each.astype(np.uint32) for each in values]


NOTHING_YET = Server().describe()
"""A round of which nobody has sent anything."""


def add_up(phase: Phase, parameters: Parameters, members: Sequence[ClientRound]) -> Release:
    """All that the clients send, split, added by every aggregator of the phase, and recombined."""
    servers = len(phase.aggregators(range(parameters.servers)))
    vectors = members[0].vectors(phase.name)
    totals = [
        [np.zeros(vector.length, residue_type(vector.modulus)) for vector in vectors] for _ in range(servers)
    ]
    for member in members:
        assert member.vectors(phase.name) == vectors
        for position, values in enumerate(member.contribute(phase.name)):
            modulus = vectors[position].modulus
            shares = phase.deal(values, modulus, servers, AesCtrStream.from_os())
            for server, share in enumerate(shares):
                phase.combine(totals[server][position], share, modulus)
    sums: list[Residues] = [
        phase.recombine({place: total[position] for place, total in enumerate(totals)}, vector.modulus)
        for position, vector in enumerate(vectors)
    ]
    for vector, values in zip(vectors, sums, strict=True):
        check_residues(values, vector.modulus)  # Or it could not be packed.
    return Release(vectors, tuple(sums))


# Sums as somebody might have made them ------------------------------------------------------------------


def absorb(client: ClientRound, phase: str, values: Sequence[Residues], members: int) -> None:
    """Give a client these sums, with tags that fit them."""
    vectors = client.vectors(phase)
    client.absorb(phase, Release(vectors, (*values, *fit_tags(phase, vectors, values))), members)


def fit_tags(phase: str, vectors: Sequence[Vector], values: Sequence[Residues]) -> tuple[Digits, ...]:
    """The tags of these sums, if the last vector is that of tags."""
    *own, last = vectors
    if last.name != tags.NAME:
        return ()
    kinds: dict[int, tags.Kind] = {tags.LANES: "integers", tags.WIDE_LANES: "wide", tags.MARK_LANES: "marks"}
    kind = kinds[last.length]
    return (tags.compute(kind, own, values, partial(coefficients, phase)),)


def refusal(client: ClientRound, phase: str, values: Sequence[Residues], members: int) -> RejectReason:
    """The reason for which a client does not take these sums."""
    with pytest.raises(PeerError) as caught:
        absorb(client, phase, values, members)
    return caught.value.reason


def factor(value: int = 0) -> Residues:
    return np.array([value], np.uint32)


# The bound on a round's mean factor, in the open --------------------------------------------------------


def bound(mean: float, parameters: Parameters, history: Sequence[float]) -> float:
    """The mean factor that is applied after these."""
    if not history:
        return min(mean, parameters.first_factor_bound)
    half = sorted(history)[: (len(history) + 1) // 2]
    return min(mean, max(parameters.kappa * half[-1], parameters.factor_floor))
