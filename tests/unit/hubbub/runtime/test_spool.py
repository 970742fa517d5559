import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.errors import Code, StorageDamaged, StorageFailed
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.runtime.spool import ChunkRef, Spool
from support.spooled import spooled_in

RUN = RunId("a" * 64)
KEY = Key("accumulation", RUN, 1, "signs")
SET = "5e" * 16


def ref(sender: str = "client-1", index: int = 0, set_id: str = SET) -> ChunkRef:
    return ChunkRef(sender, set_id, index)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def slot_in(folder: Path) -> Path:
    """The only file there."""
    (name,) = files_in(folder)
    return folder / name


def run_out_of_space(handle: int) -> None:
    del handle
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_written_first_is_read_by_the_next_process_too(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    refs = [ref(), ref(index=1), ref(sender="client-2"), ref(set_id="00" * 16)]
    keys = [KEY, Key("accumulation", RUN, 2, "signs"), Key("accumulation", RUN, 1, "union"), Key("round", RUN, 3)]

    for key in keys:
        for each in refs:
            spool.write(key, each, f"{key} {each}".encode())

    spool.write(KEY, ref(), b"the first write wins")
    for each_spool in (spool, Spool(tmp_path / "spool")):
        for key in keys:
            for each in refs:
                assert each_spool.read(key, each) == f"{key} {each}".encode()


def test_a_write_that_fails_leaves_nothing_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", run_out_of_space)
        for _ in range(3):
            with pytest.raises(StorageFailed, match="takes no more: No space left on device"):
                spool.write(KEY, ref(), b"half of a sha")
    with pytest.raises(StorageDamaged):
        spool.read(KEY, ref())

    spool.write(KEY, ref(), b"all of a share")
    assert spool.read(KEY, ref()) == b"all of a share"
    assert slot_in(tmp_path), "its slot is used again"


@pytest.mark.parametrize("left", range(60))
def test_what_a_killed_process_left_half_written_is_not_read_and_is_overwritten(tmp_path: Path, left: int) -> None:
    Spool(tmp_path).write(KEY, ref(), b"whole")
    slot = slot_in(tmp_path)
    assert slot.stat().st_size > left
    os.truncate(slot, left)
    spool = Spool(tmp_path)

    with pytest.raises(StorageDamaged):
        spool.read(KEY, ref())
    spool.write(KEY, ref(), b"whole again")

    assert spool.read(KEY, ref()) == b"whole again"
    assert Spool(tmp_path).read(KEY, ref()) == b"whole again"
    assert len(files_in(tmp_path)) == 1


def test_what_a_process_finds_is_replaced_by_what_comes_again(tmp_path: Path) -> None:
    """A crash may leave a slot of the right length with anything in it; whose event is kept comes no more."""
    Spool(tmp_path).write(KEY, ref(), b"garbage")
    spool = Spool(tmp_path)
    assert spool.read(KEY, ref()) == b"garbage"

    spool.write(KEY, ref(), b"good")
    spool.write(KEY, ref(), b"second")

    assert spool.read(KEY, ref()) == b"good"
    assert Spool(tmp_path).read(KEY, ref()) == b"good"
    assert len(files_in(tmp_path)) == 1


def flipped(content: bytes, place: int) -> bytes:
    """The content with one bit of a byte turned over."""
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def place_of_damage(spool: Spool) -> str:
    """The file that an operator is told of when a chunk cannot be read."""
    with pytest.raises(StorageDamaged, match="look whether its disk is failing, and begin another run") as caught:
        spool.read(KEY, ref())
    assert caught.value.code is Code.DISK_FAILED
    return str(caught.value).split(" ")[0]


def test_a_flipped_bit_is_found_and_its_file_named(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.write(KEY, ref(), b"a share that must not change")
    slot = slot_in(tmp_path)
    content, number_bytes = slot.read_bytes(), 8

    for place in range(number_bytes, len(content)):
        slot.write_bytes(flipped(content, place))
        assert place_of_damage(spool) == str(slot), place
        # Who starts anew and finds another name in it knows the folder alone.
        assert place_of_damage(Spool(tmp_path)) in {str(slot), str(slot.parent)}, place
    slot.write_bytes(content)
    assert spool.read(KEY, ref()) == Spool(tmp_path).read(KEY, ref()) == b"a share that must not change"


def test_a_slot_that_is_gone_is_named(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.write(KEY, ref(), b"share")
    slot = slot_in(tmp_path)
    slot.unlink()

    assert place_of_damage(spool) == str(slot)
    assert place_of_damage(Spool(tmp_path)) == str(slot.parent)
    spool.drop(KEY)
    spool.write(KEY, ref(), b"next")
    assert spool.read(KEY, ref()) == b"next"


@pytest.mark.parametrize("successor", [False, True])
def test_the_file_and_every_folder_above_it_are_synced_by_a_successor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, successor: bool
) -> None:
    if successor:
        Spool(tmp_path).write(KEY, ref(), b"share")
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(os.fstat(handle).st_ino))
    Spool(tmp_path).write(KEY, ref(), b"share")

    (slot,) = (tmp_path / RUN).iterdir()
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / RUN, slot)} <= synced


def test_many_chunks_take_few_syncs_of_the_folder_and_the_spare_slots_are_filled_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, synced = Spool(tmp_path), list[Path]()
    spool.write(KEY, ref(), b"the first makes the folder")
    monkeypatch.setattr("hubbub.runtime.spool.sync_folder", synced.append)

    for number in range(1, 100):
        spool.write(KEY, ref(index=number), b"%d" % number)
    made = files_in(tmp_path)
    again = Spool(tmp_path)
    for number in range(100, len(made)):
        again.write(KEY, ref(index=number), b"%d" % number)

    assert synced.count(tmp_path / RUN) == 8, "1, 2, 4, 8, 16, 32, 64 slots are there, and once at the restart"
    assert files_in(tmp_path) == made
    assert [again.read(KEY, ref(index=number)) for number in (1, 99, 100)] == [b"1", b"99", b"100"]


def test_a_slot_is_emptied_and_filled_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.write(KEY, ref(index=0), b"a long share")
    spool.write(KEY, ref(index=1), b"another share")
    files = files_in(tmp_path)

    spool.drop(KEY)
    assert [(tmp_path / name).read_bytes() for name in files] == [b"", b""], "nothing stays behind"
    spool.write(replace(KEY, round=2), ref(), b"short")

    assert files_in(tmp_path) == files
    assert spool.read(replace(KEY, round=2), ref()) == b"short"
    assert sorted(spooled_in(tmp_path).values()) == [b"short"]
    with pytest.raises(StorageDamaged):
        spool.read(KEY, ref())


@pytest.mark.parametrize("first_freed", [True, False])
def test_of_two_slots_with_the_same_chunk_the_later_one_counts(tmp_path: Path, *, first_freed: bool) -> None:
    """A power failure may bring back what was dropped, after the same chunk has come once more."""
    spool, other = Spool(tmp_path), ref("client-2")
    for each in (ref(), other) if first_freed else (other, ref()):
        spool.write(KEY, each, b"dropped")
    before = {path: path.read_bytes() for path in (tmp_path / RUN).iterdir()}
    spool.drop(KEY)
    spool.write(KEY, ref(), b"came again")
    (filled,) = (path for path in before if path.stat().st_size)
    for path, content in before.items():
        if path != filled:
            path.write_bytes(content)

    again = Spool(tmp_path)

    assert again.read(KEY, ref()) == b"came again"
    again.write(replace(KEY, round=2), ref(), b"next")
    assert Spool(tmp_path).read(KEY, ref()) == b"came again"


def test_dropping_a_sender_a_phase_a_round_or_a_run_drops_no_more(tmp_path: Path) -> None:
    spool, other_run = Spool(tmp_path), Key("a", RunId("b" * 64), 1, "signs")
    chunks = [
        (KEY, ref("client-1")),
        (KEY, ref("client-10")),
        (Key("a", RUN, 1, "signs-again"), ref()),
        (Key("a", RUN, 11, "signs"), ref()),
        (other_run, ref()),
    ]
    spool.drop(KEY)  # There is nothing yet.
    for key, each in chunks:
        spool.write(key, each, b"x")

    def left() -> list[tuple[Key, ChunkRef]]:
        found = []
        for key, each in chunks:
            with suppress(StorageDamaged):
                spool.read(key, each)
                found.append((key, each))
        assert len(spooled_in(tmp_path)) == len(found)
        return found

    spool.drop(KEY, "client-1")
    assert left() == chunks[1:]
    spool.drop(KEY)
    assert left() == chunks[2:]
    spool.drop_round(KEY)
    assert left() == chunks[3:]
    spool.drop_run(KEY)
    assert left() == chunks[4:]
    assert len(files_in(tmp_path)) == 1
    spool.write(KEY, ref(), b"again")
    assert spool.read(KEY, ref()) == b"again"
