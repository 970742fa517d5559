"""What tests take from Debian, where it is not there and they may install it."""

import os
import subprocess

_PATIENCE_S = 300


def install(*packages: str) -> None:
    """Install packages, with as little as they need; whoever asks has looked for apt-get."""
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(
            ["apt-get", "-qq", *command],  # noqa: S607  (Found through PATH by whoever asks.)
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            check=True,
        )
