"""Base of aggregators and trainers: proposals of runs, run keys, tombstones, and the end of a run."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hubbub.errors import Code, LocalError, Objection, PeerError, RejectReason
from hubbub.ids import PartyId, Role, RunId
from hubbub.machine.effects import Key
from hubbub.machine.table import Kind, is_final
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import PartyFailed, RunEnded, RunKey, RunProposed
from hubbub.runtime.clock import Clock, SystemClock
from hubbub.runtime.event_log import Transition
from hubbub.runtime.message_checks import check_manifest, role_of
from hubbub.runtime.runner import KeyedEvent, Observer, Runner, RunningMachine, Shell
from hubbub.runtime.spool import Spool
from hubbub.runtime.state_folder import AUDIT_FILE, STATE_FILE, TOMBSTONES, Tombstones
from hubbub.runtime.telemetry import Counters
from hubbub.store.sqlite import SqliteStore
from hubbub.store.state_file import StateFile, Vault
from hubbub.transport.base import Transport
from hubbub.trust.audit import AuditLog
from hubbub.trust.identity import Identity
from hubbub.trust.roster import Roster
from hubbub.trust.seals import RunSeals, Stage, draw_run_key, read_run_key

log = logging.getLogger(__name__)

D = TypeVar("D")


class Participant(Shell, ABC):
    """Shell of a party that takes part in runs."""

    run_kinds: ClassVar[frozenset[str]] = frozenset({"run"})
    """Machines that, one after the other, hold a party's part in a run; the last of them is "run"."""

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        transport: Transport,
        folder: Path,
        kinds: Mapping[str, Kind[Any, Any]],
        clock: Clock | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        self.counters = Counters()
        self._spool = Spool(folder / "spool")
        self._tombstones = Tombstones(folder / TOMBSTONES)
        self._over: set[Key] = set()
        self._seals: dict[RunId, RunSeals] = {}
        self._audit = AuditLog(folder / AUDIT_FILE, identity.name)
        for run, ended in self._audit.runs.items():
            # The folder may have lost a tombstone that the audit log tells of.
            if run not in self._tombstones:
                self._tombstones.add(run)
                if ended:
                    self._tombstones.mark_ended(run)
        self._file = StateFile(folder / STATE_FILE)
        self._vault = Vault(self._file)
        self._store = SqliteStore(self._file)
        self.runner = Runner(
            identity=identity,
            roster=roster,
            transport=transport,
            shell=self,
            kinds=kinds,
            store=self._store,
            clock=clock or SystemClock(),
            counters=self.counters,
            audit=self._audit,
            observer=self._observe,
        )
        self._observer = observer

    @abstractmethod
    def _object(self, manifest: Manifest) -> tuple[Objection, ...]:
        """Return every objection of this party to taking part."""

    @abstractmethod
    def _invite(
        self, run: Key, manifest: Manifest, *, objections: tuple[Objection, ...], run_key: RunKey | None
    ) -> None:
        """Start the machine of a proposed run; there is a run key if there is no objection."""

    def _receive_proposal(
        self, run: Key, envelope: Envelope, body: RunProposed, event: object
    ) -> Sequence[KeyedEvent]:
        """Handle a proposal; a repeated one goes to the machine that is there."""
        check_manifest(body.manifest, envelope)
        if run in self._over:
            return self._ignore(envelope)
        if run not in self.runner.machines:
            objections = self._object_to(body.manifest)
            run_key = None if objections else self._make_run_key(envelope.run)
            self._invite(run, body.manifest, objections=objections, run_key=run_key)
        return [(run, event)]

    def _object_to(self, manifest: Manifest) -> tuple[Objection, ...]:
        me = self.runner.identity.name
        if role_of(manifest, me) is not self.runner.identity.role:
            why = f"the manifest does not name {me} as {self.runner.identity.role.value}"
            return (Objection(Code.PROTOCOL_MANIFEST, why),)
        # If our run key is still there, we died before our answer was sent, and nothing is lost.
        if manifest.run_id in self._tombstones and self._vault.get(manifest.run_id, "run key") is None:
            why = f"{me} has taken part in this run before, and a run is joined once: draw up a new manifest"
            return (Objection(Code.PROTOCOL_JOINED_BEFORE, why),)
        return self._object(manifest)

    def _make_run_key(self, run: RunId) -> RunKey:
        """Make our seals of a run, with the one key that we ever make for it; it is erased when the run ends."""
        kem, kept = self.runner.roster.kem, self._vault.get(run, "run key")
        key = draw_run_key(kem) if kept is None else read_run_key(kem, kept)
        if kept is None:
            self._vault.put(run, "run key", key.to_bytes())
        self._seals[run] = RunSeals(self.runner.identity, run, key)
        return self._seals[run].claim

    def restore(self, machines: Mapping[Key, RunningMachine]) -> None:
        """Restore the keys of all open runs; report runs whose state is lost."""
        for run in self._tombstones:
            self.runner.directory.add_run(run)
        for key, live in machines.items():
            if key.kind in self.run_kinds and not self._ends_run(key, live):
                if live.data.run_key is not None:
                    self._make_run_key(key.run)
                if live.data.publics:
                    self._accept_keys(key.run, live.data.publics)
        coordinators = [party.name for party in self.runner.roster.parties if party.role is Role.COORDINATOR]
        for run in self._tombstones.find_open():
            if Key("run", run) not in machines and self._vault.get(run, "run key") is None:
                # All are told: which of them coordinates the run was lost, too.
                for coordinator in coordinators:
                    self._say_lost(Key("run", run), coordinator)

    @abstractmethod
    def describe(self, moment: Transition) -> str:
        """Return a line for the log about a transition; empty for most."""

    def _observe(self, moment: Transition) -> None:
        if told := self.describe(moment):
            log.info("%s", told)
        self._observer(moment)

    def _remember_run(self, run: RunId) -> None:
        self._tombstones.add(run)

    def _accept_keys(self, run: RunId, publics: Mapping[PartyId, bytes]) -> None:
        self._seals[run].accept(publics)

    def _seal_of(self, key: Key, phase: str = "") -> tuple[RunSeals, Stage]:
        """Return our seals of a run, and the stage that new ciphertexts are bound to."""
        seals = self._seals.get(key.run)
        if seals is None:
            raise LocalError(f"there is no key for {key}: the run is over")
        return seals, Stage(key.run, key.round, phase or key.phase)

    def _joined(self, run: Key, kind: type[D]) -> D:
        """Return the data of our machine of a run; raise `PeerError` if we have not joined it."""
        live = self.runner.machines.get(run)
        if live is None or not isinstance(live.data, kind):
            raise PeerError(RejectReason.UNKNOWN_RUN, f"{self.runner.identity.name} has not joined {run.run}")
        return live.data

    def _is_past(self, run: Key, envelope: Envelope) -> bool:
        """Say whether a run is over here, or lost with our state of it; the coordinator is told of a loss."""
        if run in self.runner.machines or run in self._over:
            return run in self._over
        is_known = run.run in self._tombstones
        if Role.COORDINATOR in envelope.body.senders and not self._tombstones.has_ended(run.run):
            if not isinstance(envelope.body, RunEnded):
                self._say_lost(run, envelope.sender)
            elif is_known:
                self._tombstones.mark_ended(run.run)
                self._drop_files(run)
        return is_known

    def _say_lost(self, run: Key, coordinator: PartyId, code: Code = Code.DISK_LOST) -> None:
        """Tell a coordinator that we lost our state of a run: it cannot be restored, so the run must end."""
        me = self.runner.identity.name
        how = "its folder is an old copy" if code is Code.DISK_OLD else "has lost what it knew of it"
        log.error("%s is in run %s and %s", me, run.run, how)
        self.counters.lost.inc()
        self.runner.answer(run, to=coordinator, role=Role.COORDINATOR, body=PartyFailed(code=code))

    def _ignore(self, envelope: Envelope) -> Sequence[KeyedEvent]:
        log.info("%s came after the end and changes nothing", envelope.kind)
        self.counters.late.labels(envelope.kind).inc()
        return []

    def retire(self, key: Key, live: RunningMachine) -> bool:
        """Remember that a machine is over; if it is a run, delete all that belongs to it."""
        self._over.add(key)
        self._let_go(key)
        if self._ends_run(key, live):
            self._over.add(Key("run", key.run))
            if key.run in self._tombstones:
                self._tombstones.mark_ended(key.run)
            self._drop_files(key)
            self._seals.pop(key.run, None)
            self._vault.forget(key.run)
            for other in [each for each in self.runner.machines if each.run == key.run]:
                self._let_go(other)
                self.runner.forget(other)
        return True

    def _ends_run(self, key: Key, live: RunningMachine) -> bool:
        """Return whether a machine is over, and our part in its run with it."""
        return key.kind in self.run_kinds and is_final(live.kind.table, live.state)

    def _drop_files(self, run: Key) -> None:
        """Remove the files of a run that are outside the state file."""
        self._spool.drop_run(run)

    def _let_go(self, key: Key) -> None:
        """Drop what is in memory of a machine that is over, or whose run is."""

    def close(self) -> None:
        """Close the audit log and the store."""
        self._audit.close()
        self._store.close()


def describe_joining(manifest: Manifest) -> str:
    """Return the line for the log that a run was joined."""
    run = f"{manifest.run_id[:12]}: {manifest.task}, {manifest.strategy}, {manifest.rounds} rounds"
    return f"joined run {run}, {len(manifest.clients)} clients, {len(manifest.aggregators)} aggregators"
