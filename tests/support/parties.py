"""Identities that follow from their names, and the rosters they make: no test depends on fresh keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from hubbub.crypto.sealing import Kem, SealingKey
from hubbub.crypto.signing import SigningKey
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ReleaseClaim, SumChunk
from hubbub.messages.runs import RunKey
from hubbub.messages.shares import Receipt, SignedReceipt
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster, build_roster
from hubbub.trust.seals import RunSeals
from hubbub.trust.signed import sign_receipt, sign_release
from hubbub_local.federation import Parties
from support.frames import sign

COORDINATOR = PartyId("coordinator")


@cache
def make_identity(name: str, role: Role, organisation: str) -> Identity:
    """The same key for the same name, for ever."""
    seed = hashlib.sha256(f"test identity {name}".encode()).digest()
    return Identity(
        name=PartyId(name),
        role=role,
        organisation=PartyId(organisation),
        key=SigningKey.from_bytes(seed),
        broker_password=hashlib.sha256(f"test password {name}".encode()).hexdigest()[:43],
    )


def client_identity(name: PartyId, organisation: str) -> Identity:
    return make_identity(name, Role.CLIENT, organisation)


@cache
def make_parties(
    members: tuple[tuple[PartyId, str], ...],
    aggregators: tuple[PartyId, ...],
    coordinator: PartyId = COORDINATOR,
    kem: Kem = Kem.X25519,
) -> Parties:
    """Clients with their organisations, aggregators and a coordinator that are organisations of their own."""
    identities = [
        *(client_identity(name, organisation) for name, organisation in members),
        *(make_identity(name, Role.AGGREGATOR, name) for name in aggregators),
        make_identity(coordinator, Role.COORDINATOR, coordinator),
    ]
    roster = build_roster([identity.public() for identity in identities], kem=kem)
    return Parties(roster, {identity.name: identity for identity in identities})


def parties_of(manifest: Manifest, kem: Kem = Kem.X25519) -> Parties:
    """Everybody that a manifest names."""
    members = tuple((member.name, member.organisation) for member in manifest.cohort)
    return make_parties(members, manifest.aggregators, manifest.coordinator, kem)


def roster_of(manifest: Manifest) -> Roster:
    return parties_of(manifest).roster


def identity_of(manifest: Manifest, name: PartyId) -> Identity:
    return parties_of(manifest).identities[name]


def sign_as(manifest: Manifest, envelope: Envelope, signer: PartyId | None = None) -> Envelope:
    """Sign an envelope as its sender, or as somebody else."""
    return sign(identity_of(manifest, signer or envelope.sender), replace(envelope, signature=b""))


def seals_of(manifest: Manifest, kem: Kem = Kem.X25519) -> dict[PartyId, RunSeals]:
    """Run keys of all clients and aggregators, which know each other's."""
    parties = parties_of(manifest, kem)
    named = (*manifest.clients, *manifest.aggregators)
    seals = {name: RunSeals(parties.identities[name], manifest.run_id, SealingKey.generate(kem)) for name in named}
    publics = {name: bytes.fromhex(each.claim.public_key) for name, each in seals.items()}
    for each in seals.values():
        each.accept(publics)
    return seals


def run_keys_of(seals: Mapping[PartyId, RunSeals]) -> tuple[RunKey, ...]:
    return tuple(each.claim for each in seals.values())


def sign_receipts(
    manifest: Manifest, receipts: Sequence[Receipt], *, round_number: int = 1, phase: str = "signs"
) -> tuple[SignedReceipt, ...]:
    return tuple(
        sign_receipt(identity_of(manifest, receipt.aggregator), manifest.run_id, round_number, phase, receipt)
        for receipt in receipts
    )


def sign_sum(
    identity: Identity, run: RunId, body: SumChunk, *, round_number: int = 1, phase: str = "signs"
) -> SumChunk:
    """The same chunk, with this aggregator's signature under the release that it is of."""
    release = ReleaseClaim(
        aggregator=identity.name, members=body.members, vectors=body.vectors, transcript=body.transcript
    )
    return body.model_copy(update={"signature": sign_release(identity, run, round_number, phase, release)})


def seals_beside(manifest: Manifest, *real: RunKey, kem: Kem = Kem.X25519) -> dict[PartyId, RunSeals]:
    """Run keys of everybody but the real parties, which have made theirs; they know those and each other's."""
    parties = parties_of(manifest, kem)
    named = [
        name for name in (*manifest.clients, *manifest.aggregators) if name not in {key.party for key in real}
    ]
    seals = {name: RunSeals(parties.identities[name], manifest.run_id, SealingKey.generate(kem)) for name in named}
    publics = {key.party: bytes.fromhex(key.public_key) for key in (*real, *run_keys_of(seals))}
    for each in seals.values():
        each.accept(publics)
    return seals
