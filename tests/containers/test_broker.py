"""A broker in a container, which tests take where Docker answers."""

import os
import subprocess
import sys

from support.broker import URL_VARIABLE, from_docker
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
