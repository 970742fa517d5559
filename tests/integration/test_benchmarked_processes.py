"""What the benchmarks measure of processes is a real run of them."""

from __future__ import annotations

import pytest
from benchmarks.deployed import ProcessesPlan, measure_processes

from support.private_node import PrivateNode
from support.thorough import part_of


@pytest.mark.parametrize("workers", part_of([2, 0], 0))
def test_rounds_of_processes_are_timed_and_counted(private_node: PrivateNode, workers: int) -> None:
    found = measure_processes(ProcessesPlan(1_000, 2, workers), private_node.url)

    assert (found.clients, found.servers, found.workers, found.rounds) == (5, 2, workers, 2)
    assert 0 < found.fastest_s <= found.protocol_s <= found.slowest_s
    assert found.protocol_s <= found.round_s
    assert 0 < found.payload_bytes < found.wire_bytes
    assert found.aggregator_s > 0 < found.trainer_s
    # An interpreter with numpy and cryptography takes tens of megabytes.
    assert min(found.aggregator_bytes, found.trainer_bytes) > 2**24
