"""The manifest: everything that a run is, agreed before it starts.

A run *is* its manifest: the run's id is the SHA-256 of the manifest's canonical form, and the id is bound into
every message. Two parties that hold different manifests hold different runs and never add anything together.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from hubbub.errors import ConfigurationError
from hubbub.ids import PARTY_ID_PATTERN, PartyId, RunId
from hubbub.messages.base import Claim
from hubbub.parameters import Feedback, Parameters
from hubbub.protocol.compression import AlphaRule
from hubbub.protocol.layout import MIN_CHUNK_BYTES

Name = Annotated[PartyId, StringConstraints(pattern=PARTY_ID_PATTERN)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, lt=2**53)]

CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 8 << 20
"""Every broker takes a message of this size, header included."""
MAX_CHUNKS = 1 << 16
"""Of a vector; every party plans them in memory."""
MAX_COMPLAINTS = 5
MAX_PLACE_CHARACTERS = 80
MINIMUM = 2
"""Of clients, since a sum over one is its input, and of aggregators, since one alone would see every input."""


class CohortMember(Claim):
    """A client and the organisation that it belongs to."""

    name: Name
    organisation: Name


class Manifest(Claim):
    """A run, in full. Field order does not matter; the canonical form sorts by name."""

    format: Literal[1] = 1
    cohort: tuple[CohortMember, ...]
    aggregators: tuple[Name, ...]
    coordinator: Name
    min_clients: Count
    strategy: str
    rho: float
    parameters: Count
    alpha_max: float = 16.0
    factor_bits: Literal[32] = 32
    q: int = 1
    alpha_rule: AlphaRule = "norm"
    feedback: Feedback = "lost"
    wire: Literal["paper"] = "paper"
    chunk_bytes: Annotated[int, Field(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)] = CHUNK_BYTES
    task: str
    local_steps: Count
    rounds: Count
    seed: Annotated[int, Field(ge=0, lt=2**53)]
    initial_model_sha256: Digest
    phase_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600.0
    max_void_rounds: Annotated[int, Field(ge=0, lt=2**53)] = 3
    roster_sha256: Digest | None = None
    nonce: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        names = Counter([*self.clients, *self.aggregators, self.coordinator])
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise ValueError(f"a name stands for one party only, but {', '.join(twice)} stands for several")
        return self

    @model_validator(mode="after")
    def _enough_take_part(self) -> Self:
        if len(self.cohort) < MINIMUM:
            raise ValueError("a cohort needs at least 2 clients: a sum over one client is its input")
        if len(self.aggregators) < MINIMUM:
            raise ValueError("additive sharing needs at least 2 aggregators: one alone would see every input")
        organisations = self.organisations
        if not MINIMUM <= self.min_clients <= organisations:
            raise ValueError(
                f"min_clients is {self.min_clients}; it must lie between 2 and the {organisations} "
                "organisations of the cohort"
            )
        return self

    @model_validator(mode="after")
    def _parameters_hold(self) -> Self:
        try:
            _ = self.protocol_parameters
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _chunks_are_few(self) -> Self:
        widest = self.parameters * 4 // self.chunk_bytes
        if widest > MAX_CHUNKS:
            raise ValueError(f"{self.parameters} parameters make {widest} chunks; raise chunk_bytes")
        return self

    @property
    def protocol_parameters(self) -> Parameters:
        """The numbers that the protocol's maths takes."""
        return Parameters(
            parameters=self.parameters,
            clients=len(self.cohort),
            servers=len(self.aggregators),
            rho=self.rho,
            alpha_max=self.alpha_max,
            factor_bits=self.factor_bits,
            q=self.q,
            alpha_rule=self.alpha_rule,
            feedback=self.feedback,
        )

    @property
    def clients(self) -> tuple[PartyId, ...]:
        """The cohort's names, in manifest order."""
        return tuple(member.name for member in self.cohort)

    @property
    def organisations(self) -> int:
        """How many organisations the cohort has."""
        return len({member.organisation for member in self.cohort})

    def organisations_of(self, clients: frozenset[PartyId]) -> int:
        """How many organisations some of the clients belong to: what min_clients counts."""
        return len({member.organisation for member in self.cohort if member.name in clients})

    @property
    def canonical(self) -> bytes:
        """The one byte string that stands for this manifest: JSON, keys sorted, no spaces, ASCII."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False
        ).encode("ascii")

    @property
    def run_id(self) -> RunId:
        """SHA-256 of the canonical form."""
        return RunId(hashlib.sha256(self.canonical).hexdigest())


def default_min_clients(organisations: int) -> int:
    """Two thirds of the organisations, at least three where there are as many, never under two."""
    return max(2, min(organisations, max(3, math.ceil(2 * organisations / 3))))


def read_manifest(text: str | bytes) -> Manifest:
    """Read a manifest from JSON, or say in one line what is wrong with it."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise ConfigurationError(f"this is not a manifest: {describe(error)}") from None


def describe(error: ValidationError) -> str:
    """A validation error as one short line: field, then complaint; the values themselves are left out."""
    found = error.errors(include_url=False, include_input=False)
    complaints = [_place(item["loc"]) + item["msg"].removeprefix("Value error, ") for item in found]
    more = [f"and {len(found) - MAX_COMPLAINTS} more"] if len(found) > MAX_COMPLAINTS else []
    return "; ".join([*complaints[:MAX_COMPLAINTS], *more])


def _place(location: tuple[int | str, ...]) -> str:
    """Where in the document; an unknown field's name is the sender's choice, so it is escaped and cut."""
    text = ".".join(map(str, location)).encode("unicode_escape").decode("ascii")
    return f"{text[:MAX_PLACE_CHARACTERS]}: " if text else ""
