"""A server of our own: free ports, its own data folder, loopback only, any user, no service manager.

It disappears with the process that started it, however that ends: a guard process waits for that end and then
kills the server and removes its folder.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from support.patience import HANG_S

# Reads "+pid" and "-pid" lines. End of input means that whoever started us is gone.
_GUARD = """
import os, shutil, signal, sys
pids = set()
for line in sys.stdin:
    (pids.add if line[0] == "+" else pids.discard)(int(line[1:]))
for pid in pids:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class PrivateServer(ABC):
    """Start, end and start again, on the same ports and the same data; `close` removes everything."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"hubbub-{name}-"))
        self._name = name
        self._server: subprocess.Popen[bytes] | None = None
        self._guard = subprocess.Popen(
            [sys.executable, "-c", _GUARD, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )

    @abstractmethod
    def launch(self) -> None:
        """Start the server and do not wait for it."""

    @abstractmethod
    def serves(self) -> bool:
        """Return whether it answers."""

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended since."""
        return self._server is not None

    def start(self) -> None:
        """Return when it serves."""
        self.launch()
        self.wait_until_it_serves()

    def wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + HANG_S
        while not self.serves():
            if self._server is None or self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the private {self._name} did not start: {self.read_output()}")
            time.sleep(0.05)

    def read_output(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-2000:]

    def spawn(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        user: str | None = None,
        group: int | None = None,
    ) -> subprocess.Popen[bytes]:
        with (self.folder / "output.log").open("ab") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                # Ctrl-C in the terminal is for the tests; they end the server themselves.
                start_new_session=True,
            )
        self._tell_guard("+", process.pid)
        return process

    def end(self, process: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(HANG_S)
        self._tell_guard("-", process.pid)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the server as a power failure would."""
        self.end(self._server, how)
        self._server = None

    def close(self) -> None:
        """Kill what runs and remove the folder."""
        self.kill()
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            # Its input ends: it removes the folder.
            self._guard.stdin.close()
            self._guard.wait(HANG_S)

    def _tell_guard(self, sign: str, pid: int) -> None:
        if self._guard.stdin is not None:
            self._guard.stdin.write(f"{sign}{pid}\n".encode())
            self._guard.stdin.flush()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
