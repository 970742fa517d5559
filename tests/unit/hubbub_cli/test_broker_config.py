"""`hubbub roster broker-config` as an operator sees it; what the definitions grant is tested with the library."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.transport.definitions import BrokerUser, make_definitions
from hubbub.trust.identity import new_identity
from hubbub.trust.roster import Roster, build_roster
from hubbub_cli.main import app

PARTIES = (
    ("clinic-a", Role.CLIENT, "clinic-a"),
    ("clinic-b", Role.CLIENT, "clinic-b"),
    ("hub", Role.COORDINATOR, "institute"),
    ("north", Role.AGGREGATOR, "university"),
    ("south", Role.AGGREGATOR, "ministry"),
)


@pytest.fixture
def roster() -> Roster:
    return build_roster([new_identity(*each).public() for each in PARTIES])


@pytest.fixture
def roster_file(roster: Roster, tmp_path: Path) -> Path:
    path = tmp_path / "roster.json"
    path.write_text(roster.model_dump_json(), encoding="utf-8")
    return path


def write_config(*arguments: str | Path) -> str:
    command = ["roster", "broker-config", *map(str, arguments)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def definitions_of(roster: Roster, vhost: str = "/") -> object:
    users = [BrokerUser(party.name, party.role, party.broker_password_hash) for party in roster.parties]
    return json.loads(json.dumps(make_definitions(users, vhost=vhost)))


def test_definitions_of_the_roster_are_written_for_its_owner_alone(
    roster: Roster, roster_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "broker.json"

    write_config(roster_file, "--out", out)

    assert json.loads(out.read_text("utf-8")) == definitions_of(roster)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.json", "roster.json"]


def test_operator_is_told_how_to_load_it_and_that_the_default_user_should_go(
    roster: Roster, roster_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "the broker.json"

    said = write_config(roster_file, "--out", out)

    assert f"rabbitmqctl import_definitions < '{out}'\n" in said
    assert "rabbitmqctl delete_user guest\n" in said
    assert not [party.name for party in roster.parties if party.broker_password_hash in said]


def test_virtual_host_is_taken(roster: Roster, roster_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "broker.json"

    write_config(roster_file, "--out", out, "--vhost", "hospitals")

    assert json.loads(out.read_text("utf-8")) == definitions_of(roster, "hospitals")


def test_earlier_definitions_are_replaced_whatever_their_mode(roster_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "broker.json"
    out.write_text("old")
    out.chmod(0o644)

    write_config(roster_file, "--out", out)

    assert "users" in json.loads(out.read_text("utf-8"))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


@pytest.mark.parametrize("out", ["nowhere/broker.json", "folder"])
def test_file_that_cannot_be_written_is_told_and_leaves_nothing(
    roster_file: Path, tmp_path: Path, out: str
) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(ConfigurationError, match=f"{out} cannot be written"):
        write_config(roster_file, "--out", tmp_path / out)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "roster.json"]


def test_roster_that_was_changed_is_refused(roster: Roster, roster_file: Path, tmp_path: Path) -> None:
    text = roster_file.read_text("utf-8")
    first, second = (party.broker_password_hash for party in roster.parties[:2])
    roster_file.write_text(text.replace(first, second), encoding="utf-8")

    with pytest.raises(ConfigurationError, match="does not prove"):
        write_config(roster_file, "--out", tmp_path / "broker.json")

    assert not (tmp_path / "broker.json").exists()
