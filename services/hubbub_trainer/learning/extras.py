"""What not everybody installs, asked for before it is imported: who lacks it is told which extra brings it."""

from __future__ import annotations

from importlib.util import find_spec

from hubbub.errors import ConfigurationError


def require(module: str, *, wanted_by: str, extra: str) -> None:
    """Return if a module can be imported."""
    if find_spec(module) is None:
        raise ConfigurationError(
            f"{wanted_by} needs {module}, which is not installed here: pip install 'hubbub[{extra}]'"
        )
