"""Optional dependencies: `require` raises `ConfigurationError`, which names the extra to install."""

from __future__ import annotations

from importlib.util import find_spec

from hubbub.errors import ConfigurationError


def require(module: str, *, wanted_by: str, extra: str) -> None:
    """Raise `ConfigurationError` if a module is not installed."""
    if find_spec(module) is None:
        raise ConfigurationError(
            f"{wanted_by} needs {module}, which is not installed here: pip install 'hubbub[{extra}]'"
        )
