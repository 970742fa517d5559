"""`hubbub federation up`, `status` and `down`: a trial with a broker of its own, all parties as processes."""

import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hubbub_cli.rabbitmq_node import find_free_ports
from hubbub_cli.trial import open_trial
from support.command_line import Ended, run_hubbub, start_hubbub
from support.patience import HANG_S
from support.private_node import PrivateNode

pytestmark = pytest.mark.broker

BROKEN = """
from hubbub_trainer.learning.torch_task import TorchTask


class Scans(TorchTask):
    def model(self):
        raise OSError("no scanner is connected")
"""
Command = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path, rabbitmq_server: None) -> Iterator[Path]:
    del rabbitmq_server
    folder = tmp_path / "my trial"
    options = ("--clients", "3", "--task", "synthetic", "--rounds", "2", "--local-steps", "2")
    said = run_hubbub("federation", "new", folder, *options).check_done()
    assert f"Next: hubbub federation up '{folder}'\n" in said
    yield folder
    open_trial(folder).stop()


def test_a_trial_is_started_looked_at_ended_and_started_again(folder: Path) -> None:
    (port,) = find_free_ports(1)
    trial = open_trial(folder)

    said = run_hubbub("federation", "up", folder, "--detach", "--port", str(port)).check_done()
    assert ": synthetic, " in said
    assert f"http://127.0.0.1:{port}" in said
    assert f"end          hubbub federation down '{folder}'\n" in said
    assert trial.change_token.read_text(encoding="ascii").strip() not in said
    at = ("--url", f"http://127.0.0.1:{port}", "--token-file", trial.change_token)
    watched = run_hubbub("run", "watch", "latest", *at).check_done()
    assert "the run is complete: all 2 rounds are done" in watched
    status = run_hubbub("federation", "status", folder, "--json")
    assert (status.code, status.json["up"], status.json["run"]["state"]) == (0, True, "completed")
    processes = [party["process"] for party in status.json["parties"].values()]
    assert len(set(processes)) == 6
    for process in processes:
        os.kill(process, 0)
    assert "run already" in run_hubbub("federation", "up", folder).err

    assert run_hubbub("federation", "down", folder).check_done() == "all processes have ended\n"
    assert trial.find_running() == {}
    assert run_hubbub("federation", "status", folder).code == 1

    # In the foreground, on the state of the first time: port and run are those of before.
    with start_hubbub("federation", "up", folder) as process:
        try:
            assert process.stdout
            told = [next(line for line in process.stdout if mark in line) for mark in ("complete", "Ctrl-C")]
            assert "all 2 rounds are done" in told[0]
            assert set(trial.find_running()) > set(trial.parties)
        finally:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert trial.find_running() == {}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("settings/*")} == {0o600}


def test_a_party_that_cannot_start_is_named_with_its_last_words_and_all_others_are_ended(folder: Path) -> None:
    (folder / "scans.py").write_text(BROKEN, encoding="utf-8")
    (port,) = find_free_ports(1)

    ended = run_hubbub("federation", "up", folder, "--task", folder / "scans.py", "--port", str(port))

    assert ended.code == 1
    assert "trainer-" in ended.err
    assert "the task 'scans' was tried on one batch, and failed" in ended.err
    assert "Traceback" not in ended.err
    assert open_trial(folder).find_running() == {}


def test_a_run_that_a_party_refuses_is_told_of_and_all_are_ended(folder: Path) -> None:
    policy = folder / "trainer-2" / "policy.toml"
    policy.write_text(
        policy.read_text("utf-8").replace("\nmax_rounds = ", "\nmax_rounds = 1 # "), encoding="utf-8"
    )
    (port,) = find_free_ports(1)

    ended = run_hubbub("federation", "up", folder, "--detach", "--port", str(port))

    assert ended.code == 1
    assert "the run has failed: " in ended.err
    assert "trainer-2" in ended.err
    assert open_trial(folder).find_running() == {}


def test_a_broker_that_is_given_is_used_once_it_knows_the_parties(folder: Path) -> None:
    (port,) = find_free_ports(1)
    with PrivateNode() as node:
        up = ("federation", "up", folder, "--detach", "--port", str(port))
        unknown = run_hubbub(*up, "--broker", f"amqp://127.0.0.1:{node.port}/")
        node.ctl("import_definitions", str(folder / "public" / "definitions.json"))
        run_hubbub(*up).check_done()  # It is remembered.

        trial = open_trial(folder)
        assert set(trial.find_running()) == set(trial.parties)
        connected = node.ctl("-q", "--no-table-headers", "list_connections", "user").split()
        assert set(connected) == set(trial.parties)
        assert trial.stop() == []

    assert unknown.code == 1
    assert "refuses user" in unknown.err
    assert "`hubbub roster broker-config`" in unknown.err
