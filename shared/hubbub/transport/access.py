"""Access to the broker: its addresses, a proxy, a login, and TLS, optionally with a client certificate.

A broker of several nodes has several addresses, any of which will do. Over `amqps://` the broker's certificate is
always verified, its host name included, and nothing switches that off. TLS libraries and brokers are terse about
failures, so messages are written here, without the password. Some brokers state their objection only to a client
that listens before it speaks (`Entrance.find_tls_trouble`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, TypeGuard
from urllib.parse import urlsplit

from yarl import URL

from hubbub.errors import ConfigurationError
from hubbub.transport.definitions import DEFAULT_USER
from hubbub.transport.proxy import Proxy, Streams, find_proxy

_DEFAULT_PORTS: Mapping[str, int] = MappingProxyType({"amqp": 5672, "amqps": 5671})
# A URL that could carry these could also turn verification off.
_NOT_IN_URL = frozenset({"cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl"})
# Time that a broker may take to object to a handshake.
_OBJECTION_S = 1.0
_SPEAKS_TLS = "it speaks TLS there: write amqps:// in the URL, or name the port without TLS"
_NO_TLS = "it does not speak TLS there: name the port for TLS, or write amqp:// in the URL"
_EXPLANATIONS: Mapping[str, str] = MappingProxyType(
    {
        "WRONG_VERSION_NUMBER": _NO_TLS,
        "RECORD_LAYER_FAILURE": _NO_TLS,
        "CERTIFICATE_REQUIRED": "it demands a client certificate: name one, with its key",
        "HANDSHAKE_FAILURE": "it broke off the handshake: it may demand a client certificate, or other ciphers",
        "UNKNOWN_CA": "it does not know the CA of our client certificate: take one that the broker trusts",
        "CERTIFICATE": "it does not take our client certificate: take one that is valid for clients",
        "PROTOCOL": "it has no version of TLS in common with us: it needs 1.2 or later",
    }
)
"""Keyed by fragments of OpenSSL's reasons; the first that matches is used."""


@dataclass(frozen=True, slots=True)
class Login:
    """User and password at the broker."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files for TLS; without a CA file the system's store is trusted.

    A certificate whose file also holds its key needs no key file.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Entrance:
    """Address of one node of the broker; the URL holds a password."""

    url: URL = field(repr=False)
    host: str
    port: int
    context: ssl.SSLContext | None = field(default=None, repr=False)
    proxy: Proxy | None = None

    @property
    def where(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"

    async def open(self, context: ssl.SSLContext | None) -> Streams:
        """Open a connection, through the proxy if there is one, with TLS if there is a context."""
        if self.proxy is not None:
            return await self.proxy.open(self.host, self.port, context)
        return Streams(*await asyncio.open_connection(self.host, self.port, ssl=context))

    def describe(self, error: BaseException) -> str | None:
        """Return what was wrong if TLS is why there is no connection, or None."""
        return _describe_tls(error.__cause__) if _is_objection(error.__cause__) else None

    async def find_tls_trouble(self) -> str | None:
        """Repeat the handshake and listen, to learn whether TLS is why the broker closed the connection.

        A broker that objects to a client's certificate says so and hangs up. A client that has sent something by
        then finds the connection reset and the objection gone.
        """
        trouble: str | None = None
        try:
            await _shake_hands(self, self.context or ssl.create_default_context())
        except OSError as error:
            if not _is_objection(error):
                return None
            trouble = _describe_tls(error)
        if self.context is not None:
            return trouble
        return None if trouble and trouble.startswith(_NO_TLS) else _SPEAKS_TLS


class Access:
    """Addresses of the broker, the proxy on the way there, the login and the TLS context.

    Several URLs are separated by commas. They name the nodes of one broker, so they have to agree on all but host
    and port. Without the URL of a proxy, the usual environment variables are asked for each host.
    """

    def __init__(
        self, urls: str, login: Login | None = None, tls: Tls | None = None, proxy: str | None = None
    ) -> None:
        entrances = _read_urls(urls)
        self.context = _make_context(entrances[0].url.scheme, tls or Tls())
        if login is not None and entrances[0].url.user is None:
            user, password = login.user, login.password
            entrances = [replace(each, url=each.url.with_user(user).with_password(password)) for each in entrances]
        self.entrances = tuple(
            replace(each, context=self.context, proxy=find_proxy(proxy, each.url.scheme, each.host))
            for each in entrances
        )

    def __repr__(self) -> str:
        # The URLs hold a password.
        return f"Access({self.user!r} at {self.where})"

    @property
    def where(self) -> str:
        """All hosts and ports, for messages."""
        return ", ".join(entrance.where for entrance in self.entrances)

    @property
    def way(self) -> str:
        """The proxies on the way, for messages; empty if there is none."""
        proxies = dict.fromkeys(each.proxy.where for each in self.entrances if each.proxy is not None)
        return f" through the proxy at {', '.join(proxies)}" if proxies else ""

    @property
    def user(self) -> str:
        """Our user at the broker."""
        # aiormq takes RabbitMQ's default user where none is named.
        return self.entrances[0].url.user or DEFAULT_USER


def _is_objection(error: BaseException | None) -> TypeGuard[ssl.SSLError]:
    """Say whether an error is an objection of one side to the other, not a lost connection."""
    lost = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, lost)


async def _shake_hands(entrance: Entrance, context: ssl.SSLContext) -> None:
    """Begin TLS and send nothing; raise an objection of either side."""
    async with asyncio.timeout(_OBJECTION_S):
        reader, writer = await entrance.open(context)
    try:
        # A broker without an objection waits for us.
        with suppress(TimeoutError):
            async with asyncio.timeout(_OBJECTION_S):
                await reader.read(1)
    finally:
        writer.close()


def _describe_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the broker's certificate does not verify: {error.verify_message.rstrip('.')}. Check that the CA file"
            " is the broker's, and that its certificate names the host in the URL"
        )
    reason = error.reason or "no reason given"
    for fragment, explanation in _EXPLANATIONS.items():
        if fragment in reason:
            return f"{explanation} ({reason})"
    return f"TLS failed ({reason})"


def _read_urls(text: str) -> list[Entrance]:
    parts = [part.strip() for part in text.split(",")]
    entrances = [
        _read_url(part, "the broker's URL" if len(parts) == 1 else f"URL {number} of {len(parts)} of the broker")
        for number, part in enumerate(parts, start=1)
    ]
    if len({(entrance.host, entrance.port) for entrance in entrances}) < len(entrances):
        raise ConfigurationError("the broker's URLs name the same host and port twice: name each node once")
    for what, found in (
        ("scheme", {entrance.url.scheme for entrance in entrances}),
        ("user and password", {(entrance.url.user, entrance.url.password) for entrance in entrances}),
        ("virtual host", {entrance.url.path or "/" for entrance in entrances}),
        ("options", {entrance.url.query_string for entrance in entrances}),
    ):
        if len(found) > 1:
            raise ConfigurationError(
                f"the broker's URLs differ in {what}: they have to name nodes of one broker, which differ in host"
                " and port alone"
            )
    return entrances


def _read_url(text: str, which: str) -> Entrance:
    try:
        parts = urlsplit(text)
        url, host, port = URL(text), parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in _DEFAULT_PORTS:
        # `from None` and no echo of the URL: it may hold a password.
        raise ConfigurationError(
            f"{which} must look like amqp://user:password@host:5672/vhost; commas separate URLs, and one inside a"
            " password is written %2C"
        ) from None
    if unwanted := sorted(_NOT_IN_URL & set(url.query)):
        raise ConfigurationError(
            f"{which} cannot carry {', '.join(unwanted)}: TLS files have settings of their own, and"
            " certificates are always verified"
        )
    return Entrance(url, host, port or _DEFAULT_PORTS[parts.scheme])


def _make_context(scheme: str, tls: Tls) -> ssl.SSLContext | None:
    given = [each.name for each in fields(tls) if getattr(tls, each.name) is not None]
    if scheme != "amqps":
        if given:
            raise ConfigurationError(
                f"TLS files are given ({', '.join(given)}) but the broker's URL begins with amqp://: write amqps://"
            )
        return None
    if tls.key_file is not None and tls.cert_file is None:
        raise ConfigurationError(f"the key {tls.key_file} is given without its certificate: name that as well")
    for path in (tls.ca_file, tls.cert_file, tls.key_file):
        try:
            # OpenSSL does not say which of them it cannot read.
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise ConfigurationError(f"the TLS file {path} cannot be read: {error.strerror}") from None
    try:
        # Verifies the certificate and the host's name.
        context = ssl.create_default_context(cafile=tls.ca_file)
    except ssl.SSLError as error:
        raise ConfigurationError(f"{tls.ca_file} is no PEM file of CA certificates ({error.reason})") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.cert_file is not None:
        _load_certificate(context, tls.cert_file, tls.key_file)
    return context


def _load_certificate(context: ssl.SSLContext, cert_file: Path, key_file: Path | None) -> None:
    key = key_file or cert_file

    def refuse() -> NoReturn:
        # Without this OpenSSL would prompt on the terminal.
        raise ConfigurationError(f"the key in {key} is encrypted: give one that is not, readable by us alone")

    try:
        context.load_cert_chain(cert_file, key_file, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"the key in {key} is not that of the certificate in {cert_file}") from None
        raise ConfigurationError(
            f"{cert_file} and {key} do not hold a certificate and its key as PEM ({error.reason})"
        ) from None
