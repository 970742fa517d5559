"""`python -m support.failpoints hubbub_aggregator`: a service that is killed or halted within a transition.

The failpoints come in a variable of this wrapper's own, so that no service has a switch for it. Each is hit once:
it is written to a file first, where the process that is started in place of the dead one reads what is over.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hubbub.machine.effects import Key
from hubbub.runtime.event_log import EventLog
from hubbub.runtime.runner import Observer, Runner, Transition
from hubbub.store.base import Draft
from hubbub.transport.base import Verdict

FAILPOINTS = "FAILPOINTS"
HITS_FILE = "FAILPOINT_HITS"


class Point(StrEnum):
    """How far a transition has come."""

    BEFORE = "before"
    """Nothing has happened."""
    PERSISTED = "persisted"
    """What the event relies on is written; the event is not kept."""
    KEPT = "kept"
    """The event is on disk; nothing has left."""
    PERFORMED = "performed"
    """Its effects are done and its jobs are started."""
    SETTLED = "settled"
    """Other machines were told; the delivery that caused it, if one did, is not acknowledged."""


class Action(StrEnum):
    """Action at a failpoint."""

    KILL = "kill"
    HALT = "halt"
    """Stand still until somebody says SIGCONT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failpoint:
    """A point of a transition, and what happens to the service there."""

    kind: str
    state: str
    event: str
    point: Point
    round: int = 0
    """Not before this round has begun."""
    phase: str = ""
    """In this phase alone; in any if empty."""
    action: Action = Action.KILL

    def fits(self, key: Key, state: Enum, event: object) -> bool:
        here = (key.kind, state.value, type(event).__name__)
        return here == (self.kind, self.state, self.event) and self.phase in {"", key.phase}


_FAILPOINT = TypeAdapter(Failpoint)
_FAILPOINTS = TypeAdapter(list[Failpoint])


def environment_for(failpoints: Sequence[Failpoint], hits_file: Path) -> dict[str, str]:
    """Return the variables to start this wrapper with."""
    return {FAILPOINTS: _FAILPOINTS.dump_json(list(failpoints)).decode(), HITS_FILE: str(hits_file)}


def read_hits(path: Path) -> list[Failpoint]:
    """Read which failpoints a service has hit."""
    return [_FAILPOINT.validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(slots=True)
class Injector:
    """Knows what is still ahead, and how far the transition that is being taken has come."""

    ahead: list[Failpoint]
    hits_file: Path
    round: int = 0
    here: dict[Point, Failpoint] = field(default_factory=dict)
    """What is ahead in the transition that is being taken."""
    last: Failpoint | None = None
    """What is ahead at the end of the transition that was taken."""
    delivered: bool = False
    """Whether that one has a delivery to acknowledge."""

    def begin(self, key: Key, state: Enum, event: object) -> None:
        self.round = max(self.round, key.round)
        fitting = [each for each in self.ahead if each.round <= self.round and each.fits(key, state, event)]
        self.here = {failpoint.point: failpoint for failpoint in fitting}
        self.hit(Point.BEFORE)

    def hit(self, point: Point) -> None:
        failpoint = self.here.pop(point, None)
        if failpoint is not None:
            self._act(failpoint)

    def finish(self, *, delivered: bool) -> None:
        if Point.SETTLED in self.here:
            self.last, self.delivered = self.here.pop(Point.SETTLED), delivered

    def hit_last(self, *, delivered: bool) -> None:
        failpoint = self.last
        if failpoint is not None and self.delivered is delivered:
            self.last = None
            self._act(failpoint)

    def _act(self, failpoint: Failpoint) -> None:
        self.ahead.remove(failpoint)
        with self.hits_file.open("ab") as file:
            file.write(_FAILPOINT.dump_json(failpoint) + b"\n")
        os.kill(os.getpid(), signal.SIGKILL if failpoint.action is Action.KILL else signal.SIGSTOP)


def watch_transitions(injector: Injector) -> None:
    """Watch every transition that the process's runner takes."""
    start, take = Runner.start, Runner._take
    write, settle, accept = EventLog.write, Runner._settle, Runner._accept

    async def start_watched(self: Runner, **options: Any) -> None:
        self._observer = _watched(injector, self._observer)
        await start(self, **options)

    async def take_watched(self: Runner, key: Key, event: object, turn: Any, cause: str = "") -> None:
        live = self.machines.get(key)
        if live is not None:
            injector.begin(key, live.state, event)
        await take(self, key, event, turn, cause)
        # Whoever waits for more than that the event is kept has a delivery to acknowledge.
        injector.finish(delivered=turn is not None and not turn.when_kept)

    def write_watched(self: EventLog, drafts: Sequence[Draft], relied_on: Sequence[Callable[[], None]]) -> int:
        sequence = write(self, drafts, [*relied_on, partial(injector.hit, Point.PERSISTED)])
        injector.hit(Point.KEPT)
        return sequence

    async def settle_watched(self: Runner) -> None:
        await settle(self)
        injector.hit_last(delivered=False)

    async def accept_watched(self: Runner, *delivery: Any) -> Verdict:
        verdict = await accept(self, *delivery)
        injector.hit_last(delivered=True)
        return verdict

    patches: Mapping[str, object] = {
        "start": start_watched,
        "_take": take_watched,
        "_settle": settle_watched,
        "_accept": accept_watched,
    }
    for name, patch in patches.items():
        setattr(Runner, name, patch)
    EventLog.write = write_watched  # type: ignore[method-assign]  # As above.


def _watched(injector: Injector, observer: Observer) -> Observer:
    def observe(moment: Transition) -> None:
        observer(moment)
        injector.hit(Point.PERFORMED)

    return observe


if __name__ == "__main__":
    module = sys.argv[1]
    hits_file = Path(os.environ[HITS_FILE])
    behind = read_hits(hits_file)
    failpoints = _FAILPOINTS.validate_json(os.environ[FAILPOINTS])
    watch_transitions(Injector([failpoint for failpoint in failpoints if failpoint not in behind], hits_file))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
