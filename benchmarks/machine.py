"""Description of the machine that the benchmarks run on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine that the numbers depend on. `load` is the load average of the last minute before the start."""

    processor: str
    cores: int
    system: str
    python: str
    numpy: str
    cryptography: str
    load: float


def describe_machine() -> Machine:
    """Return a description of this machine."""
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        numpy=version("numpy"),
        cryptography=version("cryptography"),
        load=round(os.getloadavg()[0], 1),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
