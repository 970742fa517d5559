"""A reproduction that sends N messages and dies, as by `kill -9`: python -m support.short_life OUT N."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from hubbub.store.message_file import MessageFile
from hubbub_local.reproduce import runner
from hubbub_local.reproduce.plan import METHODS, PAPERS, Plan
from hubbub_trainer.learning.synthetic import SyntheticTask

SETTINGS = replace(PAPERS["mnist"], clients=2, max_rounds=3, local_steps=3, target=1.0)
PLAN = Plan(settings=SETTINGS, methods=[METHODS["sec-union"]], seeds=(0,))
KILLED = 9


def reproduce_until(out: Path, messages: int) -> None:
    """Begin or go on with the plan in a folder, and die instead of sending one more than so many messages."""
    left = messages
    original = MessageFile.add

    def add(file: MessageFile, queue: str, user: str, body: bytes) -> int:
        nonlocal left
        if not left:
            os._exit(KILLED)
        left -= 1
        return original(file, queue, user, body)

    # Plots take longer than the runs.
    with patch.object(MessageFile, "add", add), patch("hubbub_local.reproduce.report.draw_plot", lambda *_: ""):
        runner.reproduce(PLAN, out=out, resume=True, console=Console(), task=SyntheticTask(300))


if __name__ == "__main__":
    reproduce_until(Path(sys.argv[1]), int(sys.argv[2]))
