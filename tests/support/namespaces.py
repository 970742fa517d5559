"""Networks of organisations inside this machine: a namespace each, wires between them, firewalls around them.

The namespaces have no names: whoever was started in one holds it, as does an open file, so that none outlives the
tests, however these end. Wires are made inside of them, and nothing is added to the network that the machine has.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import debian
from support.debian import UnavailableError
from support.program import run_program

# `os.unshare` and `os.setns` came with Python 3.12.
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_PACKAGES = {"ip": "iproute2", "nft": "nftables"}
_ANSWER_S = 5.0
UPLINK = "uplink"
"""The name of every organisation's wire to the outside."""
FORBIDDEN_OUT, FORBIDDEN_IN = errno.ENETUNREACH, errno.EHOSTUNREACH
"""Errors of `connect` when the firewall on the way out forbids it, and the one on the way in."""

_FIREWALL = """
table inet organisation {{
    chain incoming {{
        type filter hook input priority filter; policy drop;
        iif lo accept
        ct state established,related accept
        meta nfproto ipv4 reject with icmp type admin-prohibited
    }}
    chain outgoing {{
        type filter hook output priority filter; policy drop;
        oif lo accept
        ct state established,related accept
        ip daddr {address} tcp dport {port} accept
        meta nfproto ipv4 reject with icmp type net-prohibited
    }}
}}
"""
"""Nobody comes in; whoever is inside reaches one port of one address, and no other."""


class Namespace:
    """A network of its own, at first with nothing in it but a loopback."""

    def __init__(self) -> None:
        with _coming_back():
            _call("unshare", _CLONE_NEWNET)
            self._file = _open_own()
            self.run("ip", "link", "set", "lo", "up")
            # Send again what is not acknowledged for three seconds, and not for a quarter of an hour.
            self.configure("tcp_retries2", 3)

    @property
    def path(self) -> str:
        """The path at which other programs find it while this process runs."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be in it: this thread, the sockets that it opens and the processes that it starts."""
        with _coming_back():
            _call("setns", self._file, _CLONE_NEWNET)
            yield

    def run(self, *command: str, text: str = "") -> None:
        """Have a program set something up in it."""
        with self.entered():
            done = run_program(*command, input=text)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

    def configure(self, name: str, value: int) -> None:
        """Set one of the kernel's settings of its IPv4."""
        with self.entered():
            Path("/proc/sys/net/ipv4", name).write_text(str(value), encoding="ascii")

    def try_to_reach(self, address: str, port: int) -> int:
        """Connect from inside, and say with which error that failed; 0 if it did not."""
        with self.entered():
            try:
                socket.create_connection((address, port), _ANSWER_S).close()
            except TimeoutError:
                return errno.ETIMEDOUT
            except OSError as error:
                return error.errno or errno.EIO
        return 0

    def close(self) -> None:
        os.close(self._file)


class Exchange(Namespace):
    """The place where the wires of all organisations meet: it would carry everything from each to each."""

    def __init__(self, address: str) -> None:
        """`address` is that of whoever serves here."""
        super().__init__()
        self.address = address
        self._wires = 0
        self.run("ip", "address", "add", f"{address}/32", "dev", "lo")
        self.configure("ip_forward", 1)

    def join(self, name: str) -> Organisation:
        """Wire an organisation up."""
        self._wires += 1
        subnet, namespace = f"10.77.{self._wires}", Namespace()
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", UPLINK, "netns", namespace.path)
        self.run("ip", "address", "add", f"{subnet}.1/24", "dev", name)
        self.mend(name)
        namespace.run("ip", "address", "add", f"{subnet}.2/24", "dev", UPLINK)
        namespace.run("ip", "link", "set", UPLINK, "up")
        namespace.run("ip", "route", "add", "default", "via", f"{subnet}.1")
        return Organisation(name, f"{subnet}.2", namespace)

    def cut(self, name: str) -> None:
        """Cut an organisation's wire: neither side is told, packets are lost."""
        self.run("ip", "link", "set", name, "down")

    def mend(self, name: str) -> None:
        self.run("ip", "link", "set", name, "up")


@dataclass(frozen=True, slots=True)
class Organisation:
    """A namespace behind a wire, and its firewall."""

    name: str
    address: str
    namespace: Namespace

    def allow_only(self, address: str, port: int) -> None:
        """Put the firewall up."""
        self.namespace.run("nft", "--file", "-", text=_FIREWALL.format(address=address, port=port))

    def allow_all(self) -> None:
        """Take the firewall away."""
        self.namespace.run("nft", "flush", "ruleset")


def require_namespaces() -> None:
    """Return if namespaces, wires and firewalls can be made here, after installing what makes them."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UnavailableError("network namespaces take root on Linux")
    missing = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if missing:
        debian.install(*missing)
    try:
        exchange = Exchange("192.0.2.1")
    except OSError as error:
        raise UnavailableError(f"this kernel or container makes no network namespaces: {error}") from error
    try:
        organisation = exchange.join("trial")
        organisation.allow_only(exchange.address, 1)
    except OSError as error:
        raise UnavailableError(f"this kernel or container makes no wires and firewalls: {error}") from error
    finally:
        exchange.close()
    organisation.namespace.close()


@contextmanager
def _coming_back() -> Iterator[None]:
    """Be afterwards in the namespace that this thread is in now."""
    home = _open_own()
    try:
        yield
    finally:
        try:
            _call("setns", home, _CLONE_NEWNET)
        finally:
            os.close(home)


def _open_own() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _call(function: str, *arguments: int) -> None:
    if _LIBC[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
