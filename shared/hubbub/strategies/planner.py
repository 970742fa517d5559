"""Plan of a run: what each strategy costs and tells to whom (Beguier et al., Tables 1 and 2).

Each strategy tells both itself.

Costs are payload bits of rounds that nobody misses, by the formula of the wire mode that is asked for and, beside
it, of the paper's. Probabilities are for clients that choose their indices independently; clients with similar
data choose alike, so that their union is smaller and more of it collides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType
from typing import get_args

from hubbub.errors import ConfigurationError
from hubbub.ids import WireMode
from hubbub.parameters import Parameters
from hubbub.protocol import costs, leakage, masks, unions
from hubbub.protocol.costs import Headcount
from hubbub.protocol.metrics import CLASSIFICATION, ScoreSheet
from hubbub.strategies import scores
from hubbub.strategies.base import Exposure, ServersLearn, Strategy, Support
from hubbub.strategies.registry import STRATEGIES

LEVELS: tuple[ServersLearn, ...] = get_args(ServersLearn)
SUPPORTS: tuple[Support, ...] = get_args(Support)
WIRE_MODES: tuple[WireMode, ...] = get_args(WireMode)
LEAST_FOUND = 0.01
"""A run whose expected |V| is a smaller share of k is refused."""
SMALLEST_MASKED = 20_000
"""Smaller models learn too slowly from a mask of the usual ρ (docs/findings.md)."""
MOST_LOST = 0.3
"""If a larger share of the chosen indices is expected to be lost, there is a warning."""
SMALLEST_KEPT = 100
"""If clients send signs or levels of fewer parameters, there is a warning: the model may not learn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A run to plan: N, C, S, ρ, q, the wire mode and the number of rounds; |V| if it is known.

    With a `block` of more than one index, sec-union over blocks is planned beside the flat one. Tags, with which
    clients verify sums, are counted unless `verified` is false.
    """

    parameters: int
    clients: int
    servers: int
    rho: float
    mask_rho: float | None = None
    """ρ of a strategy that draws a mask, if it is another."""
    union_size: int | None = None
    q: int = 1
    rounds: int = 1
    wire: WireMode = "compact"
    block: int = 1
    bits: int = masks.DEFAULT_BITS
    number_bits: int = 32
    verified: bool = True

    def __post_init__(self) -> None:
        unions.check_q(self.q)
        if self.wire not in WIRE_MODES:
            raise ConfigurationError(f"the wire mode is one of: {', '.join(WIRE_MODES)}; not {self.wire!r}")
        if self.rounds < 1:
            raise ConfigurationError(f"a plan is for at least one round, not {self.rounds}")
        largest = min(self.parameters, self.clients * self.kept)
        if self.union_size is not None and not 0 <= self.union_size <= largest:
            raise ConfigurationError(
                f"the union cannot have {self.union_size} indices: {self.clients} clients that choose "
                f"{self.kept} of {self.parameters} each have from 0 to {largest} together"
            )

    @property
    def run(self) -> Parameters:
        """The parameters of such a run, which are checked on the way."""
        return Parameters(
            model_size=self.parameters,
            clients=self.clients,
            servers=self.servers,
            rho=self.rho,
            q=self.q,
            wire=self.wire,
            block=self.block,
            bits=self.bits,
            number_bits=self.number_bits,
            verified=self.verified,
        )

    @property
    def kept(self) -> int:
        """The indices that a client chooses, k = ⌊ρ·N⌋."""
        return self.run.kept

    @property
    def heads(self) -> Headcount:
        """Nobody drops out."""
        return Headcount.complete(self.clients, self.servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leakage:
    """The appendix on SecUnion, exactly and by the paper's formulas, for independent choices."""

    expected_union: float
    expected_lost: float
    paper_expected_lost: float
    alone_probability: float
    paper_alone_probability: float
    expected_alone_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUnion:
    """Expected V of a run whose clients choose independently, in indices or, if they choose blocks, in blocks."""

    chosen: float
    """Those that any client chooses."""
    found: float
    """The same less what is lost: |V|."""
    kept: int
    """Those that each client chooses, k."""

    @property
    def lost_share(self) -> float:
        """The share of the chosen indices that is lost."""
        return 1 - self.found / self.chosen

    @property
    def is_empty(self) -> bool:
        """True if V has next to no indices, so that nothing can be learnt."""
        return self.found < LEAST_FOUND * self.kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy's line of the plan. `phases` has the bits of a round by what they are spent on."""

    strategy: str
    q: int | None
    block: int
    """1 where indices are chosen one by one."""
    union_size: int
    bits: int | None = None
    """Bits of a level, where levels are sent."""
    phases: Mapping[str, int]
    paper_bits_per_round: int
    """The same round as in the paper: on its wire, and without tags."""
    rounds: int
    exposure: Exposure
    trains: bool = True
    """False for a strategy that adds numbers as they are, and is no way to train."""
    refused: bool = False
    """True if such a run is refused, because V is expected to be empty."""
    warning: str = ""
    """A sentence if such a run may learn slowly or not at all, also if it is refused for that."""

    @property
    def bits_per_round(self) -> int:
        """Payload of all parties, on the wire that is planned."""
        return sum(self.phases.values())

    @property
    def bits_in_all(self) -> int:
        """The same over all rounds."""
        return self.rounds * self.bits_per_round

    @property
    def label(self) -> str:
        """The strategy's name, with q and b, or bits, where it has them."""
        if self.bits is not None:
            return f"{self.strategy} ({self.bits} bit{'s' if self.bits > 1 else ''})"
        if self.q is None:
            return self.strategy
        return f"{self.strategy} (q = {self.q}{f', b = {self.block}' if self.block > 1 else ''})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: every row of Table 2, and the best strategy that keeps servers from learning more.

    Sums of numbers as they are come last; they are planned like the rest, and never recommended for training.
    """

    question: Question
    estimated: bool
    rows: tuple[Row, ...]
    leakage: Leakage
    block_leakage: Leakage | None
    """The same of blocks, where they were asked for."""
    servers_learn: ServersLearn
    recommended: Row
    reason: str
    """The reason for the recommendation."""
    lossless: Row
    """The cheapest among those in which all that clients choose is summed: none is lost, or left to a mask."""

    @property
    def scores_bits(self) -> int:
        """Payload that a scored round has besides, whatever the strategy: two metrics and, if asked for, tags."""
        ask = self.question
        bits = scores.predict_bits(ScoreSheet(CLASSIFICATION, clients=ask.clients), ask.heads, ask.wire)
        return bits + (costs.tags_bits("integers", ask.q, ask.heads, ask.wire) if ask.verified else 0)

    def row(self, strategy: str) -> Row:
        """Find a strategy's line; of sec-union, that of the flat union."""
        return next(each for each in self.rows if each.strategy == strategy)


def expect_union(strategy: Strategy, run: Parameters) -> ExpectedUnion:
    """Compute the expected |V| and what is lost of it, for clients that choose their indices independently."""
    if strategy.support in ("dense", "mask"):
        size = run.model_size if strategy.support == "dense" else run.kept
        return ExpectedUnion(chosen=size, found=size, kept=run.kept)
    n, rho = run.blocks, run.kept_blocks / run.blocks
    chosen = leakage.expected_union(n, rho, run.clients)
    lossy = strategy.support == "lossy union"
    found = leakage.expected_found(n, rho, run.clients, run.q) if lossy else chosen
    return ExpectedUnion(chosen=chosen, found=found, kept=run.kept_blocks)


def choose_rho(strategy: Strategy, parameters: int) -> float:
    """Choose ρ: the strategy's usual one or, for a small model, one with which clients send enough parameters."""
    # A number that is none is refused elsewhere.
    least = math.ceil(10_000 * SMALLEST_KEPT / max(parameters, 1)) / 10_000
    return strategy.usual_rho if strategy.repeats else max(strategy.usual_rho, min(1.0, least))


def choose_q(strategy: Strategy, run: Parameters) -> int:
    """Choose q: the smallest with which at most `MOST_LOST` of the chosen indices are expected to be lost."""
    if strategy.support != "lossy union":
        return 1
    return next(q for q in count(1) if expect_union(strategy, replace(run, q=q)).lost_share <= MOST_LOST)


def explain_choices(strategy: Strategy, run: Parameters, *, rho: float | None, q: int | None) -> str:
    """Return the reasons for a run's ρ and q if they are not the usual ones, or not what was asked for."""
    reasons = []
    if rho is not None and not strategy.uses_rho:
        reasons.append(f"ρ = {rho:g} has no effect: {strategy.name} takes all parameters")
    if q is not None and strategy.support != "lossy union":
        reasons.append(f"q = {q} has no effect: {strategy.name} makes no random marks")
    if rho is None and strategy.uses_rho and run.rho > strategy.usual_rho:
        reasons.append(f"ρ = {run.rho:g} is chosen because the model is small")
    if q is None and strategy.support == "lossy union" and run.q > 1:
        reasons.append(f"q = {run.q} is chosen because less would lose more than {MOST_LOST:.0%} of the indices")
    return "; ".join(reasons)


def describe_risks(strategy: Strategy, run: Parameters) -> str:
    """Return the warnings about a run that may learn slowly or not at all; nothing if there are none."""
    return ". ".join(
        each for each in (_describe_losses(strategy, run), _describe_smallness(strategy, run)) if each
    )


def _describe_smallness(strategy: Strategy, run: Parameters) -> str:
    """Return a warning if clients send few parameters."""
    if not strategy.uses_rho or strategy.repeats or run.kept >= SMALLEST_KEPT:
        return ""
    return (
        f"{strategy.name}: with rho = {run.rho:g} a client sends a compressed update of {run.kept:,} of "
        f"{run.model_size:,} parameters, and a model may not learn from so few. Choose secure-fedavg"
        f"{', or a larger rho' if run.model_size > SMALLEST_KEPT else ''}"
    )


def _describe_losses(strategy: Strategy, run: Parameters) -> str:
    """Return a warning if a run is expected to lose more than `MOST_LOST` of the chosen indices, else nothing."""
    expected = expect_union(strategy, run)
    if expected.lost_share <= MOST_LOST:
        return ""
    why = "nearly all marks cancel: it cannot learn" if expected.is_empty else "marks cancel: it may learn slowly"
    blocks = f" in blocks of {run.block}" if run.block > 1 else ""
    return (
        f"{strategy.name}{blocks} with q = {run.q}, rho = {run.rho:g} and {run.clients} clients loses "
        f"{expected.lost_share:.0%} of the indices that they choose, because {why}. Choose a larger q, a smaller "
        "rho, or a strategy that loses none, such as no-union"
    )


def refuse_empty_union(strategy: Strategy, run: Parameters) -> None:
    """Raise `ConfigurationError` if the expected |V| of a run is less than `LEAST_FOUND` of k."""
    if expect_union(strategy, run).is_empty:
        raise ConfigurationError(_describe_losses(strategy, run))


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The strategy for a model, if nothing else is asked for, and the reason."""

    strategy: str
    reason: str


def recommend(parameters: int, *, has_fixed_rate: bool = False) -> Recommendation:
    """Recommend a strategy in which servers learn nothing, by the size of the model.

    With `has_fixed_rate`, nobody can raise the learning rate of local training, and that is too low for a mask.
    """
    if parameters < SMALLEST_MASKED:
        return Recommendation(
            "secure-fedavg", f"a model of {parameters:,} parameters learns too slowly from a few of them"
        )
    if has_fixed_rate:
        return Recommendation("sec-union", "it learns at the task's own learning rate, and takes little traffic")
    return Recommendation("shared-mask", "it takes the least traffic")


def explain_no_gain(strategy: str, parameters: int) -> str:
    """Return the reason of a run that sends as much as uncompressed FedAvg, or more; nothing for FedAvg itself."""
    if strategy == "fedavg":
        return ""
    if parameters < SMALLEST_MASKED:
        return "This model is too small to gain from compression"
    return f"{strategy} compresses {'too little to gain' if STRATEGIES[strategy].uses_rho else 'nothing'}"


def plan(question: Question, *, servers_learn: ServersLearn = "nothing") -> Plan:
    """Work out Table 2 for the question, and choose.

    Without a given |V| it is estimated from independent choices; what sec-union loses is taken off. A given
    |V| is used in every row that restricts itself to V.
    """
    if servers_learn not in LEVELS:
        raise ConfigurationError(f"servers can learn one of: {', '.join(LEVELS)}; not {servers_learn!r}")
    told = _assess(question, question.parameters, question.kept)
    # A client chooses ⌊k/b⌋ of ⌈N/b⌉ blocks.
    by_blocks = _assess(question, question.run.blocks, question.run.kept_blocks) if question.block > 1 else None
    rows = tuple(_list_rows(question))
    # A union that is expected to lose everything is cheap and useless.
    useful = [row for row in rows if row.trains and row.union_size and not row.refused]
    # Who trains together wants one model.
    shared = [row for row in useful if not STRATEGIES[row.strategy].own_models]
    allowed = [row for row in shared if row.exposure.within(servers_learn)]
    recommended, reason = _choose_row(allowed, question.parameters)
    return Plan(
        question=question,
        estimated=question.union_size is None,
        rows=rows,
        leakage=told,
        block_leakage=by_blocks,
        servers_learn=servers_learn,
        recommended=recommended,
        reason=reason,
        lossless=_cheapest([row for row in allowed if row.q is None and row.bits is None]),
    )


def _choose_row(rows: Sequence[Row], parameters: int) -> tuple[Row, str]:
    """Choose a row, and return the reason too: of a small model the strategy for it, otherwise the cheapest."""
    usual = recommend(parameters)
    if parameters < SMALLEST_MASKED:
        rows = [row for row in rows if row.strategy == usual.strategy]
    return _cheapest(rows), usual.reason


def _cheapest(rows: Sequence[Row]) -> Row:
    """Of two at the same price, the first in the table: it loses no index, or tells clients less."""
    return min(rows, key=lambda row: row.bits_per_round)


def _assess(question: Question, n: int, kept: int) -> Leakage:
    """Compute what SecUnion loses and tells with this q, if clients choose `kept` of `n` indices or blocks."""
    rho, clients, q = kept / n, question.clients, question.q
    try:
        return Leakage(
            expected_union=leakage.expected_union(n, rho, clients),
            expected_lost=leakage.expected_lost(n, rho, clients, q),
            paper_expected_lost=leakage.paper_expected_lost(n, rho, clients, q),
            # Where everybody chooses everything, nobody is alone; Bayes' rule may have 0/0 there.
            alone_probability=leakage.alone_probability(rho, clients, q) if rho < 1 else 0.0,
            paper_alone_probability=leakage.paper_alone_probability(rho, clients, q),
            expected_alone_share=leakage.expected_alone_share(rho, clients),
        )
    except OverflowError:
        raise ConfigurationError(
            f"the probabilities for {clients} clients and q = {q} do not fit a float; plan with fewer clients"
        ) from None


def _list_rows(question: Question) -> Iterator[Row]:
    """Give strategies that train, and sums of numbers as they are."""
    flat = replace(question.run, block=1)
    found = sorted(STRATEGIES.values(), key=lambda strategy: _place(strategy, flat))
    for strategy in found:
        if not strategy.repeats:
            yield _row(strategy, question, flat)
        if question.block > 1 and strategy.support == "lossy union":
            yield _row(strategy, question, question.run)
    for strategy in found:
        if strategy.repeats:
            yield _row(strategy, question, flat)


def _place(strategy: Strategy, run: Parameters) -> tuple[bool, int, bool]:
    """Order the table: first those that show updates; then by support, those first that show indices."""
    exposure = strategy.exposure(run)
    return not exposure.updates, SUPPORTS.index(strategy.support), not exposure.indices


def _row(strategy: Strategy, question: Question, run: Parameters) -> Row:
    if strategy.support == "mask" and question.mask_rho is not None:
        run = replace(run, rho=question.mask_rho)
    expected = expect_union(strategy, run)
    size = min(run.model_size, round(expected.found) * run.block)
    if question.union_size is not None and "union" in strategy.support:
        size = question.union_size
    paper = replace(run, wire="paper", verified=False)
    return Row(
        strategy=strategy.name,
        q=question.q if strategy.support == "lossy union" else None,
        block=run.block,
        bits=run.bits if strategy.support == "mask" else None,
        union_size=size,
        phases=MappingProxyType(dict(strategy.predict_bits(run, question.heads, size))),
        paper_bits_per_round=sum(strategy.predict_bits(paper, question.heads, size).values()),
        rounds=question.rounds,
        exposure=strategy.exposure(run),
        trains=not strategy.repeats,
        refused=expected.is_empty,
        warning=describe_risks(strategy, run),
    )
