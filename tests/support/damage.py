"""Disks that lose files, or bits of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.machine.effects import Key
from hubbub.runtime.spool import ChunkRef, Spool

Damage = Callable[[Path], None]


def full_slots(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.slot") if path.stat().st_size]


def flip(slot: Path) -> None:
    content = slot.read_bytes()
    slot.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


DAMAGES = [pytest.param(flip, id="flipped"), pytest.param(Path.unlink, id="gone")]


def damage_writes(monkeypatch: pytest.MonkeyPatch, damage: Damage, is_bad: Callable[[ChunkRef], bool]) -> None:
    """A disk that keeps some chunks badly, from the moment that they are written."""
    write = Spool.write

    def write_badly(spool: Spool, key: Key, ref: ChunkRef, payload: bytes) -> None:
        before = {each: each.stat().st_mtime_ns for each in full_slots(spool._folder)}
        write(spool, key, ref, payload)
        if is_bad(ref):
            (slot,) = [each for each in full_slots(spool._folder) if before.get(each) != each.stat().st_mtime_ns]
            damage(slot)

    monkeypatch.setattr(Spool, "write", write_badly)
