"""Who gets which share and who releases, in either wire mode."""

from collections import Counter

import pytest

from hubbub.protocol.layout import DENSE, WHOLE_BITS
from hubbub.strategies.phase_plan import plan_phase
from support.builders import make_manifest


@pytest.mark.parametrize("strategy", ["no-union", "sec-union", "partial-sec-union", "sum", "sparse-sum"])
def test_phases_that_share_secrets_are_compact_in_a_compact_run(strategy: str) -> None:
    manifest = make_manifest(strategy=strategy, wire="compact")

    phases = ["signs" if "union" in strategy else "values"]

    assert all(plan_phase(manifest, phase).compact for phase in phases)
    assert plan_phase(manifest, phases[0]).encoding is DENSE


@pytest.mark.parametrize(
    ("strategy", "phase"),
    [
        ("plaintext-union", "union"),
        ("fedavg", "update"),
        ("topbinary-sep", "update"),
        ("topbinary-direct", "update"),
    ],
)
def test_what_is_sent_in_the_clear_goes_the_papers_way(strategy: str, phase: str) -> None:
    wire = plan_phase(make_manifest(strategy=strategy, wire="compact"), phase)

    assert not wire.compact
    assert wire.encoding is WHOLE_BITS


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
