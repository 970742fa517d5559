"""The roster: one digest for one set of parties, each of which proves its key; and what is warned about."""

from __future__ import annotations

import hashlib
import json
from itertools import permutations
from pathlib import Path

import pytest

from hubbub.crypto.sealing import Kem
from hubbub.crypto.signing import SigningKey
from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.trust.identity import Identity
from hubbub.trust.roster import (
    PROOF_DOMAIN,
    PublicIdentity,
    Roster,
    build_roster,
    find_conflicts,
    read_roster,
    show_fingerprint,
    verify_roster,
    what_is_proven,
)

SMALL_ORDER = "01" + "00" * 31
"""The curve's neutral element: a signature of all zeros but its first byte fits any message under it."""


def party(name: str, role: Role, organisation: str, *, key: int | None = None) -> PublicIdentity:
    """A public identity that is the same in every test run; its key follows from its name or from `key`."""
    seed = hashlib.sha256(f"{name if key is None else key}".encode()).digest()
    return Identity(
        name=PartyId(name),
        role=role,
        organisation=PartyId(organisation),
        key=SigningKey.from_bytes(seed),
        broker_password=hashlib.sha256(name.encode()).hexdigest()[:43],
    ).public()


CLINICS = (party("clinic-a", Role.CLIENT, "clinic-a"), party("clinic-b", Role.CLIENT, "clinic-b"))
HUB = party("hub", Role.COORDINATOR, "institute")
NORTH = party("north", Role.AGGREGATOR, "university")
SOUTH = party("south", Role.AGGREGATOR, "ministry")
PARTIES = (*CLINICS, HUB, NORTH, SOUTH)


def write(roster: Roster, folder: Path, **changes: object) -> Path:
    path = folder / "roster.json"
    path.write_text(json.dumps(json.loads(roster.model_dump_json()) | changes, indent=2), "utf-8")
    return path


def test_the_digest_is_the_one_that_parties_have_pinned_whatever_the_order_of_files() -> None:
    rosters = [build_roster(order) for order in permutations(PARTIES)]

    assert len({roster.canonical for roster in rosters}) == 1
    assert [each.name for each in rosters[-1].parties] == ["clinic-a", "clinic-b", "hub", "north", "south"]
    assert rosters[0].digest == "c50efa9f652461a5ededd30ddb8f34963546fa9144a0ff44df8a96847786a47e"
    other = build_roster(PARTIES, kem=Kem.HYBRID, broker="telecom")
    rotated = party("north", Role.AGGREGATOR, "university", key=2)
    rosters = [rosters[0], build_roster(PARTIES, kem=Kem.HYBRID), build_roster(PARTIES, broker="telecom"), other]
    rosters += [build_roster(PARTIES[:-1]), build_roster((*CLINICS, HUB, rotated, SOUTH))]
    assert len({roster.digest for roster in rosters}) == len(rosters) == 6, "the digest covers all that it says"
    assert other.digest == "734e64a9e544fa4b95b4e2fd0d86fa1bd763a60079a1b97d0fa1b2f20d9907c7"
    assert show_fingerprint("0123456789abcdef") == "0123 4567 89ab cdef"
    assert show_fingerprint(other.digest).replace(" ", "") == other.digest


def test_parties_are_found_by_name_and_by_role_also_in_a_roster_that_was_written(tmp_path: Path) -> None:
    roster = build_roster(PARTIES, kem=Kem.HYBRID, broker="telecom")

    assert read_roster(write(roster, tmp_path), pinned=roster.digest) == roster
    assert (roster.find("north"), roster.find("nobody")) == (NORTH, None)
    named = {role: roster.named(role) for role in Role}
    assert named == {Role.CLIENT: CLINICS, Role.AGGREGATOR: (NORTH, SOUTH), Role.COORDINATOR: (HUB,)}


def test_two_parties_of_one_name_or_key_are_refused() -> None:
    twin = party("north", Role.AGGREGATOR, "ministry", key=2)
    first = party("east", Role.AGGREGATOR, "lab", key=1)
    second = party("west", Role.AGGREGATOR, "school", key=1)

    with pytest.raises(ConfigurationError, match=r"one party only, but north stands for several$"):
        build_roster((*PARTIES, twin))
    with pytest.raises(ConfigurationError, match="east and west have the same key; each party makes a key"):
        build_roster((*PARTIES, second, first))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "north-2"},
        {"role": Role.CLIENT},
        {"organisation": "lab"},
        {"public_key": party("x", Role.AGGREGATOR, "lab").public_key},
        {"broker_password_hash": SOUTH.broker_password_hash},
        {"proof": SOUTH.proof},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_entry_is_refused_wherever_it_shows_up(change: dict[str, object], tmp_path: Path) -> None:
    changed = NORTH.model_copy(update=change)
    complaint = f"{changed.name} does not prove that it holds its key"

    with pytest.raises(ConfigurationError, match=complaint):
        build_roster((*CLINICS, HUB, changed, SOUTH))
    roster = Roster(parties=(*CLINICS, HUB, changed, SOUTH))
    with pytest.raises(ConfigurationError, match=complaint):
        verify_roster(roster)
    with pytest.raises(ConfigurationError, match=rf"roster\.json: {complaint}"):
        read_roster(write(roster, tmp_path), pinned=roster.digest)


def test_somebody_elses_key_and_one_that_anybody_can_sign_with_are_refused() -> None:
    thief = party("thief", Role.AGGREGATOR, "lab").model_copy(update={"public_key": NORTH.public_key})
    forged = NORTH.model_copy(update={"public_key": SMALL_ORDER, "proof": SMALL_ORDER + "00" * 32})

    with pytest.raises(ConfigurationError, match="thief does not prove"):
        build_roster((*CLINICS, thief))
    with pytest.raises(ConfigurationError, match="north: an identity key is of small order"):
        build_roster((*CLINICS, forged))


def test_a_signature_given_for_another_purpose_proves_nothing() -> None:
    key = SigningKey.from_bytes(bytes(32))
    hashed = NORTH.broker_password_hash
    proven = what_is_proven(PartyId("east"), Role.CLIENT, PartyId("lab"), key.public.hex(), hashed)

    def east(domain: str) -> PublicIdentity:
        return PublicIdentity(
            name=PartyId("east"),
            role=Role.CLIENT,
            organisation=PartyId("lab"),
            public_key=key.public.hex(),
            broker_password_hash=hashed,
            proof=key.sign(domain, proven).hex(),
        )

    east(PROOF_DOMAIN).check_proof()
    with pytest.raises(ConfigurationError, match="east does not prove"):
        east("message").check_proof()


def test_another_roster_than_the_pinned_one_is_refused_and_both_digests_are_told(tmp_path: Path) -> None:
    agreed, offered = build_roster(PARTIES), build_roster(PARTIES, broker="telecom")

    with pytest.raises(ConfigurationError, match="over another channel") as info:
        read_roster(write(offered, tmp_path), pinned=agreed.digest)

    assert agreed.digest in str(info.value)
    assert offered.digest in str(info.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("format", 2), ("kem", "rot13"), ("broker", "Tele Com"), ("parties", None), ("surprise", 1)],
)
def test_a_file_that_is_no_roster_is_told(field: str, value: object, tmp_path: Path) -> None:
    path = write(build_roster(PARTIES), tmp_path, **{field: value})

    with pytest.raises(ConfigurationError, match=f"{path} is not a roster: {field}: ") as info:
        read_roster(path)
    assert "\n" not in str(info.value)


def test_a_file_in_another_order_a_missing_one_and_a_bad_broker_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_roster(tmp_path / "roster.json")
    roster = build_roster(PARTIES)
    parties = json.loads(roster.model_dump_json())["parties"]
    with pytest.raises(ConfigurationError, match="not sorted by name"):
        read_roster(write(roster, tmp_path, parties=parties[::-1]))
    with pytest.raises(ConfigurationError, match="'Tele Com' cannot name the broker's organisation"):
        build_roster(PARTIES, broker="Tele Com")


EAST = party("east", Role.AGGREGATOR, "ministry")
HUB_2 = party("hub-2", Role.COORDINATOR, "ministry")


@pytest.mark.parametrize(
    ("parties", "broker", "warnings"),
    [
        ((*PARTIES, party("east", Role.AGGREGATOR, "clinic-a")), "institute", []),
        ((*PARTIES, EAST), None, ["ministry runs 2 aggregators: they are one aggregator in"]),
        (PARTIES, "ministry", ["ministry runs an aggregator and the broker: "]),
        ((*PARTIES, HUB_2), None, ["ministry runs an aggregator and a coordinator: "]),
        (
            *((CLINICS[0], party("clinic-c", Role.CLIENT, "clinic-a"), NORTH), None),
            [
                "at least 2 aggregators and this roster has 1",
                "clients of at least 2 organisations and this roster has 1",
            ],
        ),
    ],
    ids=["independent", "two aggregators", "broker", "coordinator", "too few"],
)
def test_two_roles_in_one_hand_and_too_few_for_a_run_are_warned_about(
    parties: tuple[PublicIdentity, ...], broker: str | None, warnings: list[str]
) -> None:
    found = find_conflicts(build_roster(parties, broker=broker))

    assert len(found) == len(warnings)
    for sentence, warning in zip(found, warnings, strict=True):
        assert sentence.startswith(warning) if warning.startswith("ministry") else warning in sentence
