"""Debian packages that tests need: installed if they are missing and we are root."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_PATIENCE_S = 300


class UnavailableError(LookupError):
    """Something that a test needs is not here and cannot be installed; the message says why."""


def install(*packages: str) -> None:
    """Install packages, with as little as they need."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise UnavailableError(f"not root on Debian, so {' and '.join(packages)} cannot be installed")
    # Somebody else on this machine may be installing as well.
    waiting = ["-o", f"DPkg::Lock::Timeout={_PATIENCE_S}"]
    # Of two tests that install at the same time apt-get refuses one: they take turns.
    with (Path(tempfile.gettempdir()) / "hubbub-tests-apt.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            try:
                subprocess.run(
                    ["apt-get", "-qq", *waiting, *command],  # noqa: S607  (Found through PATH.)
                    env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                    stdout=subprocess.DEVNULL,
                    timeout=2 * _PATIENCE_S,
                    check=True,
                )
            except (subprocess.SubprocessError, OSError) as error:
                raise UnavailableError(f"apt-get could not install {' '.join(packages)}: {error}") from error
