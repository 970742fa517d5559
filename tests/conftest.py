"""Fixtures for everybody: a broker, started when the first test asks for it. And what makes all tests faster."""

import asyncio
import gc
import inspect
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hubbub_cli.rabbitmq_node import find_scripts
from support.aio import bounded
from support.broker import NoBrokerError, find_broker
from support.private_node import PrivateNode

# A test says what comes out, not how fast: a machine with much else to do is no failure.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# All services and brokers sync what they write, thousands of times, and no test takes the power away from a real
# disk. The tests of a whole session leave less than this behind.
_IN_MEMORY, _ROOM_BYTES = Path("/dev/shm"), 4 << 30  # noqa: S108  (Only folders of our own in it are used.)
_LONGEST_FIRST = (
    "integration/test_kills.py",
    "simulation/test_against_plaintext.py",
    "integration/test_strategies.py",
    "integration/test_strategies_over_rabbitmq.py",
    "unit/hubbub_cli/test_main_demo.py",
    "integration/test_processes.py",
    "integration/test_broker_outages.py",
    "integration/test_federation_up.py",
    "integration/test_tls_federation.py",
    "integration/test_kits.py",
    "integration/test_consumer_timeout.py",
    "integration/test_wheel.py",
    "integration/test_compose.py",
    "browser/test_dashboard.py",
    "integration/test_organisations.py",
    "integration/test_broker_chart.py",
    "adversary/test_recording.py",
    "adversary/test_compact_recording.py",
    "unit/test_benchmarks.py",
    "simulation/test_faults.py",
)
"""So that no worker is left alone with one of them at the end."""


def pytest_configure(config: pytest.Config) -> None:
    if "TMPDIR" not in os.environ and _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _ROOM_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_IN_MEMORY)
    # Or every process that a test starts would compile all sources anew, and pytest itself all tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # A shell has its background jobs ignore SIGINT, and so would every process that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Files go to the workers in the order below, and not those with the most tests first.
    config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(bounded(pyfuncitem.obj(**arguments)))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from going through the collected tests, which last until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    rank = {here / name: place for place, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session")
def amqp_url() -> Iterator[str]:
    """A RabbitMQ that all tests of the session share: use party names that nobody else uses."""
    try:
        broker = find_broker()
    except NoBrokerError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield broker.url
    finally:
        broker.close()


@pytest.fixture(scope="session")
def rabbitmq_server(request: pytest.FixtureRequest) -> None:
    """A rabbitmq-server that nodes can be started from."""
    if find_scripts() is None:
        # Fails with what to do if there is no broker at all; may install one.
        request.getfixturevalue("amqp_url")
    if find_scripts() is None:
        pytest.skip("this takes a broker of our own, and no rabbitmq-server is installed")


@pytest.fixture(scope="session")
def session_node(rabbitmq_server: None) -> Iterator[PrivateNode]:
    del rabbitmq_server
    with PrivateNode() as node:
        yield node


@pytest.fixture(scope="module")
def private_node(session_node: PrivateNode) -> PrivateNode:
    """A RabbitMQ that a test may kill and restart; it is running, whatever a test before has done to it."""
    if not session_node.is_running:
        session_node.start()
    return session_node
