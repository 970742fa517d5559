"""Flower deployed: a SuperLink and SuperNodes in separate processes of this machine run the same app.

flwr's deployment needs versions of fastapi, protobuf and others that exclude those of this environment, so it gets
an environment of its own, with flwr alone in it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.peers.contest import Contest, PeerMissing, check_error
from benchmarks.peers.flower import ROUNDS, SYSTEM, THRESHOLD, allowed_error
from benchmarks.peers.flower_app.secagg_round.server_app import RESULT

APP = Path(__file__).parent / "flower_app"
CONNECTION = "benchmark"
START_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 900.0
_LOOK_AGAIN_S = 0.2
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedRounds:
    """Durations of whole rounds, by the ServerApp's clock."""

    version: str
    parameters: int
    clients: int
    rounds_s: tuple[float, ...]
    run_s: float
    """Time from `flwr run` to the end of the last round."""
    largest_error: float

    @property
    def round_s(self) -> float:
        """Duration of the last round: the first also installs the app at every node."""
        return self.rounds_s[-1]


@contextmanager
def make_environment() -> Iterator[Path]:
    """Create a temporary virtual environment with flwr and its dependencies."""
    with tempfile.TemporaryDirectory(prefix="hubbub-flower-env-") as name:
        python = Path(name) / "bin" / "python"
        asked = f"flwr=={version('flwr')}"
        try:
            subprocess.run([sys.executable, "-m", "venv", name], check=True, capture_output=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", asked], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            told = error.stderr.decode(errors="replace").strip().splitlines()
            raise PeerMissing(f"{asked} could not be installed beside: {told[-1] if told else error}") from None
        yield python.parent


def measure_deployed(contest: Contest, programs: Path) -> DeployedRounds:
    """Start all processes, run the app, and stop them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hubbub-flower-")))
        deployment = _Deployment(programs, folder)
        stack.callback(deployment.end)
        address = deployment.start_superlink()
        for place in range(contest.clients):
            deployment.start_supernode(place, contest.clients, address)
        began_s = time.monotonic()
        deployment.submit(contest, address)
        rounds_s = deployment.await_result(contest.folder / RESULT)
        run_s = time.monotonic() - began_s
    mean = np.load(contest.folder / "mean.npy")
    error = float(np.abs(mean * contest.clients - contest.add_up()).max())
    return DeployedRounds(
        version=version("flwr"),
        parameters=contest.parameters,
        clients=contest.clients,
        rounds_s=rounds_s,
        run_s=run_s,
        largest_error=check_error(SYSTEM, error, allowed_error(contest.clients)),
    )


class _Deployment:
    """Running processes; each leads a process group, because flwr's processes leave children behind."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder),
            # Send no telemetry.
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        self._environment.pop("PYTHONPATH", None)

    def start_superlink(self) -> str:
        port = _find_port()
        self._start(
            "flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"
        )
        self._await_port(port)
        return f"127.0.0.1:{port}"

    def start_supernode(self, place: int, nodes: int, superlink: str) -> None:
        port = _find_port()
        partition = f"partition-id={place} num-partitions={nodes}"
        address = ("--superlink", superlink, "--port", str(port))
        self._start("flower-supernode", "--insecure", *address, "--node-config", partition)
        self._await_port(port)

    def submit(self, contest: Contest, superlink: str) -> None:
        app = self._folder / "app"
        shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
        connection = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        connection += f'address = "{superlink}"\ninsecure = true\n'
        (self._folder / "config.toml").write_text(connection, encoding="utf-8")
        settings = (
            f'folder="{contest.folder}" clients={contest.clients} rounds={ROUNDS} '
            f"num-shares={contest.clients} reconstruction-threshold={THRESHOLD}"
        )
        command: list[str | Path] = [self._programs / "flwr", "run", app, CONNECTION, "--run-config", settings]
        done = subprocess.run(command, env=self._environment, capture_output=True, check=False, text=True)
        if done.returncode:
            raise PeerMissing(f"flwr did not take the app: {(done.stderr or done.stdout).strip()[-500:]}")

    def await_result(self, path: Path) -> tuple[float, ...]:
        limit_s = time.monotonic() + RUN_TIMEOUT_S
        while not path.exists():
            self._check_alive(limit_s, "the run did not end")
        return tuple(json.loads(path.read_text("utf-8")))

    def end(self) -> None:
        """Terminate all groups, and kill those that do not stop. Leaders are reaped last, to reserve the ids."""
        _signal(self._started, signal.SIGTERM)
        limit_s = time.monotonic() + _GRACE_S
        while time.monotonic() < limit_s and not all(map(_is_over, self._started)):
            time.sleep(_LOOK_AGAIN_S)
        _signal(self._started, signal.SIGKILL)
        for each in self._started:
            each.wait()

    def _start(self, program: str, *arguments: str) -> None:
        log = self._folder / f"{len(self._started)}-{program}.log"
        with log.open("wb") as output:
            self._started.append(
                subprocess.Popen(
                    [self._programs / program, *arguments],
                    env=self._environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _await_port(self, port: int) -> None:
        limit_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                self._check_alive(limit_s, f"nobody answers on port {port}")
            else:
                return

    def _check_alive(self, limit_s: float, complaint: str) -> None:
        """Wait a moment; raise if a process has died or the time is up."""
        over = time.monotonic() > limit_s
        if over or any(each.poll() is not None for each in self._started):
            logs = sorted(self._folder.glob("*.log"))
            told = "\n".join(f"{log.name}: {log.read_text('utf-8', 'replace')[-500:]}" for log in logs)
            raise PeerMissing(f"Flower's deployment failed: {complaint}.\n{told}")
        time.sleep(_LOOK_AGAIN_S)


def _signal(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for each in processes:
        try:
            os.killpg(each.pid, number)
        except ProcessLookupError:
            continue


def _is_over(process: subprocess.Popen[bytes]) -> bool:
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
