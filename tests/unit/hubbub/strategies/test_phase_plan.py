"""Recipients of shares and senders of sums, in either wire mode."""

from collections import Counter

import pytest

from hubbub.protocol.layout import DENSE, WHOLE_BITS
from hubbub.strategies.phase_plan import plan_phase
from support.builders import make_manifest


@pytest.mark.parametrize(
    ("phase", "strategies", "compact"),
    [
        ("signs", ["no-union", "sec-union", "partial-sec-union"], True),
        ("values", ["sum", "sparse-sum"], True),
        ("union", ["plaintext-union"], False),
        ("update", ["fedavg", "topbinary-sep", "topbinary-direct"], False),
    ],
)
def test_what_is_shared_is_compact_and_what_is_sent_in_the_clear_goes_the_papers_way(
    phase: str, strategies: list[str], *, compact: bool
) -> None:
    for strategy in strategies:
        wire = plan_phase(make_manifest(strategy=strategy, wire="compact"), phase)

        assert wire.compact is compact
        assert wire.encoding is (DENSE if compact else WHOLE_BITS)


def test_every_aggregator_releases_on_the_papers_wire_and_one_after_the_other_on_the_compact_one() -> None:
    """The phases of a round are combined by different aggregators."""
    manifest = make_manifest(servers=3, wire="paper")
    assert plan_phase(manifest, "signs").releasers(1) == manifest.aggregators
    manifest = make_manifest(servers=3, strategy="sec-union", wire="compact")
    wire = plan_phase(manifest, "signs")

    turns = [wire.releasers(number) for number in (1, 2, 3)]

    assert all(len(each) == 1 for each in turns)
    assert {name for each in turns for name in each} == set(manifest.aggregators)
    assert plan_phase(manifest, "union").combiner(1) != wire.combiner(1)


def test_full_shares_are_spread_over_the_aggregators_and_move_on_in_the_next_round() -> None:
    manifest = make_manifest(clients=6, servers=3, wire="compact")
    wire = plan_phase(manifest, "signs")

    first, second = ([wire.full_share_holder(client, number) for client in manifest.clients] for number in (1, 2))

    assert Counter(first) == dict.fromkeys(manifest.aggregators, 2)
    assert all(one != other for one, other in zip(first, second, strict=True))
