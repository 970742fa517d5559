"""`hubbub coordinator`, `aggregator`, `trainer`: the same as the modules, with the same exit codes."""

import os
from pathlib import Path

import pytest

from hubbub.ids import PartyId, Role
from hubbub.runtime.state_folder import lock_folder
from support.command_line import Ended, Hubbub
from support.doctor_scene import ADA, ANNA, CORA
from support.party_files import PartyFiles, write_policy
from support.program import run_python


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets a variable for its process, which is ours here; this has it restored."""
    for name in ("COORDINATOR", "AGGREGATOR", "TRAINER"):
        for setting in ("CONFIG_FILE", "NEW_STATE"):
            monkeypatch.setenv(f"HUBBUB_{name}_{setting}", "")
            monkeypatch.delenv(f"HUBBUB_{name}_{setting}")


@pytest.mark.parametrize("service", ["coordinator", "aggregator", "trainer"])
def test_a_service_without_settings_says_what_is_missing(hubbub: Hubbub, service: str) -> None:
    hubbub(service).check_refused(f"HUBBUB_{service.upper()}_IDENTITY: Field required")


def test_a_service_ends_as_its_module_does(hubbub: Hubbub) -> None:
    done = run_python("-m", "hubbub_aggregator")

    assert hubbub("aggregator") == Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(("service", "name"), [("coordinator", CORA), ("aggregator", ADA), ("trainer", ANNA)])
def test_an_empty_folder_needs_a_flag(
    hubbub: Hubbub, files: PartyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, name: PartyId
) -> None:
    folder = tmp_path / "state"
    settings = files.settings_for(name) | {"folder": str(folder), "amqp_url": "amqp://127.0.0.1:1/"}
    del settings["new_state"]
    for setting, value in settings.items():
        monkeypatch.setenv(f"HUBBUB_{service.upper()}_{setting.upper()}", value)

    hubbub(service).check_refused(f"{folder} holds no state of {name}")
    lock = lock_folder(folder)  # So that it ends here.
    with_flag = hubbub(service, "--new-state")
    os.close(lock)

    with_flag.check_refused("another process is running")


def test_a_settings_file_is_named_and_the_environment_wins_over_it(
    hubbub: Hubbub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text('identity = "of-the-file"\nroster = "r"\namqp_url = "amqp://h/"\nfolder = "f"\n', "utf-8")
    write_policy(tmp_path / "policy.toml", Role.AGGREGATOR, roster_sha256="0" * 64)
    monkeypatch.setenv("HUBBUB_AGGREGATOR_POLICY", str(tmp_path / "policy.toml"))

    hubbub("aggregator", "--config", config).check_refused("of-the-file cannot be read")
    hubbub("aggregator", "--config", tmp_path / "missing.toml").check_refused("missing.toml cannot be read")
    monkeypatch.setenv("HUBBUB_AGGREGATOR_IDENTITY", "mine")
    hubbub("aggregator", "--config", config).check_refused("mine cannot be read")
