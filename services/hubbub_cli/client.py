"""HTTP client of the coordinator's REST API, which raises our own errors.

The token comes from a file and travels in a header: never on a command line, in a URL or in a message. Over https
the certificate is always verified. Reads are retried after a lost connection. Changes are retried only with an
idempotency key, by which the coordinator recognises a repeated request.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from hubbub import __version__
from hubbub.disk import is_open_to_others
from hubbub.errors import ConfigurationError, TransportError
from hubbub.transport.proxy import is_loopback

Json = dict[str, Any]  # A coordinator's answer: JSON's values are of any type.

# RFC 6750, section 2.1: what may follow "Bearer" in the header.
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
ANSWER_S = 15.0
"""Timeout of a request; a coordinator that begins a run talks to its broker first."""
SILENCE_S = 45.0
"""Timeout of a silent event stream: the coordinator sends a keep-alive every 15 s."""
PAUSES_S = (0.2, 0.6)
"""Pauses before each retry."""


class CoordinatorUnreachable(TransportError):
    """Nobody answers at the coordinator's address, or the connection was lost; trying again may help."""


class CoordinatorRefused(ConfigurationError):
    """The coordinator answers and says no: the token, the run or the manifest is wrong, or the run is over."""


class CoordinatorFailed(TransportError):
    """The coordinator, or something on the way to it, answers that it cannot do it now; trying again may help."""


class NoCoordinator(ConfigurationError):
    """Something else answers, or a coordinator of another version."""


M = TypeVar("M", bound=BaseModel)


def read(model: type[M], content: Mapping[str, object]) -> M:
    """Read an answer of the coordinator; raise `NoCoordinator` if it lacks a field of this version."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise NoCoordinator(
            f"the coordinator's answer lacks what this version of hubbub needs ({where}): use the same version on"
            " both sides"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The coordinator's URL, the token to send, and the CA file of its certificate."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            well_formed = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            well_formed = False
        if not well_formed or parts.query or parts.fragment:
            raise ConfigurationError("the coordinator's URL must look like https://host:8750 (--url, HUBBUB_URL)")
        if parts.username is not None or parts.password is not None:
            # The message omits the URL: it may hold a password.
            raise ConfigurationError(
                "the coordinator's URL must hold no user or password: name the file with the token (--token-file)"
            )
        if self.ca_file is not None and parts.scheme != "https":
            raise ConfigurationError(
                "a CA file is given but the coordinator's URL begins with http://: write https://"
            )

    @property
    def is_local(self) -> bool:
        """Say whether the coordinator is on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")

    @property
    def is_encrypted(self) -> bool:
        """Say whether the connection is encrypted, so that nobody on the way reads the token."""
        return urlsplit(self.url).scheme == "https"


def read_token(path: Path) -> str:
    """Read a token from a file, which only its owner may read."""
    try:
        # Bytes that are not ASCII are replaced, and then refused like any other invalid character.
        with path.open(encoding="ascii", errors="replace") as file:
            if is_open_to_others(os.fstat(file.fileno())):
                raise ConfigurationError(f"{path} holds a token and is open to other users; chmod 600 {path}")
            token = file.read().removesuffix("\n")
    except OSError as error:
        raise ConfigurationError(
            f"{path} should hold the coordinator's token and cannot be read ({error.strerror}): name another file"
            " with --token-file (HUBBUB_TOKEN_FILE)"
        ) from None
    if not TOKEN_PATTERN.fullmatch(token):
        raise ConfigurationError(
            f"{path} holds no token: it should be one line, as the coordinator's token file has"
        )
    return token


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an event stream."""

    id: int | None
    kind: str
    data: str


class Client:
    """Client of one coordinator."""

    def __init__(self, endpoint: Endpoint, *, answer_s: float = ANSWER_S) -> None:
        self._endpoint = endpoint
        self._answer_s = answer_s
        headers = {"user-agent": f"hubbub/{__version__}"}
        if endpoint.token is not None:
            headers["authorization"] = f"Bearer {endpoint.token}"
        try:
            self._http = httpx.AsyncClient(
                base_url=endpoint.url,
                headers=headers,
                timeout=answer_s,
                verify=_trust(endpoint),
                # A proxy from the environment cannot reach this machine's own ports.
                trust_env=not endpoint.is_local,
            )
        except (ValueError, httpx.InvalidURL):
            # Without the URL, which may hold a password.
            raise ConfigurationError(
                "HTTPS_PROXY or ALL_PROXY is no URL of a proxy: write http://proxy:3128 or socks5://proxy:1080, or"
                " name the coordinator's host in NO_PROXY"
            ) from None
        self.ahead_s: float | None = None
        """Seconds that the coordinator's clock is ahead of ours, by its last answer; None if not known."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str, params: Mapping[str, object] | None = None) -> Json:
        """Send a GET, retried if the connection is lost."""
        return _read_json(await self._ask("GET", path, pauses_s=PAUSES_S, params=params))

    async def post(
        self, path: str, content: bytes | None = None, *, idempotency_key: str | None = None
    ) -> tuple[Json, bool]:
        """Send a POST; return the answer, and whether the coordinator had handled this idempotency key before."""
        headers = {} if content is None else {"content-type": "application/json"}
        if idempotency_key is not None:
            headers["idempotency-key"] = idempotency_key
        pauses_s = () if idempotency_key is None else PAUSES_S
        answer = await self._ask("POST", path, pauses_s=pauses_s, content=content, headers=headers)
        return _read_json(answer), answer.headers.get("idempotency-replayed") == "true"

    @asynccontextmanager
    async def download(self, path: str, params: Mapping[str, object]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a document in pieces."""
        async with self._streaming(path, params=params, silence_s=self._answer_s) as response:
            yield self._read_pieces(response)

    @asynccontextmanager
    async def follow(self, run: str, last_id: int) -> AsyncIterator[AsyncIterator[Message]]:
        """Stream a run's events after `last_id`, until the connection ends."""
        headers = {"accept": "text/event-stream", "last-event-id": str(last_id)}
        path = "/api/v1/events/stream"
        async with self._streaming(path, params={"run": run}, headers=headers, silence_s=SILENCE_S) as response:
            yield read_messages(self._read_pieces(response))

    async def _ask(self, method: str, path: str, *, pauses_s: tuple[float, ...], **request: Any) -> httpx.Response:
        for pause_s in (*pauses_s, None):
            try:
                with self._telling_losses():
                    answer = await self._http.request(method, path, **request)
            except CoordinatorUnreachable as error:
                if pause_s is None or isinstance(error.__cause__, httpx.ConnectError):
                    raise
                await asyncio.sleep(pause_s)
            else:
                self._read_clock(answer)
                self._check(answer)
                return answer
        raise AssertionError("the last attempt raises or returns")

    @asynccontextmanager
    async def _streaming(self, path: str, *, silence_s: float, **request: Any) -> AsyncIterator[httpx.Response]:
        timeout = httpx.Timeout(self._answer_s, read=silence_s)
        with self._telling_losses():
            response = await self._http.send(
                self._http.build_request("GET", path, timeout=timeout, **request), stream=True
            )
        try:
            if response.status_code != HTTPStatus.OK:
                with self._telling_losses():
                    await response.aread()
                self._check(response)
            yield response
        finally:
            await response.aclose()

    async def _read_pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        with self._telling_losses():
            async for piece in response.aiter_bytes():
                yield piece

    @contextmanager
    def _telling_losses(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise CoordinatorUnreachable(_describe_loss(error, self._endpoint)) from error

    def _read_clock(self, answer: httpx.Response) -> None:
        try:
            theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
        except (KeyError, ValueError):
            return
        # The header is rounded down to seconds, and was written about half a round trip ago.
        self.ahead_s = theirs + 0.5 + answer.elapsed.total_seconds() / 2 - time.time()

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        detail = _read_detail(answer)
        if answer.is_server_error:
            said = detail or f"{answer.status_code} {answer.reason_phrase}"
            raise CoordinatorFailed(f"the coordinator at {self._endpoint.url} says: {said}")
        if detail is None:
            raise NoCoordinator(_describe_stranger(self._endpoint.url))
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            raise CoordinatorRefused(f"{detail}: name the file with the token, --token-file (HUBBUB_TOKEN_FILE)")
        raise CoordinatorRefused(detail)


async def read_messages(pieces: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    """Parse an event stream; an incomplete last message is dropped, and comes again when a reader resumes."""
    number: int | None = None
    kind, data = "message", list[str]()
    async for line in _read_lines(pieces):
        if not line:
            if data:
                yield Message(number, kind, "\n".join(data))
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id" and value.isdecimal():
            number = int(value)
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)


async def _read_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Split at line feeds only: text may hold other characters at which Python would split."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def _trust(endpoint: Endpoint) -> ssl.SSLContext:
    """Make a TLS context with the system's certificate authorities, or with those of a file."""
    if not endpoint.is_encrypted:
        # Never used, and trusts nobody; reading the system's authorities would take as long as the request.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=endpoint.ca_file)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{endpoint.ca_file} is no PEM file of CA certificates ({error.reason})"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"the CA file {endpoint.ca_file} cannot be read: {error.strerror}") from None


def _read_json(answer: httpx.Response) -> Json:
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise NoCoordinator(_describe_stranger(str(answer.request.url.copy_with(raw_path=b"/"))))
    return content


def _describe_stranger(url: str) -> str:
    return f"what answers at {url} is no coordinator of this version: check --url (HUBBUB_URL)"


def _read_detail(answer: httpx.Response) -> str | None:
    """Return the detail of a coordinator's problem response; None if it is not one."""
    if not answer.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        content = json.loads(answer.content)
    except ValueError:
        return None
    return str(content["detail"]) if isinstance(content, dict) and "detail" in content else None


def _describe_loss(error: httpx.HTTPError, endpoint: Endpoint) -> str:
    where = f"the coordinator at {endpoint.url}"
    trouble = _find_tls_trouble(error)
    if isinstance(trouble, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {where} does not verify: {trouble.verify_message.rstrip('.')}. Name the file of"
            " the authority that signed it with --ca-file, and check that it names the host in the URL"
        )
    if trouble is not None:
        return (
            f"there is no TLS with {where} ({trouble.reason}): if it has none, write http:// in --url (HUBBUB_URL)"
        )
    match error:
        case httpx.ProxyError():
            return (
                f"the proxy on the way to {endpoint.url} does not let us through ({error}): check HTTPS_PROXY and"
                " ALL_PROXY, and ask the proxy's operator; or name the coordinator's host in NO_PROXY"
            )
        case httpx.ConnectError():
            return f"nobody answers at {endpoint.url}: check that the coordinator runs, and --url (HUBBUB_URL)"
        case httpx.TimeoutException():
            return f"{where} does not answer in time: it may be busy, or something in between drops what is sent"
        case httpx.RemoteProtocolError() if not endpoint.is_encrypted:
            return f"{where} broke off the connection; if it speaks TLS, write https:// in --url (HUBBUB_URL)"
    return f"the connection to {where} was lost"


def _find_tls_trouble(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error among an error's causes, if there is one."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None
