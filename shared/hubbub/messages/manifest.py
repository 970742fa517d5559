"""The manifest: the complete description of a run, agreed before it starts.

A run *is* its manifest: the run's id is the SHA-256 of the manifest's canonical form, and the id is bound into
every message. Parties with different manifests are in different runs and never add anything together.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from itertools import groupby
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from hubbub.errors import ConfigurationError
from hubbub.ids import PARTY_ID_PATTERN, RUN_ID_PATTERN, AlphaRule, Feedback, PartyId, RunId, Weights, WireMode
from hubbub.messages.envelope import Claim, WireMark
from hubbub.parameters import FACTOR_FLOOR, FIRST_FACTOR_BOUND, KAPPA, Parameters
from hubbub.protocol.fixed_point import MAX_MODULUS_BITS
from hubbub.protocol.layout import MIN_CHUNK_BYTES
from hubbub.protocol.masks import DEFAULT_BITS
from hubbub.protocol.metrics import NAME as SCORES
from hubbub.protocol.metrics import Metric, MetricKind, ScoreSheet, ScoreWeights, Trend, check_metrics, reaches

Name = Annotated[PartyId, StringConstraints(pattern=PARTY_ID_PATTERN), WireMark.PARTY]
ScoreMode = Literal["sum", "none"]
NumberBits = Literal[32, 64]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$"), WireMark.HEX]
Signature = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$"), WireMark.HEX]
RunName = Annotated[RunId, StringConstraints(pattern=RUN_ID_PATTERN)]
Count = Annotated[int, Field(ge=1, lt=2**53)]
Index = Annotated[int, Field(ge=0, lt=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LEFT_OUT_IF_NONE = Field(exclude_if=lambda value: value is None)
"""Left out of the canonical form, too: a manifest without the field keeps the id from before the field existed."""
MAX_MOMENTUM = 0.99
"""With 1 a model would never slow down; closer to 1, a step goes on over most of a run."""
Momentum = Annotated[float, Field(ge=0, le=MAX_MOMENTUM, allow_inf_nan=False)]
LEFT_OUT_IF_ZERO = Field(exclude_if=lambda value: value == 0)
"""Left out in the same way."""
LEFT_OUT_IF_ONE = Field(exclude_if=lambda value: value == 1)
"""Left out in the same way."""
TAKES_BLOCKS = "sec-union"
"""The one strategy whose union can be over blocks."""
TAKES_BITS = "shared-mask"
"""The one strategy that sends levels."""
TAKES_NUMBERS = ("sum", "sparse-sum")
"""The strategies that add numbers as they are."""
OWN_MODELS = ("eastly-tss", "eastly-he")
"""The strategies with which each client has a model of its own."""
SCORES_PHASE = SCORES
"""The phase whose members are the same in all rounds of a run, and may be others than a round's."""
LOSES_MEMBERS = ("bonawitz",)
"""The strategies whose phases may have fewer members than the one before."""

CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 8 << 20
"""Every broker accepts a message of this size, header included."""
MAX_CHUNKS = 1 << 16
"""Most chunks of a vector; every party plans them in memory."""
MAX_COHORT = 4096
MAX_RANGES = 4096
MAX_COMPLAINTS = 5
MAX_METRICS = 16
MAX_EXAMPLES = 1_000_000
MAX_SAMPLES = 1_000_000
MAX_PLACE_CHARACTERS = 80
MINIMUM = 2
"""Fewest clients, since a sum over one is its input, and aggregators, since one alone would see every input."""


class CohortMember(Claim):
    """A client and the organisation that it belongs to."""

    name: Name
    organisation: Name


class Endorsement(Claim):
    """A client's signature under the model that its run ended with."""

    client: Name
    signature: Signature


class Predecessor(Claim):
    """The run that this one continues, with enough of its clients' signatures under its model."""

    run: RunName
    cohort: Annotated[tuple[CohortMember, ...], Field(max_length=MAX_COHORT)]
    min_clients: Count
    endorsements: Annotated[tuple[Endorsement, ...], Field(max_length=MAX_COHORT)]

    @model_validator(mode="after")
    def _enough_endorse(self) -> Self:
        members = [member.name for member in self.cohort]
        if len(set(members)) < len(members):
            raise ValueError("a client is in the predecessor's cohort once")
        names = [endorsement.client for endorsement in self.endorsements]
        if len(set(names)) < len(names):
            raise ValueError("a client endorses its run's model once: give one endorsement of each")
        strangers = sorted(set(names) - set(members))
        if strangers:
            raise ValueError(
                f"{', '.join(strangers)} was not in the predecessor's cohort and cannot endorse its model"
            )
        if len(organisations_in(self.cohort, names)) < max(MINIMUM, self.min_clients):
            raise ValueError(
                f"clients of {self.min_clients} organisations of the predecessor's cohort must endorse its model"
            )
        return self


class MetricClaim(Claim):
    """A metric that the cohort's scores are summed for."""

    name: str
    low: Finite = 0.0
    high: Finite = 1.0
    higher_is_better: bool = True
    kind: MetricKind = "mean"
    bins: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _is_a_metric(self) -> Self:
        try:
            _ = self.metric
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def metric(self) -> Metric:
        """The metric that is claimed."""
        return Metric(**self.model_dump())

    @classmethod
    def of(cls, metric: Metric) -> Self:
        """Declare a metric."""
        return cls(**asdict(metric))


class RangeClaim(Claim):
    """The largest magnitude of some neighbouring numbers of a sum."""

    count: Count
    largest: Positive

    @classmethod
    def join(cls, ranges: Iterable[float]) -> tuple[Self, ...]:
        """Declare the ranges of single numbers; equal neighbours make one claim."""
        runs = groupby(map(float, ranges))
        try:
            return tuple(cls(count=len(list(equal)), largest=largest) for largest, equal in runs)
        except ValidationError as error:
            raise ConfigurationError(f"these are no ranges: {describe(error)}") from None


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
    block: Annotated[int, LEFT_OUT_IF_ONE] = 1
    """Neighbouring indices that sec-union chooses together; above 1, every client sends signs for all of V."""
    bits: Annotated[int, Field(exclude_if=lambda value: value == DEFAULT_BITS)] = DEFAULT_BITS
    """Bits in which shared-mask gives the change of a coordinate."""
    number_bits: Annotated[NumberBits, Field(exclude_if=lambda value: value == MAX_MODULUS_BITS)] = 32
    """Bits of the ring in which sum and sparse-sum add numbers."""
    ranges: Annotated[
        tuple[RangeClaim, ...], Field(max_length=MAX_RANGES, exclude_if=lambda value: not value)
    ] = ()
    """Ranges of the numbers of sum and sparse-sum, in order, if they are not alpha_max for all."""
    kappa: float = KAPPA
    """A round's mean factor is clamped at this many times the lower median of those of the rounds before it."""
    first_factor_bound: float = FIRST_FACTOR_BOUND
    """The largest mean factor of a round that has none before it."""
    factor_floor: float = FACTOR_FLOOR
    """A mean factor up to this is never clamped."""
    verified: bool = True
    """True if clients send tags, with which they verify sums, in all phases that can carry them."""
    alpha_rule: AlphaRule = "norm"
    feedback: Feedback = "lost"
    wire: WireMode = "compact"
    chunk_bytes: Annotated[int, Field(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)] = CHUNK_BYTES
    task: str
    local_steps: Count
    learning_rate: Annotated[Positive | None, LEFT_OUT_IF_NONE] = None
    """Learning rate of local training instead of the task's own."""
    server_momentum: Annotated[Momentum, LEFT_OUT_IF_ZERO] = 0.0
    """β: the model moves by a round's step and by β times what it moved by in the round before."""
    weights: Annotated[Weights, Field(exclude_if=lambda value: value == "equal")] = "equal"
    """Weight of a client's update: the same for all (`equal`), or its number of samples (`samples`)."""
    max_samples: Annotated[int, Field(ge=1, le=2**40, exclude_if=lambda value: value == MAX_SAMPLES)] = MAX_SAMPLES
    """Cap on the samples that a client counts as, if updates are weighted by samples."""
    rounds: Count
    scores: ScoreMode = "sum"
    """With `sum`, clients sum the model's scores on their own data; with `none`, nobody reports any."""
    metrics: Annotated[tuple[MetricClaim, ...], Field(max_length=MAX_METRICS)] = ()
    """The metrics that are summed; the first is the headline."""
    score_weights: ScoreWeights = "equal"
    """Weight of a client's scores: the same for all (`equal`), or its number of examples (`examples`)."""
    max_examples: Count = MAX_EXAMPLES
    """Cap on the examples that a client counts as, if scores are weighted by examples."""
    evaluate_every: Annotated[int, Field(ge=0, lt=2**53)] = 1
    """Released rounds from one scored round to the next. The last one is always scored; 0 scores none."""
    target: Annotated[Finite | None, LEFT_OUT_IF_NONE] = None
    """The run completes after the first scored round whose headline metric reaches it, or after all its rounds."""
    patience: Annotated[int, Field(ge=0, lt=2**53), LEFT_OUT_IF_ZERO] = 0
    """The run completes after this many scored rounds in a row whose headline metric is no better than the best
    before them; with 0 it does not."""
    seed: Annotated[int, Field(ge=0, lt=2**53)]
    initial_model_sha256: Digest
    """Digest of the model that everybody can rebuild from the task and the seed; with a predecessor, of a salt
    that only clients know followed by the model that it ended with."""
    predecessor: Annotated[Predecessor | None, LEFT_OUT_IF_NONE] = None
    phase_timeout_s: Positive = 3600.0
    max_void_rounds: Annotated[int, Field(ge=0, lt=2**53)] = 3
    roster_sha256: Digest
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
        if self.block > 1 and self.strategy != TAKES_BLOCKS:
            raise ValueError(
                f"blocks of indices are for {TAKES_BLOCKS} alone: leave block out, or choose that strategy"
            )
        if self.bits != DEFAULT_BITS and self.strategy != TAKES_BITS:
            raise ValueError(f"bits are for {TAKES_BITS} alone: leave bits out, or choose that strategy")
        if self.server_momentum and self.strategy in TAKES_NUMBERS:
            raise ValueError(
                f"{self.strategy} moves no model: leave server_momentum out, or choose another strategy"
            )
        if self.strategy in OWN_MODELS and (self.server_momentum or self.weights != "equal"):
            raise ValueError(
                f"with {self.strategy} each client applies the sum in its own way: leave server_momentum and "
                "weights out, or choose another strategy"
            )
        if self.weights != "equal" and self.strategy in TAKES_NUMBERS:
            raise ValueError(
                f"{self.strategy} adds numbers as they are: leave weights out, or choose a strategy that trains"
            )
        if self.max_samples != MAX_SAMPLES and self.weights == "equal":
            raise ValueError(
                "max_samples has no effect with weights = equal: leave it out, or choose weights = samples"
            )
        return self

    @model_validator(mode="after")
    def _numbers_hold(self) -> Self:
        if self.strategy not in TAKES_NUMBERS:
            if self.number_bits > MAX_MODULUS_BITS or self.ranges:
                raise ValueError(
                    f"number_bits and ranges are for {' and '.join(TAKES_NUMBERS)} alone: leave them out, or "
                    "choose one of these strategies"
                )
            return self
        numbers = self.protocol_parameters.range_fixed_point
        if not numbers.adds_whole_numbers.all():
            raise ValueError(
                f"with numbers up to {numbers.largest.max():g} and number_bits = {self.number_bits}, sums of "
                f"whole numbers are not exact: choose alpha_max and ranges of at most "
                f"{numbers.limit_for(1.0):.17g}, or number_bits = 64"
            )
        return self

    @model_validator(mode="after")
    def _scores_hold(self) -> Self:
        try:
            check_metrics(self.score_sheet.metrics)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        if self.patience and self.headline is None:
            raise ValueError("patience needs scores: declare metrics, or leave patience out")
        if self.target is None:
            return self
        if self.headline is None:
            raise ValueError("a target needs scores: declare metrics, or leave the target out")
        low, high = self.headline.range
        if not low <= self.target <= high:
            raise ValueError(
                f"target: {self.headline.name} lies between {low:g} and {high:g}, not at {self.target:g}"
            )
        return self

    @model_validator(mode="after")
    def _chunks_are_few(self) -> Self:
        widest = self.parameters * self.number_bits // 8 // self.chunk_bytes
        if widest > MAX_CHUNKS:
            raise ValueError(f"{self.parameters} parameters make {widest} chunks; raise chunk_bytes")
        return self

    @property
    def protocol_parameters(self) -> Parameters:
        """The numbers that the protocol's maths takes."""
        return _parameters_of(
            model_size=self.parameters,
            clients=len(self.cohort),
            servers=len(self.aggregators),
            rho=self.rho,
            alpha_max=self.alpha_max,
            factor_bits=self.factor_bits,
            kappa=self.kappa,
            first_factor_bound=self.first_factor_bound,
            factor_floor=self.factor_floor,
            q=self.q,
            block=self.block,
            alpha_rule=self.alpha_rule,
            feedback=self.feedback,
            wire=self.wire,
            verified=self.verified,
            bits=self.bits,
            number_bits=self.number_bits,
            ranges=tuple((each.count, each.largest) for each in self.ranges),
        )

    @property
    def score_sheet(self) -> ScoreSheet:
        """The encoding in which the clients' scores are summed."""
        return _sheet_of(self.metrics, len(self.cohort), self.score_weights, self.max_examples)

    @property
    def headline(self) -> Metric | None:
        """The metric that can end the run early; None if there are no scores."""
        return self.metrics[0].metric if self.is_scored else None

    def is_on_target(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the metrics of a round meet the target; False if there is none, or no scores."""
        headline, target = self.headline, self.target
        if headline is None or target is None or headline.name not in metrics:
            return False
        return reaches(headline, metrics[headline.name], target)

    def follow(self, trend: Trend, metrics: Mapping[str, float], *, released: int) -> Trend:
        """Return the headline's trend after the released round with this number, counted from 1."""
        if self.headline is None or not self.is_scored_after(released):
            return trend
        if self.headline.name not in metrics:
            return trend.interrupt()
        return trend.add(self.headline, metrics[self.headline.name])

    def may_end_early(self, trend: Trend, metrics: Mapping[str, float]) -> bool:
        """Return whether the run may complete after a round with these metrics, before all rounds are done.

        The coordinator and each client ask this of the totals that they know themselves.
        """
        return self.is_on_target(metrics) or (bool(metrics) and trend.has_stalled(self.patience))

    @property
    def is_scored(self) -> bool:
        """True if any round has a scores phase."""
        return self.scores == "sum" and bool(self.metrics) and self.evaluate_every > 0

    def is_scored_after(self, released: int) -> bool:
        """Return whether the released round with this number, counted from 1, has a scores phase."""
        return self.is_scored and (released % self.evaluate_every == 0 or released == self.rounds)

    @property
    def clients(self) -> tuple[PartyId, ...]:
        """The cohort's names, in manifest order."""
        return tuple(member.name for member in self.cohort)

    @property
    def organisations(self) -> int:
        """The number of organisations in the cohort."""
        return len({member.organisation for member in self.cohort})

    def organisations_of(self, clients: frozenset[PartyId]) -> int:
        """Count the organisations that these clients belong to, as min_clients does."""
        return len(organisations_in(self.cohort, clients))

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


_parameters_of = lru_cache(maxsize=64)(Parameters)
"""Cached, because every message asks for them and their checks use exact fractions."""


@lru_cache(maxsize=64)
def _sheet_of(
    metrics: tuple[MetricClaim, ...], clients: int, weights: ScoreWeights, max_examples: int
) -> ScoreSheet:
    return ScoreSheet(tuple(claim.metric for claim in metrics), clients, weights, max_examples)


def organisations_in(cohort: Iterable[CohortMember], clients: Collection[str]) -> set[PartyId]:
    """Return the organisations that some clients of a cohort belong to."""
    return {member.organisation for member in cohort if member.name in clients}


def default_min_clients(organisations: int) -> int:
    """Return two thirds of the organisations, at least three if there are as many, never under two."""
    return max(2, min(organisations, max(3, math.ceil(2 * organisations / 3))))


def describe_run(manifest: Manifest) -> dict[str, object]:
    """Return the fields of the audit log's record of a joined run."""
    return {"manifest": manifest.model_dump(mode="json"), "roster_sha256": manifest.roster_sha256}


def read_manifest(text: str | bytes) -> Manifest:
    """Read a manifest from JSON, or raise `ConfigurationError` with one line on what is wrong."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise ConfigurationError(f"this is not a manifest: {describe(error)}") from None


def describe(error: ValidationError) -> str:
    """Format a validation error as one short line: field, then complaint; values are left out."""
    found = error.errors(include_url=False, include_input=False)
    complaints = [_place(item["loc"]) + item["msg"].removeprefix("Value error, ") for item in found]
    more = [f"and {len(found) - MAX_COMPLAINTS} more"] if len(found) > MAX_COMPLAINTS else []
    return "; ".join([*complaints[:MAX_COMPLAINTS], *more])


def _place(location: tuple[int | str, ...]) -> str:
    """Format a place in the document; an unknown field's name is the sender's choice, so it is escaped and cut."""
    text = ".".join(map(str, location)).encode("unicode_escape").decode("ascii")
    return f"{text[:MAX_PLACE_CHARACTERS]}: " if text else ""
