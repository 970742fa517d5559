"""The coordinator's shell: takes manifests and messages, keeps its machines, answers questions about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from hubbub.errors import ConfigurationError, HubbubError, LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, Role, RunId
from hubbub.machine.effects import Effect, Job, Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.runtime.clock import Clock, SystemClock
from hubbub.runtime.intake import check_sender
from hubbub.runtime.post import Identity
from hubbub.runtime.runner import Fed, Live, Observer, Runner
from hubbub.runtime.telemetry import Counters
from hubbub.runtime.tombstones import Tombstones
from hubbub.strategies.registry import find_strategy
from hubbub.transport.base import Transport
from hubbub_coordinator.events import Began, CancelRequested
from hubbub_coordinator.intake import read_round_event, read_run_event
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs

log = logging.getLogger(__name__)


class RunExists(ConfigurationError):
    """This very manifest was submitted before."""


class RunOver(ConfigurationError):
    """The run has ended already."""


class UnknownRun(ConfigurationError):
    """No run has this id."""


class Coordinator:
    """Schedules runs. It holds who is where in which phase, and byte counts; nothing that was summed."""

    def __init__(
        self,
        *,
        name: PartyId,
        transport: Transport,
        folder: Path,
        clock: Clock | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        self.counters = Counters()
        self._clock = clock or SystemClock()
        self._over: dict[Key, Live] = {}
        self._order: list[RunId] = []
        self._tombstones = Tombstones(folder / "tombstones")
        self.runner = Runner(
            identity=Identity(name, Role.COORDINATOR),
            transport=transport,
            shell=self,
            clock=self._clock,
            counters=self.counters,
            observer=observer,
        )

    async def submit(self, manifest: Manifest) -> RunId:
        """Begin a run, or say why it cannot begin."""
        me = self.runner.identity.name
        if manifest.coordinator != me:
            raise ConfigurationError(f"the manifest names {manifest.coordinator} as its coordinator; this is {me}")
        find_strategy(manifest.strategy)
        run = manifest.run_id
        if run in self._order or run in self._tombstones:
            raise RunExists(f"run {run} was submitted already; a new run needs a new nonce")
        self._order.append(run)
        key = Key("run", run)
        self.runner.add(key, runs.TRANSITIONS, runs.State.ENROLLING, runs.Run(manifest=manifest))
        try:
            await self.runner.feed(key, Began(at_s=self._clock.now_s()))
        except HubbubError:
            # Nobody would ask again, so it has not begun: the same manifest may be submitted later.
            self.runner.drop(key)
            self._order.remove(run)
            raise
        log.info("run %s was submitted", run)
        return run

    async def cancel(self, run: RunId) -> None:
        """End a run that has not ended."""
        state, _ = self.find_run(run)
        if state in runs.OUTCOMES:
            raise RunOver(f"run {run} is {state.value} already")
        await self.runner.feed(Key("run", run), CancelRequested(at_s=self._clock.now_s()))

    # What the API and the terminal ask ------------------------------------------------------------------

    def list_runs(self) -> list[RunId]:
        """All runs, oldest first."""
        return list(self._order)

    def find_run(self, run: RunId) -> tuple[runs.State, runs.Run]:
        """A run's state and data."""
        live = self._find(Key("run", run))
        if live is None:
            raise UnknownRun(f"there is no run {run}")
        if not isinstance(live.state, runs.State) or not isinstance(live.data, runs.Run):
            raise LocalError(f"{run} is not a run")
        return live.state, live.data

    def find_rounds(self, run: RunId) -> list[tuple[rounds.State, rounds.Round]]:
        """All rounds of a run so far."""
        _, data = self.find_run(run)
        found = (self._find(Key("round", run, number)) for number in range(1, data.round + 1))
        return [(live.state, live.data) for live in found if live and isinstance(live.state, rounds.State)]

    def _find(self, key: Key) -> Live | None:
        return self.runner.machines.get(key) or self._over.get(key)

    # What the runner asks -------------------------------------------------------------------------------

    def receive(self, envelope: Envelope, *, size: int, now_s: float) -> Sequence[Fed]:
        """Check a message against its run's manifest and make its event."""
        del size
        live = self._find(Key("run", envelope.run))
        if live is None:
            raise PeerError(RejectReason.UNKNOWN_RUN, f"no run {envelope.run} was submitted here")
        check_sender(live.data.manifest, envelope)
        about_run = read_run_event(envelope, now_s)
        key = Key("run", envelope.run) if about_run else Key("round", envelope.run, envelope.round)
        event = about_run or read_round_event(envelope, now_s)
        if key in self._over:
            log.info("%s came after the end and changes nothing", envelope.kind)
            self.counters.late(envelope.kind)
            return []
        if key.round > live.data.round:
            raise PeerError(RejectReason.TOO_EARLY, f"round {key.round} was not opened yet")
        return [(key, event)]

    async def perform(self, key: Key, effect: Effect, payload: bytes) -> None:
        """Remember a run, or open a round of it."""
        del payload
        match effect:
            case runs.RememberRun():
                await asyncio.to_thread(self._tombstones.add, key.run)
            case runs.OpenRound():
                self._open_round(key, effect.number)
            case _:
                raise LocalError(f"the coordinator has no effect {effect!r}")

    def _open_round(self, run: Key, number: int) -> None:
        data = rounds.Round(run=run, number=number, manifest=self.runner.machines[run].data.manifest)
        key = Key("round", run.run, number)
        self.runner.add(key, rounds.TRANSITIONS, rounds.State.COLLECTING, data)
        self.runner.feed_soon(key, Began(at_s=self._clock.now_s()))

    async def work(self, key: Key, job: Job) -> object:
        """The coordinator computes nothing."""
        raise LocalError(f"the coordinator has no job {job!r} for {key}")

    def retire(self, key: Key, live: Live) -> None:
        """Keep what is over: the API shows it. When a run ends, so does its open round."""
        self._over[key] = live
        if key.kind == "run":
            log.info("run %s is %s: %s", key.run, live.state.value, live.data.reason)
            for other in [each for each in self.runner.machines if each.run == key.run]:
                self._over[other] = self.runner.drop(other)
