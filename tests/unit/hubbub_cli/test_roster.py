"""`hubbub roster` as a user sees it; what makes a roster good is tested with the library."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hubbub.crypto.sealing import Kem
from hubbub.errors import ConfigurationError
from hubbub.ids import Role
from hubbub.trust.identity import new_identity, write_identity
from hubbub.trust.roster import read_roster, show_fingerprint
from hubbub_cli.main import app, main

PARTIES = (
    ("clinic-a", Role.CLIENT, "clinic-a"),
    ("clinic-b", Role.CLIENT, "clinic-b"),
    ("hub", Role.COORDINATOR, "institute"),
    ("north", Role.AGGREGATOR, "university"),
    ("south", Role.AGGREGATOR, "ministry"),
)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The public files of five parties."""
    return [str(write_identity(new_identity(*each), tmp_path / "keys")[1]) for each in PARTIES]


def run_roster(*arguments: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, ["roster", *arguments], env={"COLUMNS": str(columns)}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def roster(files: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "roster.json"
    run_roster("build", *files, "--out", str(path))
    return path


def test_build_writes_the_roster_and_tells_its_digest(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    said = run_roster("build", *files, "--out", str(path))

    built = read_roster(path)
    assert [(party.name, party.role, party.organisation) for party in built.parties] == list(PARTIES)
    assert (built.kem, built.broker) == (Kem.X25519, None)
    assert f"written to {path}\n" in said
    assert built.digest in said
    assert show_fingerprint(built.digest) in said
    assert "warning" not in said


def test_build_takes_files_in_any_order(files: list[str], roster: Path, tmp_path: Path) -> None:
    run_roster("build", *reversed(files), "--out", str(tmp_path / "other.json"))

    assert (tmp_path / "other.json").read_bytes() == roster.read_bytes()


def test_build_takes_the_kem_and_the_brokers_organisation(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    options = ("--kem", "mlkem768-x25519", "--broker-organisation", "ministry")
    said = run_roster("build", *files, *options, "--out", str(path))

    built = read_roster(path)
    assert (built.kem, built.broker) == (Kem.HYBRID, "ministry")
    assert "warning: ministry runs an aggregator and the broker" in said
    assert "warning: ministry runs an aggregator and the broker" in run_roster("show", str(path))


def test_build_offers_every_kem(files: list[str], tmp_path: Path) -> None:
    for kem in Kem:
        run_roster("build", *files, "--kem", kem, "--out", str(tmp_path / f"{kem}.json"))

    assert {read_roster(tmp_path / f"{kem}.json").kem for kem in Kem} == set(Kem)


def test_a_roster_is_not_overwritten(files: list[str], roster: Path) -> None:
    before = roster.read_bytes()

    with pytest.raises(ConfigurationError, match="is there already"):
        run_roster("build", *files[:-1], "--out", str(roster))

    assert roster.read_bytes() == before


def test_nothing_is_written_if_a_file_was_tampered_with(files: list[str], tmp_path: Path) -> None:
    content = json.loads(Path(files[3]).read_text("utf-8"))
    Path(files[3]).write_text(json.dumps(content | {"organisation": "lab"}), "utf-8")

    with pytest.raises(ConfigurationError, match=f"{files[3]}: north does not prove"):
        run_roster("build", *files, "--out", str(tmp_path / "roster.json"))

    assert not (tmp_path / "roster.json").exists()


def test_a_file_given_twice_is_refused(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="north stands for several"):
        run_roster("build", *files, files[3], "--out", str(tmp_path / "roster.json"))


def test_show_has_a_row_for_every_party_in_80_columns(roster: Path) -> None:
    said = run_roster("show", str(roster))

    built = read_roster(roster)
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for party in built.parties:
        first, second = show_fingerprint(party.public_key)[:39], show_fingerprint(party.public_key)[40:]
        at = lines.index(f"{party.name} {party.role} {party.organisation} {first}")
        assert lines[at + 1] == second
    assert {"seals x25519", "broker not said", f"sha256 {built.digest}"} <= set(lines)
    assert f"read out {show_fingerprint(built.digest)}" in lines


def test_verify_without_a_digest_says_that_none_was_compared(roster: Path) -> None:
    said = run_roster("verify", str(roster))

    assert "all 5 parties prove" in said
    assert "not compared with any digest" in said
    assert "this is the roster that was agreed on" not in said


def test_verify_takes_the_digest_as_it_is_printed_or_read_out(roster: Path) -> None:
    digest = read_roster(roster).digest

    for written in (digest, show_fingerprint(digest), digest.upper()):
        assert "this is the roster that was agreed on" in run_roster("verify", str(roster), "--sha256", written)


def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the real command and give the one line that it says."""
    monkeypatch.setattr(sys, "argv", ["hubbub", "roster", *arguments])
    with pytest.raises(SystemExit) as info:
        main()
    assert info.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_verify_fails_on_another_digest(
    roster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fail(monkeypatch, capsys, "verify", str(roster), "--sha256", "0" * 64)

    assert "0" * 64 in said
    assert read_roster(roster).digest in said


def test_verify_fails_on_a_roster_that_was_tampered_with(
    roster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    roster.write_text(roster.read_text("utf-8").replace('"university"', '"ministry"'), "utf-8")

    assert "north does not prove" in fail(monkeypatch, capsys, "verify", str(roster))
