"""docker-compose.yml for real: eight parties and a broker in containers, and a run that begins by itself."""

from collections.abc import Iterator

import pytest

from support.containers import DockerError, inspect, skip_unless_asked
from support.trial import PARTIES, ROUNDS, Trial

skip_unless_asked()

SERVERS = ("broker", *PARTIES)


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
