"""A run that was joined once is known for ever."""

from pathlib import Path

from hubbub.ids import RunId
from hubbub.runtime.tombstones import Tombstones

RUN = RunId("ab" * 32)


def test_a_run_is_remembered_across_a_restart(tmp_path: Path) -> None:
    Tombstones(tmp_path / "tombstones").add(RUN)

    again = Tombstones(tmp_path / "tombstones")

    assert RUN in again
    assert RunId("cd" * 32) not in again


def test_remembering_twice_is_fine(tmp_path: Path) -> None:
    tombstones = Tombstones(tmp_path)
    tombstones.add(RUN)
    tombstones.add(RUN)

    assert RUN in tombstones
