"""A worker: takes chunks from its queue, puts them on disk, and does with them what the head says.

For every delivery: check its signature and that it is for us, stage its payload on disk, tell the head, and do as
it answers. By then the head has kept what came of it, and moved the payload to the spool or not. A worker that
dies leaves a message unsettled, which the broker delivers again, and a staged file, which its successor deletes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from hubbub.errors import LocalError, StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.messages.codec import encode
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.runtime.edge import Refusal, admit
from hubbub.runtime.participant import STATE_FILE
from hubbub.runtime.post import Post
from hubbub.runtime.spool import Spool
from hubbub.runtime.tally import Tally
from hubbub.runtime.telemetry import context
from hubbub.store.vault import LentVault
from hubbub.strategies.wire import wire_of
from hubbub.transport.base import RETRY, Delivery, Transport, Verdict
from hubbub.transport.topology import work_queue
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub.trust.seals import RunSeals, Stage, read_run_key
from hubbub_aggregator.phases.accumulation import CheckChunk
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
    Word,
    admit_trouble,
)
from hubbub_aggregator.workbench import Workbench

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""How often the head is told how we fare."""


class Worker:
    """Does one range of an aggregator's chunks."""

    def __init__(
        self,
        number: int,
        *,
        identity: Identity,
        roster: Roster,
        transport: Transport,
        folder: Path,
        link: Link,
    ) -> None:
        self._number = number
        self._identity = identity
        self._roster = roster
        self._transport = transport
        self._link = link
        self._queue = work_queue(identity.name, number)
        self._spool = Spool(folder / "spool")
        self._vault = LentVault(folder / STATE_FILE)
        self._tally = Tally()
        self._runs: dict[RunId, tuple[Manifest, RunSeals]] = {}
        self._told = 0
        self._over = False
        self._waiting: dict[int, asyncio.Future[Verdict]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._bench = Workbench(
            identity, self._spool, self._vault, Post(transport, identity, self._tally.note), self._seal_of
        )

    @property
    def _corner(self) -> str:
        """Where in the spool's folder we stage what arrives."""
        return str(self._number)

    async def run(self) -> None:
        """Work until the head is gone or wants no more; the transport is closed by whoever opened it."""
        with context(party=self._identity.name, worker=str(self._number)):
            self._spool.clear(self._corner)
            self._start(self._tell_how_we_fare())
            try:
                await self._transport.subscribe(self._queue, self._handle)
                log.info("worker %d takes chunks from %s", self._number, self._queue)
                await self._listen()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """End what was begun: deliveries that wait for an answer, or will, go back to their queue."""
        self._over = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(RETRY)
        for job in self._jobs:
            job.cancel()

    # What arrives ---------------------------------------------------------------------------------------

    async def _handle(self, delivery: Delivery) -> Verdict:
        message = await asyncio.to_thread(admit, self._identity, self._roster, delivery.body)
        self._told += 1
        if isinstance(message, Refusal):
            return await self._tell(self._told, Declined(self._told, message))
        name = secrets.token_hex(16)
        try:
            path = await asyncio.to_thread(self._spool.stage, self._corner, name, message.payload)
        except StorageFailed as error:
            log.error("%r could not be kept and will be delivered again: %s", message, error)  # noqa: TRY400
            return RETRY
        try:
            return await self._tell(self._told, self._announce(message, len(delivery.body), name))
        finally:
            # It was not wanted if it is still there.
            path.unlink(missing_ok=True)

    def _announce(self, message: Envelope, size: int, name: str) -> Arrived:
        rest = encode(replace(message, payload=b"", signature=b""))
        return Arrived(self._told, rest, size, name, message.payload_bytes)

    async def _tell(self, number: int, word: Arrived | Declined) -> Verdict:
        """Tell the head and wait for its answer; where nobody listens any more there is none."""
        if self._over:
            return RETRY
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._link.send(word)
            return await answer
        except LinkLost:
            return RETRY
        finally:
            del self._waiting[number]

    # What the head says ---------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while (word := await self._link.receive()) is not None:
            match word:
                case Briefing():
                    self._runs[word.run] = word.manifest, await asyncio.to_thread(self._read_seals, word)
                case Dismissal(run=run):
                    self._runs.pop(run, None)
                case Answer(number=number, verdict=verdict):
                    if number in self._waiting and not self._waiting[number].done():
                        self._waiting[number].set_result(verdict)
                case Check() | Release():
                    self._start(self._do(word))
                case _:
                    raise LocalError(f"a head says no {type(word).__name__}")

    def _read_seals(self, briefing: Briefing) -> RunSeals:
        kept = self._vault.get(briefing.run, "run key")
        if kept is None:
            raise LocalError(f"there is no key for run {briefing.run[:12]} in the party's folder")
        seals = RunSeals(self._identity, briefing.run, read_run_key(self._roster.kem, kept))
        seals.accept(briefing.publics)
        return seals

    def _seal_of(self, key: Key) -> tuple[RunSeals, Stage]:
        return self._find(key)[1], Stage(key.run, key.round, key.phase)

    def _find(self, key: Key) -> tuple[Manifest, RunSeals]:
        if key.run not in self._runs:
            raise LocalError(f"there is no key for {key}: the run is over")
        return self._runs[key.run]

    async def _do(self, order: Check | Release) -> None:
        key = order.key
        with context(run=key.run, round=key.round, phase=key.phase):
            try:
                reply = await self._carry_out(order)
            except Exception as error:  # noqa: BLE001  (Whatever it is, it is for the head to say.)
                reply = admit_trouble(order.number, error, traceback.format_exc())
            await self._send(self._fare())
            await self._send(reply)

    async def _carry_out(self, order: Check | Release) -> Word:
        manifest, _ = self._find(order.key)
        if isinstance(order, Release):
            return Released(order.number, await self._bench.release(order.key, order.data, order.slots))
        job = CheckChunk(order.client, order.share_set, order.index)
        return Checked(order.number, await self._bench.check(order.key, wire_of(manifest, order.key.phase), job))

    # How we fare ----------------------------------------------------------------------------------------

    async def _tell_how_we_fare(self) -> None:
        while True:
            await self._send(self._fare())
            await asyncio.sleep(BEAT_S)

    def _fare(self) -> Faring:
        condition = self._transport.condition
        problems = tuple(
            problem
            for is_so, problem in (
                (not condition.connected, "there is no connection to the broker"),
                (self._queue not in condition.consuming, f"nothing is received from the queue {self._queue}"),
            )
            if is_so
        )
        return Faring(problems, self._tally.take())

    async def _send(self, word: Word) -> None:
        try:
            await self._link.send(word)
        except LinkLost:
            log.debug("%s was for nobody", type(word).__name__)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
