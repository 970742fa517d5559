"""An aggregator needs the memory of a few chunks, however long the vectors and however many the clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import memory_probe
from support.patience import HANG_S

PARAMETERS = 20_000_000
COHORT = 8
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    growth_bytes: int
    chunks: int
    wrong: int


def measure(folder: Path, *, senders: int) -> Measured:
    """Measure in a process of its own: memory that this one has used and freed would hide the growth."""
    arguments = [str(PARAMETERS), str(COHORT), str(senders), str(folder / str(senders))]
    done = subprocess.run(
        [sys.executable, "-m", memory_probe.__name__, *arguments],
        cwd=Path(memory_probe.__file__).parents[1],
        # The allocator keeps what each thread freed, and how many threads there are depends on the load.
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Measured(**json.loads(done.stdout))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_memory_of_an_aggregator_does_not_grow_with_the_number_of_share_sets(tmp_path: Path) -> None:
    # Two members and eight of the same cohort of eight: the ring (5 bits) and so the chunks are the same, which
    # they would not be in a cohort of two.
    few = measure(tmp_path, senders=2)
    many = measure(tmp_path, senders=COHORT)

    assert few.wrong == many.wrong == 0
    # 20 million elements of 5 bits in chunks of 1 MiB.
    assert few.chunks == many.chunks == 12
    # One packed share set is 12 MiB: holding the other six would show.
    assert many.growth_bytes <= few.growth_bytes + 16 * MIB
    # One vector of 32-bit words, and the chunks that are on their way. All share sets would be 96 MiB packed
    # and 610 MiB unpacked.
    assert many.growth_bytes <= 4 * PARAMETERS + 32 * MIB
