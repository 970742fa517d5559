"""Names of runs, parties, share sets, roles and choices, as types of their own.

They are plain strings on the wire; a distinct type for each keeps one from being passed for another. This module
imports nothing that takes long.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal, NewType

RunId = NewType("RunId", str)
"""The SHA-256 of a manifest, as 64 hexadecimal digits."""

PartyId = NewType("PartyId", str)
"""A party's name, unique in its federation: lower-case letters, digits and hyphens."""

SetId = NewType("SetId", str)
"""The random name of one share set, as 32 hexadecimal digits."""

RUN_ID_PATTERN = r"^[0-9a-f]{64}$"
PARTY_ID_PATTERN = r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?$"
SET_ID_PATTERN = r"^[0-9a-f]{32}$"


class Role(StrEnum):
    """Role of a party in a run."""

    CLIENT = "client"
    AGGREGATOR = "aggregator"
    COORDINATOR = "coordinator"


def is_party_id(text: str) -> bool:
    """Say whether `text` can name a party (and so a queue and a file)."""
    return re.fullmatch(PARTY_ID_PATTERN, text) is not None


WireMode = Literal["compact", "paper"]
"""Encoding of secret shares: `paper` as Beguier et al. count them, `compact` seeded, masked and dense."""

AlphaRule = Literal["norm", "mean"]
"""Rule by which the scaling factor α is chosen; see `hubbub.protocol.compression.scaling_factor`."""

Feedback = Literal["lost", "paper"]
"""Treatment of indices that SecUnion lost; see `hubbub.parameters.Parameters`."""

Weights = Literal["equal", "samples"]
"""Weight of a client's update: the same for all, or its number of samples; see `hubbub.protocol.weights`."""
