import pytest

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, Role, RunId
from hubbub.messages.base import Message
from hubbub.messages.runs import RunProposed
from hubbub.runtime.intake import check_manifest, check_sender, role_of
from support.builders import COORDINATOR, make_bodies, make_envelope, make_manifest

MANIFEST = make_manifest()
PARTIES = {
    Role.CLIENT: MANIFEST.clients[1],
    Role.AGGREGATOR: MANIFEST.aggregators[1],
    Role.COORDINATOR: COORDINATOR,
}
STRANGER = PartyId("stranger")


def test_a_party_has_the_role_that_the_manifest_gives_it() -> None:
    assert {role: role_of(MANIFEST, name) for role, name in PARTIES.items()} == {role: role for role in Role}
    assert role_of(MANIFEST, STRANGER) is None


@pytest.mark.parametrize("body", make_bodies(MANIFEST), ids=lambda body: body.kind)
def test_only_the_roles_that_a_message_names_may_send_it(body: Message) -> None:
    for role, name in PARTIES.items():
        envelope = make_envelope(body, sender=name, recipient=COORDINATOR, manifest=MANIFEST)
        if role in body.senders:
            check_sender(MANIFEST, envelope)
        else:
            with pytest.raises(PeerError, match=f"{name} has no part") as caught:
                check_sender(MANIFEST, envelope)
            assert caught.value.reason is RejectReason.WRONG_SENDER


@pytest.mark.parametrize("body", make_bodies(MANIFEST), ids=lambda body: body.kind)
def test_a_stranger_may_send_nothing(body: Message) -> None:
    with pytest.raises(PeerError) as caught:
        check_sender(MANIFEST, make_envelope(body, sender=STRANGER, recipient=COORDINATOR, manifest=MANIFEST))

    assert caught.value.reason is RejectReason.WRONG_SENDER


@pytest.mark.parametrize("body", make_bodies(MANIFEST), ids=lambda body: body.kind)
def test_nobody_sends_a_message_to_its_own_role(body: Message) -> None:
    assert body.senders
    assert body.recipients
    assert not body.senders & body.recipients


def test_a_proposal_is_taken_from_the_coordinator_of_its_own_manifest() -> None:
    proposal = RunProposed(manifest=MANIFEST)

    check_manifest(
        MANIFEST,
        make_envelope(proposal, sender=COORDINATOR, recipient=MANIFEST.clients[0], manifest=MANIFEST),
    )


def test_a_proposal_for_another_run_contradicts_itself() -> None:
    proposal = RunProposed(manifest=MANIFEST)
    envelope = make_envelope(proposal, sender=COORDINATOR, recipient=MANIFEST.clients[0], run=RunId("0" * 64))

    with pytest.raises(PeerError) as caught:
        check_manifest(MANIFEST, envelope)

    assert caught.value.reason is RejectReason.CONTRADICTION


def test_a_proposal_by_a_client_is_refused() -> None:
    envelope = make_envelope(
        RunProposed(manifest=MANIFEST),
        sender=MANIFEST.clients[1],
        recipient=MANIFEST.clients[0],
        manifest=MANIFEST,
    )

    with pytest.raises(PeerError) as caught:
        check_manifest(MANIFEST, envelope)

    assert caught.value.reason is RejectReason.WRONG_SENDER
