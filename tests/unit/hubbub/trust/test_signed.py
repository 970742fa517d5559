"""Run keys and receipts hold whoever passes them on, and for nothing but what they were signed for."""

from collections.abc import Callable, Iterator
from typing import ParamSpec

import pytest

from hubbub.crypto.sealing import Kem, SealingKey
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, RunId, SetId
from hubbub.messages.rounds import ReleaseClaim
from hubbub.messages.runs import RunKey, RunKeys
from hubbub.messages.shares import Receipt, SignedReceipt
from hubbub.trust.identity import Identity
from hubbub.trust.signed import (
    check_receipt,
    check_release,
    check_run_key,
    check_run_keys,
    check_signature,
    digest_run_keys,
    sign_receipt,
    sign_release,
    sign_run_key,
)
from support.builders import SET_ID, make_manifest, make_receipt, make_run_key, name_sets
from support.parties import COORDINATOR, identity_of, make_identity, parties_of, roster_of

P = ParamSpec("P")

MANIFEST = make_manifest()
RUN = MANIFEST.run_id
OTHER_RUN = make_manifest(seed=8).run_id
ROSTER = roster_of(MANIFEST)
CLIENT, OTHER_CLIENT = MANIFEST.clients[:2]
AGGREGATOR, OTHER_AGGREGATOR = MANIFEST.aggregators
NAMED = (*MANIFEST.clients, *MANIFEST.aggregators)
STRANGER = make_identity("mallory", identity_of(MANIFEST, CLIENT).role, "org-1")


def reason_of(check: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> RejectReason:
    with pytest.raises(PeerError) as caught:
        check(*args, **kwargs)
    return caught.value.reason


def test_a_signature_is_checked_under_the_key_that_the_roster_has_for_its_signer() -> None:
    """A party that is not in the roster signs nothing."""
    signature = identity_of(MANIFEST, CLIENT).key.sign("domain", b"content")

    check_signature(ROSTER, CLIENT, signature, "domain", b"content")
    for signer, domain, content in (
        (OTHER_CLIENT, "domain", b"content"),
        (CLIENT, "other", b"content"),
        (CLIENT, "domain", b"contents"),
    ):
        with pytest.raises(PeerError, match=f"not signed by {signer}'s key of the roster") as caught:
            check_signature(ROSTER, signer, signature, domain, content)
        assert caught.value.reason is RejectReason.BAD_SIGNATURE
    stranger = STRANGER.key.sign("domain", b"content")
    reason = reason_of(check_signature, ROSTER, STRANGER.name, stranger, "domain", b"content")
    assert reason is RejectReason.NOT_IN_ROSTER


# Run keys -------------------------------------------------------------------------------------------------


def fresh_key(party: PartyId, kem: Kem = Kem.X25519, run: RunId = RUN) -> RunKey:
    return sign_run_key(identity_of(MANIFEST, party), run, kem, SealingKey.generate(kem).public)


STRANGERS_KEY = sign_run_key(STRANGER, RUN, Kem.X25519, SealingKey.generate(Kem.X25519).public)


@pytest.mark.parametrize("kem", Kem)
def test_a_run_key_is_taken_as_its_owner_signed_it(kem: Kem) -> None:
    public = SealingKey.generate(kem).public
    key = sign_run_key(identity_of(MANIFEST, CLIENT), RUN, kem, public)

    assert key.party == CLIENT
    assert check_run_key(parties_of(MANIFEST, kem).roster, RUN, key) == public


BAD_KEYS = {
    "signed for another run": fresh_key(CLIENT, run=OTHER_RUN),
    "signed by another party": fresh_key(OTHER_CLIENT).model_copy(update={"party": CLIENT}),
    "signed by a stranger": STRANGERS_KEY.model_copy(update={"party": CLIENT}),
    "another key": fresh_key(CLIENT).model_copy(update={"public_key": fresh_key(CLIENT).public_key}),
    "of another kem": fresh_key(CLIENT, Kem.HYBRID),
    "signed for another kem": sign_run_key(identity_of(MANIFEST, CLIENT), RUN, Kem.HYBRID, bytes(32)),
    "not signed": fresh_key(CLIENT).model_copy(update={"signature": "00" * 64}),
}


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_run_key_is_none_if_its_owner_did_not_sign_it_for_this_run(key: RunKey) -> None:
    assert reason_of(check_run_key, ROSTER, RUN, key) is RejectReason.BAD_SIGNATURE
    assert reason_of(check_run_keys, ROSTER, MANIFEST, keys_of(*without(CLIENT), key)) == "bad-signature"


@pytest.mark.parametrize("public", [bytes(32), b"\1" + bytes(31), bytes(33)], ids=["zero", "one", "long"])
def test_a_key_that_nothing_can_be_sealed_to_is_refused_though_it_is_signed(public: bytes) -> None:
    """Zero and one are of small order: what is sealed to them anybody can open."""
    key = sign_run_key(identity_of(MANIFEST, CLIENT), RUN, Kem.X25519, public)

    assert reason_of(check_run_key, ROSTER, RUN, key) is RejectReason.MALFORMED


def all_keys() -> dict[PartyId, RunKey]:
    return {name: make_run_key(MANIFEST, name) for name in NAMED}


def without(name: PartyId) -> tuple[RunKey, ...]:
    return tuple(key for key in all_keys().values() if key.party != name)


def keys_of(*keys: RunKey) -> RunKeys:
    return RunKeys(keys=keys)


def test_run_keys_come_out_in_the_manifests_order_whatever_order_they_came_in() -> None:
    keys = all_keys()

    found = check_run_keys(ROSTER, MANIFEST, keys_of(*reversed(keys.values())))

    assert list(found) == list(NAMED)
    assert {name: public.hex() for name, public in found.items()} == {
        name: key.public_key for name, key in keys.items()
    }


def test_run_keys_that_are_not_one_of_each_named_party_are_a_contradiction() -> None:
    """The coordinator is in the roster, and what it would have sealed to itself is not for it."""
    everybody, coordinators = tuple(all_keys().values()), fresh_key(COORDINATOR)
    for name in NAMED:
        for keys in (without(name), (*everybody, make_run_key(MANIFEST, name)), (*everybody, fresh_key(name))):
            assert reason_of(check_run_keys, ROSTER, MANIFEST, keys_of(*keys)) is RejectReason.CONTRADICTION
    for keys in ((), (*everybody, coordinators), (*without(CLIENT), coordinators)):
        assert reason_of(check_run_keys, ROSTER, MANIFEST, keys_of(*keys)) is RejectReason.CONTRADICTION
    strangers = keys_of(*everybody, STRANGERS_KEY)
    assert reason_of(check_run_keys, ROSTER, MANIFEST, strangers) is RejectReason.NOT_IN_ROSTER


def test_the_digest_of_run_keys_tells_run_owner_and_key_apart() -> None:
    keys = check_run_keys(ROSTER, MANIFEST, keys_of(*all_keys().values()))
    swapped = {**keys, CLIENT: keys[OTHER_CLIENT], OTHER_CLIENT: keys[CLIENT]}

    digests = {digest_run_keys(RUN, keys), digest_run_keys(OTHER_RUN, keys), digest_run_keys(RUN, swapped)}

    assert len(digests) == 3
    assert digest_run_keys(RUN, dict(keys)) in digests


# Receipts and releases ------------------------------------------------------------------------------------

RECEIPT = make_receipt(MANIFEST, aggregator=AGGREGATOR)
VECTORS = RECEIPT.vectors
RELEASE = ReleaseClaim(
    aggregator=AGGREGATOR, members=MANIFEST.clients, vectors=VECTORS, transcript=RECEIPT.transcript
)
CHANGES: dict[str, list[object]] = {
    "aggregator": [OTHER_AGGREGATOR],
    "sets": [
        name_sets({OTHER_CLIENT: SET_ID}),
        name_sets({MANIFEST.clients[0]: SetId("5f" * 16)}),
        name_sets({MANIFEST.clients[0]: SET_ID, MANIFEST.clients[1]: SET_ID}),
    ],
    "members": [MANIFEST.clients[:2]],
    "transcript": ["7b" * 32],
    "vectors": [
        VECTORS[:1],
        (VECTORS[0].model_copy(update={"length": 99}), *VECTORS[1:]),
        (VECTORS[0].model_copy(update={"modulus": 11}), *VECTORS[1:]),
    ],
}
PLACE = (RUN, 3, "signs")
OTHER_PLACES = [(OTHER_RUN, 3, "signs"), (RUN, 2, "signs"), (RUN, 4, "signs"), (RUN, 3, "union")]


def changed(claim: Receipt | ReleaseClaim) -> Iterator[Receipt | ReleaseClaim]:
    """Every field of a claim, changed."""
    for field in type(claim).model_fields:
        for value in CHANGES[field]:
            yield claim.model_copy(update={field: value})


def sign(signer: Identity, claim: Receipt | ReleaseClaim) -> str:
    if isinstance(claim, Receipt):
        return sign_receipt(signer, *PLACE, claim).signature
    return sign_release(signer, *PLACE, claim)


def check(place: tuple[RunId, int, str], claim: Receipt | ReleaseClaim, signature: str) -> None:
    if isinstance(claim, Receipt):
        check_receipt(ROSTER, *place, SignedReceipt(receipt=claim, signature=signature))
    else:
        check_release(ROSTER, *place, claim, signature)


@pytest.mark.parametrize("claim", [RECEIPT, RELEASE], ids=["receipt", "release"])
def test_a_receipt_or_release_holds_for_its_phase_and_for_what_it_says_alone(
    claim: Receipt | ReleaseClaim,
) -> None:
    signature = sign(identity_of(MANIFEST, AGGREGATOR), claim)

    check(PLACE, claim, signature)
    for place in OTHER_PLACES:
        assert reason_of(check, place, claim, signature) is RejectReason.BAD_SIGNATURE
    for other in changed(claim):
        assert reason_of(check, PLACE, other, signature) is RejectReason.BAD_SIGNATURE
    for signer in (OTHER_AGGREGATOR, CLIENT, COORDINATOR):
        forged = sign(identity_of(MANIFEST, signer), claim)
        assert reason_of(check, PLACE, claim, forged) is RejectReason.BAD_SIGNATURE
    strangers = claim.model_copy(update={"aggregator": STRANGER.name})
    assert reason_of(check, PLACE, strangers, sign(STRANGER, strangers)) is RejectReason.NOT_IN_ROSTER
