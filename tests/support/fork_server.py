"""Python processes that begin with the services' modules imported, which takes longer than most of them live.

They are forked by a server of `multiprocessing`, which ends with the test session, and its children with it.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

_MODULES = tuple(f"{name}.__main__" for name in ("hubbub_coordinator", "hubbub_aggregator", "hubbub_trainer"))
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", *_MODULES])


class ForkedProcess:
    """One process; it can do what is used of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_forked(arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> ForkedProcess:
    """Start what `python ARGUMENTS` would, with nothing to read and what it writes appended to a file."""
    # The file is there when this returns, though the process may not run yet.
    output.touch()
    process = _CONTEXT.Process(target=_run, args=(arguments, dict(environment), str(output)), daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        # Threads do not survive a fork, so the server, which is started with its first process, may have none.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        process.start()
    return ForkedProcess(process)


def _run(arguments: Sequence[str], environment: Mapping[str, str], output: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    written = os.open(output, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    for name in _MODULES:
        # It is to run as what was started, not to be found as what was imported.
        sys.modules.pop(name, None)
    _, module, *rest = arguments
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
