"""Background processes: each has a log, and a file with its id that is locked for as long as it lives.

The lock goes with the process, however it ends. So an id that was given to another process since is never mistaken
for ours, and processes are found again by whoever looks later.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hubbub.errors import ConfigurationError

STOP_S = 30.0
"""Time in which a process that was told to stop has to end; then it is killed."""
LOOK_S = 0.05
_TAIL_BYTES = 65_536
_SUFFIX = ".pid"


@dataclass(frozen=True, slots=True)
class Background:
    """Processes by name, with a folder for their ids and one for their logs."""

    ids: Path
    logs: Path

    def log_of(self, name: str) -> Path:
        """Return the file to which a process writes."""
        return self.logs / f"{name}.log"

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Start a process; it outlives us, and Ctrl-C in our terminal does not reach it."""
        handle = os.open(self.ids / f"{name}{_SUFFIX}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            with self.log_of(name).open("ab") as log:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # The lock belongs to whoever holds the handle, and we close ours.
                    pass_fds=[handle],
                    start_new_session=True,
                )
            os.write(handle, f"{process.pid}\n".encode())
            # It is found again by its file; an object that is dropped while its process runs would complain.
            process.returncode = 0
        except BlockingIOError:
            raise ConfigurationError(f"{name} is running already") from None
        except OSError as error:
            raise ConfigurationError(f"{command[0]} cannot be started: {error.strerror}") from None
        finally:
            os.close(handle)

    def list_names(self) -> list[str]:
        """List the processes that were started, whether they run or not."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.ids.glob(f"*{_SUFFIX}"))

    def find_id(self, name: str) -> int | None:
        """Return the id of a process; None if it does not run."""
        try:
            handle = os.open(self.ids / f"{name}{_SUFFIX}", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            while not (written := os.read(handle, 20)):
                # It is being started at this moment.
                time.sleep(LOOK_S)
            return int(written)
        finally:
            os.close(handle)
        return None

    def stop(self, names: Sequence[str]) -> list[str]:
        """Tell processes to stop, and wait until all have; return those that had to be killed."""
        self._signal(names, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while any(map(self.find_id, names)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return self.kill(names)

    def kill(self, names: Sequence[str]) -> list[str]:
        """Kill those of these processes that still run, and return them."""
        killed = self._signal(names, signal.SIGKILL)
        while any(map(self.find_id, killed)):
            time.sleep(LOOK_S)
        return killed

    def _signal(self, names: Sequence[str], number: signal.Signals) -> list[str]:
        running = {name: found for name in names if (found := self.find_id(name)) is not None}
        send = os.killpg if number is signal.SIGKILL else os.kill
        for found in running.values():
            # It may have ended since.
            with suppress(ProcessLookupError):
                send(found, number)
        return list(running)

    def read_last_line(self, name: str) -> str:
        """Return the last line of a process's log; of a line of JSON its message."""
        try:
            with self.log_of(name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return ""
        last = next((line for line in reversed(lines) if line.strip()), "").strip()
        try:
            return str(json.loads(last)["message"])
        except (ValueError, KeyError, TypeError):
            return last
