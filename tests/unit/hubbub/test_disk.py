"""Whose eyes a file with a secret is for; what is on disk when is tested at journal, vault and spool."""

import os
import stat

import pytest

from hubbub.disk import is_open_to_others

US = 1000
ROOT = 0


def status(mode: int, owner: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 1000, 0, 0, 0, 0))


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: US)


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
@pytest.mark.parametrize("owner", [US, ROOT])
def test_what_only_its_owner_may_read_is_closed(mode: int, owner: int) -> None:
    assert not is_open_to_others(status(mode, owner))


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize("mode", [0o640, 0o440, 0o620, 0o610, 0o604, 0o602, 0o601])
def test_our_own_file_is_open_by_any_right_of_a_group_or_of_all(mode: int) -> None:
    assert is_open_to_others(status(mode, US))


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize("mode", [0o440, 0o640])
def test_a_file_of_roots_may_be_handed_to_us_by_a_group_that_reads_it(mode: int) -> None:
    assert not is_open_to_others(status(mode, ROOT))


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize("mode", [0o460, 0o660, 0o450, 0o444, 0o442, 0o441, 0o644])
def test_a_file_of_roots_that_more_than_a_reading_group_may_use_is_open(mode: int) -> None:
    assert is_open_to_others(status(mode, ROOT))


def test_for_root_itself_its_own_file_is_like_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ROOT)

    assert is_open_to_others(status(0o440, ROOT))
    assert not is_open_to_others(status(0o400, ROOT))
