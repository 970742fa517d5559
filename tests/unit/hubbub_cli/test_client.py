"""The HTTP client: lost connections, TLS, and what it says of both; the token stays where it belongs."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError, HubbubError
from hubbub_cli.client import (
    Client,
    CoordinatorRefused,
    CoordinatorUnreachable,
    Endpoint,
    Message,
    NoCoordinator,
    read_messages,
    read_token,
)
from support.certificates import Authority
from support.listening import listening
from support.live_coordinator import TOKENS, LiveCoordinator
from support.party_files import write_private

RUNS = "/api/v1/runs"
NONE: dict[str, object] = {"items": [], "next": None, "total": 0}
AN_HOUR_S = 3600
A_MINUTE_S = 60


def door_to(url: str, token: str | None = TOKENS.read, ca_file: Path | None = None) -> Endpoint:
    return Endpoint(url=url, token=token, ca_file=ca_file)


@asynccontextmanager
async def forwarding(
    live: LiveCoordinator, *, drop: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """A port that leads to the coordinator, over TLS if asked to, after some connections were dropped."""
    host, port = live.url.removeprefix("http://").split(":")
    left = drop

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        if left:
            left -= 1
            await reader.read(1)
            writer.close()
            return
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    async with listening(forward, tls=tls) as here:
        yield here


# Answers ---------------------------------------------------------------------------------------------------


async def test_what_reads_is_asked_again_when_the_connection_is_lost(live: LiveCoordinator) -> None:
    async with forwarding(live, drop=2) as port, Client(door_to(f"http://127.0.0.1:{port}")) as client:
        assert await client.get(RUNS) == NONE


async def test_what_changes_is_asked_again_only_with_a_key(live: LiveCoordinator) -> None:
    async with forwarding(live, drop=1) as port, Client(door_to(f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(CoordinatorUnreachable, match="broke off the connection"):
            await client.post(f"{RUNS}/{'0' * 64}/cancel")
    async with (
        forwarding(live, drop=2) as port,
        Client(door_to(f"http://127.0.0.1:{port}", TOKENS.change)) as client,
    ):
        with pytest.raises(CoordinatorRefused, match="not a manifest"):
            await client.post(RUNS, b"{}", idempotency_key="one")


@pytest.mark.parametrize(
    ("token", "complaint"),
    [(None, "no token was sent"), ("x" * 32, "no token of this coordinator: name the file")],
)
async def test_a_wrong_token_is_told_and_not_shown(
    live: LiveCoordinator, token: str | None, complaint: str
) -> None:
    async with Client(door_to(live.url, token)) as client:
        with pytest.raises(CoordinatorRefused, match=complaint) as refusal:
            await client.get(RUNS)

    assert "xxxx" not in str(refusal.value)


@asynccontextmanager
async def answering(head: str, body: bytes) -> AsyncIterator[Client]:
    """A client of something that gives one answer to everything."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        lines = f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(lines.encode() + body)
        writer.close()

    async with listening(answer) as port, Client(door_to(f"http://127.0.0.1:{port}")) as client:
        yield client


async def test_the_coordinators_clock_is_read_from_its_answers(live: LiveCoordinator) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=AN_HOUR_S), usegmt=True)
    async with Client(door_to(live.url)) as client, answering(f"Date: {date}\r\n", b"{}") as early:
        await client.get("/healthz")
        await early.get("/healthz")

        # A server that others keep busy writes the date of some seconds ago.
        assert abs(client.ahead_s or AN_HOUR_S) < A_MINUTE_S
        assert abs((early.ahead_s or 0) - AN_HOUR_S) < A_MINUTE_S


async def test_something_else_at_the_address_is_told() -> None:
    async with answering("", b"hello") as client:
        with pytest.raises(NoCoordinator, match="no coordinator of this version"):
            await client.get(RUNS)


# TLS -------------------------------------------------------------------------------------------------------


async def test_a_proxy_that_refuses_or_is_none_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        writer.close()

    async with listening(refuse) as port:
        monkeypatch.setenv("https_proxy", f"http://anna:sesame@127.0.0.1:{port}")
        async with Client(door_to("https://coordinator.example:8750")) as client:
            with pytest.raises(CoordinatorUnreachable, match=r"the proxy on the way .*407.*NO_PROXY") as refused:
                await client.get(RUNS)
    monkeypatch.setenv("https_proxy", "socks4://anna:sesame@127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY or ALL_PROXY is no URL of a proxy") as wrong:
        Client(door_to("https://coordinator.example:8750"))

    assert "sesame" not in f"{refused.value} {wrong.value}"


@asynccontextmanager
async def tls_port(live: LiveCoordinator, authority: Authority) -> AsyncIterator[int]:
    files = authority.certify_server("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    async with forwarding(live, tls=context) as port:
        yield port


async def test_over_https_only_the_authority_of_a_file_or_of_the_system_is_trusted(
    live: LiveCoordinator, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    async with tls_port(live, authority) as port:
        async with Client(door_to(f"https://localhost:{port}", ca_file=authority.ca_file)) as client:
            assert await client.get(RUNS) == NONE
        for url, complaint in (
            (f"https://localhost:{port}", r"does not verify.*--ca-file"),
            (f"http://localhost:{port}", "write https://"),
            (live.url.replace("http://", "https://"), "write http://"),
        ):
            async with Client(door_to(url)) as client:
                with pytest.raises(CoordinatorUnreachable, match=complaint):
                    await client.get(RUNS)


# The way in ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["ftp://host", "host:8750", "", "http://", "http://host:port", "http://host:0x", "http://h/?a=b"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="must look like https://host:8750"):
        Endpoint(url=url)


def test_an_address_with_a_password_or_an_unused_ca_file_is_refused_and_secrets_are_not_shown(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigurationError, match="no user or password") as refusal:
        Endpoint(url="https://me:sesame@host")
    with pytest.raises(ConfigurationError, match="write https://"):
        Endpoint(url="http://host", ca_file=tmp_path / "ca.pem")

    assert "sesame" not in str(refusal.value)
    assert "sesame" not in repr(Endpoint(url="https://host", token="sesame"))


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "cannot be read"), ("not a certificate", "is no PEM file")]
)
def test_a_ca_file_that_is_none_is_told(tmp_path: Path, content: str | None, complaint: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content, encoding="utf-8")

    with pytest.raises(HubbubError, match=complaint):
        Client(Endpoint(url="https://host", ca_file=path))


def test_a_token_is_read_from_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_private(path, "a-token\n")
    assert read_token(path) == "a-token"

    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {path}"):
        read_token(path)


@pytest.mark.parametrize("content", ["", "two\nlines\n", "with space", "sésame"])
def test_a_file_that_holds_no_token_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    write_private(path, content)

    with pytest.raises(ConfigurationError, match="holds no token") as refusal:
        read_token(path)

    assert not content or content.split(maxsplit=1)[0] not in str(refusal.value)


# Streams ---------------------------------------------------------------------------------------------------

STREAM = (
    b": keep-alive\n\n"
    b'id: 7\nevent: party-joined\ndata: {"text": "a\xe2\x80\xa8b"}\n\n'
    b"event: reset\r\ndata: {}\r\n\r\n"
    b"id: 9\ndata: one\ndata:two\n\n"
    b"id: 10\ndata: cut o"
)


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_stream_is_read_whatever_its_pieces(size: int) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(STREAM), size):
            yield STREAM[start : start + size]

    found = [message async for message in read_messages(pieces())]

    assert found == [
        Message(7, "party-joined", '{"text": "a\u2028b"}'),
        Message(7, "reset", "{}"),
        Message(9, "message", "one\ntwo"),
    ]
