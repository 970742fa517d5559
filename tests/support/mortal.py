"""`python -m support.mortal hubbub_aggregator`: a service that meets its fate in the middle of a transition.

The fates come in a variable of this wrapper's own, so that no service has a switch for it. Each is met once: it is
written into a diary first, and the process that is started in place of the dead one reads there what is behind it.
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

FATES = "MORTAL_FATES"
DIARY = "MORTAL_DIARY"


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


class Blow(StrEnum):
    """What happens there."""

    KILL = "kill"
    HALT = "halt"
    """Stand still until somebody says SIGCONT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The blow that a service is dealt at one point of one transition."""

    kind: str
    state: str
    event: str
    point: Point
    round: int = 0
    """Not before this round has begun."""
    phase: str = ""
    """In this phase alone; in any if empty."""
    blow: Blow = Blow.KILL

    def fits(self, key: Key, state: Enum, event: object) -> bool:
        here = (key.kind, state.value, type(event).__name__)
        return here == (self.kind, self.state, self.event) and self.phase in {"", key.phase}


_FATE = TypeAdapter(Fate)
_ALL_FATES = TypeAdapter(list[Fate])


def environment_for(fates: Sequence[Fate], diary: Path) -> dict[str, str]:
    """What this wrapper is to be started with."""
    return {FATES: _ALL_FATES.dump_json(list(fates)).decode(), DIARY: str(diary)}


def read_diary(path: Path) -> list[Fate]:
    """What a service has been through."""
    return [_FATE.validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(slots=True)
class Mortal:
    """Knows what is still ahead, and how far the transition that is being taken has come."""

    ahead: list[Fate]
    diary: Path
    round: int = 0
    here: dict[Point, Fate] = field(default_factory=dict)
    """What is ahead in the transition that is being taken."""
    last: Fate | None = None
    """What is ahead at the end of the transition that was taken."""
    delivered: bool = False
    """Whether that one has a delivery to acknowledge."""

    def begin(self, key: Key, state: Enum, event: object) -> None:
        self.round = max(self.round, key.round)
        fitting = [each for each in self.ahead if each.round <= self.round and each.fits(key, state, event)]
        self.here = {fate.point: fate for fate in fitting}
        self.meet(Point.BEFORE)

    def meet(self, point: Point) -> None:
        fate = self.here.pop(point, None)
        if fate is not None:
            self._suffer(fate)

    def finish(self, *, delivered: bool) -> None:
        if Point.SETTLED in self.here:
            self.last, self.delivered = self.here.pop(Point.SETTLED), delivered

    def meet_last(self, *, delivered: bool) -> None:
        fate = self.last
        if fate is not None and self.delivered is delivered:
            self.last = None
            self._suffer(fate)

    def _suffer(self, fate: Fate) -> None:
        self.ahead.remove(fate)
        with self.diary.open("ab") as file:
            file.write(_FATE.dump_json(fate) + b"\n")
        os.kill(os.getpid(), signal.SIGKILL if fate.blow is Blow.KILL else signal.SIGSTOP)


def inhabit(mortal: Mortal) -> None:
    """Watch every transition that the process's runner takes."""
    start, take = Runner.start, Runner._take
    write, settle, accept = EventLog.write, Runner._settle, Runner._accept

    async def start_watched(self: Runner, **options: Any) -> None:
        self._observer = _watched(mortal, self._observer)
        await start(self, **options)

    async def take_watched(self: Runner, key: Key, event: object, turn: Any, cause: str = "") -> None:
        live = self.machines.get(key)
        if live is not None:
            mortal.begin(key, live.state, event)
        await take(self, key, event, turn, cause)
        # Whoever waits for more than that the event is kept has a delivery to acknowledge.
        mortal.finish(delivered=turn is not None and not turn.when_kept)

    def write_watched(self: EventLog, drafts: Sequence[Draft], relied_on: Sequence[Callable[[], None]]) -> int:
        sequence = write(self, drafts, [*relied_on, partial(mortal.meet, Point.PERSISTED)])
        mortal.meet(Point.KEPT)
        return sequence

    async def settle_watched(self: Runner) -> None:
        await settle(self)
        mortal.meet_last(delivered=False)

    async def accept_watched(self: Runner, *delivery: Any) -> Verdict:
        verdict = await accept(self, *delivery)
        mortal.meet_last(delivered=True)
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


def _watched(mortal: Mortal, observer: Observer) -> Observer:
    def observe(moment: Transition) -> None:
        observer(moment)
        mortal.meet(Point.PERFORMED)

    return observe


if __name__ == "__main__":
    module = sys.argv[1]
    diary = Path(os.environ[DIARY])
    behind = read_diary(diary)
    fates = _ALL_FATES.validate_json(os.environ[FATES])
    inhabit(Mortal([fate for fate in fates if fate not in behind], diary))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
