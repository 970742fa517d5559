"""Files that are written whole, and whose eyes a secret file is for."""

import os
import stat
from pathlib import Path

import pytest

from hubbub.disk import is_open_to_others, replacing

US = 1000
ROOT = 0


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, draft, synced = tmp_path / "file.json", tmp_path / "file.json.part", list[tuple[int, bool]]()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, path.exists())))
    draft.write_bytes(b"left by a process that was killed")
    with replacing(path) as file:
        file.write(b"first")
        assert not path.exists()
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    # The content before it has its name, the name after.
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file.json": b"first"}

    path.chmod(0o640)
    with replacing(path, like=path.stat()) as file:
        file.write(b"second")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"second", 0o640)


@pytest.mark.parametrize(
    ("who", "owner", "closed", "open_to_others"),
    [
        (US, US, (0o400, 0o600, 0o700), (0o640, 0o440, 0o620, 0o610, 0o604, 0o602, 0o601)),
        # A file of root's may be handed to us by a group that reads it.
        (US, ROOT, (0o400, 0o600, 0o700, 0o440, 0o640), (0o460, 0o660, 0o450, 0o444, 0o442, 0o441, 0o644)),
        (ROOT, ROOT, (0o400,), (0o440,)),
    ],
    ids=["ours", "handed-to-us", "root"],
)
def test_a_secret_is_for_its_owner(
    monkeypatch: pytest.MonkeyPatch, who: int, owner: int, closed: tuple[int, ...], open_to_others: tuple[int, ...]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: who)

    def is_open(mode: int) -> bool:
        return is_open_to_others(os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 1000, 0, 0, 0, 0)))

    assert {mode: is_open(mode) for mode in closed + open_to_others} == {
        **dict.fromkeys(closed, False),
        **dict.fromkeys(open_to_others, True),
    }
