"""Settings files: a service starts from one alone, and each value is explained."""

import os
from pathlib import Path

import pytest

from hubbub.ids import Role
from hubbub.runtime.settings import load_settings
from hubbub_cli.party_settings import Setting, explain_settings, settings_model

EVERYBODY: dict[str, Setting] = {
    "identity": Path("clinic-ä.identity.json"),
    "roster": Path("roster.json"),
    "amqp_url": "amqps://broker.example:443/",
    "amqp_ca_file": None,
    "folder": Path("state"),
}
OF_ROLE: dict[Role, dict[str, Setting]] = {
    Role.COORDINATOR: {
        "roster_sha256": "0" * 64,
        "read_token_file": "read.token",
        "change_token_file": "change.token",
        "port": 8750,
    },
    Role.AGGREGATOR: {"policy": Path("policy.toml"), "metrics_port": 8751},
    Role.CLIENT: {"policy": Path("policy.toml"), "task": 'a "quoted" \\ name 𝔫.py', "new_state": True},
}


@pytest.mark.parametrize("role", list(Role))
def test_a_service_starts_from_the_file_alone_and_each_line_is_explained(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, model = {**EVERYBODY, **OF_ROLE[role]}, settings_model(role)
    file = tmp_path / "settings.toml"

    file.write_text(explain_settings(role, values), encoding="utf-8")

    for name in os.environ:
        if name.startswith("HUBBUB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv(model.variable("config_file"), str(file))
    read = load_settings(model)
    expected = model.model_validate(values)
    assert {name: getattr(read, name) for name in values} == {name: getattr(expected, name) for name in values}
    assert "\n# The broker, amqps://host:port/vhost; for a cluster" in file.read_text(encoding="utf-8")


def test_an_incomplete_file_and_a_setting_of_another_role_are_refused() -> None:
    with pytest.raises(ValueError, match=r"missing \['policy'\], unknown \['port'\]"):
        explain_settings(Role.CLIENT, {**EVERYBODY, "port": 1})
