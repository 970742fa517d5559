"""A message whose payload stays on disk."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from hubbub.messages.envelope import Envelope


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Shelved(Envelope):
    """A message that another process of this party took in: its payload is not here but in a file."""

    path: Path
    length: int

    @classmethod
    def of(cls, rest: Envelope, path: Path, length: int) -> Self:
        """Put together what was sent without its payload, and where that is."""
        return cls(**{each.name: getattr(rest, each.name) for each in fields(rest)}, path=path, length=length)

    @property
    def payload_bytes(self) -> int:
        """How long the payload in the file is."""
        return self.length
