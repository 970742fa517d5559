"""A run of nine rounds, as the machines of a trainer's admission and of its participation see it."""

from typing import Any

from hubbub.errors import Code
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Publish, Record
from hubbub.messages.runs import PartyFailed
from hubbub_trainer.events import KeysArrived, SnapshotAsked
from hubbub_trainer.phases.participation import ReportOldCopy
from support.builders import make_manifest
from support.machine_play import MachinePlay

MANIFEST = make_manifest(rounds=9)
ME, SECOND, THIRD = MANIFEST.clients
KEYS = KeysArrived(
    publics={name: name.encode() for name in (*MANIFEST.clients, *MANIFEST.aggregators)}, keys_sha256="ab" * 32
)
OTHER_KEYS = KeysArrived(publics=KEYS.publics, keys_sha256="cd" * 32)
LEFT, FAILED, COMPLETED = (Record("ended", {"outcome": each}) for each in ("left", "failed", "completed"))


def asked(client: PartyId, giver: PartyId, after: int) -> SnapshotAsked:
    return SnapshotAsked(client=client, giver=giver, after=after)


def check_old_copy(play: MachinePlay[Any, Any], attended: int) -> None:
    """The trainer leaves: it is said to have taken part in a round that it never began."""
    report, told, record = play.effects
    assert isinstance(report, ReportOldCopy)
    assert f"took part in round {attended}" in report.evidence
    assert told == Publish(MANIFEST.coordinator, Role.COORDINATOR, PartyFailed(code=Code.DISK_OLD))
    assert record == FAILED, "no model is kept, and nothing is set up or asked for"
