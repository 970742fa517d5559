"""Every transition that a service can die in, read off the tables, and why an undisturbed run may lack it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hubbub.ids import Role
from hubbub.machine.table import Kind, Stay, is_final
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Observer, Runner, Transition
from hubbub_aggregator.phases import accumulation, membership
from hubbub_coordinator.phases import round as coordinator_round
from hubbub_coordinator.phases import run as coordinator_run
from hubbub_local.federation import Parties, start_federation
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.phases import admission, catchup, participation
from hubbub_trainer.phases import round as trainer_round
from support.patience import HANG_S

KINDS: Mapping[Role, Mapping[str, Kind[Any, Any]]] = MappingProxyType(
    {
        Role.COORDINATOR: {"run": coordinator_run.KIND, "round": coordinator_round.KIND},
        Role.AGGREGATOR: {"run": membership.KIND, "phase": accumulation.KIND},
        Role.CLIENT: {
            "admission": admission.KIND,
            "run": participation.KIND,
            "round": trainer_round.KIND,
            "catchup": catchup.KIND,
        },
    }
)


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A pair of state and event that some machine has a handler for."""

    role: Role
    kind: str
    state: str
    event: str

    @property
    def recurs(self) -> bool:
        """Whether it is taken in every round, and not only once in a run."""
        once = {"run", "admission"}
        return self.kind not in once or self.event in {"RoundEnded", "PhaseEnded", "RoundOrdered", "RoundOver"}


def list_rows() -> list[Row]:
    """Every row of every table, but for those that do nothing."""
    return [
        Row(role, name, state.value, event.__name__)
        for role, kinds in KINDS.items()
        for name, kind in kinds.items()
        for state, row in kind.table.items()
        for event, move in row.items()
        if not isinstance(move, Stay)
    ]


def list_states() -> set[tuple[Role, str, str]]:
    """Every state in which a machine waits for something."""
    return {
        (role, name, state.value)
        for role, kinds in KINDS.items()
        for name, kind in kinds.items()
        for state in kind.table
        if not is_final(kind.table, state)
    }


_OVERFLOW = "takes a client that is away until its inbox overflows"
_DAMAGE = "takes a disk that damages a share set"
WHY_NOT: Mapping[str, str] = MappingProxyType(
    {
        "CancelRequested": "ends the run",
        "Failed": "a disk, a task or the service itself fails",
        "PartyRefused": "a party refuses, which ends the run",
        "PartyBroke": "a party cannot go on, which ends the run",
        "RoundBroken": "a round of ours fails, which ends the run",
        "SetSpoilt": "takes a corrupt client",
        "ChunkBroken": "takes a corrupt client",
        "OrderDeclined": "takes a corrupt coordinator",
        "OtherTranscript": "takes a corrupt aggregator",
        "Strayed": "takes a corrupt aggregator",
        "VoidConfirmed": "takes a client that is missing at a deadline",
        "VoidOrdered": "takes a client that is missing at a deadline",
        "VoidAnnounced": "takes a client that is missing at a deadline",
        "DeadlinePassed": "takes a client that is missing at a deadline",
        "Closed": "takes a client that is missing at a deadline",
        "Lost": _OVERFLOW,
        "NeverMind": _OVERFLOW,
        "SumsLost": _OVERFLOW,
        "Overtaken": _OVERFLOW,
        "AskDue": _OVERFLOW,
        "PeerVouched": _OVERFLOW,
        "SnapshotAsked": _OVERFLOW,
        "SnapshotSent": _OVERFLOW,
        "SnapshotArrived": _OVERFLOW,
        "SnapshotTaken": _OVERFLOW,
        "CaughtUp": _OVERFLOW,
        "ReceiptsDue": "takes a client that is slower than the others",
        "SetDamaged": _DAMAGE,
        "SetAskedFor": _DAMAGE,
        "SharesResent": _DAMAGE,
        "AnswerOverdue": _DAMAGE,
        "RestOverdue": "takes a strategy that goes on without some aggregators",
        "WaitIsOver": "takes a client that has lost its last sums",
        "RoundHeardOf": "takes an order to train that could not be kept at once",
        "PauseRequested": "takes an operator's word",
        "ResumeRequested": "takes an operator's word",
    }
)
"""Events of which an undisturbed run has none, and what it takes to have them."""

_ASKED_AGAIN = "asked again, because an answer was late"
_CAME_TWICE = "delivered twice"
_NEWCOMER = "takes a run that goes on from another, of which we were no part"
_EARLY = "somebody else was faster, as happens now and then"
_OLD_COPY = "takes an old copy of a trainer's folder"
WHY_SELDOM: Mapping[Row, str] = MappingProxyType(
    {
        Row(Role.COORDINATOR, "run", "enrolling", "ProposalDue"): _ASKED_AGAIN,
        Row(Role.COORDINATOR, "round", "releasing", "ReceiptArrived"): _EARLY,
        Row(Role.COORDINATOR, "round", "releasing", "UpdateApplied"): _EARLY,
        Row(Role.COORDINATOR, "round", "releasing", "ScoresReported"): _EARLY,
        Row(Role.COORDINATOR, "round", "applying", "ReceiptArrived"): _EARLY,
        Row(Role.COORDINATOR, "round", "collecting", "UpdateApplied"): "takes a client that is slow to apply",
        Row(Role.COORDINATOR, "round", "voiding", "SumReleased"): "takes a corrupt aggregator",
        Row(Role.AGGREGATOR, "run", "invited", "Ended"): "the run ends before it began",
        Row(Role.AGGREGATOR, "run", "pledged", "Proposed"): _ASKED_AGAIN,
        Row(Role.AGGREGATOR, "run", "pledged", "Ended"): "the run ends before it began",
        Row(Role.AGGREGATOR, "run", "joined", "KeysArrived"): _CAME_TWICE,
        Row(Role.AGGREGATOR, "phase", "collecting", "ChunkChecked"): "takes long chunks, or the paper's wire",
        Row(Role.AGGREGATOR, "phase", "summing", "CloseOrdered"): _CAME_TWICE,
        Row(Role.AGGREGATOR, "phase", "awaiting", "CloseOrdered"): _CAME_TWICE,
        Row(Role.AGGREGATOR, "phase", "awaiting", "ChunkArrived"): _DAMAGE,
        Row(Role.AGGREGATOR, "phase", "awaiting", "ChunkChecked"): _DAMAGE,
        Row(Role.AGGREGATOR, "phase", "awaiting", "PartialArrived"): _EARLY,
        Row(Role.AGGREGATOR, "phase", "collecting", "PartialArrived"): _EARLY,
        Row(Role.CLIENT, "admission", "invited", "Ended"): "the run ends before it began",
        Row(Role.CLIENT, "admission", "preparing", "Ended"): "the run ends before it began",
        Row(Role.CLIENT, "admission", "pledged", "Proposed"): _ASKED_AGAIN,
        Row(Role.CLIENT, "admission", "pledged", "ContributionArrived"): _EARLY,
        Row(Role.CLIENT, "admission", "pledged", "PeerConfirmed"): _EARLY,
        Row(Role.CLIENT, "admission", "pledged", "Ended"): "the run ends before it began",
        Row(Role.CLIENT, "admission", "agreeing", "ContributionArrived"): "all may have come before the keys",
        Row(Role.CLIENT, "admission", "agreeing", "KeysArrived"): _CAME_TWICE,
        Row(Role.CLIENT, "admission", "agreeing", "Ended"): "the run ends before it began",
        Row(Role.CLIENT, "admission", "inheriting", "Inherited"): _NEWCOMER,
        Row(Role.CLIENT, "admission", "inheriting", "KeysArrived"): _NEWCOMER,
        Row(Role.CLIENT, "admission", "inheriting", "Ended"): _NEWCOMER,
        Row(Role.CLIENT, "admission", "pledged", "RoundOrdered"): _OLD_COPY,
        Row(Role.CLIENT, "admission", "agreeing", "RoundOrdered"): _OLD_COPY,
        Row(Role.CLIENT, "admission", "inheriting", "RoundOrdered"): _OLD_COPY,
        Row(Role.CLIENT, "run", "joined", "KeysArrived"): _CAME_TWICE,
        Row(Role.CLIENT, "run", "leaving", "RoundOrdered"): "takes an order slower than the end of the run",
        Row(Role.CLIENT, "run", "leaving", "RoundOver"): "the others have finished without us",
        Row(Role.CLIENT, "round", "queued", "SumArrived"): "the others have finished the phase without us",
        Row(Role.CLIENT, "round", "training", "SumArrived"): "the others have finished the phase without us",
        Row(Role.CLIENT, "round", "sharing", "SumArrived"): _EARLY,
        Row(Role.CLIENT, "round", "decoding", "SumArrived"): _CAME_TWICE,
        Row(Role.CLIENT, "round", "concluding", "SumArrived"): _CAME_TWICE,
        Row(Role.CLIENT, "round", "scoring", "SumArrived"): "the others have finished the phase without us",
        Row(Role.CLIENT, "round", "closing", "SumArrived"): "takes a corrupt aggregator",
    }
)
"""Rows that an undisturbed run need not come by."""


def is_certain(row: Row) -> bool:
    """Whether every undisturbed run takes this row."""
    return row.event not in WHY_NOT and row not in WHY_SELDOM


def record_rows(manifest: Manifest, parties: Parties, folder: Path, *, demo_seed: int) -> set[Row]:
    """Run a manifest in this process and return which rows its parties took."""
    taken: set[Row] = set()

    async def run() -> None:
        loader = partial(load_task, data="digits", cache_folder=folder)
        async with (
            asyncio.timeout(HANG_S),
            start_federation(
                manifest, parties=parties, folder=folder, load_task=loader, demo_seed=demo_seed
            ) as federation,
        ):
            _record_into(taken, Role.COORDINATOR, [federation.coordinator.runner])
            _record_into(taken, Role.AGGREGATOR, [each.runner for each in federation.aggregators])
            _record_into(taken, Role.CLIENT, [each.runner for each in federation.trainers])
            await federation.run(manifest)

    asyncio.run(run())
    return taken


def _record_into(taken: set[Row], role: Role, runners: Iterable[Runner]) -> None:
    for runner in runners:
        runner._observer = _recording(taken, role, runner._observer)


def _recording(taken: set[Row], role: Role, observer: Observer) -> Observer:
    def observe(moment: Transition) -> None:
        taken.add(Row(role, moment.key.kind, moment.before.value, type(moment.event).__name__))
        observer(moment)

    return observe
