"""Strategies whose sums are verified: which vectors travel, and which sums are taken."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hubbub.errors import FalseSum, LocalError, PeerError, RejectReason
from hubbub.parameters import Parameters
from hubbub.protocol import tags
from hubbub.protocol.costs import Headcount
from hubbub.protocol.layout import Vector
from hubbub.protocol.metrics import Metric, ScoreSheet
from hubbub.strategies.base import ClientRound, Release
from hubbub.strategies.registry import STRATEGIES, find_strategy
from hubbub.strategies.scores import SCORES, ScoreRound
from hubbub.strategies.verified import VerifiedRound
from support.refusals import refusing
from support.strategy_rounds import coefficients, draw, make_input, play, setting

THETA = draw(99)
INTEGERS, MARKS = Vector("tags", 3, 2**64), Vector("tags", 128, 2**3)
TAGGED = {
    "no-union": {"signs": INTEGERS},
    "sec-union": {"union": MARKS, "signs": INTEGERS},
    "partial-sec-union": {"union": INTEGERS, "signs": INTEGERS},
    "plaintext-union": {"signs": INTEGERS},
    "shared-mask": {"levels": INTEGERS},
    "secure-fedavg": {"update": INTEGERS},
    "sum": {"values": INTEGERS},
    "sparse-sum": {"union": INTEGERS, "values": INTEGERS},
}
BASELINES = set(STRATEGIES) - set(TAGGED)
every_strategy = pytest.mark.parametrize("name", STRATEGIES)
every_tagged = pytest.mark.parametrize("name", TAGGED)


def begin(name: str, parameters: Parameters, seed: int = 0) -> ClientRound:
    return find_strategy(name).begin(parameters, make_input(seed, theta=THETA))


@every_strategy
def test_which_phases_carry_tags(name: str) -> None:
    """All additive ones: what a server computes on plaintext carries none."""
    strategy, tagged = find_strategy(name), TAGGED.get(name, {})

    assert {phase.name for phase in strategy.phases if phase.tagged} == set(tagged)
    assert {phase.name for phase in strategy.phases if phase.shares} == set(tagged)


@every_tagged
def test_tags_come_last_and_are_as_long_as_their_kind_asks_for(name: str) -> None:
    parameters = setting(q=3)
    strategy, first = find_strategy(name), find_strategy(name).phases[0].name
    client, plain = begin(name, parameters), begin(name, replace(parameters, verified=False))

    due = [TAGGED[name][first]] if first in TAGGED[name] else []
    assert client.vectors(first) == (*plain.vectors(first), *due)
    assert [values.size for values in client.contribute(first)] == [each.length for each in client.vectors(first)]
    strategy.admit(parameters, first, client.vectors(first))
    strategy.admit_release(parameters, first, client.vectors(first))


@pytest.mark.parametrize("name", ["sum", "sparse-sum"])
def test_numbers_in_long_words_take_wide_tags_and_the_other_phase_and_other_strategies_do_not(name: str) -> None:
    long = setting()
    long = replace(long, number_bits=64)
    wide = Vector("tags", 84, 2**64)

    kinds = {phase.name: phase.tags_in(long) for phase in find_strategy(name).phases}

    assert kinds == {**dict.fromkeys(TAGGED[name], "integers"), "values": "wide"}
    strategy, values = find_strategy(name), Vector("values", 30 if name == "sparse-sum" else 300, 2**64)
    strategy.admit(long, "values", (values, wide))
    for own, due in ((values, INTEGERS), (replace(values, modulus=2**32), wide)):
        with pytest.raises(PeerError):
            strategy.admit(long, "values", (own, due))
    assert begin("secure-fedavg", long).vectors("update") == begin("secure-fedavg", setting()).vectors("update")


@every_tagged
def test_vectors_with_other_tags_or_none_are_refused(name: str) -> None:
    parameters, strategy = setting(q=3), find_strategy(name)
    phase, due = next(iter(TAGGED[name].items()))
    own = begin(name, setting(q=3, verified=False)).vectors(phase)
    own = own if phase == strategy.phases[0].name else (replace(own[0], length=0), *own[1:])
    strategy.admit(parameters, phase, (*own, due))

    for wrong, reason in [
        (own, RejectReason.WRONG_LENGTH),
        ((due, *own), RejectReason.WRONG_LENGTH),
        ((*own, due, due), RejectReason.WRONG_LENGTH),
        ((*own, replace(due, length=due.length - 1)), RejectReason.WRONG_LENGTH),
        ((*own, replace(due, modulus=2**32)), RejectReason.WRONG_RING),
        ((due,), RejectReason.WRONG_LENGTH),
        ((), RejectReason.WRONG_LENGTH),
    ]:
        for admit in (strategy.admit, strategy.admit_release):
            with refusing(reason):
                admit(parameters, phase, wrong)
    with pytest.raises(PeerError):
        strategy.admit(replace(parameters, verified=False), phase, (*own, due))


@every_tagged
@pytest.mark.parametrize("left_out", [[], [1, 3]])
def test_a_round_comes_to_the_same_with_tags_and_without(name: str, left_out: Sequence[int]) -> None:
    """And every client takes every sum, also who is not in it."""
    strategy = find_strategy(name)
    ends = {
        verified: play(
            strategy,
            setting(q=3, alpha_max=100.0, verified=verified),
            [make_input(seed, theta=THETA) for seed in range(5)],
            left_out=left_out,
        )
        for verified in (True, False)
    }

    for one, other in zip(ends[True], ends[False], strict=True):
        np.testing.assert_array_equal(one.theta, other.theta)
        np.testing.assert_array_equal(one.accumulator, other.accumulator)
        assert one.union_size == other.union_size


@every_tagged
def test_without_coefficients_a_verified_round_does_not_begin(name: str) -> None:
    mine = replace(make_input(0, theta=THETA), coefficients=None)

    with pytest.raises(LocalError, match="the coefficients of its tags"):
        find_strategy(name).begin(setting(), mine)
    assert find_strategy(name).begin(setting(verified=False), mine)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_the_baselines_begin_without_coefficients_and_send_no_tags(name: str) -> None:
    mine = replace(make_input(0, theta=THETA), coefficients=None)
    client = find_strategy(name).begin(setting(), mine)

    assert tags.NAME not in [vector.name for vector in client.vectors(find_strategy(name).phases[0].name)]
    assert tags.NAME not in find_strategy(name).predict_bits(setting(), Headcount.complete(5, 2), 20)


def test_bits_of_tags_count_who_sent_in_each_phase() -> None:
    """A client that was gone after the union has sent the tags of one phase."""
    heads = {
        "union": Headcount(cohort=5, senders=5, recipients=5, servers=2),
        "signs": Headcount(cohort=5, senders=4, recipients=5, servers=2),
    }

    bits = find_strategy("sec-union").predict_tags_bits(setting(q=3), heads.__getitem__)

    assert bits == 2 * (5 + 5) * 128 * 3 + 2 * (4 + 5) * 3 * 64


# A phase that is no strategy's own ----------------------------------------------------------------------


def test_the_scores_phase_is_verified_too() -> None:
    sheet = ScoreSheet((Metric("accuracy"), Metric("loss", high=10.0, higher_is_better=False)), clients=3)
    inner = ScoreRound(sheet, {"accuracy": (90, 100), "loss": (100.0, 100)}, 100)
    other = ScoreRound(sheet, {"accuracy": (1, 2), "loss": (4.0, 2)}, 2)
    client, peer = (VerifiedRound(each, (SCORES,), coefficients) for each in (inner, other))
    total = tuple(a + b for a, b in zip(client.contribute("scores"), peer.contribute("scores"), strict=True))
    assert client.restricted_to("scores") == ()
    assert (client.weight, repr(client)) == (1, "<verified ScoreRound of 2 metrics>")

    shifted = (total[0] + np.array([1, 0], np.uint32), total[1])
    with pytest.raises(FalseSum):
        client.absorb("scores", Release(client.vectors("scores"), shifted), 2)
    with pytest.raises(FalseSum):
        client.absorb("scores", Release(client.vectors("scores"), total), 1)
    assert inner.totals is None
    client.absorb("scores", Release(client.vectors("scores"), total), 2)
    assert inner.totals == pytest.approx({"accuracy": 0.7, "loss": 1.5})
    with pytest.raises(LocalError, match="concludes no round"):
        client.conclude(took_part=True)
