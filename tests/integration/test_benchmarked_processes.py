"""The benchmarks of processes measure a real run of them."""

from collections.abc import Iterator

import pytest
from benchmarks.deployed import ProcessesPlan, measure_processes
from benchmarks.footprint import FootprintPlan, measure_footprints

from support.private_node import PrivateNode


@pytest.fixture
def lone_node(rabbitmq_server: None) -> Iterator[PrivateNode]:
    """A broker of its own: parties of the same names would take each other's messages."""
    del rabbitmq_server
    with PrivateNode() as node:
        yield node


def test_rounds_of_processes_are_timed_and_counted(lone_node: PrivateNode) -> None:
    found = measure_processes(ProcessesPlan(1_000, 2), lone_node.url)

    assert (found.clients, found.servers, found.rounds) == (5, 2, 2)
    assert 0 < found.fastest_s <= found.round_s <= found.slowest_s
    assert 0 < found.payload_bytes < found.wire_bytes
    assert found.aggregator_s > 0 < found.trainer_s
    # An interpreter with numpy and cryptography takes tens of megabytes.
    assert min(found.aggregator_bytes, found.trainer_bytes) > 2**24


def test_memory_of_aggregators_is_that_of_their_processes_while_a_sum_goes_through_them(
    lone_node: PrivateNode,
) -> None:
    plan = FootprintPlan(lengths=(1_000,), parameters=1_000, cohorts=(5,), crowd=None)

    found = measure_footprints(plan, lone_node.url, lambda _: None, repeats=1)

    (footprint,) = found.by_length
    assert found.by_cohort == [footprint], "measured once"
    assert (footprint.parameters, footprint.clients) == (1_000, 5)
    # An interpreter with numpy and cryptography takes tens of megabytes.
    assert 2**24 < footprint.idle_bytes <= footprint.peak_bytes
