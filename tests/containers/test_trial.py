"""docker-compose.yml for real: eight parties and a broker in containers, and a run that begins by itself."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Self

import httpx
import pytest

from hubbub.rest import RunView
from hubbub_coordinator.api.views import RunPage
from hubbub_coordinator.phases.run import OUTCOMES
from support.containers import STOP_S, DockerError, docker, inspect, skip_unless_asked
from support.patience import HANG_S

skip_unless_asked()

PARTIES = {
    "coordinator": "coordinator",
    **{f"aggregator-{number}": "aggregator" for number in (1, 2)},
    **{f"trainer-{number}": "trainer" for number in (1, 2, 3, 4, 5)},
}
"""The services of the compose file that are parties, and the image of each."""
SERVERS = ("broker", *PARTIES)
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

    def __exit__(self, *_: object) -> None:
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


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    with Trial() as trial:
        yield trial


def test_the_run_that_begins_by_itself_completes(trial: Trial) -> None:
    run = trial.follow_run()

    assert (run.state, run.rounds_released, run.reason) == ("completed", ROUNDS, f"all {ROUNDS} rounds are done")
    assert (run.clients, run.aggregators) == (5, 2)


@pytest.mark.parametrize("service", SERVERS)
def test_a_service_is_healthy(trial: Trial, service: str) -> None:
    state = inspect(trial.container(service))["State"]

    assert state["Health"]["Status"] == "healthy"


@pytest.mark.parametrize("service", SERVERS)
def test_a_service_is_a_user_without_rights_and_cannot_write_outside_its_folders(
    trial: Trial, service: str
) -> None:
    status = dict(line.split(":\t", 1) for line in trial.execute(service, "cat", "/proc/1/status").splitlines())

    assert status["Uid"].split() == status["Gid"].split() == ["10001"] * 4
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert inspect(trial.container(service))["HostConfig"]["ReadonlyRootfs"]
    with pytest.raises(DockerError, match="Read-only file system"):
        trial.execute(service, "touch", "/opt/anything")


@pytest.mark.parametrize("service", PARTIES)
def test_the_first_process_of_a_party_is_the_interpreter(trial: Trial, service: str) -> None:
    command = trial.execute(service, "cat", "/proc/1/cmdline").split("\0")

    assert command[:-1] == ["python", "-m", f"hubbub_{PARTIES[service]}"]


@pytest.mark.parametrize("service", PARTIES)
def test_a_party_holds_its_own_identity_and_no_other(trial: Trial, service: str) -> None:
    mounts = {mount["Destination"]: mount.get("Name", "") for mount in inspect(trial.container(service))["Mounts"]}
    read_name = "import json; print(json.load(open('/run/hubbub/identity.json'))['name'])"

    assert trial.execute(service, "python", "-c", read_name) == f"{service}\n"
    assert mounts["/run/hubbub"] == trial.volume(service)
    assert not {trial.volume(other) for other in PARTIES if other != service} & set(mounts.values())


def stop_and_read_codes(trial: Trial, *services: str) -> dict[str, int]:
    trial.compose("stop", "--timeout", "60", *services)
    return {service: inspect(trial.container(service))["State"]["ExitCode"] for service in services}


def test_all_end_well_when_told_and_come_back(trial: Trial) -> None:
    codes = stop_and_read_codes(trial, *SERVERS)
    trial.up()

    # One that does not end in time is killed, and its code is 137.
    assert codes == dict.fromkeys(SERVERS, 0)
    assert trial.follow_run().state == "completed"


@pytest.mark.parametrize("service", ["coordinator", "aggregator-1", "trainer-1"])
def test_a_party_whose_broker_is_away_ends_well_when_told(trial: Trial, service: str) -> None:
    trial.compose("stop", "broker")
    trial.compose("restart", "--no-deps", service)

    codes = stop_and_read_codes(trial, service)
    last = trial.read_last_line(service)
    trial.up()

    # On a slow machine it has given up by itself before it is told, and is about to be started again.
    assert codes == {service: 1 if "no RabbitMQ answers" in last else 0}
