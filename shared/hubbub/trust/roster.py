"""Roster: the parties of a federation, with their keys and organisations.

Nothing about a party is taken from the coordinator or the broker on trust. Every party holds the same roster and
pins it by its digest; a party that is not in it is unknown. Each entry carries a signature under its own key, so
that no one can enter a key that somebody else holds.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import StringConstraints, ValidationError, model_validator

from hubbub.crypto.sealing import Kem
from hubbub.crypto.signing import bind, check_public_key, verify
from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role, RunId, is_party_id
from hubbub.messages.envelope import Claim
from hubbub.messages.manifest import MINIMUM, Name, Signature, describe
from hubbub.messages.wire_form import Directory

PROOF_DOMAIN = "public identity"
GROUP_DIGITS = 4

C = TypeVar("C", bound=Claim)
PublicKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PasswordHash = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{48}$")]


class PublicIdentity(Claim):
    """Public part of a party's identity."""

    format: Literal[1] = 1
    name: Name
    role: Role
    organisation: Name
    public_key: PublicKey
    broker_password_hash: PasswordHash
    """RabbitMQ's form: base64 of a salt of 4 bytes and SHA-256(salt ‖ password)."""
    proof: Signature
    """Signature over all the rest: it proves that the maker of this file holds the key."""

    def check_proof(self) -> None:
        """Raise `ConfigurationError` if the key is weak, or has not signed the file as it is."""
        public_key = bytes.fromhex(self.public_key)
        try:
            check_public_key(public_key)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.name}: {error}") from None
        if not verify(public_key, bytes.fromhex(self.proof), PROOF_DOMAIN, self._proven):
            raise ConfigurationError(
                f"{self.name} does not prove that it holds its key: the entry was changed after it was made; "
                f"ask {self.organisation} for its public identity again"
            )

    @property
    def _proven(self) -> bytes:
        return what_is_proven(self.name, self.role, self.organisation, self.public_key, self.broker_password_hash)


def what_is_proven(
    name: PartyId, role: Role, organisation: PartyId, public_key: str, broker_password_hash: str
) -> bytes:
    """Return the bytes that a public identity's proof signs."""
    return bind(1, name, role, organisation, public_key, broker_password_hash)


class Roster(Claim):
    """All parties of a federation, sorted by name, and the KEM of their seals."""

    format: Literal[1] = 1
    kem: Kem = Kem.X25519
    broker: Name | None = None
    """The organisation that runs the broker, if it is known."""
    parties: tuple[PublicIdentity, ...]

    @model_validator(mode="after")
    def _parties_are_distinct(self) -> Self:
        if twice := _repeated(party.name for party in self.parties):
            raise ValueError(f"a name stands for one party only, but {', '.join(twice)} stands for several")
        if twice := _repeated(party.public_key for party in self.parties):
            owners = [party.name for party in self.parties if party.public_key == twice[0]]
            raise ValueError(f"{' and '.join(owners)} have the same key; each party makes a key of its own")
        return self

    @model_validator(mode="after")
    def _parties_are_sorted(self) -> Self:
        if any(first.name > second.name for first, second in pairwise(self.parties)):
            raise ValueError(
                "the parties are not sorted by name, so its digest would not be the one that others hold"
            )
        return self

    @property
    def canonical(self) -> bytes:
        """Canonical encoding: JSON, keys sorted, no spaces, ASCII."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode("ascii")

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical encoding, which every party pins."""
        return hashlib.sha256(self.canonical).hexdigest()

    def find(self, name: str) -> PublicIdentity | None:
        """Return the party of this name, if there is one."""
        return next((party for party in self.parties if party.name == name), None)

    def directory(self, *runs: RunId) -> Directory:
        """Return the short names of all parties and of these runs, as frames use them."""
        return Directory((party.name for party in self.parties), runs)

    def named(self, role: Role) -> tuple[PublicIdentity, ...]:
        """Return all parties of a role, sorted by name."""
        return tuple(party for party in self.parties if party.role is role)


def _repeated(values: Iterable[str]) -> list[str]:
    return sorted(value for value, count in Counter(values).items() if count > 1)


def build_roster(
    identities: Sequence[PublicIdentity], *, kem: Kem = Kem.X25519, broker: str | None = None
) -> Roster:
    """Build a roster from public identities in any order, and check each of them."""
    if broker is not None and not is_party_id(broker):
        raise ConfigurationError(
            f"{broker!r} cannot name the broker's organisation: use lower-case letters, digits and hyphens"
        )
    try:
        roster = Roster(
            kem=kem,
            broker=None if broker is None else PartyId(broker),
            parties=tuple(sorted(identities, key=lambda party: party.name)),
        )
    except ValidationError as error:
        raise ConfigurationError(f"these identities make no roster: {describe(error)}") from None
    verify_roster(roster)
    return roster


def verify_roster(roster: Roster) -> None:
    """Raise `ConfigurationError` if a party does not prove that it holds its key."""
    for party in roster.parties:
        party.check_proof()


def read_claim(path: Path, model: type[C], what: str) -> C:
    """Read a JSON file, or raise `ConfigurationError` with one line on what is wrong."""
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigurationError(f"{path} is not {what}: {describe(error)}") from None


def read_roster(path: Path, *, pinned: str | None = None) -> Roster:
    """Read a roster, check every party in it and, if a digest is pinned, that it matches."""
    roster = read_claim(path, Roster, "a roster")
    try:
        verify_roster(roster)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if pinned is not None and pinned != roster.digest:
        raise ConfigurationError(
            f"{path} has the digest {roster.digest}, but {pinned} is pinned; compare digests with the other "
            "parties over another channel, for example by telephone, before you change the pin"
        )
    return roster


def find_conflicts(roster: Roster) -> list[str]:
    """Return warnings about a roster that is weaker than it looks; none of them forbids its use."""
    return [*_find_shared_hands(roster), *_find_shortages(roster)]


def _find_shared_hands(roster: Roster) -> list[str]:
    """Return warnings about organisations with several roles: aggregators in one hand count as one."""
    found = []
    coordinators = {party.organisation for party in roster.named(Role.COORDINATOR)}
    operated = Counter(party.organisation for party in roster.named(Role.AGGREGATOR))
    for organisation, count in sorted(operated.items()):
        if count > 1:
            found.append(
                f"{organisation} runs {count} aggregators: they are one aggregator in truth, since {organisation} "
                "can put their shares together"
            )
        if organisation == roster.broker:
            found.append(
                f"{organisation} runs an aggregator and the broker: an intruder there has that aggregator's "
                "shares and sees all traffic, so the two no longer guard against each other"
            )
        if organisation in coordinators:
            found.append(
                f"{organisation} runs an aggregator and a coordinator: an intruder there has that aggregator's "
                "shares and chooses who takes part, so the two no longer guard against each other"
            )
    return found


def _find_shortages(roster: Roster) -> list[str]:
    found = []
    aggregators = len(roster.named(Role.AGGREGATOR))
    if aggregators < MINIMUM:
        found.append(
            f"a run needs at least 2 aggregators and this roster has {aggregators}: one alone would see all"
        )
    organisations = len({party.organisation for party in roster.named(Role.CLIENT)})
    if organisations < MINIMUM:
        found.append(
            f"a run needs clients of at least 2 organisations and this roster has {organisations}: "
            "a sum over one is its input"
        )
    return found


def show_fingerprint(digest: str) -> str:
    """Return a digest or key in groups of four digits, to be read out over the telephone."""
    return " ".join(digest[start : start + GROUP_DIGITS] for start in range(0, len(digest), GROUP_DIGITS))
