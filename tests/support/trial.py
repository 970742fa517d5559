"""The federation of docker-compose.yml, in containers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Self

import httpx

from hubbub.rest import RunView
from hubbub_coordinator.api.views import RunPage
from hubbub_coordinator.phases.run import OUTCOMES
from support.containers import STOP_S, DockerError, docker, inspect
from support.patience import HANG_S

PARTIES: Mapping[str, str] = MappingProxyType(
    {
        "coordinator": "coordinator",
        **{f"aggregator-{number}": "aggregator" for number in (1, 2)},
        **{f"trainer-{number}": "trainer" for number in (1, 2, 3, 4, 5)},
    }
)
"""The services of the compose file that are parties, and the image of each."""
ROUNDS = 2
_POLL_S = 0.5
_LAST_LINES = 15


class Trial:
    """The federation of docker-compose.yml as a project of its own: a short run of LeNet, at any port."""

    def __init__(self) -> None:
        self._project = f"hubbub-{uuid.uuid4().hex[:8]}"
        self._environment = {
            "HUBBUB_TASK": "lenet",
            "HUBBUB_ROUNDS": str(ROUNDS),
            "HUBBUB_LOCAL_STEPS": "5",
            "HUBBUB_PORT": "0",
        }

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.down()

    def down(self) -> None:
        """End all, and forget all."""
        self.compose("down", "--volumes", "--timeout", str(STOP_S))

    def compose(self, *arguments: str) -> str:
        return docker("compose", "--project-name", self._project, *arguments, environment=self._environment)

    def up(self) -> None:
        """Start what is not running, and wait until all are healthy and the run is submitted."""
        try:
            self.compose("up", "--no-build", "--detach", "--wait", "--wait-timeout", str(int(HANG_S)))
        except DockerError as error:
            # A service that has done its work and ended well is no failure, though compose may say so.
            if problems := self._find_failed():
                raise DockerError(f"{problems}\n{error}\n{self._quote(problems)}") from None

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self.compose("ps", "--all", "--quiet", service).strip()

    def volume(self, name: str) -> str:
        """The full name of a volume of the compose file; a party's secrets are in the one that has its name."""
        return f"{self._project}_{name}"

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a service's container, as the user that the service is."""
        return docker("exec", self.container(service), *command)

    def read_last_line(self, service: str) -> str:
        """The last that a service wrote to its log."""
        return self.compose("logs", "--no-log-prefix", "--tail", "1", service)

    def follow_run(self) -> RunView:
        """Wait for the end of the run that begins by itself; the read token is the coordinator's own."""
        token = self.execute("coordinator", "cat", "/run/hubbub/read.token").strip()
        address = self.compose("port", "coordinator", "8750").strip()
        headers = {"Authorization": f"Bearer {token}"}
        deadline = time.monotonic() + HANG_S
        with httpx.Client(base_url=f"http://{address}", headers=headers, trust_env=False) as client:
            while True:
                answer = client.get("/api/v1/runs").raise_for_status()
                runs = RunPage.model_validate_json(answer.content).items
                if runs and runs[0].state in OUTCOMES.values():
                    return runs[0]
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no run has ended within {HANG_S:g} s: {runs}")
                time.sleep(_POLL_S)

    def _find_failed(self) -> list[str]:
        states = {
            service: inspect(self.container(service))["State"]
            for service in ("init", "broker", *PARTIES, "operator")
        }
        ended_well = {
            service for service, state in states.items() if state["Status"] == "exited" and not state["ExitCode"]
        }
        healthy = {
            service for service, state in states.items() if state.get("Health", {}).get("Status") == "healthy"
        }
        return sorted(states.keys() - healthy - (ended_well & {"init", "operator"}))

    def _quote(self, services: Sequence[str]) -> str:
        return self.compose("logs", "--tail", str(_LAST_LINES), *services)
