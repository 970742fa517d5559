"""Processes that are born with all modules imported, which otherwise takes longer than what most of them live for.

A nursery is a process of its own that imports what services import, starts nothing, and forks when it is asked to:

    with Nursery() as nursery:
        process = nursery.bear(["-m", "hubbub_aggregator"], environment, log_file)
        process.kill()

What it bears is as much a process as any: with its own memory and its own end, which takes nobody else along.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

_MODULES = ("hubbub_coordinator", "hubbub_aggregator", "hubbub_trainer")
_POLL_S = 0.02


class Child:
    """One process; it can do what is used of `subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            # It stays there, if only as a zombie, until this is told: nobody else gets its number before.
            self.returncode = self._nursery.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, as others see it; it ends with whoever started it, and its children with it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.nursery"],
            # Threads do not survive a fork, so none may be started before.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.communicate()

    def bear(self, arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> Child:
        """Start what `python ARGUMENTS` would, with nothing to read and what it writes appended to a file."""
        module, *rest = arguments[1:]
        order = {"module": module, "arguments": rest, "environment": dict(environment), "output": str(output)}
        pid = self.ask({"bear": order})
        assert pid is not None
        return Child(self, pid)

    def ask(self, request: Mapping[str, object]) -> int | None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer


# In the nursery -----------------------------------------------------------------------------------------


def _serve() -> None:
    for name in _MODULES:
        import_module(f"{name}.__main__")
    children: set[int] = set()
    for line in sys.stdin:
        match json.loads(line):
            case {"bear": order}:
                pid = _bear(order)
                children.add(pid)
                _answer(pid)
            case {"poll": pid}:
                found, status = os.waitpid(pid, os.WNOHANG)
                children.discard(found)
                _answer(os.waitstatus_to_exitcode(status) if found else None)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _answer(answer: int | None) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def _bear(order: Mapping[str, Any]) -> int:
    pid = os.fork()
    return pid or _live(order)


def _live(order: Mapping[str, Any]) -> NoReturn:
    code = 1
    try:
        _become(order)
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  (As the interpreter does it.)
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(order: Mapping[str, Any]) -> None:
    """Have another environment, other arguments, and other files for what is read and written."""
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["module"], *order["arguments"]]
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)
    for name in _MODULES:
        # It is to run as what was started, not to be found as what was imported.
        sys.modules.pop(f"{name}.__main__", None)


if __name__ == "__main__":
    _serve()
