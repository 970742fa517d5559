"""Three organisations behind a proxy, from keys to a complete run, by their kits alone."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from hubbub.ids import Role
from hubbub_cli.kit_contents import SERVICES, unpack
from hubbub_cli.rabbitmq_node import find_free_ports
from support.certificates import Authority
from support.command_line import Hubbub, make_hubbub
from support.kits import unpack_kit, with_hubbub
from support.patience import HANG_S
from support.private_node import NodeTls, PrivateNode
from support.processes import wait_until
from support.proxies import TinyProxy

pytestmark = pytest.mark.broker

PARTIES = {
    "clinic-a": (Role.CLIENT, "clinic-a"),
    "north": (Role.AGGREGATOR, "clinic-a"),
    "clinic-b": (Role.CLIENT, "clinic-b"),
    "south": (Role.AGGREGATOR, "clinic-b"),
    "university": (Role.CLIENT, "university"),
    "coordinator": (Role.COORDINATOR, "university"),
}
RUN = ("--task", "synthetic", "--rounds", "2", "--local-steps", "2")


@pytest.fixture
def hubbub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hubbub:
    return make_hubbub(monkeypatch, capsys)


def make_kits(hubbub: Hubbub, folder: Path, amqp_url: str, ca_file: Path) -> None:
    """Make keys, roster and kits, and check each kit against the digest that all compare."""
    keys, roster, kits = folder / "keys", folder / "roster.json", folder / "kits"
    for name, (role, organisation) in PARTIES.items():
        options = ("--role", role, "--name", name, "--organisation", organisation, "--out", keys)
        hubbub("keys", "new", *options).check_done()
    hubbub("roster", "build", *sorted(keys.glob("*.public.json")), "--out", roster).check_done()
    made = hubbub("kit", "new", roster, "--amqp-url", amqp_url, "--ca-file", ca_file, "--out", kits, "--json")
    digest = str(made.json["sha256"])
    for name in PARTIES:
        own = ("--identity", keys / f"{name}.identity.json", "--sha256", digest)
        hubbub("kit", "check", kits / f"{name}.kit.tar", *own).check_done()


@contextmanager
def started(folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    """Run a kit's start script until the block ends; give its log."""
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [folder / "start.sh", "--new-state"], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield log
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(HANG_S)


def has_connected(log: Path) -> bool:
    return "connected to the broker" in log.read_text()


def test_three_organisations_begin_a_run_with_their_kits(
    rabbitmq_server: None, hubbub: Hubbub, tmp_path: Path
) -> None:
    del rabbitmq_server
    authority = Authority(tmp_path / "authority")
    tls = NodeTls(authority.ca_file, authority.certify_server("localhost"), asks_clients=False)
    with ExitStack() as stack:
        node = stack.enter_context(PrivateNode(tls))
        proxy = stack.enter_context(TinyProxy(node.tls_port))
        make_kits(hubbub, tmp_path, f"amqps://localhost:{node.tls_port}/", authority.ca_file)
        definitions, manifest, roster = (
            tmp_path / f"{name}.json" for name in ("definitions", "manifest", "roster")
        )
        hubbub("roster", "broker-config", roster, "--out", definitions).check_done()
        node.ctl("import_definitions", str(definitions))
        hubbub("manifest", "new", "--roster", roster, *RUN, "--out", manifest).check_done()
        (port,) = find_free_ports(1)
        logs = []
        for name, (role, _) in PARTIES.items():
            archive = tmp_path / "kits" / f"{name}.kit.tar"
            readme = unpack(archive.read_bytes())[1]["README.md"].decode()
            folder = unpack_kit(archive, readme, tmp_path / "keys", with_hubbub())
            if role is Role.CLIENT:
                files = ("--policy", folder / "policy.toml", "--roster", folder / "roster.json")
                hubbub("policy", "approve", manifest, *files, "--yes").check_done()
            prefix = f"HUBBUB_{SERVICES[role].upper()}_"
            # They share one machine here.
            own = {f"{prefix}PORT": str(port)} if role is Role.COORDINATOR else {f"{prefix}METRICS_PORT": "0"}
            environment = {**with_hubbub(), f"{prefix}PROXY": proxy.url, **own}
            logs.append(stack.enter_context(started(folder, environment)))
        for log in logs:
            wait_until(partial(has_connected, log), f"{log} tells of the broker")

        token = tmp_path / "kits" / "coordinator" / "secret" / "change.token"
        at = ("--url", f"http://127.0.0.1:{port}", "--token-file", token)
        watched = hubbub("run", "submit", manifest, *at, "--watch").check_done()
        listed = node.ctl("-q", "--no-table-headers", "list_connections", "user", "ssl")
        tunnels = proxy.count_requests("localhost", node.tls_port)

    assert "the run is complete: all 2 rounds are done" in watched
    assert {tuple(line.split("\t")) for line in listed.splitlines()} == {(name, "true") for name in PARTIES}
    # Each has a connection to send over and one to receive over.
    assert tunnels == 2 * len(PARTIES)
