"""A worker as its head sees it: there or not, asked for things, replaced when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Protocol

from hubbub.errors import HubbubError, LocalError
from hubbub.ids import RunId
from hubbub.runtime.edge import Refusal
from hubbub.runtime.tally import Sending
from hubbub.transport.base import Verdict
from hubbub.transport.subscription import RetryPause
from hubbub_aggregator.shards.link import Link, LinkLost
from hubbub_aggregator.shards.words import (
    Answer,
    Arrived,
    Briefing,
    Check,
    Checked,
    Declined,
    Dismissal,
    Faring,
    Release,
    Released,
    Unable,
    trouble_of,
)

log = logging.getLogger(__name__)

SILENCE_S = 60.0
"""A worker that has said nothing for so long is taken for stuck, and is replaced."""


class Started(Protocol):
    """A worker that was started, somewhere."""

    @property
    def link(self) -> Link:
        """The line to it."""

    async def end(self) -> str:
        """See to it that it is gone, let it go well if it can, and say how it went."""


class Launch(Protocol):
    """A way to start workers."""

    async def __call__(self, number: int) -> Started:
        """Start the worker of this number."""


class Head(Protocol):
    """What a worker's words are for."""

    def brief(self, run: RunId) -> Briefing:
        """What a worker must know of a run."""

    async def take_in(self, word: Arrived, corner: str) -> Verdict:
        """Act on a message that was admitted; its payload is staged in a corner."""

    async def refuse(self, refusal: Refusal) -> Verdict:
        """Refuse a message that was not."""

    def count(self, sending: Sending) -> None:
        """Count messages that were sent in our name."""


class Hand:
    """Keeps one worker there."""

    def __init__(self, number: int, slots: range, launch: Launch, note_restart: Callable[[], None]) -> None:
        self.number = number
        self.slots = slots
        self._launch = launch
        self._note_restart = note_restart
        self._pause = RetryPause(first_s=0.1, longest_s=30.0)
        self._failures = 0
        self._link: Link | None = None
        self._there = asyncio.Event()
        self._problems: tuple[str, ...] = ()
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Checked | Released]] = {}
        self._briefed: set[RunId] = set()
        self._answering: set[asyncio.Task[None]] = set()

    def find_problems(self) -> tuple[str, ...]:
        """What keeps this worker from working."""
        if self._link is None:
            return (f"worker {self.number} is not there",)
        return tuple(f"worker {self.number}: {problem}" for problem in self._problems)

    # Life -----------------------------------------------------------------------------------------------

    async def keep(self, head: Head) -> None:
        """Start the worker, and another one whenever it dies, for ever."""
        while True:
            try:
                worker = await self._launch(self.number)
            except OSError as error:
                fate = f"could not be started: {error.strerror}"
            else:
                fate = await self._accompany(worker, head)
            self._failures += 1
            self._note_restart()
            log.error("worker %d %s; another one is started", self.number, fate)
            await asyncio.sleep(self._pause.after(self._failures))

    async def _accompany(self, worker: Started, head: Head) -> str:
        """Listen to a worker until its end, and say what that was."""
        self._link, self._problems = worker.link, ("it is starting",)
        self._there.set()
        try:
            await self._listen(worker.link, head)
        except LocalError as error:
            log.error("worker %d says what it should not: %s", self.number, error)  # noqa: TRY400
        finally:
            # Whoever waits for it is told at once; its successor comes when it is surely gone.
            self._lose()
            fate = await worker.end()
        return fate

    def _lose(self) -> None:
        self._link = None
        self._there.clear()
        self._briefed.clear()
        for reply in self._asked.values():
            if not reply.done():
                reply.set_exception(LinkLost(f"worker {self.number} is gone"))
        for task in self._answering:
            task.cancel()

    async def _listen(self, link: Link, head: Head) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    word = await link.receive()
                match word:
                    case None:
                        return
                    case Arrived() | Declined():
                        self._answer_soon(link, head, word)
                    case Checked() | Released() | Unable():
                        self._pass_on(word)
                    case Faring():
                        self._note(word, head)
                    case _:
                        raise LocalError(f"a worker says no {type(word).__name__}")
        except TimeoutError:
            log.error("worker %d has said nothing for %g s", self.number, SILENCE_S)  # noqa: TRY400

    def _note(self, word: Faring, head: Head) -> None:
        self._problems = word.problems
        if not word.problems:
            self._failures = 0
        for sending in word.sendings:
            head.count(sending)

    # What the worker asks -------------------------------------------------------------------------------

    def _answer_soon(self, link: Link, head: Head, word: Arrived | Declined) -> None:
        task = asyncio.create_task(self._answer(link, head, word))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, link: Link, head: Head, word: Arrived | Declined) -> None:
        if isinstance(word, Arrived):
            verdict = await head.take_in(word, str(self.number))
        else:
            verdict = await head.refuse(word.refusal)
        try:
            await link.send(Answer(word.number, verdict))
        except LinkLost:
            log.info("worker %d is gone; what it took in comes again and changes nothing", self.number)

    # What the worker is asked ---------------------------------------------------------------------------

    async def ask(self, head: Head, run: RunId, word: Callable[[int], Check | Release]) -> Checked | Released:
        """Have something done; if the worker dies over it, by the next one."""
        while True:
            await self._there.wait()
            try:
                return await self._ask_once(head, run, word(next(self._numbers)))
            except LinkLost:
                log.info("what worker %d was asked for is asked for again", self.number)

    async def _ask_once(self, head: Head, run: RunId, word: Check | Release) -> Checked | Released:
        link = self._link
        if link is None:
            raise LinkLost(f"worker {self.number} is gone")
        reply: asyncio.Future[Checked | Released] = asyncio.get_running_loop().create_future()
        self._asked[word.number] = reply
        try:
            if run not in self._briefed:
                self._briefed.add(run)
                await link.send(head.brief(run))
            await link.send(word)
            return await reply
        finally:
            del self._asked[word.number]

    def _pass_on(self, word: Checked | Released | Unable) -> None:
        reply = self._asked.get(word.number)
        if reply is None or reply.done():
            return
        if isinstance(word, Unable):
            reply.set_exception(trouble_of(word))
        else:
            reply.set_result(word)

    async def dismiss(self, run: RunId) -> None:
        """Have the worker forget a run."""
        self._briefed.discard(run)
        if self._link is not None:
            try:
                await self._link.send(Dismissal(run))
            except HubbubError:
                log.info("worker %d is gone, and so is what it knew", self.number)
