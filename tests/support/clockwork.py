"""As much of a coordinator, and of its routes, as answers that are given again depend on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from hubbub.ids import RunId
from hubbub_coordinator.service import ANY_RUN


@dataclass
class Clockwork:
    """As much of a coordinator as its answers depend on."""

    steps: Counter[RunId] = field(default_factory=Counter)
    time_s: float = 100.0
    forgotten: int = 0

    @property
    def news(self) -> Clockwork:
        return self

    def now_s(self) -> float:
        return self.time_s

    def count_steps(self, run: RunId) -> int:
        return self.steps[run]

    def step(self, run: RunId) -> None:
        self.steps[run] += 1
        self.steps[ANY_RUN] += 1


@dataclass
class Router:
    """Answers with how often it was asked."""

    status: int = 200
    filling: int = 0
    pieces: int = 1
    asked: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        self.asked += 1
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for piece in range(self.pieces):
            body = f"{self.asked}".encode().ljust(self.filling)
            await send({"type": "http.response.body", "body": body, "more_body": piece + 1 < self.pieces})
