"""Throw-away parties for a federation in one process: identities and a roster that nobody keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hubbub.crypto.sealing import Kem
from hubbub.ids import PartyId, Role
from hubbub.trust.identity import Identity, new_identity
from hubbub.trust.roster import Roster, build_roster


@dataclass(frozen=True, slots=True)
class Parties:
    """Everybody's identity, and the roster that they make."""

    roster: Roster
    identities: Mapping[PartyId, Identity] = field(repr=False)


def make_parties(*, clients: int, servers: int, kem: Kem = Kem.X25519) -> Parties:
    """A coordinator, client-1 to client-C and aggregator-1 to aggregator-S, each an organisation of its own."""
    roles = {
        "coordinator": Role.COORDINATOR,
        **{f"aggregator-{number}": Role.AGGREGATOR for number in range(1, servers + 1)},
        **{f"client-{number}": Role.CLIENT for number in range(1, clients + 1)},
    }
    return gather([new_identity(name, role, name) for name, role in roles.items()], kem=kem)


def gather(identities: list[Identity], *, kem: Kem = Kem.X25519) -> Parties:
    """Build the roster of some identities."""
    roster = build_roster([identity.public() for identity in identities], kem=kem)
    return Parties(roster, {identity.name: identity for identity in identities})
