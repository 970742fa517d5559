"""A broker in a container, which tests take where Docker answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub_cli import federation_broker
from hubbub_cli.rabbitmq_node import find_free_ports
from hubbub_cli.trial import open_trial
from support.broker import URL_VARIABLE, from_docker
from support.command_line import make_hubbub
from support.containers import ROOT, skip_unless_asked

skip_unless_asked()


def test_the_transport_keeps_its_promises_over_a_broker_in_a_container() -> None:
    broker = from_docker()
    try:
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "tests/contract/test_transport.py"),
                *("-k", "rabbitmq", "-q", "-p", "no:cacheprovider"),
            ],
            cwd=ROOT,
            env={**os.environ, URL_VARIABLE: broker.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    finally:
        broker.close()

    assert ended.returncode == 0, ended.stdout


def test_a_trial_takes_a_container_where_no_rabbitmq_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(federation_broker, "find_scripts", lambda: None)
    hubbub, folder = make_hubbub(monkeypatch, capsys), tmp_path / "trial"
    (port,) = find_free_ports(1)
    hubbub("federation", "new", folder, "--clients", 3, "--task", "synthetic", "--rounds", 2).check_done()
    trial = open_trial(folder)
    try:
        for _ in range(2):
            hubbub("federation", "up", folder, "--detach", "--port", port).check_done()
            at = ("--url", trial.endpoint.url, "--token-file", trial.change_token)
            assert "all 2 rounds are done" in hubbub("run", "watch", "latest", *at).check_done()
            hubbub("federation", "down", folder).check_done()
            assert trial.find_running() == {}
    finally:
        trial.stop()
