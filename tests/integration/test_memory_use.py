"""An aggregator needs the memory of a few chunks, however long the vectors and however many the clients."""

import os
from pathlib import Path

import pytest

from support.program import run_python

ROOT = Path(__file__).parents[2]
PARAMETERS = 20_000_000
MIB = 2**20
# Runs one phase through real aggregators, checks its sum, and prints how far the peak of the process rose. Not by
# getrusage: its maximum is inherited from the process that started this one, and would hide ours.
PROBE = """
import sys
from pathlib import Path
from benchmarks.feeding import measure_phase

def read_bytes(field):
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))

before = read_bytes("VmRSS")
measure_phase(int(sys.argv[1]), int(sys.argv[2]), 2)
print(read_bytes("VmHWM") - before)
"""


def measure_growth(clients: int) -> int:
    """Measure in a process of its own: memory that this one has used and freed would hide the growth."""
    # The allocator keeps what each thread freed, and how many threads there are depends on the load.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    done = run_python("-c", PROBE, str(PARAMETERS), str(clients), cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_memory_of_an_aggregator_does_not_grow_with_the_number_of_share_sets() -> None:
    few, many = measure_growth(2), measure_growth(8)

    # One packed share set of a cohort of eight is 10 MB: holding the other six would show.
    assert many <= few + 16 * MIB
    # A fraction of one vector of 32-bit words, and the chunks that are on their way. All share sets would be 80 MB
    # packed and 610 MiB unpacked.
    assert many <= 4 * PARAMETERS + 32 * MIB
