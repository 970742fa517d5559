from itertools import product

import pytest

from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import RunProposed
from hubbub.runtime import message_checks
from hubbub.runtime.message_checks import PeerLimits, check_manifest, check_sender, find_disagreements, role_of
from hubbub.transport.base import Delivery
from hubbub.transport.topology import FLOWS
from hubbub.trust.identity import Identity
from hubbub.trust.roster import build_roster
from hubbub_trainer.policy import Policy
from support.builders import make_bodies, make_envelope, make_manifest
from support.parties import COORDINATOR, make_identity, parties_of, roster_of
from support.refusals import refusing

MANIFEST = make_manifest()
PARTIES = {
    Role.CLIENT: MANIFEST.clients[1],
    Role.AGGREGATOR: MANIFEST.aggregators[1],
    Role.COORDINATOR: COORDINATOR,
}
STRANGER = PartyId("stranger")


@pytest.mark.parametrize("body", make_bodies(MANIFEST), ids=lambda body: body.kind)
def test_only_the_roles_that_a_message_names_may_send_it_and_its_recipients_are_reached(body: Message) -> None:
    for role, name in (*PARTIES.items(), (None, STRANGER)):
        assert role_of(MANIFEST, name) is role
        envelope = make_envelope(body, sender=name, recipient=COORDINATOR, manifest=MANIFEST)
        if role in body.senders:
            check_sender(MANIFEST, envelope)
        else:
            with refusing(RejectReason.WRONG_SENDER, f"{name} has no part"):
                check_sender(MANIFEST, envelope)
    assert body.senders
    assert body.recipients
    assert set(product(body.senders, body.recipients)) <= set(FLOWS)


def test_parties_talk_to_their_like_only_about_what_is_theirs_alone() -> None:
    """Clients about the group secret and the model, aggregators about sums on their way to the combiner."""
    among_themselves = {
        role: {body.kind for body in make_bodies(MANIFEST) if role in body.senders & body.recipients}
        for role in Role
    }

    assert among_themselves == {
        Role.CLIENT: {
            *("group-contribution", "group-confirmed"),
            *("snapshot-requested", "model-vouched", "snapshot-chunk"),
        },
        Role.AGGREGATOR: {"partial-chunk"},
        Role.COORDINATOR: set(),
    }


def test_a_proposal_is_its_own_coordinators() -> None:
    def check(sender: PartyId, run: RunId) -> None:
        proposal = RunProposed(manifest=MANIFEST)
        check_manifest(MANIFEST, make_envelope(proposal, sender=sender, recipient=MANIFEST.clients[0], run=run))

    check(COORDINATOR, MANIFEST.run_id)
    with refusing(RejectReason.CONTRADICTION):
        check(COORDINATOR, RunId("0" * 64))
    with refusing(RejectReason.WRONG_SENDER):
        check(MANIFEST.clients[1], MANIFEST.run_id)


# Manifest and roster --------------------------------------------------------------------------------------


def disagreements(manifest: Manifest, *identities: Identity) -> tuple[str, ...]:
    """Of a manifest and a roster of these parties, which the manifest names by its digest."""
    roster = build_roster([identity.public() for identity in identities])
    return find_disagreements(manifest.model_copy(update={"roster_sha256": roster.digest}), roster)


EVERYBODY = parties_of(MANIFEST).identities


def test_a_manifest_of_the_rosters_parties_is_agreed_with_and_the_roster_may_have_more() -> None:
    assert find_disagreements(MANIFEST, roster_of(MANIFEST)) == ()
    assert disagreements(MANIFEST, *EVERYBODY.values(), make_identity("client-9", Role.CLIENT, "org-9")) == ()
    assert len(disagreements(MANIFEST, *list(EVERYBODY.values())[:2])) == len(EVERYBODY) - 2, "each is named"


def test_a_manifest_for_another_roster_is_disagreed_with_and_nothing_else_is_looked_at() -> None:
    other = roster_of(make_manifest(clients=4))

    (complaint,) = find_disagreements(MANIFEST, other)

    assert MANIFEST.roster_sha256 in complaint
    assert f"here {other.digest} is pinned" in complaint


CLIENT, AGGREGATOR = MANIFEST.clients[0], MANIFEST.aggregators[0]
KNOWN_OTHERWISE = {
    "client-1 is aggregator in the roster, and client in the manifest": (CLIENT, Role.AGGREGATOR, "org-1"),
    "aggregator-1 is coordinator in the roster, and aggregator in the manifest": (
        *(AGGREGATOR, Role.COORDINATOR, AGGREGATOR),
    ),
    "coordinator is client in the roster, and coordinator in the manifest": (
        *(COORDINATOR, Role.CLIENT, COORDINATOR),
    ),
    "client-1 belongs to org-2 in the roster, and to org-1 in the manifest": (CLIENT, Role.CLIENT, "org-2"),
}


def test_a_party_that_the_roster_does_not_know_or_knows_as_something_else_is_named() -> None:
    for name in (MANIFEST.clients[2], MANIFEST.aggregators[1], COORDINATOR):
        others = [identity for identity in EVERYBODY.values() if identity.name != name]
        assert disagreements(MANIFEST, *others) == (f"{name} is not in the roster",)
    for complaint, (name, role, organisation) in KNOWN_OTHERWISE.items():
        others = [identity for identity in EVERYBODY.values() if identity.name != name]
        assert disagreements(MANIFEST, *others, make_identity(name, role, organisation)) == (complaint,)


# What one client sends another -----------------------------------------------------------------------------

LARGEST_BYTES = 4 * 10**8
"""A model of 10^8 parameters."""


@pytest.mark.parametrize("chunk_bytes", [8 * 2**20, 2**20, 2**16])
def test_all_snapshots_of_the_largest_model_that_a_peer_sends_in_a_run_pass_at_once(chunk_bytes: int) -> None:
    limits, sealed = PeerLimits(), Delivery(bytes(chunk_bytes + 2_000), redelivered=False, user="anna")
    few = Delivery(bytes(2_000), redelivered=False, user="anna")
    chunks = Policy(roster_sha256="0" * 64).max_snapshots_per_peer * -(-LARGEST_BYTES // chunk_bytes)

    assert all(limits.admit(sealed, now_s=1.0) for _ in range(chunks))
    # Contributions, confirmations, requests and vouchers beside them.
    assert all(limits.admit(few, now_s=1.0) for _ in range(1_000))


@pytest.mark.parametrize("size", [1, 2**20])
def test_each_sender_is_limited_in_messages_and_bytes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_checks, "PEERS_MAX_LENGTH", 100)
    monkeypatch.setattr(message_checks, "PEERS_MAX_BYTES", 50 * 2**20)
    limits = PeerLimits()
    anna, bert = (Delivery(bytes(size), redelivered=False, user=user) for user in ("anna", "bert"))

    admitted = [limits.admit(anna, now_s=1.0) for _ in range(200)]

    assert sum(admitted) == (100 if size == 1 else 50)
    assert limits.admit(bert, now_s=1.0)
    assert limits.admit(anna, now_s=2.0), "it comes back with time"
