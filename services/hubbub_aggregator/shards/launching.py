"""Two ways to start a worker: as a process, which is what it is for, and as a task, for all in one process."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hubbub.transport.base import Transport
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub_aggregator.shards.link import Link
from hubbub_aggregator.shards.worker import Worker

log = logging.getLogger(__name__)

MODULE = "hubbub_aggregator.shards"
LEAVE_S = 15.0
"""How long a worker may take to go once its line is cut; it has a delivery to settle and connections to close."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker in a process of its own."""

    link: Link
    process: asyncio.subprocess.Process

    async def end(self) -> str:
        """Cut the line, which ends it, and kill it if it does not go."""
        self.link.close()
        try:
            async with asyncio.timeout(LEAVE_S):
                code = await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
            code = await self.process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


async def start_process(number: int) -> WorkerProcess:
    """Start a worker with this process's own settings: it inherits the environment, and one end of a line."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE, str(number), str(theirs.fileno())),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
    return WorkerProcess(await Link.over(ours), process)


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """A worker in this process."""

    link: Link
    task: asyncio.Task[None]

    async def end(self) -> str:
        """Cut the line, which ends it."""
        self.link.close()
        (result,) = await asyncio.gather(self.task, return_exceptions=True)
        return f"ended: {type(result).__name__}" if isinstance(result, BaseException) else "ended"


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """Starts workers as tasks, each with a transport of its own."""

    identity: Identity
    roster: Roster
    folder: Path
    connect: Callable[[], Transport]

    async def __call__(self, number: int) -> WorkerTask:
        """Start one."""
        ours, theirs = socket.socketpair()
        task = asyncio.create_task(self._run(number, theirs), name=f"{self.identity.name} worker {number}")
        return WorkerTask(await Link.over(ours), task)

    async def _run(self, number: int, end: socket.socket) -> None:
        link = await Link.over(end)
        try:
            async with self.connect() as transport:
                worker = Worker(
                    number,
                    identity=self.identity,
                    roster=self.roster,
                    transport=transport,
                    folder=self.folder,
                    link=link,
                )
                await worker.run()
        finally:
            link.close()
