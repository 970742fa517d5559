"""Settings file of a party: all that its service starts from, each value under its explanation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hubbub.ids import Role
from hubbub.runtime.settings import ServiceSettings
from hubbub_cli.formatting import explain_value

Setting = str | int | bool | Path | None


def settings_model(role: Role) -> type[ServiceSettings]:
    """Return the settings class of a role's service."""
    from hubbub_aggregator.__main__ import AggregatorSettings  # noqa: PLC0415  (Each brings a service along.)
    from hubbub_coordinator.__main__ import CoordinatorSettings  # noqa: PLC0415
    from hubbub_trainer.__main__ import TrainerSettings  # noqa: PLC0415

    models: dict[Role, type[ServiceSettings]] = {
        Role.CLIENT: TrainerSettings,
        Role.AGGREGATOR: AggregatorSettings,
        Role.COORDINATOR: CoordinatorSettings,
    }
    return models[role]


def explain_settings(role: Role, values: Mapping[str, Setting]) -> str:
    """Return complete settings of a role's service as TOML, for its option `--config`.

    A value of None is left out. Relative paths are relative to the folder in which the service is started. The
    file may hold a password, in the URL of the broker or of a store: only its owner should read it.

    Raises `ValueError` if a setting is missing that the service cannot start without, or is none of the service's.
    """
    fields = settings_model(role).model_fields
    given = {name: value for name, value in values.items() if value is not None}
    missing = [name for name, field in fields.items() if field.is_required() and name not in given]
    unknown = sorted(given.keys() - fields.keys())
    if missing or unknown:
        raise ValueError(f"settings of a {role.value}: missing {missing}, unknown {unknown}")
    lines = [f"# Settings of a Hubbub {role.value}. A variable in the environment wins over its line here.\n"]
    for name, field in fields.items():
        if name in given:
            value = given[name]
            lines += explain_value(name, str(value) if isinstance(value, Path) else value, field.description)
    return "\n".join(lines)
