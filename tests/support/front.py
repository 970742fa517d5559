"""The coordinator's whole interface, with its routes in reach of a test."""

from starlette.types import Receive, Scope, Send

from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import create_routes, guard
from hubbub_coordinator.service import Coordinator


class Front:
    """What `create_app` gives; a test may add a route, or look behind the gate."""

    def __init__(self, coordinator: Coordinator, tokens: Tokens) -> None:
        self.routes = create_routes(coordinator)
        self._app = guard(self.routes, tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
