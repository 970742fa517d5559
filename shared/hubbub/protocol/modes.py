"""How secret shares travel, by name: nothing that takes long to import."""

from typing import Literal

WireMode = Literal["compact", "paper"]
"""How secret shares travel: `paper` as Beguier et al. count them, `compact` seeded, masked and dense."""
