"""Networks between containers, as an engine makes them: a bridge for each, an address on it for each container.

All of it is in namespaces of our own, which are gone when this process is, and takes no rights on this machine.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Self

from support.program import run_program

TOOLS = ("unshare", "nsenter", "setpriv", "pivot_root", "ip")


def find_obstacle() -> str | None:
    """Say why no containers can be made here, if so."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed (util-linux, iproute2)"
    attempt = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--uts"]
    tried = run_program(*attempt, "ip", "link", "add", "name", "hubbub", "type", "bridge")
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else None


class Networks:
    """Containers, their networks, and their addresses on each."""

    def __init__(self, members: Mapping[str, Sequence[str]]) -> None:
        """Take the networks of each container."""
        self._members = members
        names = sorted({network for networks in members.values() for network in networks})
        self._numbers = {name: number for number, name in enumerate(names, start=1)}
        self._hosts = {name: number for number, name in enumerate(members, start=2)}
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        # A namespace lives as long as a process in it, and this one as long as we do: its input is ours.
        self._keep("", ["unshare", "--user", "--map-root-user", "--net"])
        for number in self._numbers.values():
            self._ip("", "link", "add", "name", f"bridge-{number}", "type", "bridge")
            self._ip("", "link", "set", f"bridge-{number}", "up")
        for name in self._members:
            self._connect(name)
        return self

    def __exit__(self, *_: object) -> None:
        for keeper in self._keepers.values():
            keeper.communicate()

    def hosts_for(self, name: str) -> dict[str, str]:
        """Those whom a container can reach, and itself."""
        found = {"localhost": "127.0.0.1"}
        for other, networks in self._members.items():
            common = [network for network in self._members[name] if network in networks]
            if common:
                found[other] = self._address(other, common[0])
        return found

    def _address(self, name: str, network: str) -> str:
        return f"10.99.{self._numbers[network]}.{self._hosts[name]}"

    def _connect(self, name: str) -> None:
        self._keep(name, [*self.entering(""), "unshare", "--net"])
        self._ip(name, "link", "set", "lo", "up")
        for network in self._members[name]:
            number, cable = self._numbers[network], f"c{self._numbers[network]}-{self._hosts[name]}"
            pid = str(self._keepers[name].pid)
            peer = ("peer", "name", f"eth{number}", "netns", pid)
            self._ip("", "link", "add", "name", cable, "type", "veth", *peer)
            self._ip("", "link", "set", cable, "master", f"bridge-{number}", "up")
            self._ip(name, "address", "add", f"{self._address(name, network)}/24", "dev", f"eth{number}")
            self._ip(name, "link", "set", f"eth{number}", "up")

    def _keep(self, name: str, making: Sequence[str]) -> None:
        keeper = subprocess.Popen(
            [*making, "sh", "-c", "echo; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._keepers[name] = keeper
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"\n", "the namespace is there"

    def entering(self, name: str) -> list[str]:
        """Return the beginning of a command line for a process of a container."""
        pid = self._keepers[name].pid
        return ["nsenter", f"--target={pid}", "--user", "--net", "--preserve-credentials"]

    def _ip(self, name: str, *arguments: str) -> None:
        subprocess.run([*self.entering(name), "ip", *arguments], check=True)
