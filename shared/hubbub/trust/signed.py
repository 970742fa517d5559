"""Signed claims: run keys, receipts and releases, with signatures of their own so that others can relay them."""

from __future__ import annotations

import hashlib

from hubbub.crypto.sealing import Kem, check_public_key
from hubbub.crypto.signing import bind, verify
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import ReleaseClaim
from hubbub.messages.runs import RunKey, RunKeys
from hubbub.messages.shares import Receipt, SignedReceipt
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster


def check_signature(roster: Roster, signer: PartyId, signature: bytes, domain: str, content: bytes) -> None:
    """Raise `PeerError` if the roster's party of this name has not signed the content."""
    party = roster.find(signer)
    if party is None:
        raise PeerError(RejectReason.NOT_IN_ROSTER, f"{signer} is not in the roster")
    if not verify(bytes.fromhex(party.public_key), signature, domain, content):
        raise PeerError(RejectReason.BAD_SIGNATURE, f"this is not signed by {signer}'s key of the roster")


# Run keys -----------------------------------------------------------------------------------------------


def _run_key_content(run: RunId, kem: Kem, party: PartyId, public: bytes) -> bytes:
    return bind(run, kem.value, party, public)


def sign_run_key(identity: Identity, run: RunId, kem: Kem, public: bytes) -> RunKey:
    """Sign the public key that this party made for a run."""
    signature = identity.key.sign("run key", _run_key_content(run, kem, identity.name, public))
    return RunKey(party=identity.name, public_key=public.hex(), signature=signature.hex())


def check_run_key(roster: Roster, run: RunId, key: RunKey) -> bytes:
    """Return the public key; raise `PeerError` unless its owner signed it for this run and it is valid."""
    public = bytes.fromhex(key.public_key)
    content = _run_key_content(run, roster.kem, key.party, public)
    check_signature(roster, key.party, bytes.fromhex(key.signature), "run key", content)
    check_public_key(roster.kem, public)
    return public


def check_run_keys(roster: Roster, manifest: Manifest, keys: RunKeys) -> dict[PartyId, bytes]:
    """Return the public keys, exactly one for each of the manifest's clients and aggregators, in its order."""
    named, run = (*manifest.clients, *manifest.aggregators), manifest.run_id
    found = {key.party: check_run_key(roster, run, key) for key in keys.keys}
    if len(found) != len(keys.keys) or found.keys() != set(named):
        raise PeerError(
            RejectReason.CONTRADICTION, "the run keys are not one of each client and aggregator of the manifest"
        )
    return {party: found[party] for party in named}


def digest_run_keys(run: RunId, keys: dict[PartyId, bytes]) -> str:
    """Return one digest of all run keys, which all parties of a run must have in common."""
    return hashlib.sha256(bind(run, *(part for item in keys.items() for part in item))).hexdigest()


# Receipts and releases ----------------------------------------------------------------------------------


def _content(run: RunId, round_number: int, phase: str, claim: Receipt | ReleaseClaim) -> bytes:
    return bind(run, round_number, phase, claim.model_dump_json())


def sign_receipt(identity: Identity, run: RunId, round_number: int, phase: str, receipt: Receipt) -> SignedReceipt:
    """Sign this aggregator's receipt for a share set of one phase."""
    signature = identity.key.sign("receipt", _content(run, round_number, phase, receipt))
    return SignedReceipt(receipt=receipt, signature=signature.hex())


def check_receipt(roster: Roster, run: RunId, round_number: int, phase: str, signed: SignedReceipt) -> None:
    """Raise `PeerError` if the aggregator has not signed the receipt for this very phase."""
    content = _content(run, round_number, phase, signed.receipt)
    check_signature(roster, signed.receipt.aggregator, bytes.fromhex(signed.signature), "receipt", content)


def sign_release(identity: Identity, run: RunId, round_number: int, phase: str, release: ReleaseClaim) -> str:
    """Sign the sum that this aggregator adds to the combined one."""
    return identity.key.sign("release", _content(run, round_number, phase, release)).hex()


def check_release(
    roster: Roster, run: RunId, round_number: int, phase: str, release: ReleaseClaim, signature: str
) -> None:
    """Raise `PeerError` if the aggregator has not signed the release for this very phase."""
    content = _content(run, round_number, phase, release)
    check_signature(roster, release.aggregator, bytes.fromhex(signature), "release", content)
