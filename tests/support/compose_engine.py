"""The services of a compose file as processes of this machine, each in a container made of nothing but namespaces.

What the file says is what they get: image's and own environment, entry point and command, user, mounts and nothing
else to write to, networks and names. Only the images are not there: in their place is what is installed here.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from hubbub_cli.rabbitmq_node import find_scripts
from support import container_root
from support.compose_file import ROOT, Mount, Service
from support.container_network import Networks
from support.container_root import HOST, Container
from support.dockerfile import read_targets
from support.patience import HANG_S
from support.processes import wait_until
from support.program import Done, run_program

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONSOLE = "/opt/console"
_HUBBUB = f"#!{HOST}{sys.executable}\nfrom hubbub_cli.main import main\nmain()\n"
_IMAGE_PROGRAMS = {f"{_CONSOLE}/hubbub": _HUBBUB}
_TAIL_LINES = 15
_ON_THE_WAY = ("unshare", "setpriv")
"""Programs that the first process of a container is before it is itself."""


def image_environment(service: Service) -> dict[str, str]:
    """The image's variables, and those that find here what would be in it."""
    if service.target is None:
        # As RabbitMQ's own image: any user may run it, and signals reach the node.
        return {"PATH": f"{find_scripts()}:{_PATH}", "LANG": "C.UTF-8", "RUNNING_UNDER_SYSTEMD": "true"}
    of_image = read_targets()[service.target].environment
    return {
        "HOME": "/tmp",  # noqa: S108  (The user's home in the image.)
        **of_image,
        "PATH": f"{_CONSOLE}:{of_image['PATH'].replace('$PATH', _PATH)}",
        "PYTHONPATH": f"{HOST}{ROOT}/shared:{HOST}{ROOT}/services",
    }


def first_command(service: Service) -> list[str]:
    """The command that a container of this service runs."""
    image = ["rabbitmq-server"] if service.target is None else read_targets()[service.target].entrypoint
    return [*service.content.get("entrypoint", image), *service.content.get("command", ())]


class ComposeEngine:
    """Brings up what a compose file describes, and takes it down again."""

    def __init__(self, services: Mapping[str, Service], folder: Path, profiles: Sequence[str] = ()) -> None:
        self._services = services
        self._profiles = frozenset(profiles)
        self._folder = folder
        self._networks = Networks({name: service.networks for name, service in services.items()})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._healthy: set[str] = set()
        self._containers = 0

    def __enter__(self) -> Self:
        self._networks.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            error.add_note("\n".join(self.tail(name) for name in self._running))
        # The last first: nobody is left without what it depends on.
        for process in reversed(self._running.values()):
            process.kill()  # Takes along what it has started.
            process.wait(HANG_S)
        self._networks.__exit__(kind, error, traceback)

    def volume(self, name: str) -> Path:
        """The folder on this machine of a named volume."""
        return self._folder / "volumes" / name

    # As the engine's commands ------------------------------------------------------------------------------

    def up(self) -> None:
        """Start every service that needs no profile, when what it depends on is as it should be."""
        waiting = {name: each for name, each in self._services.items() if self._profiles.issuperset(each.profiles)}
        while waiting:
            ready = [each for each in waiting.values() if not set(each.depends_on) & set(waiting)]
            assert ready, f"{', '.join(waiting)} depend on each other"
            for service in ready:
                for other, condition in service.depends_on.items():
                    self._wait_for(other, condition)
                self._running[service.name] = self._start(
                    service, first_command(service), self.log_of(service.name)
                )
                del waiting[service.name]

    def run(self, name: str, *command: str) -> Done:
        """`docker compose run`: the service again, with another command if one is given."""
        service = self._services[name]
        entrypoint = service.content.get("entrypoint", ())
        words = [*entrypoint, *command] if command else first_command(service)
        return run_program(*self._command_line(service, words), stdin=subprocess.DEVNULL)

    def execute(self, name: str, *command: str) -> Done:
        """`docker compose exec`: a command in the container that is running."""
        inside = ["nsenter", f"--target={_first_process(self._running[name].pid)}", "--preserve-credentials"]
        inside += ["--user", "--mount", "--net", "--uts", "--pid", "setpriv", "--pdeathsig=KILL"]
        environment = self._environment_of(self._services[name])
        variables = [f"{variable}={value}" for variable, value in environment.items()]
        inside += ["env", "--ignore-environment", *variables]
        return run_program(*inside, *command, stdin=subprocess.DEVNULL)

    def is_healthy(self, name: str) -> bool:
        """Whether its health check passes."""
        return self.execute(name, *self._services[name].probe).returncode == 0

    def wait_until_healthy(self, name: str) -> None:
        """Ask until it is; once it was, nobody asks again."""

        def healthy() -> bool:
            assert self._running[name].poll() is None, f"{name} has ended"
            return name in self._healthy or self.is_healthy(name)

        wait_until(healthy, f"{name} is healthy")
        self._healthy.add(name)

    def wait_until_done(self, name: str) -> int:
        """The exit code of a service that ends by itself."""
        try:
            return self._running[name].wait(HANG_S)
        except subprocess.TimeoutExpired:
            tree = "\n".join(_describe_tree(self._running[name].pid))
            raise AssertionError(f"{name} does not end\n{tree}\n{self.tail(name)}") from None

    def stop(self, *names: str) -> dict[str, int]:
        """Ask services to end, and say how they did."""
        for name in names:
            os.kill(_first_process(self._running[name].pid), signal.SIGTERM)
        return {name: self._running[name].wait(HANG_S) for name in names}

    def log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def tail(self, name: str) -> str:
        lines = self.log_of(name).read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"--- {name}: {len(lines)} lines, the last of them", *lines[-_TAIL_LINES:]])

    # Containers --------------------------------------------------------------------------------------------

    def _wait_for(self, name: str, condition: Mapping[str, object]) -> None:
        if name not in self._services and not condition.get("required", True):
            return
        if condition["condition"] == "service_healthy":
            self.wait_until_healthy(name)
        else:
            assert condition["condition"] == "service_completed_successfully", condition
            assert self.wait_until_done(name) == 0, self.tail(name)

    def _start(self, service: Service, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                self._command_line(service, command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _command_line(self, service: Service, command: Sequence[str]) -> list[str]:
        self._containers += 1
        place = self._folder / "containers" / f"{self._containers}-{service.name}"
        (place / "root").mkdir(parents=True)
        self._describe(service, command, place / "root").write(place / "container.json")
        # Whatever happens to us, nothing is left: the first dies with us, and the second with the first.
        guards = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        program = [sys.executable, container_root.__file__, str(place / "container.json")]
        return [*self._networks.entering(service.name), *guards, *program]

    @staticmethod
    def _environment_of(service: Service) -> dict[str, str]:
        return {**image_environment(service), **service.environment}

    def _describe(self, service: Service, command: Sequence[str], root: Path) -> Container:
        ours = service.target is not None
        return Container(
            command=command,
            environment=self._environment_of(service),
            hostname=service.content.get("hostname", service.name),
            hosts=self._networks.hosts_for(service.name),
            user=service.content["user"],
            binds=[(str(self._source_of(mount)), mount.target, mount.read_only) for mount in service.mounts],
            empty=[] if ours else ["/etc/rabbitmq", "/etc/rabbitmq/conf.d"],
            scratch=service.tmpfs,
            files=_IMAGE_PROGRAMS if ours else {},
            links={"/opt/hubbub": f"{HOST}{sys.prefix}"} if ours else {},
            read_only=service.content["read_only"],
            root=str(root),
        )

    def _source_of(self, mount: Mount) -> Path:
        if not mount.is_volume:
            return (ROOT / mount.source).resolve(strict=True)
        self.volume(mount.source).mkdir(parents=True, exist_ok=True)
        return self.volume(mount.source)


def _first_process(guard: int) -> int:
    """The first process of a container, whose guard waits for it, once it runs what the container is for."""
    found: list[str] = []

    def runs() -> bool:
        found[:] = _read(guard, f"task/{guard}/children").split()
        words = _read(int(found[0]), "cmdline").split("\0") if found else [""]
        return bool(words[0]) and words[0] not in _ON_THE_WAY and container_root.__file__ not in words

    wait_until(runs, "the container is there")
    return int(found[0])


def _read(pid: int, name: str) -> str:
    """A file of the system about a process; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _describe_tree(pid: int) -> Iterator[str]:
    """Describe a process and all that came of it, as far as the kernel says."""
    process = Path(f"/proc/{pid}")
    told = []
    for name in ("comm", "wchan", "stack"):
        with suppress(OSError):
            told.append((process / name).read_text(encoding="utf-8", errors="replace").strip())
    yield f"{pid}: {' | '.join(told)}"
    for children in process.glob("task/*/children"):
        for child in children.read_text(encoding="ascii").split():
            yield from _describe_tree(int(child))
