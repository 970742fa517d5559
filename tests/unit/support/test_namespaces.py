"""Where networks cannot be made, tests are told why; with fakes: none is made."""

from __future__ import annotations

import subprocess

import pytest

from support.namespaces import UnavailableError, require_namespaces


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(UnavailableError, match="take root on Linux"):
        require_namespaces()


def test_missing_programs_that_nobody_can_install_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _: None)

    with pytest.raises(UnavailableError, match="iproute2 and nftables must be installed"):
        require_namespaces()


def test_an_installation_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(100, command)

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "nft" else f"/usr/sbin/{name}")
    monkeypatch.setattr("subprocess.run", run)

    with pytest.raises(UnavailableError, match="apt-get could not install nftables"):
        require_namespaces()


def test_a_kernel_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise PermissionError("not here")

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr("support.namespaces._open_own", refuse)

    with pytest.raises(UnavailableError, match="makes no network namespaces: not here"):
        require_namespaces()
