"""Recovery: the machines of a party, rebuilt from its event store after a restart.

The same steps are taken again, from the last snapshot on where there is one. Effects of entries that are not
marked as done are done again, events for other machines are told once, and each machine resumes its jobs and
timers. The time since the newest event does not count against a timer: the party was away, or its clock was set.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hubbub.errors import LocalError, StorageFailed
from hubbub.machine.effects import Key, SetTimer, Tell
from hubbub.machine.table import Step, is_final, step
from hubbub.runtime.clock import Clock
from hubbub.runtime.effects import Effects, name_causes
from hubbub.runtime.event_log import BEGINNING, NEWEST, RESUMED, EventLog, Observer, RunningMachine
from hubbub.runtime.telemetry import context
from hubbub.store.base import Draft, Entry, Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One recovery. `restore` is told of the machines once they are rebuilt, `retire` of those that are over."""

    event_log: EventLog
    effects: Effects
    clock: Clock
    witness: Observer
    restore: Callable[[Mapping[Key, RunningMachine]], None]
    retire: Callable[[Key], None]

    async def run(self) -> None:
        """Take the kept steps again, then do what was not done, and take up what was under way."""
        snapshots = await asyncio.to_thread(self.event_log.store.read_ongoing)
        entries = await asyncio.to_thread(self.event_log.store.read)
        undone = self._replay(snapshots, entries)
        self.clock.go_on_from(self.event_log.newest_s)
        self.restore(self.event_log.machines)
        told = {entry.cause for entry in entries if entry.cause}
        for entry, result in undone:
            await self._finish_again(entry, result, told)
        await self._take_all_up_again()
        if entries or snapshots:
            log.info("rebuilt %d machines from %d events", len(self.event_log.machines), len(entries))

    def _replay(
        self, snapshots: Sequence[Snapshot], entries: Sequence[Entry]
    ) -> list[tuple[Entry, Step[Any, Any]]]:
        """Rebuild the machines; gives the steps whose effects are not known to be done."""
        try:
            for snapshot in snapshots:
                self._go_on_from(snapshot)
            taken = [(entry, self._take_again(entry)) for entry in entries]
        except LocalError as error:
            raise LocalError(
                f"{self.event_log.store.place} cannot be replayed: {error}; it is damaged, or another version"
                " wrote it: start that version, or move it away to begin without it, which ends the runs that"
                " were open"
            ) from None
        return [(entry, result) for entry, result in taken if result is not None and not entry.done]

    def _go_on_from(self, snapshot: Snapshot) -> None:
        """Rebuild a machine as it was when the snapshot was made."""
        if snapshot.key == NEWEST:
            self.event_log.newest_s = json.loads(snapshot.body)
            return
        kind = self.event_log.find_kind(snapshot.key)
        state, moved_s, data = json.loads(snapshot.body)
        self.event_log.machines[snapshot.key] = RunningMachine(
            kind,
            type(kind.initial)(state),
            self.event_log.codec.load(kind.data.__name__, data),
            kept=True,
            moved_s=moved_s,
        )

    def _take_again(self, entry: Entry) -> Step[Any, Any] | None:
        """Take an entry's step again; gives None if the entry is no event."""
        machines, codec = self.event_log.machines, self.event_log.codec
        kind = self.event_log.find_kind(entry.key)
        if entry.kind == BEGINNING:
            data = codec.load(kind.data.__name__, entry.body)
            machines[entry.key] = RunningMachine(kind, kind.initial, data)
            self.event_log.count(machines[entry.key], 1)
            return None
        live = machines.get(entry.key)
        if live is None:
            raise LocalError(f"the store holds a {entry.kind} of {entry.key}, which never began")
        if entry.kind == RESUMED:
            at_s, away_s = json.loads(entry.body)
            self.event_log.newest_s = max(self.event_log.newest_s, at_s)
            live.moved_s += away_s
            self.event_log.count(live, 1)
            return None
        event = codec.load(entry.kind, entry.body)
        result = step(kind.table, live.state, live.data, event)
        self.event_log.count(live, 1)
        self.witness(self.event_log.enter(entry.sequence, entry.key, live, event, result))
        return result

    async def _finish_again(self, entry: Entry, result: Step[Any, Any], told: set[str]) -> None:
        """Do the effects of an entry again, and tell other machines what they were not told."""
        with context(run=entry.key.run, round=entry.key.round, phase=entry.key.phase):
            bug = await self.effects.perform_until_done(entry.key, result.effects)
            for cause, effect in name_causes(entry.sequence, result.effects):
                if isinstance(effect, Tell) and cause not in told:
                    self.effects.launch(entry.key, effect, cause)
        if bug is None:
            self.event_log.finish(entry.sequence)

    async def _take_all_up_again(self) -> None:
        """Take up jobs and timers; the time that we were away does not count against a timer."""
        machines, newest_s = self.event_log.machines, self.event_log.newest_s
        away_s, moved = (self.clock.now_s() - newest_s if newest_s else 0.0), list[Key]()
        for key, live in list(machines.items()):
            if key not in machines:
                continue  # It went with its run.
            with context(run=key.run, round=key.round, phase=key.phase):
                if is_final(live.kind.table, live.state):
                    self.retire(key)
                    continue
                for effect in live.kind.resume(live.state, live.data):
                    if isinstance(effect, SetTimer) and effect.at_s:
                        later = replace(effect, at_s=effect.at_s + live.moved_s + away_s)
                        self.effects.launch(key, later, "")
                        moved.append(key)
                    else:
                        self.effects.launch(key, effect, "")
        if away_s > 0 and moved:
            await self._keep_moved(dict.fromkeys(moved), away_s)

    async def _keep_moved(self, moved: Iterable[Key], away_s: float) -> None:
        """Keep by how much timers were moved, so that the next restart finds them where they are."""
        machines = self.event_log.machines
        drafts = [
            Draft(key, RESUMED, json.dumps([self.event_log.newest_s + away_s, away_s]), done=True)
            for key in moved
            if key in machines
        ]
        if not drafts:
            return
        try:
            await self.event_log.append(drafts)
        except StorageFailed as error:
            # Only a second restart in the same phase would miss it.
            log.error("deadlines could not be kept: %s", error)  # noqa: TRY400
        else:
            self.event_log.newest_s += away_s
            for draft in drafts:
                machines[draft.key].moved_s += away_s
                self.event_log.count(machines[draft.key], 1)
