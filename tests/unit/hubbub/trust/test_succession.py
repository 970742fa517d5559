"""Endorsements of a completed run's model: what is signed, what is enough, and what does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import CohortMember, Endorsement, Manifest, Predecessor
from hubbub.runtime.message_checks import find_disagreements
from hubbub.trust.identity import new_identity
from hubbub.trust.roster import Roster, build_roster
from hubbub.trust.succession import EndorsedModel, endorse, find_unendorsed, gather, read_endorsement
from support.builders import client_names, make_cohort, make_manifest
from support.parties import identity_of, make_identity, roster_of
from support.succession import COMMITMENT, endorse_as, make_successor

FIRST = make_manifest(clients=4, min_clients=3, nonce="1" * 32)
SIGNED = endorse_as(FIRST)
OTHER = "d" * 64


def successor(endorsed: list[EndorsedModel] = SIGNED, **changes: object) -> Manifest:
    """A run of the same four clients that goes on from `FIRST`."""
    commitment, predecessor = gather(endorsed)
    fields: dict[str, object] = {"initial_model_sha256": commitment, "predecessor": predecessor}
    return make_manifest(clients=4, servers=2, **{**fields, **changes})


def complain(manifest: Manifest, roster: Roster | None = None) -> tuple[str, ...]:
    return find_unendorsed(manifest, roster or roster_of(FIRST))


def changed(predecessor: Predecessor, **fields: object) -> Predecessor:
    """A predecessor that somebody changed on the way, without anybody's signature."""
    return predecessor.model_copy(update=fields)


# What holds ---------------------------------------------------------------------------------------------


def test_what_its_clients_signed_holds() -> None:
    """A run without a predecessor needs no endorsement, and a roster may have more parties."""
    parties = [*roster_of(FIRST).parties, make_identity("newcomer", Role.CLIENT, "newcomer").public()]

    for endorsed in (SIGNED, SIGNED[:3], SIGNED[1:]):
        assert complain(successor(endorsed)) == ()
    assert complain(successor(), build_roster(parties)) == ()
    assert complain(make_manifest()) == ()
    assert (SIGNED[0].run, SIGNED[0].cohort, SIGNED[0].min_clients) == (FIRST.run_id, FIRST.cohort, 3)
    assert (SIGNED[0].commitment, SIGNED[0].endorsement.client) == (COMMITMENT, FIRST.clients[0])


# What does not ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forgery",
    [
        {"run": OTHER},
        {"min_clients": 2},
        {"cohort": FIRST.cohort[::-1]},
        {"cohort": (*FIRST.cohort, CohortMember(name=PartyId("client-5"), organisation=PartyId("org-5")))},
    ],
    ids=["another run", "a smaller min_clients", "the cohort in another order", "a larger cohort"],
)
def test_whatever_is_changed_of_model_or_predecessor_breaks_every_signature(forgery: dict[str, object]) -> None:
    predecessor = changed(gather(SIGNED)[1], **forgery)
    another_model = complain(successor(initial_model_sha256=OTHER))

    assert len(another_model) == len(complain(successor(predecessor=predecessor))) == 4
    assert "the endorsement of client-1 does not hold: this is not signed by client-1's key" in another_model[0]


def test_a_forged_or_swapped_signature_is_named_and_the_others_are_not() -> None:
    predecessor = gather(SIGNED)[1]
    one, two, *others = predecessor.endorsements
    forged = Endorsement(client=one.client, signature="0" * 128)
    swapped = (
        Endorsement(client=one.client, signature=two.signature),
        Endorsement(client=two.client, signature=one.signature),
    )

    (complaint,) = complain(successor(predecessor=changed(predecessor, endorsements=(forged, two, *others))))
    assert "client-1" in complaint
    assert len(complain(successor(predecessor=changed(predecessor, endorsements=(*swapped, *others))))) == 2


def test_who_is_not_in_the_roster_or_has_another_key_now_endorses_nothing() -> None:
    others = [party for party in roster_of(FIRST).parties if party.name != "client-4"]

    (complaint,) = complain(successor(), build_roster(others))
    assert complaint == "the endorsement of client-4 does not hold: client-4 is not in the roster"
    (complaint,) = complain(
        successor(), build_roster([*others, new_identity("client-4", Role.CLIENT, "org-4").public()])
    )
    assert "this is not signed by client-4's key of the roster" in complaint


def test_servers_cannot_endorse_a_run_of_their_own_making() -> None:
    """They have keys in the roster too, and could write any cohort."""
    names = (*FIRST.aggregators, FIRST.coordinator)
    cohort = tuple(CohortMember(name=name, organisation=PartyId(name)) for name in names)
    made_up = FIRST.model_copy(update={"cohort": cohort, "min_clients": 3})
    signed = [endorse(identity_of(FIRST, name), made_up, COMMITMENT) for name in names]

    complaints = complain(successor(signed))

    assert len(complaints) == 3
    assert "aggregator-1 is aggregator in the roster, not client" in complaints[0]


def share_an_organisation() -> Manifest:
    """A run whose first two clients belong to one organisation."""
    cohort = [member.model_dump() for member in make_cohort(client_names(4))]
    cohort[1]["organisation"] = cohort[0]["organisation"]
    return make_manifest(clients=4, cohort=tuple(map(CohortMember.model_validate, cohort)), min_clients=3)


def test_clients_of_one_organisation_cannot_pass_for_several() -> None:
    """Nobody else holds the made-up run's manifest: the organisations are the roster's."""
    (complaint,) = complain(successor(), roster_of(share_an_organisation()))

    assert "client-2 belongs to org-1 in the roster, and to org-2 in the predecessor's cohort" in complaint


def test_every_party_looks_at_the_endorsements_of_a_proposal() -> None:
    manifest = make_successor(initial_model_sha256=OTHER)

    assert find_disagreements(make_successor(), roster_of(manifest)) == ()
    assert len(find_disagreements(manifest, roster_of(manifest))) == 3


# What is enough -----------------------------------------------------------------------------------------


def test_endorsements_of_too_few_organisations_or_of_different_models_or_runs_are_not_enough() -> None:
    """Two clients of one organisation count once, and the same endorsement twice counts for nothing."""
    signed = endorse_as(share_an_organisation())

    for too_few in (SIGNED[:2], signed[:3]):
        with pytest.raises(ConfigurationError, match="not enough: clients of 3 organisations"):
            gather(too_few)
    with pytest.raises(ConfigurationError, match="a client endorses its run's model once"):
        gather([*SIGNED[:2], SIGNED[0]])
    another_run = make_manifest(clients=4, min_clients=3)
    for stray in (endorse_as(FIRST, ["client-3"], OTHER), endorse_as(another_run, ["client-3"])):
        with pytest.raises(ConfigurationError, match="2 different models or runs"):
            gather([*SIGNED[:2], *stray])
    assert gather(signed)


# The file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not an endorsement"),
        (json.dumps({"salt": "00"}), "is not an endorsement: .*Field required"),
        (make_manifest().model_dump_json(), "is not an endorsement"),
        (SIGNED[0].model_dump_json().replace(COMMITMENT, "secret"), "is not an endorsement: commitment: "),
    ],
    ids=["empty", "the salt's file", "a manifest", "a short commitment"],
)
def test_an_endorsement_is_read_and_nothing_else_is_one(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "file.json"
    with pytest.raises(ConfigurationError, match=r"file\.json cannot be read: No such file"):
        read_endorsement(path)
    path.write_text(SIGNED[0].model_dump_json(indent=2), encoding="utf-8")
    assert read_endorsement(path) == SIGNED[0]
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigurationError, match=complaint):
        read_endorsement(path)
