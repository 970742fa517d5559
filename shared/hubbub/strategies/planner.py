"""What each strategy would cost and tell to whom, before a run is started (Beguier et al., Tables 1 and 2).

Costs are payload bits of rounds that nobody misses, by the formula of the wire mode that is asked for and, beside
it, of the paper's. Probabilities are for clients that choose their indices independently; clients with similar
data choose alike, so that their union is smaller and more of it collides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from hubbub.errors import ConfigurationError
from hubbub.ids import WireMode
from hubbub.parameters import Parameters
from hubbub.protocol import costs, leakage, tags, unions
from hubbub.protocol.costs import Headcount
from hubbub.protocol.metrics import CLASSIFICATION, ScoreSheet
from hubbub.strategies import scores

ServersLearn = Literal["nothing", "indices"]
Support = Literal["dense", "union", "lossy union"]

LEVELS: tuple[ServersLearn, ...] = get_args(ServersLearn)
WIRE_MODES: tuple[WireMode, ...] = get_args(WireMode)
NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What one server, or the servers but one, learn of the clients; what clients learn besides V."""

    updates: bool = False
    indices: bool = False
    sums: bool = False
    clients_learn: str = NOTHING

    @property
    def servers_learn(self) -> str:
        """The most telling thing that a server learns."""
        if self.updates:
            return "updates"
        return "indices" if self.indices else "sums" if self.sums else NOTHING

    def within(self, level: ServersLearn) -> bool:
        """Whether servers learn no more than that."""
        return not self.updates and not self.sums and (level == "indices" or not self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned: N, C, S, ρ, q, the wire mode and the number of rounds; |V| if it is known.

    With a `block` of more than one index, sec-union over blocks is planned beside the flat one. Tags, with which
    clients verify sums, are counted unless `verified` is false.
    """

    parameters: int
    clients: int
    servers: int
    rho: float
    union_size: int | None = None
    q: int = 1
    rounds: int = 1
    wire: WireMode = "compact"
    block: int = 1
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
        """What a manifest would say; N, C, S, ρ and the block are checked on the way."""
        return Parameters(
            parameters=self.parameters, clients=self.clients, servers=self.servers, rho=self.rho, block=self.block
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
class Row:
    """One strategy's line of the plan. `phases` has the bits of a round by what they are spent on."""

    strategy: str
    q: int | None
    block: int
    """1 where indices are chosen one by one."""
    runnable: bool
    union_size: int
    phases: Mapping[str, int]
    paper_bits_per_round: int
    """The same round as in the paper: on its wire, and without tags."""
    rounds: int
    exposure: Exposure
    trains: bool = True
    """Whether it sends updates; if not, it adds numbers as they are and is no way to train."""

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
        """The strategy's name, with q and b where it has them."""
        if self.q is None:
            return self.strategy
        return f"{self.strategy} (q = {self.q}{f', b = {self.block}' if self.block > 1 else ''})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: every row of Table 2, and the cheapest strategy that keeps servers from learning more.

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
    lossless: Row
    """The cheapest among those that lose no index."""

    @property
    def scores_bits(self) -> int:
        """Payload that a scored round has besides, whatever the strategy: two metrics and, if asked for, tags."""
        ask = self.question
        bits = scores.predict_bits(ScoreSheet(CLASSIFICATION, clients=ask.clients), ask.heads, ask.wire)
        return bits + (costs.tags_bits("integers", ask.q, ask.heads, ask.wire) if ask.verified else 0)

    def row(self, strategy: str) -> Row:
        """Find a strategy's line; of sec-union, that of the flat union."""
        return next(each for each in self.rows if each.strategy == strategy)


def plan(question: Question, *, servers_learn: ServersLearn = "nothing") -> Plan:
    """Work out Table 2 for the question, and choose.

    Without a given |V| it is estimated from independent choices; what sec-union loses is taken off. A given
    |V| is used in every row that restricts itself to V.
    """
    if servers_learn not in LEVELS:
        raise ConfigurationError(f"servers can learn one of: {', '.join(LEVELS)}; not {servers_learn!r}")
    told = assess(question)
    by_blocks = assess_blocks(question) if question.block > 1 else None
    rows = tuple(_list_rows(question, told, by_blocks))
    # A union that is expected to lose everything is cheap and useless.
    useful = [row for row in rows if row.runnable and row.trains and row.union_size]
    allowed = [row for row in useful if row.exposure.within(servers_learn)]
    return Plan(
        question=question,
        estimated=question.union_size is None,
        rows=rows,
        leakage=told,
        block_leakage=by_blocks,
        servers_learn=servers_learn,
        recommended=_cheapest(allowed),
        lossless=_cheapest([row for row in allowed if row.q is None]),
    )


def _cheapest(rows: Sequence[Row]) -> Row:
    """Of two at the same price, the first in the table: it loses no index, or tells clients less."""
    return min(rows, key=lambda row: row.bits_per_round)


def assess(question: Question) -> Leakage:
    """What SecUnion loses and tells with this q."""
    return _assess(question, question.parameters, question.kept)


def assess_blocks(question: Question) -> Leakage:
    """The same of blocks: a client chooses ⌊k/b⌋ of ⌈N/b⌉."""
    return _assess(question, question.run.blocks, question.run.kept_blocks)


def _assess(question: Question, n: int, kept: int) -> Leakage:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A row of Table 2 before numbers are put in: its formula takes the question and |V|."""

    strategy: str
    support: Support
    in_blocks: bool = False
    phases: Callable[[Question, int], Mapping[str, int]]
    exposure: Exposure
    tagged: tuple[tags.Kind, ...] = ()
    """What the phases that carry tags add."""
    runnable: bool = True
    trains: bool = True

    def count_bits(self, question: Question, size: int) -> dict[str, int]:
        """The bits of a round by what they are spent on; tags, which the paper has not, come last."""
        bits = dict(self.phases(question, size))
        if self.tagged and question.verified:
            heads, wire = question.heads, question.wire
            bits[tags.NAME] = sum(costs.tags_bits(kind, question.q, heads, wire) for kind in self.tagged)
        return bits


def _list_rows(question: Question, told: Leakage, by_blocks: Leakage | None) -> Iterator[Row]:
    for kind in _KINDS:
        if not kind.in_blocks:
            yield _row(kind, question, told)
        elif by_blocks:
            yield _row(kind, question, by_blocks)


def _row(kind: _Kind, question: Question, told: Leakage) -> Row:
    size = _union_size(kind, question, told)
    return Row(
        strategy=kind.strategy,
        q=question.q if kind.support == "lossy union" else None,
        block=question.block if kind.in_blocks else 1,
        runnable=kind.runnable,
        union_size=size,
        phases=MappingProxyType(kind.count_bits(question, size)),
        paper_bits_per_round=sum(kind.phases(replace(question, wire="paper"), size).values()),
        rounds=question.rounds,
        exposure=kind.exposure,
        trains=kind.trains,
    )


def _union_size(kind: _Kind, question: Question, told: Leakage) -> int:
    if kind.support == "dense":
        return question.parameters
    if question.union_size is not None:
        return question.union_size
    lost = told.expected_lost if kind.support == "lossy union" else 0.0
    found = round(told.expected_union - lost)
    return min(question.parameters, found * question.block) if kind.in_blocks else found


def _signs_and_factors(question: Question, size: int) -> dict[str, int]:
    return {
        "signs": costs.signs_bits(size, question.heads, question.wire),
        "factors": costs.factors_bits(question.heads, wire=question.wire),
    }


_KINDS = (
    _Kind(
        strategy="fedavg",
        support="dense",
        phases=lambda ask, _: {"update": costs.fedavg_bits(ask.parameters, ask.clients)},
        exposure=Exposure(updates=True, indices=True, sums=True, clients_learn="the mean update"),
    ),
    _Kind(
        strategy="topbinary-direct",
        support="union",
        phases=lambda ask, size: {
            "update": costs.top_binary_direct_bits(ask.parameters, ask.kept, size, ask.heads)
        },
        # Where one client alone chose an index, the mean shows its factor, and so which indices are its own.
        exposure=Exposure(updates=True, indices=True, sums=True, clients_learn="single factors"),
    ),
    _Kind(
        strategy="topbinary-sep",
        support="union",
        phases=lambda ask, size: {"update": costs.top_binary_sep_bits(ask.parameters, ask.kept, size, ask.heads)},
        exposure=Exposure(updates=True, indices=True, sums=True),
    ),
    _Kind(
        strategy="no-union",
        support="dense",
        phases=_signs_and_factors,
        tagged=("integers",),
        exposure=Exposure(),
    ),
    _Kind(
        strategy="plaintext-union",
        support="union",
        phases=lambda ask, size: {
            "union": costs.plaintext_union_bits(ask.parameters, ask.heads),
            **_signs_and_factors(ask, size),
        },
        tagged=("integers",),
        exposure=Exposure(indices=True),
    ),
    _Kind(
        strategy="partial-sec-union",
        support="union",
        phases=lambda ask, size: {
            "union": costs.partial_sec_union_bits(ask.parameters, ask.heads, ask.wire),
            **_signs_and_factors(ask, size),
        },
        tagged=("integers", "integers"),
        exposure=Exposure(clients_learn="chooser counts"),
    ),
    _Kind(
        strategy="sec-union",
        support="lossy union",
        phases=lambda ask, size: {
            "union": costs.sec_union_bits(ask.parameters, ask.q, ask.heads, ask.wire),
            **_signs_and_factors(ask, size),
        },
        tagged=("marks", "integers"),
        exposure=Exposure(clients_learn="whether alone"),
    ),
    _Kind(
        strategy="sec-union",
        support="lossy union",
        in_blocks=True,
        phases=lambda ask, size: {
            "union": costs.sec_union_bits(ask.run.blocks, ask.q, ask.heads, ask.wire),
            "signs": costs.pluses_bits(size, ask.heads, ask.wire),
            "factors": costs.factors_bits(ask.heads, wire=ask.wire),
        },
        tagged=("marks", "integers"),
        # Everybody speaks about all of V: where all say the same, everybody knows who said what.
        exposure=Exposure(clients_learn="all signs on V that agree"),
    ),
    _Kind(
        strategy="bonawitz",
        support="dense",
        phases=lambda ask, _: {"all": costs.bonawitz_bits(ask.parameters, ask.clients)},
        exposure=Exposure(sums=True, clients_learn="the mean update"),
        runnable=False,
    ),
    _Kind(
        strategy="eastly-tss",
        support="dense",
        phases=lambda ask, _: {"signs": costs.eastly_tss_bits(ask.parameters, ask.clients, ask.servers)},
        exposure=Exposure(),
        runnable=False,
    ),
    _Kind(
        strategy="eastly-he",
        support="dense",
        phases=lambda ask, _: {"signs": costs.eastly_he_bits(ask.parameters, ask.clients)},
        exposure=Exposure(),
        runnable=False,
    ),
    _Kind(
        strategy="sum",
        support="dense",
        phases=lambda ask, size: {"values": costs.numbers_bits(size, ask.heads, wire=ask.wire)},
        tagged=("integers",),
        exposure=Exposure(clients_learn="the sum"),
        trains=False,
    ),
    _Kind(
        strategy="sparse-sum",
        support="union",
        phases=lambda ask, size: {
            "union": costs.partial_sec_union_bits(ask.parameters, ask.heads, ask.wire),
            "values": costs.numbers_bits(size, ask.heads, wire=ask.wire),
        },
        tagged=("integers", "integers"),
        exposure=Exposure(clients_learn="the sum, counts"),
        trains=False,
    ),
)
