"""One machine, fed event by event, with the effects that come out.

A script is a table of rows: an event and what is expected of it. That is the effects, all of them and in order,
after the state if another one is entered; or IGNORED, if nothing changes; or the reason of a `PeerError`, which
changes nothing either; or `...`, if the row only leads to the next one.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Any, Generic, TypeVar

import pytest

from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import CountRefusal, Effect, Publish, TellOwner
from hubbub.machine.table import Kind, step
from hubbub.messages.envelope import Message

S = TypeVar("S", bound=Enum)
D = TypeVar("D")

IGNORED = object()
Row = tuple[object, ...]


class MachinePlay(Generic[S, D]):
    """A machine of any kind."""

    def __init__(self, kind: Kind[S, D], data: D, coordinator: PartyId) -> None:
        self.kind = kind
        self.state = kind.initial
        self.data = data
        self.effects: tuple[Effect, ...] = ()
        self._coordinator = coordinator

    def feed(self, *events: object) -> None:
        for event in events:
            result = step(self.kind.table, self.state, self.data, event)
            self.state, self.data, self.effects = result.state, result.data, result.effects

    def at(self, state: S) -> None:
        assert self.state is state

    def expect(self, state: S, *effects: object) -> None:
        """The last event led here, and asked for these effects alone."""
        assert (self.state, self.effects) == (state, effects)

    def ignores(self, *events: object) -> None:
        for event in events:
            before = self.state, self.data
            self.feed(event)
            assert (self.state, self.data, self.effects) == (*before, ()), event

    def refuses(self, event: object, reason: RejectReason, match: str | None = None) -> None:
        before = self.state, self.data
        with pytest.raises(PeerError, match=match) as caught:
            self.feed(event)
        assert (caught.value.reason, self.state, self.data) == (reason, *before)

    def follow(self, script: Iterable[Row]) -> None:
        for event, *expected in script:
            state: object = self.state
            if expected == [IGNORED]:
                self.ignores(event)
            elif expected and isinstance(expected[0], RejectReason):
                self.refuses(event, expected[0])
            else:
                self.feed(event)
                moves = bool(expected) and isinstance(expected[0], Enum)
                wanted = expected if moves else [state, *expected]
                assert expected == [...] or [self.state, *self.effects] == wanted, event

    def resumed(self) -> list[Effect]:
        return list(self.kind.resume(self.state, self.data))

    def of(self, kind: type[Any]) -> list[Any]:
        """The effects of one type."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def said(self) -> list[Message]:
        """What the coordinator is told."""
        return [each.body for each in self.of(Publish) if each.to == self._coordinator]

    def logged(self) -> str:
        """The one sentence for our own log."""
        refusals = [effect.explanation for effect in self.of(CountRefusal)]
        (sentence,) = refusals + [effect.sentence for effect in self.of(TellOwner)]
        return str(sentence)
