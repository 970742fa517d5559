"""What aggregators and trainers have in common: runs that they are asked to join, chunks, and what is over."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from hubbub.errors import PeerError, RejectReason
from hubbub.machine.effects import Effect, Job, Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import RunProposed
from hubbub.runtime.clock import Clock, SystemClock
from hubbub.runtime.intake import check_manifest
from hubbub.runtime.post import Identity
from hubbub.runtime.runner import Fed, Live, Observer, Runner
from hubbub.runtime.spool import Spool
from hubbub.runtime.telemetry import Counters
from hubbub.runtime.tombstones import Tombstones
from hubbub.transport.base import Transport

log = logging.getLogger(__name__)

D = TypeVar("D")


class Participant(ABC):
    """The shell of a party that a manifest names."""

    def __init__(
        self,
        *,
        identity: Identity,
        transport: Transport,
        folder: Path,
        clock: Clock | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        self.counters = Counters()
        self._spool = Spool(folder / "spool")
        self._tombstones = Tombstones(folder / "tombstones")
        self._over: set[Key] = set()
        self.runner = Runner(
            identity=identity,
            transport=transport,
            shell=self,
            clock=clock or SystemClock(),
            counters=self.counters,
            observer=observer,
        )

    @abstractmethod
    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[Fed]:
        """Check a message and make its event."""

    @abstractmethod
    async def perform(self, key: Key, effect: Effect, payload: bytes) -> None:
        """Do an effect."""

    @abstractmethod
    async def work(self, key: Key, job: Job) -> object:
        """Do a job."""

    @abstractmethod
    def _invite(self, run: Key, manifest: Manifest, *, stale: bool) -> None:
        """Set up the machine for a run that was proposed; stale if we joined it before a restart."""

    def _receive_proposal(self, run: Key, envelope: Envelope, body: RunProposed, event: object) -> Sequence[Fed]:
        """Look at a proposal, for the first time or again."""
        check_manifest(body.manifest, envelope)
        if run in self._over:
            return self._ignore(envelope)
        if run not in self.runner.machines:
            self._invite(run, body.manifest, stale=envelope.run in self._tombstones)
        return [(run, event)]

    def _joined(self, run: Key, kind: type[D]) -> D:
        """What our machine of a run knows; refuse a message about a run that we have none of."""
        live = self.runner.machines.get(run)
        if live is None or not isinstance(live.data, kind):
            raise PeerError(RejectReason.UNKNOWN_RUN, f"{self.runner.identity.name} has not joined {run.run}")
        return live.data

    def _ignore(self, envelope: Envelope) -> Sequence[Fed]:
        log.info("%s came after the end and changes nothing", envelope.kind)
        self.counters.late(envelope.kind)
        return []

    def retire(self, key: Key, live: Live) -> None:
        """Remember that it is over; with a run, all that belongs to it."""
        del live
        self._over.add(key)
        if key.kind == "run":
            self._spool.drop_run(key)
            for other in [each for each in self.runner.machines if each.run == key.run]:
                self.runner.drop(other)
