"""`hubbub coordinator`, `aggregator`, `trainer`: the same as the modules, with the same exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.ids import Role
from support.command_line import Ended, Hubbub
from support.party_files import write_policy


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets a variable for its process, which is ours here; this has it restored."""
    for name in ("COORDINATOR", "AGGREGATOR", "TRAINER"):
        monkeypatch.setenv(f"HUBBUB_{name}_CONFIG_FILE", "")
        monkeypatch.delenv(f"HUBBUB_{name}_CONFIG_FILE")


@pytest.mark.parametrize("service", ["coordinator", "aggregator", "trainer"])
def test_a_service_without_settings_says_what_is_missing(hubbub: Hubbub, service: str) -> None:
    ended = hubbub(service)

    assert ended.code == 2
    assert f"HUBBUB_{service.upper()}_IDENTITY: Field required" in ended.err
    assert ended.err.count("\n") == 1


def test_a_service_ends_as_its_module_does(hubbub: Hubbub) -> None:
    command = [sys.executable, "-m", "hubbub_aggregator"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert hubbub("aggregator") == Ended(done.returncode, done.stdout, done.stderr)


def test_a_settings_file_is_named_and_the_environment_wins_over_it(
    hubbub: Hubbub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text('identity = "of-the-file"\nroster = "r"\namqp_url = "amqp://h/"\nfolder = "f"\n', "utf-8")
    write_policy(tmp_path / "policy.toml", Role.AGGREGATOR, roster_sha256="0" * 64)
    monkeypatch.setenv("HUBBUB_AGGREGATOR_POLICY", str(tmp_path / "policy.toml"))

    by_file = hubbub("aggregator", "--config", config)
    missing = hubbub("aggregator", "--config", tmp_path / "missing.toml")
    monkeypatch.setenv("HUBBUB_AGGREGATOR_IDENTITY", "mine")
    by_variable = hubbub("aggregator", "--config", config)

    assert "of-the-file cannot be read" in by_file.err
    assert "missing.toml cannot be read" in missing.err
    assert "mine cannot be read" in by_variable.err
    assert {by_file.code, by_variable.code, missing.code} == {2}
