"""The engine, on a door that can be opened, closed and bricked up."""

from dataclasses import dataclass, replace
from enum import Enum, auto

import pytest

from hubbub.errors import LocalError, PeerError, RejectReason, UnexpectedEvent
from hubbub.machine.effects import Effect, Key
from hubbub.machine.table import STAY, Step, Table, To, draw, is_final, stay, step
from support.builders import make_manifest


class State(Enum):
    OPEN = auto()
    SHUT = auto()
    WALL = auto()


@dataclass(frozen=True)
class Door:
    pushes: int = 0


class Push: ...


class HardPush(Push): ...


@dataclass(frozen=True)
class Brick:
    lands_in: State = State.WALL


class Knock: ...


class Kick: ...


@dataclass(frozen=True)
class Creak(Effect):
    loudness: int


def shut(data: Door, event: Push) -> Step[State, Door]:
    del event
    door = replace(data, pushes=data.pushes + 1)
    return Step(State.SHUT, door, (Creak(1), Creak(door.pushes)))


def brick_up(data: Door, event: Brick) -> Step[State, Door]:
    return Step(event.lands_in, data)


def resist(data: Door, event: Kick) -> Step[State, Door]:
    del data, event
    raise PeerError(RejectReason.UNEXPECTED, "no kicking")


DOOR: Table[State, Door] = {
    State.OPEN: {Push: To(shut, State.SHUT), Knock: STAY, Kick: To(resist, State.SHUT)},
    State.SHUT: {Brick: To(brick_up, State.WALL, State.SHUT)},
    State.WALL: {},
}


def test_step_gives_state_data_and_effects_in_the_handlers_order_or_changes_nothing() -> None:
    door = Door(pushes=4)

    ignored = step(DOOR, State.OPEN, door, Knock())

    assert step(DOOR, State.OPEN, door, Push()) == Step(State.SHUT, Door(pushes=5), (Creak(1), Creak(5)))
    assert ignored == Step(State.OPEN, door)
    assert ignored.data is door
    with pytest.raises(PeerError, match="no kicking"):
        step(DOOR, State.OPEN, door, Kick())
    assert door == Door(pushes=4), "a handler that raises leaves the data as it was"


def test_a_step_that_stays_keeps_whichever_state_it_is_if_its_row_lists_it() -> None:
    def creak(data: Door, event: Knock) -> Step[State, Door]:
        del event
        return stay(data, Creak(2)).first(Creak(1)).then(Creak(3))

    def table(target: State) -> Table[State, Door]:
        return {state: {Knock: To(creak, target)} for state in State}

    for state in State:
        assert step(table(state), state, Door(), Knock()) == Step(state, Door(), (Creak(1), Creak(2), Creak(3)))
    with pytest.raises(LocalError, match="creak led from SHUT to SHUT"):
        step(table(State.OPEN), State.SHUT, Door(), Knock())


# Every pair that the table does not have; a subclass of a listed event is another event.
UNLISTED = [
    (state, event)
    for state in State
    for event in (Push(), HardPush(), Brick(), Knock(), Kick(), "no event at all")
    if type(event) not in DOOR[state]
]


def test_an_unlisted_pair_is_refused_and_both_are_named() -> None:
    for state, event in UNLISTED:
        with pytest.raises(UnexpectedEvent, match=f"{type(event).__name__} is not expected in state {state.name}"):
            step(DOOR, state, Door(), event)


def test_a_handler_may_lead_to_each_state_of_its_row_and_to_no_other() -> None:
    for target in (State.WALL, State.SHUT):
        assert step(DOOR, State.SHUT, Door(), Brick(lands_in=target)).state is target
    with pytest.raises(LocalError, match="brick_up led from SHUT to OPEN") as caught:
        step(DOOR, State.SHUT, Door(), Brick(lands_in=State.OPEN))
    assert not isinstance(caught.value, UnexpectedEvent)


def test_drawing_shows_every_move_and_lists_what_is_ignored_and_an_empty_row_is_final() -> None:
    assert [state for state in State if is_final(DOOR, state)] == [State.WALL]
    assert draw(DOOR, State.OPEN) == (
        "stateDiagram-v2\n"
        "    [*] --> OPEN\n"
        "    OPEN --> SHUT: Push<br/>Kick\n"
        "    SHUT --> WALL: Brick\n"
        "    WALL --> [*]\n"
        "    %% OPEN ignores Knock\n"
        "    %% SHUT keeps on Brick\n"
    )


def test_key_prints_what_it_is_about_and_no_more() -> None:
    run = make_manifest().run_id

    assert str(Key("run", run)) == f"run {run[:12]}"
    assert str(Key("accumulation", run, 3, "signs")) == f"accumulation {run[:12]} round 3 signs"
