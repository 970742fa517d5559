"""Draw every state machine into docs/states.md, from the tables that the services run on."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from hubbub.machine.table import Kind, Table, draw
from hubbub_aggregator import events as aggregator_events
from hubbub_aggregator.phases import accumulation, membership
from hubbub_coordinator import events as coordinator_events
from hubbub_coordinator.phases import round as coordinator_round
from hubbub_coordinator.phases import run as coordinator_run
from hubbub_trainer import events as trainer_events
from hubbub_trainer.phases import admission, catchup, participation
from hubbub_trainer.phases import round as trainer_round

TARGET = Path(__file__).parent.parent / "docs" / "states.md"

OPENING = """\
# State machines

Every party is a few small machines. Each is a table in the code: for each state, for each event, a handler and
every state that it may lead to. The pictures below are drawn from those tables by `make docs`.

A pair of state and event that is neither drawn nor listed below the picture is refused and leaves the machine as
it was: such a message ends in the dead-letter queue.
"""
KEEPS = "Handled, and the state may stay the same"
IGNORES = "Changes nothing, because messages may be late or delivered twice"


@dataclass(frozen=True, slots=True)
class Machine:
    """State machine, the module that declares it, and its service's events."""

    title: str
    module: ModuleType
    events: ModuleType

    # Machines of different types are listed together here, as in the runner.
    @property
    def kind(self) -> Kind[Any, Any]:
        """Kind that the service runs."""
        kind: Kind[Any, Any] = self.module.KIND
        return kind

    @property
    def table(self) -> Table[Any, Any]:
        """Transition table."""
        return self.kind.table

    @property
    def initial(self) -> Enum:
        """Initial state."""
        initial: Enum = self.kind.initial
        return initial


MACHINES = (
    Machine("Coordinator: a run", coordinator_run, coordinator_events),
    Machine("Coordinator: a round", coordinator_round, coordinator_events),
    Machine("Aggregator: its part in a run", membership, aggregator_events),
    Machine("Aggregator: a phase", accumulation, aggregator_events),
    Machine("Trainer: its admission to a run", admission, trainer_events),
    Machine("Trainer: its part in a run", participation, trainer_events),
    Machine("Trainer: a round", trainer_round, trainer_events),
    Machine("Trainer: catching up", catchup, trainer_events),
)


def write_page() -> str:
    """Return the whole page, as Markdown."""
    return "\n".join([OPENING, *(line for machine in MACHINES for line in _write_machine(machine))])


def _write_machine(machine: Machine) -> Iterator[str]:
    """Yield a heading, the module's description, the events that change nothing, and the diagram."""
    summary, states = _opening_words(machine.module)
    picture = draw(machine.table, machine.initial).splitlines()
    comments = [line.strip().removeprefix("%% ") for line in picture if line.strip().startswith("%%")]
    drawn = [line for line in picture if not line.strip().startswith("%%")]
    yield f"## {machine.title}\n"
    yield f"{summary} (`{machine.module.__name__}`)\n"
    yield f"```text\n{states}\n```\n"
    yield "\n".join(["```mermaid", *drawn, "```"]) + "\n"
    for verb, title in (("keeps on", KEEPS), ("ignores", IGNORES)):
        lines = _by_state(comments, verb)
        if lines:
            yield f"{title}:\n"
            yield "\n".join(f"- {line}" for line in lines) + "\n"


def _opening_words(module: ModuleType) -> tuple[str, str]:
    """Return the docstring's first paragraph and its list of states."""
    summary, states, *_ = (module.__doc__ or "").split("\n\n")
    lines = [line.removeprefix("    ") for line in states.splitlines()]
    return summary.replace("\n", " "), "\n".join(lines)


def _by_state(comments: list[str], verb: str) -> list[str]:
    """Group the events of these comments into one line per state: "RUNNING: PartyJoined, ProposalDue"."""
    found: dict[str, list[str]] = {}
    for comment in comments:
        state, separator, event = comment.partition(f" {verb} ")
        if separator:
            found.setdefault(state, []).append(event)
    return [f"{state}: {', '.join(events)}" for state, events in found.items()]


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(write_page(), encoding="utf-8")
    print(f"wrote {TARGET}")
