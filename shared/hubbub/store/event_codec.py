"""Codec for events and machines' data: to JSON and back, by their types.

Stored values are read only after a crash, so the codec checks them on writing. It refuses a value that would be
read back as another: an ambiguous union, or a field whose value does not match its type.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hubbub.errors import LocalError

_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
# Values are written in a tuple of one, because a dataclass on its own would not take the configuration.
_ONE: Any = tuple


@cache
def _adapt(kind: type) -> TypeAdapter[Any]:
    """Return the adapter of a type; cached, because all parties of a process have the same types."""
    return TypeAdapter(_ONE[kind], config=_CONFIG)


class EventCodec:
    """Codec for a set of types, each known by its name."""

    def __init__(self, types: Iterable[type]) -> None:
        self._types: dict[str, type] = {}
        for each in types:
            if self._types.setdefault(each.__name__, each) is not each:
                raise LocalError(f"two types are called {each.__name__}: what is kept is known by its type's name")
        self._adapters = {name: _adapt(each) for name, each in self._types.items()}

    def name_of(self, value: object) -> str:
        """Return the name that stands for a value's type; raise `LocalError` if the type is not known."""
        name = type(value).__name__
        if self._types.get(name) is not type(value):
            raise LocalError(f"{name} cannot be kept: its type is not among those that are")
        return name

    def dump(self, value: object) -> str:
        """Write a value as JSON; raise `LocalError` unless the same value can be read from it."""
        name = self.name_of(value)
        try:
            text = self._adapters[name].dump_json((value,), warnings="error").decode()
        except ValueError:
            # Without its message, which shows the value.
            raise LocalError(f"{name} cannot be kept: a field holds what its type does not say") from None
        if self.load(name, text) != value:
            raise LocalError(f"{name} cannot be kept: it would be read back as another value")
        return text

    def load(self, name: str, text: str) -> Any:
        """Read a value of the type with this name."""
        adapter = self._adapters.get(name)
        if adapter is None:
            raise LocalError(f"the store holds a {name}, which this version does not know")
        try:
            return adapter.validate_json(text)[0]
        except ValidationError as error:
            places = "; ".join(_place(item["loc"]) for item in error.errors(include_input=False))
            raise LocalError(f"{name} in the store cannot be read: {places}") from None


def _place(location: tuple[int | str, ...]) -> str:
    """Return a location in a value, without the tuple around it."""
    return ".".join(map(str, location[1:])) or "all of it"
