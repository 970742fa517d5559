"""A service that is told to stop while it is still being imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

SOURCES = Path(__file__).parents[4]
# What every service imports, and here never gets from.
STUCK = """
import signal, sys
sys.stdout.write("importing\\n")
sys.stdout.flush()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("service", ["hubbub_coordinator", "hubbub_aggregator", "hubbub_trainer"])
def test_a_service_that_is_still_being_imported_ends_well_when_told(
    service: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "pydantic_settings.py").write_text(STUCK)
    paths = [str(tmp_path), str(SOURCES / "shared"), str(SOURCES / "services")]
    process = subprocess.Popen(
        [sys.executable, "-m", service],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    with process:
        assert process.stdout
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, complaints = process.communicate(timeout=HANG_S)

    assert (process.returncode, complaints) == (0, "")
