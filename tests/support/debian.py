"""What tests take from Debian, where it is not there and they may install it."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 300


def install(*packages: str) -> None:
    """Install packages, with as little as they need; whoever asks has looked for apt-get."""
    # Somebody else on this machine may be installing as well.
    waiting = ["-o", f"DPkg::Lock::Timeout={_PATIENCE_S}"]
    with _turn():
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run(
                ["apt-get", "-qq", *waiting, *command],  # noqa: S607  (Found through PATH by whoever asks.)
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.DEVNULL,
                timeout=2 * _PATIENCE_S,
                check=True,
            )


@contextmanager
def _turn() -> Iterator[None]:
    """Wait for other tests that install something: of two at the same time apt-get refuses one."""
    with (Path(tempfile.gettempdir()) / "hubbub-tests-apt.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
