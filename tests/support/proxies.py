"""Proxies as hospitals have them: tinyproxy for HTTP CONNECT, microsocks for SOCKS5, both from Debian."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Collection

import pytest

from hubbub_cli.rabbitmq_node import find_free_ports
from support import debian
from support.private_node import listens
from support.private_server import PrivateServer

USER, PASSWORD = "clinic", "sesame-behind-the-wall"


class PrivateProxy(PrivateServer):
    """Proxy that asks for a login. One for HTTP lets nobody go to a port that is not in `ports`."""

    scheme: str

    def __init__(self, program: str, package: str, ports: Collection[int], host: str = "127.0.0.1") -> None:
        if shutil.which(program) is None:
            try:
                debian.install(package)
            except debian.UnavailableError as reason:
                pytest.fail(f"no {program} is installed: {reason}", pytrace=False)
        super().__init__(program)
        self.ports = frozenset(ports)
        self.host = host
        (self.port,) = find_free_ports(1)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{USER}:{PASSWORD}@{self.where}"

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"

    def serves(self) -> bool:
        return listens(self.host, self.port)

    @abstractmethod
    def count_requests(self, host: str, port: int) -> int:
        """Count the tunnels that it was asked for, to a host and port."""


class TinyProxy(PrivateProxy):
    scheme = "http"

    def __init__(self, *ports: int, host: str = "127.0.0.1") -> None:
        super().__init__("tinyproxy", "tinyproxy-bin", ports, host)

    def launch(self) -> None:
        lines = [f"Port {self.port}", f"Listen {self.host}", f"BasicAuth {USER} {PASSWORD}", "LogLevel Connect"]
        lines += [f"ConnectPort {port}" for port in self.ports]
        file = self.folder / "tinyproxy.conf"
        file.write_text("\n".join([*lines, ""]))
        self._server = self.spawn(["tinyproxy", "-d", "-c", str(file)], {**os.environ})

    def count_requests(self, host: str, port: int) -> int:
        return (self.folder / "output.log").read_text().count(f"CONNECT {host}:{port} HTTP")


class MicroSocks(PrivateProxy):
    scheme = "socks5"

    def __init__(self, *ports: int) -> None:
        super().__init__("microsocks", "microsocks", ports)

    def launch(self) -> None:
        options = ["-i", "127.0.0.1", "-p", str(self.port), "-u", USER, "-P", PASSWORD]
        self._server = self.spawn(["microsocks", *options], {**os.environ})

    def count_requests(self, host: str, port: int) -> int:
        return (self.folder / "output.log").read_text().count(f"connected to {host}:{port}\n")


MakeProxy = Callable[..., PrivateProxy]
PROXIES: tuple[MakeProxy, ...] = (TinyProxy, MicroSocks)
