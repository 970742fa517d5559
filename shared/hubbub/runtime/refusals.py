"""Refusals, written down at a cost that a flood of them does not raise.

Each is counted. Of those for one reason from one sender the log has the first few of a second line by line, and
the rest as one line with their number; the audit log has the 1st, 2nd, 4th, 8th and so on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from pydantic import JsonValue

from hubbub.errors import LocalError, RejectReason
from hubbub.runtime.edge import Refusal
from hubbub.runtime.telemetry import Counters
from hubbub.trust.audit import AuditLog, Refusals

log = logging.getLogger(__name__)

LINES = 10
"""What is logged line by line within a second, for one reason from one sender."""
_WINDOW_S = 1.0


class RefusalBook:
    """Counts, logs and records what one party refuses."""

    def __init__(self, counters: Counters, audit: AuditLog) -> None:
        self._counters = counters
        self._tally = Refusals(audit)
        self._seen: Counter[tuple[RejectReason, str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    async def note(self, refusal: Refusal) -> None:
        """Write a refusal down; only what goes into the audit log takes time."""
        self._counters.rejected(refusal.reason)
        self._log(refusal)
        write = self._tally.note(
            refusal.reason.value,
            kind=refusal.kind,
            sender=refusal.sender,
            run=refusal.run,
            by=refusal.user,
            **_describe(refusal),
        )
        if write is None:
            return
        try:
            await asyncio.to_thread(write)
        except LocalError:
            log.exception("the refusal could not be recorded")

    def close(self) -> None:
        """Log what is not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._sum_up()

    def _log(self, refusal: Refusal) -> None:
        like = (refusal.reason, refusal.user or refusal.sender)
        self._seen[like] += 1
        if self._seen[like] <= LINES:
            log.warning("refused: %s", refusal.explanation, extra={"reason": refusal.reason.value})
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW_S, self._sum_up)

    def _sum_up(self) -> None:
        seen, self._seen, self._timer = self._seen, Counter(), None
        for (reason, sender), count in seen.items():
            if count > LINES:
                told = (count - LINES, reason.value, sender or "nobody that is known")
                log.warning("refused %d more within a second (%s) from %s", *told, extra={"reason": reason.value})


def _describe(refusal: Refusal) -> dict[str, JsonValue]:
    """What is recorded of some refusals only: the broker's user if it is not the sender, and what was dropped."""
    is_another = refusal.sender and refusal.user not in ("", refusal.sender)
    user: dict[str, JsonValue] = {"user": refusal.user} if is_another else {}
    return {**user, "size": refusal.size, "sha256": refusal.sha256} if refusal.sha256 else user
