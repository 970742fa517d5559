from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import ConfigurationError
from hubbub.ids import WireMode
from hubbub.parameters import Parameters
from hubbub.protocol import leakage
from hubbub.strategies.base import ServersLearn
from hubbub.strategies.planner import (
    LEVELS,
    Question,
    choose_q,
    choose_rho,
    describe_risks,
    expect_union,
    explain_choices,
    explain_no_gain,
    plan,
    recommend,
    refuse_empty_union,
)
from hubbub.strategies.registry import STRATEGIES
from hubbub.strategies.verified import Verified
from support.two_phases import TwoPhases

LENET = Question(parameters=61_706, clients=5, servers=2, rho=0.1)
MODES: tuple[WireMode, ...] = ("compact", "paper")
SECURE = {"no-union", "plaintext-union", "partial-sec-union", "sec-union"}
SUMS = {"sum", "sparse-sum"}


def ask(**changes: Any) -> Question:
    return replace(LENET, **changes)


@pytest.mark.parametrize("wire", MODES)
def test_blocks_are_planned_as_they_predict_themselves_and_change_no_other_row(wire: WireMode) -> None:
    flat, both = plan(ask(wire=wire, q=2)), plan(ask(wire=wire, q=2, block=16))
    (row,) = (row for row in both.rows if row not in flat.rows)

    run = Parameters(model_size=61_706, clients=5, servers=2, rho=0.1, q=2, wire=wire, block=16)
    assert row.phases == STRATEGIES["sec-union"].predict_bits(run, ask().heads, row.union_size)
    assert [each for each in both.rows if each is not row] == list(flat.rows)
    assert (row.label, row.block) == ("sec-union (q = 2, b = 16)", 16)
    assert row.union_size % 16 == 0
    assert both.row("sec-union").block == 1
    assert min(both.rows, key=lambda each: each.bits_per_round) is both.recommended
    assert both.recommended.label == "shared-mask (2 bits)"


def test_bits_count_in_shared_mask_alone() -> None:
    one, three = (plan(ask(bits=bits)) for bits in (1, 3))

    changed = {a.strategy for a, b in zip(one.rows, three.rows, strict=True) if a.phases != b.phases}

    assert changed == {"shared-mask"}
    assert one.row("shared-mask").union_size == 6_170
    assert [each.row("shared-mask").label for each in (one, three)] == [
        "shared-mask (1 bit)",
        "shared-mask (3 bits)",
    ]


def test_every_row_of_table_2_is_there_and_can_be_run() -> None:
    assert {row.strategy for row in plan(LENET).rows} == set(STRATEGIES)


@pytest.mark.parametrize("wire", MODES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_can_be_run_is_planned_as_it_predicts_itself(name: str, wire: WireMode) -> None:
    question = ask(clients=7, servers=3, union_size=18_253, q=5, wire=wire)
    parameters = Parameters(model_size=61_706, clients=7, servers=3, rho=0.1, q=5, wire=wire)

    row = plan(question).row(name)

    assert dict(row.phases) == STRATEGIES[name].predict_bits(parameters, question.heads, row.union_size)


def test_the_compact_wire_is_planned_unless_told_otherwise() -> None:
    """C + C + S - 1 = 11 vectors; 61,706 bits, ⌈18,253/16⌉ words of 56 bits, 32 bits; 5 seeds in either phase."""
    row = plan(ask(union_size=18_253)).row("sec-union")

    assert row.phases == {
        "union": 11 * 61_706 + 5 * 256,
        "signs": 11 * 1_141 * 56 + 5 * 256,
        "factors": 11 * 32,
        "tags": 11 * (128 + 3 * 64),
    }


@pytest.mark.parametrize("wire", MODES)
def test_every_row_has_the_papers_cost_beside_it(wire: WireMode) -> None:
    """The paper has no tags."""
    answer = plan(ask(union_size=18_253, wire=wire))
    paper = plan(ask(union_size=18_253, wire="paper", verified=False))

    assert [row.paper_bits_per_round for row in answer.rows] == [row.bits_per_round for row in paper.rows]


def test_the_compact_wire_changes_what_is_secret_shared_and_nothing_else() -> None:
    rows = plan(ask(union_size=18_253)).rows

    cheaper = {row.strategy for row in rows if row.bits_per_round < row.paper_bits_per_round}

    assert cheaper == SECURE | SUMS | {"shared-mask", "secure-fedavg"}
    assert all(row.bits_per_round == row.paper_bits_per_round for row in rows if row.strategy not in cheaper)


def test_a_strategy_that_is_registered_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [row.strategy for row in plan(LENET).rows]
    monkeypatch.setitem(STRATEGIES, TwoPhases().name, Verified(TwoPhases()))

    rows = plan(LENET).rows

    assert [row.strategy for row in rows if row.strategy not in known] == [TwoPhases().name]
    assert [row.strategy for row in rows if row.strategy in known] == known


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_says_the_same_about_servers_in_words_and_in_its_exposure(name: str) -> None:
    """Policies go by the words, plans by the exposure."""
    exposure = STRATEGIES[name].exposure(ask(servers=3).run)

    # The server of eastly-he alone learns nothing; with any one client's help, everything.
    told = exposure.updates or exposure.indices or exposure.sums or name == "eastly-he"
    assert bool(STRATEGIES[name].reveals) == told


def test_a_given_union_size_is_used_as_it_is_wherever_there_is_a_union() -> None:
    answer = plan(ask(union_size=18_253))

    assert not answer.estimated
    sizes = {row.strategy: row.union_size for row in answer.rows if row.union_size != 61_706}
    assert sizes.pop("shared-mask") == 6_170, "a mask is drawn, and as large as it is asked for"
    assert sizes == dict.fromkeys(
        ["topbinary-direct", "topbinary-sep", "plaintext-union", "partial-sec-union", "sec-union", "sparse-sum"],
        18_253,
    )


def test_an_estimated_union_is_that_of_independent_choices_less_what_sec_union_loses() -> None:
    answer = plan(ask(q=1))
    share = 6_170 / 61_706

    assert answer.estimated
    assert answer.row("partial-sec-union").union_size == round(leakage.expected_union(61_706, share, 5)) == 25_267
    assert answer.row("sec-union").union_size == 25_267 - 4_525
    # It counts what is really kept: ⌊0.19·10⌋ = 1 of 10, not 1.9.
    assert plan(ask(parameters=10, clients=2, rho=0.19)).row("plaintext-union").union_size == 2  # 1.9, not 3.4.


def test_phases_add_up_to_the_round_and_rounds_to_the_whole() -> None:
    for row in plan(ask(union_size=20_000, rounds=17)).rows:
        assert row.bits_per_round == sum(row.phases.values())
        assert row.bits_in_all == 17 * row.bits_per_round


def test_q_counts_in_sec_union_alone() -> None:
    one, five = (plan(ask(union_size=20_000, q=q)) for q in (1, 5))

    changed = {
        a.strategy for a, b in zip(one.rows, five.rows, strict=True) if a.bits_per_round != b.bits_per_round
    }

    assert changed == {"sec-union"}
    assert [row.label for row in five.rows if row.q is not None] == ["sec-union (q = 5)"]


def test_servers_learn_what_the_strategy_says() -> None:
    rows = plan(LENET).rows
    bonawitz = plan(LENET).row("bonawitz").exposure

    silent = {row.strategy for row in rows if row.exposure.within("nothing")}
    updates = {row.strategy for row in rows if row.exposure.servers_learn == "updates"}
    one_model = {"no-union", "partial-sec-union", "sec-union", "shared-mask", "secure-fedavg"}
    assert silent == one_model | {"eastly-tss", "eastly-he"} | SUMS
    assert updates == {row.strategy for row in rows if row.exposure.updates}
    assert updates == {"fedavg", "topbinary-direct", "topbinary-sep"}
    assert (bonawitz.updates, bonawitz.indices, bonawitz.sums) == (False, False, True)
    assert not any(plan(LENET).row(name).exposure.within("indices") for name in (*updates, "bonawitz"))


@pytest.mark.parametrize(
    ("changes", "level", "recommended"),
    [
        ({}, "nothing", "shared-mask (2 bits)"),
        ({"wire": "paper"}, "indices", "shared-mask (2 bits)"),
        # The mask is nearly everything.
        ({"rho": 0.98, "q": 3}, "nothing", "no-union"),
        ({"rho": 1.0}, "indices", "no-union"),
    ],
)
def test_the_cheapest_is_recommended(changes: dict[str, object], level: ServersLearn, recommended: str) -> None:
    assert plan(ask(**changes), servers_learn=level).recommended.label == recommended


def test_the_cheapest_that_loses_nothing_is_named_beside_one_that_does_and_recommended_at_the_same_price() -> None:
    for answer, recommended, lossless in (
        (plan(LENET, servers_learn="indices"), "shared-mask", "plaintext-union"),
        (plan(LENET), "shared-mask", "no-union"),
        (plan(ask(rho=0.98, verified=False)), "no-union", "no-union"),
    ):
        assert (answer.recommended.strategy, answer.lossless.strategy) == (recommended, lossless)
    answer = plan(ask(rho=0.01, union_size=2_000, q=3, wire="paper", verified=False))  # ⌈log2(5 + 1)⌉ = 3.
    assert answer.row("sec-union").bits_per_round == answer.row("partial-sec-union").bits_per_round
    assert answer.lossless.strategy == "partial-sec-union"


@pytest.mark.parametrize("level", LEVELS)
def test_a_model_too_small_for_a_mask_is_averaged_whole_though_that_costs_more(
    level: ServersLearn,
) -> None:
    small, large = (plan(ask(parameters=n), servers_learn=level) for n in (19_999, 20_000))

    assert (small.recommended.strategy, large.recommended.strategy) == ("secure-fedavg", "shared-mask")
    assert "19,999 parameters learns too slowly" in small.reason
    assert small.row("shared-mask").bits_per_round < small.recommended.bits_per_round
    assert [recommend(n).strategy for n in (19_999, 20_000)] == ["secure-fedavg", "shared-mask"]
    fixed = [recommend(n, has_fixed_rate=True).strategy for n in (19_999, 20_000)]
    assert fixed == ["secure-fedavg", "sec-union"]


def test_why_a_run_sends_as_much_as_fedavg_is_its_model_only_where_that_is_small() -> None:
    small = "This model is too small to gain from compression"
    assert [explain_no_gain("secure-fedavg", n) for n in (19_999, 20_000)] == [
        small,
        "secure-fedavg compresses nothing",
    ]
    assert explain_no_gain("sec-union", 20_000) == "sec-union compresses too little to gain"
    assert explain_no_gain("fedavg", 100) == ""


@pytest.mark.parametrize("level", LEVELS)
def test_sums_of_numbers_are_never_recommended_for_training_however_cheap(level: ServersLearn) -> None:
    """Of one parameter, a number takes 32 bits, as it does in secure-fedavg, and a sign with its factor more."""
    answer = plan(ask(parameters=1, rho=1.0, q=32), servers_learn=level)

    assert answer.row("sum").bits_per_round <= answer.recommended.bits_per_round
    assert {row.strategy for row in answer.rows if not row.trains} == SUMS
    assert {answer.recommended.strategy, answer.lossless.strategy}.isdisjoint(SUMS)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rho", [0.001, 0.05, 0.3, 1.0])
def test_nothing_allowed_is_cheaper_than_what_is_recommended(level: ServersLearn, rho: float) -> None:
    answer = plan(ask(rho=rho, clients=9, servers=3, q=2), servers_learn=level)

    assert answer.recommended.exposure.within(level)
    for row in answer.rows:
        if row.trains and row.exposure.within(level):
            assert row.bits_per_round >= answer.recommended.bits_per_round


def test_gives_both_the_papers_and_the_exact_false_negatives_also_of_blocks() -> None:
    told, of_blocks = plan(LENET).leakage, plan(ask(block=16)).block_leakage

    assert of_blocks is not None
    assert of_blocks.expected_lost == leakage.expected_lost(3_857, 385 / 3_857, 5, 1)
    assert plan(ask()).block_leakage is None
    assert round(told.paper_expected_lost) == 2_513
    assert round(told.expected_lost) == 4_525
    assert f"{told.paper_alone_probability:.2%}" == "97.39%"
    assert f"{told.alone_probability:.2%}" == "93.09%"


def test_everything_chosen_with_one_bit_and_an_even_cohort_loses_everything() -> None:
    answer = plan(ask(parameters=100_000, clients=4, rho=1.0))

    assert answer.row("sec-union").union_size == 0
    assert answer.row("partial-sec-union").union_size == 100_000
    assert answer.recommended.strategy == "no-union"
    assert [row.strategy for row in answer.rows if row.warning] == ["sec-union"]
    assert answer.row("sec-union").refused


def parameters_of(**changes: Any) -> Parameters:
    return ask(**{"parameters": 1_000, "q": 1, **changes}).run


def test_a_union_that_is_nearly_empty_is_cheap_and_not_recommended() -> None:
    """|V| is 8 of 1,000 indices, so that it is not only what is empty that is left out."""
    answer = plan(ask(parameters=1_000, clients=4, rho=0.998))

    row = answer.row("sec-union")
    assert (row.union_size, row.refused) == (8, True)
    assert row.bits_per_round < answer.recommended.bits_per_round


def simulate_marks(run: Parameters, seed: int = 5) -> tuple[int, int]:
    """How many indices, or blocks, are chosen by any client, and how many have a sum that is not zero."""
    generator, size = np.random.default_rng(seed), (run.clients, run.blocks)
    chosen = generator.random(size) < run.kept_blocks / run.blocks
    total = np.where(chosen, generator.integers(1, 2**run.q, size=size), 0).sum(axis=0) % 2**run.q
    return int(chosen.any(axis=0).sum()), int(np.count_nonzero(total))


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": 10},
        {"clients": 3, "rho": 0.6, "q": 2},
        {"clients": 4, "rho": 0.5, "block": 3},
        {"clients": 100},
    ],
)
def test_the_expected_union_is_what_a_simulation_finds(changes: dict[str, Any]) -> None:
    run = parameters_of(parameters=150_000, **changes)

    expected = expect_union(STRATEGIES["sec-union"], run)

    chosen, found = simulate_marks(run)
    assert (expected.chosen, expected.found) == pytest.approx((chosen, found), rel=0.02)
    assert expected.lost_share == pytest.approx(1 - found / chosen, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"clients": 4, "rho": 1.0}, True),
        ({"clients": 2, "rho": 0.999}, True),
        ({"clients": 4, "rho": 1.0, "block": 10}, True),
        # Of 101 blocks a client chooses 100, so that one is left to each.
        ({"parameters": 1_010, "clients": 4, "rho": 1_000 / 1_010, "block": 10}, False),
        ({"clients": 4, "rho": 0.99}, False),
        ({"clients": 10, "rho": 0.1}, False),
        ({"clients": 2, "rho": 1.0, "q": 2}, False),
        ({"clients": 2_000, "rho": 0.1}, False),
    ],
)
def test_a_run_that_loses_many_indices_is_warned_about_and_one_that_loses_nearly_all_refused(
    changes: dict[str, Any], *, refused: bool
) -> None:
    strategy, run = STRATEGIES["sec-union"], parameters_of(**changes)

    warning = describe_risks(strategy, run)

    assert f"{run.clients} clients loses " in warning
    assert "marks cancel" in warning
    assert ("in blocks of 10" in warning) == (run.block > 1)
    assert ("it cannot learn" in warning) == refused
    with pytest.raises(ConfigurationError, match="nearly all marks cancel") if refused else nullcontext():
        refuse_empty_union(strategy, run)


@pytest.mark.parametrize(
    "changes", [{}, {"clients": 5, "rho": 1.0}, {"clients": 9, "rho": 0.1}, {"clients": 2, "rho": 1.0, "q": 3}]
)
def test_a_run_that_loses_few_indices_is_not_warned_about(changes: dict[str, Any]) -> None:
    assert describe_risks(STRATEGIES["sec-union"], parameters_of(**changes)) == ""
    assert not plan(ask(parameters=1_000, **changes)).row("sec-union").warning


@pytest.mark.parametrize(
    ("strategy", "parameters", "rho"),
    [
        ("no-union", 61_706, 0.1),
        ("no-union", 385, 0.2598),
        ("sec-union", 11, 1.0),
        ("shared-mask", 61_706, 0.03),
        ("sum", 11, 0.1),
    ],
)
def test_clients_of_a_small_model_send_a_hundred_parameters_or_all(
    strategy: str, parameters: int, rho: float
) -> None:
    assert choose_rho(STRATEGIES[strategy], parameters) == rho
    assert parameters_of(parameters=parameters, rho=rho).kept >= min(parameters, 100) or strategy == "sum"


@pytest.mark.parametrize(
    ("strategy", "parameters"), [("no-union", 99), ("shared-mask", 99), ("topbinary-sep", 62)]
)
def test_a_strategy_that_compresses_so_small_a_model_is_warned_about(strategy: str, parameters: int) -> None:
    run = parameters_of(parameters=parameters, rho=1.0)
    warning = describe_risks(STRATEGIES[strategy], run)
    assert f"{parameters} of {parameters} parameters, and a model may not learn from so few" in warning
    for name in ("secure-fedavg", "fedavg", "sum"):
        assert describe_risks(STRATEGIES[name], run) == ""


@pytest.mark.parametrize("strategy", ["no-union", "shared-mask"])
def test_a_rho_that_is_given_is_kept_and_warned_about_if_it_keeps_fewer_than_a_hundred(strategy: str) -> None:
    few, enough = (parameters_of(parameters=50_000, rho=rho) for rho in (0.001, 0.002))

    warning = describe_risks(STRATEGIES[strategy], few)

    assert "with rho = 0.001 a client sends a compressed update of 50 of 50,000 parameters" in warning
    assert warning.endswith("Choose secure-fedavg, or a larger rho")
    assert describe_risks(STRATEGIES[strategy], enough) == ""
    assert explain_choices(STRATEGIES[strategy], few, rho=0.001, q=None) == ""


def test_a_rho_or_q_that_a_strategy_does_not_use_is_said_to_have_no_effect() -> None:
    run = parameters_of(rho=0.5)
    for name, strategy in STRATEGIES.items():
        said = explain_choices(strategy, run, rho=0.5, q=None)
        assert said == ("" if strategy.uses_rho else f"ρ = 0.5 has no effect: {name} takes all parameters")
        of_q = explain_choices(strategy, parameters_of(rho=0.03), rho=None, q=5)
        assert of_q == ("" if name == "sec-union" else f"q = 5 has no effect: {name} makes no random marks")
        assert "no effect" not in explain_choices(strategy, run, rho=None, q=None)


@given(clients=st.integers(2, 40), rho=st.floats(0.01, 1.0))
def test_q_is_the_smallest_with_which_no_run_is_warned_of_its_losses(clients: int, rho: float) -> None:
    strategy, run = STRATEGIES["sec-union"], parameters_of(parameters=100_000, clients=clients, rho=rho)
    q = choose_q(strategy, run)
    assert describe_risks(strategy, replace(run, q=q)) == ""
    assert q == 1 or "marks cancel" in describe_risks(strategy, replace(run, q=q - 1))
    assert choose_q(STRATEGIES["no-union"], run) == 1


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - {"sec-union"}))
def test_only_sec_union_loses_anything(name: str) -> None:
    run = parameters_of(clients=4, rho=1.0)

    refuse_empty_union(STRATEGIES[name], run)

    assert describe_risks(STRATEGIES[name], run) == ""
    assert expect_union(STRATEGIES[name], run).found == 1_000


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        *(({"q": q}, f"q is {q}; .* from 1 to 32") for q in (0, 33, -1)),
        *(({"rho": rho}, "rho is") for rho in (0.0, -0.1, 1.01, float("nan"))),
        ({"parameters": 9, "rho": 0.1}, "keeps none"),
        ({"rho": 0.001, "block": 62}, "less than one block"),
        *(({"clients": clients}, f"{clients} clients: at least 2") for clients in (1, 0, -3)),
        *(({"servers": servers}, "at least 2 servers") for servers in (1, 0)),
        ({"rounds": 0}, "at least one round, not 0"),
        ({"wire": "dense"}, "compact, paper; not 'dense'"),
        *(
            ({"parameters": 100, "rho": rho, "union_size": size}, f"have {size} indices: .* 0 to {most} together")
            for rho, size, most in ((0.1, -1, 50), (0.1, 51, 50), (0.5, 101, 100), (0.5, 10**9, 100))
        ),
    ],
)
def test_a_question_about_a_run_that_cannot_be_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        ask(**changes)


def test_q_and_the_union_at_their_ends_are_planned() -> None:
    for q in (1, 32):
        assert plan(ask(q=q, wire="paper")).row("sec-union").phases["union"] == 2 * 2 * 5 * 61_706 * q
    for rho, size in ((0.1, 0), (0.1, 50), (0.5, 100)):
        answer = plan(ask(parameters=100, rho=rho, union_size=size, wire="paper"))
        assert answer.row("sec-union").phases["signs"] == 2 * 2 * 5 * size * 4


def test_an_unknown_level_and_a_cohort_beyond_floating_point_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing, indices; not 'sums'"):
        plan(LENET, servers_learn="sums")  # type: ignore[arg-type]  # A caller without types.
    with pytest.raises(ConfigurationError, match="100000 clients and q = 1 do not fit"):
        plan(ask(clients=100_000))
