"""What can go wrong, as data: a history prints as what plays it again."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hubbub.ids import WireMode

Place = Literal["commit", "file", "publish", "ack"]
"""Where a party can die: at a commit, at a change to a file or its sync, when it sends, when it acknowledges."""
Moment = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Crash:
    """A party dies at the nth time that it is at such a place, and is started again later.

    If its machine dies with it, whatever was not synced is lost; otherwise the operating system still has it.
    """

    party: str
    when: Moment
    place: Place
    nth: int
    down_s: float
    power: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """A party dies at some moment, whatever it is doing."""

    party: str
    at_s: float
    down_s: float
    power: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """The broker does not take a party's nth message, nor as many after it; the sender is told."""

    party: str
    nth: int
    times: int


@dataclass(frozen=True, slots=True)
class LoseConfirmation:
    """The broker takes a party's nth message, and the sender is told that it was lost."""

    party: str
    nth: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A party's nth message comes a second time, perhaps much later."""

    party: str
    nth: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Delay:
    """A party's nth message takes long on its way to the broker."""

    party: str
    nth: int
    for_s: float


@dataclass(frozen=True, slots=True)
class Postpone:
    """The nth message that comes to a party is put off so many times, so that others overtake it."""

    party: str
    nth: int
    times: int


@dataclass(frozen=True, slots=True)
class LoseAck:
    """A party's nth acknowledgement does not arrive: all that it holds is delivered again."""

    party: str
    nth: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A party neither sends nor receives for a while."""

    party: str
    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Overflow:
    """A client neither sends nor receives for a while, in which its inbox keeps only the newest few messages."""

    party: str
    at_s: float
    for_s: float
    keeps: int


@dataclass(frozen=True, slots=True)
class Damage:
    """An aggregator's disk changes a bit of every share that is spooled there just then.

    None is drawn at random: with a client that is away for long, or loses the request, the run may rightly fail.
    """

    party: str
    at_s: float


@dataclass(frozen=True, slots=True)
class StopBroker:
    """Nobody does."""

    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """An operator ends the run."""

    at_s: float


Operation = (
    Crash
    | Kill
    | Refuse
    | LoseConfirmation
    | Duplicate
    | Delay
    | Postpone
    | LoseAck
    | Cut
    | Overflow
    | Damage
    | StopBroker
    | Cancel
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run and all that goes wrong in it; the seed paces messages and threads, and nothing else."""

    seed: int
    strategy: str
    min_clients: int
    operations: tuple[Operation, ...]
    wire: WireMode = "paper"

    def __str__(self) -> str:
        """The call that plays it again."""
        lines = "".join(f"            {each!r},\n" for each in self.operations)
        return (
            f"play(\n    History(\n        seed={self.seed},\n        strategy={self.strategy!r},\n"
            f"        min_clients={self.min_clients},\n        operations=(\n{lines}        ),\n"
            f"        wire={self.wire!r},\n    )\n)"
        )


COORDINATOR, AGGREGATORS = "coordinator", ("aggregator-1", "aggregator-2")
CLIENTS = ("client-1", "client-2", "client-3")
PARTIES = (COORDINATOR, *AGGREGATORS, *CLIENTS)
STRATEGIES = ("no-union", "sec-union", "sec-union", "partial-sec-union", "shared-mask", "secure-fedavg")

# How often a party of each kind is at each place in an undisturbed run of two phases; what is drawn beyond that
# happens only if something else has gone wrong before.
_OFTEN: Mapping[str, Mapping[Place, int]] = {
    "coordinator": {"commit": 90, "file": 20, "publish": 50, "ack": 80},
    "aggregator": {"commit": 180, "file": 130, "publish": 50, "ack": 40},
    "client": {"commit": 90, "file": 110, "publish": 50, "ack": 50},
}
_LONG_S = 120.0
_POWER_FAILS = 0.7


def draw(seed: int) -> History:
    """The history of a seed."""
    dice = random.Random(seed)
    count = dice.choice((1, 2, 2, 3, 3, 4, 5, 6, 8, 12))
    return History(
        seed=seed,
        strategy=dice.choice(STRATEGIES),
        min_clients=dice.choice((2, 2, 3)),
        operations=tuple(_draw_one(dice) for _ in range(count)),
        wire=dice.choice(get_args(WireMode)),
    )


def _draw_one(dice: random.Random) -> Operation:
    party = dice.choice(PARTIES)
    often = _OFTEN[party.split("-")[0]]
    sent, received = (dice.randint(1, often[place]) for place in ("publish", "ack"))
    at_s, for_s = _draw_time(dice, 20.0), _draw_time(dice, _LONG_S)
    power = dice.random() < _POWER_FAILS
    makers: tuple[tuple[int, Callable[[], Operation]], ...] = (
        (40, lambda: _draw_crash(dice, party, for_s)),
        (5, lambda: Kill(party, at_s, down_s=for_s, power=power)),
        (4, lambda: Refuse(party, sent, times=dice.choice((1, 2, 5)))),
        (6, lambda: LoseConfirmation(party, sent)),
        (8, lambda: Duplicate(party, sent, after_s=for_s)),
        (8, lambda: Delay(party, sent, for_s=for_s)),
        (8, lambda: Postpone(party, received, times=dice.choice((1, 3, 6, 9)))),
        (6, lambda: LoseAck(party, received)),
        (8, lambda: Cut(party, at_s, for_s=for_s)),
        (3, lambda: StopBroker(at_s, for_s=for_s)),
        (1, lambda: Cancel(at_s)),
        (8, lambda: Overflow(dice.choice(CLIENTS), at_s, for_s, keeps=dice.choice((1, 3, 9)))),
    )
    return dice.choices([make for _, make in makers], [weight for weight, _ in makers])[0]()


def _draw_crash(dice: random.Random, party: str, down_s: float) -> Crash:
    often = _OFTEN[party.split("-", maxsplit=1)[0]]
    place = dice.choice(tuple(often))
    when: Moment = dice.choice(("before", "after"))
    power = dice.random() < _POWER_FAILS
    return Crash(party, when, place, dice.randint(1, often[place]), down_s=down_s, power=power)


def _draw_time(dice: random.Random, most_s: float) -> float:
    """As often a moment as minutes."""
    return round(most_s * dice.random() ** 3, 2)
