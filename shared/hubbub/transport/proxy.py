"""Proxies on the way to the broker: found in a setting or in the environment, and asked for a tunnel.

Many organisations let out HTTPS on port 443 and nothing else, through a proxy. A proxy opens a tunnel to one host
and port, by HTTP CONNECT (RFC 9110, section 9.3.6) or SOCKS5 (RFC 1928). TLS with the broker runs inside the
tunnel, so the proxy reads nothing of it. The proxy resolves the broker's name: a network that needs a proxy often
has no other DNS.

CONNECT is written here because python-socks, which does SOCKS, reads only the first segment of a proxy's answer:
the rest of an answer in two segments would be taken for the broker's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from socket import socket
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from python_socks import ProxyError, ProxyType
from python_socks.async_.asyncio import Proxy as SocksProxy

from hubbub.errors import BrokerUnreachable, ConfigurationError, ProxyRefused, ProxyUnreachable

_VARIABLES: Mapping[str, tuple[str, ...]] = MappingProxyType({"amqps": ("https", "all"), "amqp": ("all",)})
"""Environment variables for a URL's scheme, as `urllib` names them: "https" is HTTPS_PROXY."""
_KINDS = frozenset({"http", "socks5", "socks5h"})
_SOCKS_FORBIDS = 2
# A user and a password each take one byte for their length (RFC 1929).
_LONGEST_WORD = 255
# tinyproxy says 401 to a wrong password.
_LOGIN_REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED})
_LOGIN_IS_WRONG = "check user and password in the proxy's URL"


class Streams(NamedTuple):
    """Both directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(frozen=True, slots=True)
class Proxy:
    """HTTP or SOCKS5 proxy, and our login there if it asks for one."""

    kind: str
    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def where(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"

    async def open(self, host: str, port: int, context: ssl.SSLContext | None) -> Streams:
        """Open a tunnel to a host and port, with TLS inside it if there is a context."""
        name = host if context is not None else None
        if self.kind == "http":
            reader, writer = await self._connect_by_http(host, port)
            if context is not None:
                await writer.start_tls(context, server_hostname=name)
            return Streams(reader, writer)
        tunnel = await self._connect_by_socks(host, port)
        return Streams(*await asyncio.open_connection(sock=tunnel, ssl=context, server_hostname=name))

    async def _connect_by_http(self, host: str, port: int) -> Streams:
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        request = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if self.user:
            login = b64encode(f"{self.user}:{self.password}".encode(errors="surrogateescape")).decode()
            request.append(f"Proxy-Authorization: Basic {login}")
        try:
            streams = Streams(*await asyncio.open_connection(self.host, self.port))
        except OSError as error:
            raise self._away(error) from error
        try:
            streams.writer.write("\r\n".join([*request, "", ""]).encode())
            head = await streams.reader.readuntil(b"\r\n\r\n")
            self._check_status(_read_status(head), target)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            streams.writer.transport.abort()
            raise ProxyUnreachable(
                f"the proxy at {self.where} gives no answer that can be understood: check that it is an HTTP"
                " proxy, or write socks5:// in its URL"
            ) from error
        except BaseException:
            streams.writer.transport.abort()
            raise
        return streams

    def _check_status(self, status: int, target: str) -> None:
        # Not in the proxy's own words, which may be anything.
        answer = f"{status} {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else str(status)
        if status in _LOGIN_REFUSED:
            raise ProxyRefused(f"the proxy at {self.where} does not let us in ({answer}): {_LOGIN_IS_WRONG}")
        if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ProxyRefused(_forbidden(self.where, target, answer))
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise BrokerUnreachable(_not_reached(self.where, target, answer))

    async def _connect_by_socks(self, host: str, port: int) -> socket:
        socks = SocksProxy(ProxyType.SOCKS5, self.host, self.port, self.user, self.password, rdns=True)
        try:
            return await socks.connect(host, port)
        except OSError as error:
            raise self._away(error) from error
        except ProxyError as error:
            target, answer = f"{host}:{port}", f"SOCKS5: {error}"
            if error.error_code is None:
                raise ProxyRefused(
                    f"the proxy at {self.where} does not let us in ({answer}): {_LOGIN_IS_WRONG}, and that it is a"
                    " SOCKS5 proxy"
                ) from None
            if error.error_code == _SOCKS_FORBIDS:
                raise ProxyRefused(_forbidden(self.where, target, answer)) from None
            raise BrokerUnreachable(_not_reached(self.where, target, answer)) from None

    def _away(self, error: OSError) -> ProxyUnreachable:
        # asyncio and python-socks write sentences into `strerror`; errors of a resolver have a number below zero.
        name = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or "no connection"
        return ProxyUnreachable(
            f"no proxy answers at {self.where} ({name}): check that it runs, and host and port in its URL"
        )


def _forbidden(proxy: str, target: str, answer: str) -> str:
    return (
        f"the proxy at {proxy} does not let us connect to {target} ({answer}): ask its operator to allow that host"
        " and port"
    )


def _not_reached(proxy: str, target: str, answer: str) -> str:
    return (
        f"the proxy at {proxy} answers, and does not reach a broker at {target} ({answer}): check that the broker"
        " runs, and host and port in its URL"
    )


def _read_status(head: bytes) -> int:
    """Return the status of an answer's first line; raise `ValueError` if there is none."""
    version, code, *_ = head.split(maxsplit=2)
    if not version.startswith(b"HTTP/"):
        raise ValueError("not HTTP")
    return int(code)


def find_proxy(setting: str | None, scheme: str, host: str) -> Proxy | None:
    """Return the proxy for a broker: that of the setting, or that of HTTPS_PROXY, ALL_PROXY and NO_PROXY.

    HTTPS_PROXY is for `amqps://` alone. The environment never names a proxy for this machine's own ports.
    """
    if setting:
        return read_proxy(setting, "the proxy's URL")
    if is_loopback(host):
        return None
    environment = getproxies_environment()
    found = [environment[name] for name in _VARIABLES[scheme] if name in environment]
    if not found or proxy_bypass(host):
        return None
    return read_proxy(found[0], "the proxy's URL in HTTPS_PROXY or ALL_PROXY")


def read_proxy(text: str, what: str) -> Proxy:
    """Read a proxy's URL; an error does not repeat it, because it may hold a password."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
        # A name that has no form in DNS raises here, and not when it is connected to.
        (parts.hostname or "").encode("idna")
    except ValueError:
        port = None
    if not port or not parts.hostname or parts.scheme not in _KINDS or parts.path.strip("/"):
        raise ConfigurationError(
            f"{what} must look like http://proxy:3128 or socks5://proxy:1080, with user:password@ before the host"
            " if the proxy asks for a login. For a broker without a proxy, name its host in NO_PROXY"
        ) from None
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    fits = all(word.isascii() and len(word) <= _LONGEST_WORD for word in (user, password))
    if parts.scheme != "http" and not fits:
        raise ConfigurationError(
            f"{what}: user and password of a SOCKS proxy are ASCII, and {_LONGEST_WORD} characters at most"
        )
    return Proxy(parts.scheme, parts.hostname, port, user, password)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
