"""Run keys and receipts hold whoever passes them on, and for nothing but what they were signed for."""

from collections.abc import Callable
from typing import ParamSpec

import pytest

from hubbub.crypto.sealing import Kem, SealingKey
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, RunId, SetId
from hubbub.messages.runs import RunKey, RunKeys
from hubbub.messages.shares import Receipt, SignedReceipt
from hubbub.trust.signed import (
    check_receipt,
    check_run_key,
    check_run_keys,
    check_signature,
    digest_run_keys,
    sign_receipt,
    sign_run_key,
)
from support.builders import make_manifest, make_receipt, make_run_key
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


def test_who_is_not_in_the_roster_signs_nothing() -> None:
    signature = STRANGER.key.sign("domain", b"content")

    reason = reason_of(check_signature, ROSTER, STRANGER.name, signature, "domain", b"content")

    assert reason is RejectReason.NOT_IN_ROSTER


# Run keys -------------------------------------------------------------------------------------------------


def fresh_key(party: PartyId, kem: Kem = Kem.X25519, run: RunId = RUN) -> RunKey:
    return sign_run_key(identity_of(MANIFEST, party), run, kem, SealingKey.generate(kem).public)


@pytest.mark.parametrize("kem", Kem)
def test_a_run_key_is_taken_as_its_owner_signed_it(kem: Kem) -> None:
    public = SealingKey.generate(kem).public
    key = sign_run_key(identity_of(MANIFEST, CLIENT), RUN, kem, public)

    assert key.party == CLIENT
    assert check_run_key(parties_of(MANIFEST, kem).roster, RUN, key) == public


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(fresh_key(CLIENT, run=OTHER_RUN), id="signed for another run"),
        pytest.param(fresh_key(OTHER_CLIENT).model_copy(update={"party": CLIENT}), id="signed by another party"),
        pytest.param(
            sign_run_key(STRANGER, RUN, Kem.X25519, SealingKey.generate(Kem.X25519).public).model_copy(
                update={"party": CLIENT}
            ),
            id="signed by a stranger",
        ),
        pytest.param(
            fresh_key(CLIENT).model_copy(update={"public_key": fresh_key(CLIENT).public_key}),
            id="put in place of the signed one",
        ),
        pytest.param(fresh_key(CLIENT, Kem.HYBRID), id="of another kem"),
        pytest.param(
            sign_run_key(identity_of(MANIFEST, CLIENT), RUN, Kem.HYBRID, SealingKey.generate(Kem.X25519).public),
            id="signed for another kem",
        ),
        pytest.param(fresh_key(CLIENT).model_copy(update={"signature": "00" * 64}), id="not signed"),
    ],
)
def test_a_run_key_is_none_if_its_owner_did_not_sign_it_for_this_run(key: RunKey) -> None:
    assert reason_of(check_run_key, ROSTER, RUN, key) is RejectReason.BAD_SIGNATURE


def test_a_strangers_run_key_is_none() -> None:
    key = sign_run_key(STRANGER, RUN, Kem.X25519, SealingKey.generate(Kem.X25519).public)

    assert reason_of(check_run_key, ROSTER, RUN, key) is RejectReason.NOT_IN_ROSTER


@pytest.mark.parametrize("public", [bytes(32), b"\1" + bytes(31), bytes(33)], ids=["zero", "one", "long"])
def test_a_key_that_nothing_can_be_sealed_to_is_refused_though_it_is_signed(public: bytes) -> None:
    """Zero and one are of small order: what is sealed to them anybody can open."""
    key = sign_run_key(identity_of(MANIFEST, CLIENT), RUN, Kem.X25519, public)

    assert reason_of(check_run_key, ROSTER, RUN, key) is RejectReason.MALFORMED


def all_keys() -> dict[PartyId, RunKey]:
    return {name: make_run_key(MANIFEST, name) for name in NAMED}


def keys_of(*keys: RunKey) -> RunKeys:
    return RunKeys(keys=keys)


def test_run_keys_come_out_in_the_manifests_order_whatever_order_they_came_in() -> None:
    keys = all_keys()

    found = check_run_keys(ROSTER, MANIFEST, keys_of(*reversed(keys.values())))

    assert list(found) == list(NAMED)
    assert {name: public.hex() for name, public in found.items()} == {
        name: key.public_key for name, key in keys.items()
    }


WITHOUT = {name: [key for key in all_keys().values() if key.party != name] for name in NAMED}


@pytest.mark.parametrize("name", NAMED)
def test_a_missing_run_key_is_a_contradiction(name: PartyId) -> None:
    reason = reason_of(check_run_keys, ROSTER, MANIFEST, keys_of(*WITHOUT[name]))

    assert reason is RejectReason.CONTRADICTION


@pytest.mark.parametrize("name", NAMED)
def test_a_second_run_key_of_a_party_is_a_contradiction_even_if_it_is_the_same(name: PartyId) -> None:
    for second in (make_run_key(MANIFEST, name), fresh_key(name)):
        keys = keys_of(*all_keys().values(), second)
        assert reason_of(check_run_keys, ROSTER, MANIFEST, keys) is RejectReason.CONTRADICTION


def test_no_run_keys_are_a_contradiction() -> None:
    assert reason_of(check_run_keys, ROSTER, MANIFEST, keys_of()) is RejectReason.CONTRADICTION


def test_the_run_key_of_a_party_that_the_manifest_does_not_name_is_a_contradiction() -> None:
    """The coordinator is in the roster, and what it would have sealed to itself is not for it."""
    keys = all_keys()

    for instead in (
        keys_of(*keys.values(), fresh_key(COORDINATOR)),
        keys_of(*WITHOUT[CLIENT], fresh_key(COORDINATOR)),
    ):
        assert reason_of(check_run_keys, ROSTER, MANIFEST, instead) is RejectReason.CONTRADICTION


def test_one_bad_run_key_among_good_ones_is_found() -> None:
    keys = keys_of(*WITHOUT[AGGREGATOR], fresh_key(AGGREGATOR, run=OTHER_RUN))
    stranger = sign_run_key(STRANGER, RUN, Kem.X25519, SealingKey.generate(Kem.X25519).public)

    assert reason_of(check_run_keys, ROSTER, MANIFEST, keys) is RejectReason.BAD_SIGNATURE
    assert (
        reason_of(check_run_keys, ROSTER, MANIFEST, keys_of(*all_keys().values(), stranger))
        is RejectReason.NOT_IN_ROSTER
    )


def test_the_digest_of_run_keys_tells_run_owner_and_key_apart() -> None:
    keys = check_run_keys(ROSTER, MANIFEST, keys_of(*all_keys().values()))
    swapped = {**keys, CLIENT: keys[OTHER_CLIENT], OTHER_CLIENT: keys[CLIENT]}

    digests = {digest_run_keys(RUN, keys), digest_run_keys(OTHER_RUN, keys), digest_run_keys(RUN, swapped)}

    assert len(digests) == 3
    assert digest_run_keys(RUN, dict(keys)) in digests


# Receipts -------------------------------------------------------------------------------------------------


def signed_receipt(aggregator: PartyId = AGGREGATOR) -> SignedReceipt:
    receipt = make_receipt(MANIFEST, aggregator=aggregator)
    return sign_receipt(identity_of(MANIFEST, aggregator), RUN, 3, "signs", receipt)


def altered(**changes: object) -> SignedReceipt:
    """A receipt that says something else under the signature it had."""
    signed = signed_receipt()
    return signed.model_copy(update={"receipt": signed.receipt.model_copy(update=changes)})


def test_a_receipt_holds_for_its_phase() -> None:
    check_receipt(ROSTER, RUN, 3, "signs", signed_receipt())


@pytest.mark.parametrize(
    ("run", "round_number", "phase"),
    [(OTHER_RUN, 3, "signs"), (RUN, 2, "signs"), (RUN, 4, "signs"), (RUN, 3, "union")],
    ids=["another run", "the round before", "the round after", "another phase"],
)
def test_a_receipt_holds_for_no_other_phase(run: RunId, round_number: int, phase: str) -> None:
    reason = reason_of(check_receipt, ROSTER, run, round_number, phase, signed_receipt())

    assert reason is RejectReason.BAD_SIGNATURE


VECTORS = make_receipt(MANIFEST).vectors


@pytest.mark.parametrize(
    "changes",
    [
        {"client": OTHER_CLIENT},
        {"aggregator": OTHER_AGGREGATOR},
        {"set_id": SetId("5f" * 16)},
        {"transcript": "7b" * 32},
        {"vectors": VECTORS[:1]},
        {"vectors": (VECTORS[0].model_copy(update={"length": 99}), *VECTORS[1:])},
        {"vectors": (VECTORS[0].model_copy(update={"modulus": 11}), *VECTORS[1:])},
    ],
    ids=["client", "aggregator", "set", "transcript", "a vector less", "length", "modulus"],
)
def test_a_receipt_that_says_something_else_is_none(changes: dict[str, object]) -> None:
    reason = reason_of(check_receipt, ROSTER, RUN, 3, "signs", altered(**changes))

    assert reason is RejectReason.BAD_SIGNATURE


def test_every_field_of_a_receipt_is_tried() -> None:
    assert set(Receipt.model_fields) == {"client", "aggregator", "set_id", "transcript", "vectors"}


@pytest.mark.parametrize("signer", [OTHER_AGGREGATOR, CLIENT, COORDINATOR])
def test_nobody_gives_another_aggregators_receipt(signer: PartyId) -> None:
    forged = sign_receipt(identity_of(MANIFEST, signer), RUN, 3, "signs", make_receipt(MANIFEST))

    assert reason_of(check_receipt, ROSTER, RUN, 3, "signs", forged) is RejectReason.BAD_SIGNATURE


def test_a_strangers_receipt_is_none() -> None:
    receipt = make_receipt(MANIFEST, aggregator=STRANGER.name)
    signed = sign_receipt(STRANGER, RUN, 3, "signs", receipt)

    assert reason_of(check_receipt, ROSTER, RUN, 3, "signs", signed) is RejectReason.NOT_IN_ROSTER
