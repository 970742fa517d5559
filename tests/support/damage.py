"""Disks that lose files, or bits of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.machine.effects import Key, Persist
from hubbub.runtime.spool import ChunkRef, Spool
from hubbub_aggregator.phases.accumulation import RecordVerdict
from hubbub_aggregator.service import Aggregator

Damage = Callable[[Path], None]


def full_slots(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.slot") if path.stat().st_size]


def flip(slot: Path) -> None:
    content = slot.read_bytes()
    slot.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


DAMAGES = [pytest.param(flip, id="flipped"), pytest.param(Path.unlink, id="gone")]


def damage_spooled(spool: Spool, key: Key, damage: Damage, is_bad: Callable[[str], bool]) -> None:
    """Damage the chunks of a machine whose names are bad."""
    slots = dict(spool._runs[key.run].slots)
    for name, slot in slots.items():
        if name.startswith(f"{key.round}.{key.phase}.") and is_bad(name):
            damage(slot)


def damage_writes(monkeypatch: pytest.MonkeyPatch, damage: Damage, is_bad: Callable[[ChunkRef], bool]) -> None:
    """Have a disk that keeps some chunks badly, from the moment that they are written."""
    write = Spool.write

    def write_badly(spool: Spool, key: Key, ref: ChunkRef, payload: bytes) -> None:
        write(spool, key, ref, payload)
        if is_bad(ref):
            damage_spooled(spool, key, damage, lambda name: name.endswith(f".{ref.set_id}-{ref.index:08d}"))

    monkeypatch.setattr(Spool, "write", write_badly)


def damage_members(monkeypatch: pytest.MonkeyPatch, damage: Damage) -> None:
    """Have the disks of all aggregators damage the members' shares as soon as a release is journalled."""
    persist = Aggregator.persist

    def persist_and_damage(aggregator: Aggregator, key: Key, effect: Persist, payload: bytes) -> None:
        persist(aggregator, key, effect, payload)
        if isinstance(effect, RecordVerdict):
            members = effect.members
            if any(not each.seed for each in aggregator._accumulation(key).sets.values()):
                damage_spooled(aggregator._spool, key, damage, lambda name: name.split(".")[2] in members)

    monkeypatch.setattr(Aggregator, "persist", persist_and_damage)
