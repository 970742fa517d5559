"""`hubbub roster` as a user sees it; what makes a roster good and what a broker grants is the library's."""

import json
import stat
from pathlib import Path

import pytest

from hubbub.crypto.sealing import Kem
from hubbub.ids import Role
from hubbub.transport.definitions import BrokerUser, make_definitions
from hubbub.trust.identity import new_identity, write_identity
from hubbub.trust.roster import read_roster, show_fingerprint
from support.command_line import Hubbub

PARTIES = (
    ("clinic-a", Role.CLIENT, "clinic-a"),
    ("clinic-b", Role.CLIENT, "clinic-b"),
    ("hub", Role.COORDINATOR, "institute"),
    ("north", Role.AGGREGATOR, "university"),
    ("south", Role.AGGREGATOR, "ministry"),
)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The public files of five parties."""
    folder = tmp_path_factory.mktemp("keys")
    return [write_identity(new_identity(*each), folder)[1] for each in PARTIES]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "roster.json"


@pytest.fixture
def roster(hubbub: Hubbub, five: list[Path], out: Path) -> Path:
    assert hubbub("roster", "build", *five, "--out", out).code == 0
    return out


def test_build_writes_the_roster_and_tells_its_digest(hubbub: Hubbub, five: list[Path], out: Path) -> None:
    said = hubbub("roster", "build", *reversed(five), "--out", out).out

    built = read_roster(out)
    assert [(party.name, party.role, party.organisation) for party in built.parties] == list(PARTIES)
    assert (built.kem, built.broker) == (Kem.X25519, None)
    assert f"written to {out}\n" in said
    assert built.digest in said
    assert show_fingerprint(built.digest) in said
    assert "warning" not in said


def test_build_takes_every_kem_and_the_brokers_organisation(
    hubbub: Hubbub, five: list[Path], tmp_path: Path
) -> None:
    for kem in Kem:
        path = tmp_path / f"{kem}.json"
        said = hubbub("roster", "build", *five, "--kem", kem, "--broker-organisation", "ministry", "--out", path)

        built = read_roster(path)
        assert (built.kem, built.broker) == (kem, "ministry")
        for each in (said, hubbub("roster", "show", path)):
            assert "warning: ministry runs an aggregator and the broker" in each.out


def test_a_roster_is_not_overwritten(hubbub: Hubbub, five: list[Path], roster: Path) -> None:
    before = roster.read_bytes()

    hubbub("roster", "build", *five[:-1], "--out", roster).check_refused("is there already")
    assert roster.read_bytes() == before


def test_nothing_is_written_of_files_that_make_no_roster(
    hubbub: Hubbub, five: list[Path], out: Path, tmp_path: Path
) -> None:
    forged = tmp_path / "north.public.json"
    forged.write_text(json.dumps(json.loads(five[3].read_text("utf-8")) | {"organisation": "lab"}), "utf-8")

    for files, complaint in (
        ((*five[:3], forged), f"{forged}: north does not prove"),
        ((*five, five[3]), "north stands for several"),
    ):
        hubbub("roster", "build", *files, "--out", out).check_refused(complaint)
    assert not out.exists()


def test_show_has_a_row_for_every_party_in_80_columns(hubbub: Hubbub, roster: Path) -> None:
    said = hubbub("roster", "show", roster, columns=80).out

    built = read_roster(roster)
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for party in built.parties:
        first, second = show_fingerprint(party.public_key)[:39], show_fingerprint(party.public_key)[40:]
        at = lines.index(f"{party.name} {party.role} {party.organisation} {first}")
        assert lines[at + 1] == second
    assert {"seals x25519", "broker not said", f"sha256 {built.digest}"} <= set(lines)
    assert f"read out {show_fingerprint(built.digest)}" in lines


def test_verify_compares_the_digest_as_it_is_printed_or_read_out_if_one_is_given(
    hubbub: Hubbub, roster: Path
) -> None:
    digest, agreed = read_roster(roster).digest, "this is the roster that was agreed on"
    alone = hubbub("roster", "verify", roster).out

    assert "all 5 parties prove" in alone
    assert "not compared with any digest" in alone
    assert agreed not in alone
    for written in (digest, show_fingerprint(digest), digest.upper()):
        assert agreed in hubbub("roster", "verify", roster, "--sha256", written).out
    other = hubbub("roster", "verify", roster, "--sha256", "0" * 64)
    other.check_refused("0" * 64)
    assert digest in other.err


# The broker's definitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "vhost"), [((), "/"), (("--vhost", "hospitals"), "hospitals")])
def test_definitions_are_written_for_their_owner_alone_in_place_of_earlier_ones(
    hubbub: Hubbub, roster: Path, tmp_path: Path, options: tuple[str, ...], vhost: str
) -> None:
    out = tmp_path / "the broker.json"
    out.write_text("old")
    out.chmod(0o644)

    said = hubbub("roster", "broker-config", roster, "--out", out, *options).out

    parties = read_roster(roster).parties
    users = [BrokerUser(party.name, party.role, party.broker_password_hash) for party in parties]
    assert json.loads(out.read_text("utf-8")) == json.loads(json.dumps(make_definitions(users, vhost=vhost)))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["roster.json", "the broker.json"]
    assert f"rabbitmqctl import_definitions < '{out}'\n" in said
    assert "rabbitmqctl delete_user guest\n" in said
    assert not [party.name for party in parties if party.broker_password_hash in said]


@pytest.mark.parametrize("file", ["nowhere/broker.json", "folder"])
def test_definitions_that_cannot_be_written_leave_nothing(
    hubbub: Hubbub, roster: Path, tmp_path: Path, file: str
) -> None:
    (tmp_path / "folder").mkdir()

    refused = hubbub("roster", "broker-config", roster, "--out", tmp_path / file)

    refused.check_refused(f"{file} cannot be written")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "roster.json"]


def test_a_roster_that_was_tampered_with_is_refused(hubbub: Hubbub, roster: Path, tmp_path: Path) -> None:
    good = roster.read_text("utf-8")
    first, second = (party.broker_password_hash for party in read_roster(roster).parties[:2])

    roster.write_text(good.replace('"university"', '"ministry"'), "utf-8")
    hubbub("roster", "verify", roster).check_refused("north does not prove")
    roster.write_text(good.replace(first, second), "utf-8")
    hubbub("roster", "broker-config", roster, "--out", tmp_path / "broker.json").check_refused("does not prove")
    assert not (tmp_path / "broker.json").exists()
