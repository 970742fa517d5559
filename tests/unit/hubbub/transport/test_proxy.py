"""Proxies: their URLs, the variables that name them, and answers that only a stand-in gives."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from hubbub.errors import BrokerRefused, BrokerUnreachable, ConfigurationError, ProxyRefused, ProxyUnreachable
from hubbub.ids import PartyId, Role
from hubbub.transport.access import Access, Login, Tls
from hubbub.transport.proxy import Proxy, find_proxy, read_proxy
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import topology_for
from support.certificates import Authority
from support.listening import listening

URL = "http://anna:se%2Fsame@proxy.example:3128"


# Which proxy --------------------------------------------------------------------------------------------


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the environment's proxies, and unset all others."""

    def assign(**values: str) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            for each in (name, name.upper()):
                monkeypatch.delenv(each, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return assign


def test_the_setting_wins_over_the_variables_and_they_are_asked_for_each_address(
    variables: Callable[..., None],
) -> None:
    variables(HTTPS_PROXY="http://outer:1", ALL_PROXY="socks5://all:2", NO_PROXY="two.example, .inside")
    urls = "amqps://one.example,amqps://two.example,amqps://three.inside,amqps://127.0.0.1"

    by_variables, by_setting = Access(urls), Access(urls, proxy=URL)

    found = [each.proxy and each.proxy.where for each in by_variables.entrances]
    assert found == ["outer:1", None, None, None]
    assert {each.proxy and each.proxy.where for each in by_setting.entrances} == {"proxy.example:3128"}
    # HTTPS_PROXY is not for what is not encrypted.
    assert find_proxy(None, "amqp", "one.example") == Proxy("socks5", "all", 2)
    variables(https_proxy="outer:1")
    assert find_proxy("", "amqps", "one.example") == Proxy("http", "outer", 1)
    assert find_proxy(None, "amqp", "one.example") is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "sesame", "https://a:sesame@proxy:1", "socks4://a:sesame@proxy:1", "http://a:sesame@proxy"),
        *(
            "http://a:sesame@:1",
            "http://a:sesame@proxy:port",
            "http://a:sesame@proxy:0",
            "http://a:sesame@proxy:1/x",
        ),
        f"socks5://anna:{'sesame' * 50}@proxy:1",
        "socks5://anna:sésame@proxy:1",
    ],
)
def test_url_that_is_none_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigurationError, match="the proxy's URL") as refusal:
        read_proxy(text, "the proxy's URL")

    assert not [word for word in ("sesame", "sésame") if word in str(refusal.value)]


def test_the_login_is_decoded_and_never_printed() -> None:
    proxy = read_proxy(URL, "")

    assert (proxy.user, proxy.password, proxy.where) == ("anna", "se/same", "proxy.example:3128")
    access = Access("amqps://broker.example/", proxy=URL)
    assert "same" not in f"{proxy!r} {access!r} {access.entrances!r} {access.way}"


# What it answers ----------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(*parts: bytes) -> AsyncIterator[Proxy]:
    """Have a proxy that says this to every request, in so many segments, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with listening(answer) as port:
        yield Proxy("http", "127.0.0.1", port, "anna", "sesame")


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", ProxyRefused, "does not let us in .407.*password"),
        (
            b"HTTP/1.0 403 No, sesame\r\n\r\n",
            ProxyRefused,
            r"connect to broker.example:443 .403 Forbidden\)",
        ),
        (b"HTTP/1.1 460 Odd\r\n\r\n", ProxyRefused, r"connect to broker.example:443 .460\)"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", BrokerUnreachable, "not reach a broker at broker.example:443 .502"),
        (b"\x05\xff", ProxyUnreachable, "write socks5://"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", ProxyUnreachable, "check that it is an HTTP proxy"),
        (b"x" * 100_000, ProxyUnreachable, "check that it is an HTTP proxy"),
    ],
)
async def test_what_an_http_proxy_says_no_with_is_told_apart(
    answer: bytes, kind: type[Exception], told: str
) -> None:
    async with answering(answer) as proxy:
        with pytest.raises((BrokerRefused, BrokerUnreachable), match=told) as failure:
            await proxy.open("broker.example", 443, None)

    assert type(failure.value) is kind
    assert "sesame" not in str(failure.value)


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (b"\x05\xff", ProxyRefused, "does not let us in .*password"),
        (b"\x05\x02\x01\x01", ProxyRefused, "does not let us in .*password"),
        (b"HTTP/1.1 400 Bad Request", ProxyRefused, "that it is a SOCKS5 proxy"),
        (b"\x05\x00\x05\x02\x00\x01" + bytes(6), ProxyRefused, "ask its operator to allow"),
        (b"\x05\x00\x05\x05\x00\x01" + bytes(6), BrokerUnreachable, "not reach a broker at broker.example:443"),
    ],
)
async def test_what_a_socks_proxy_says_no_with_is_told_apart(
    answer: bytes, kind: type[Exception], told: str
) -> None:
    async with answering(answer) as proxy:
        socks = Proxy("socks5", proxy.host, proxy.port, proxy.user, proxy.password)
        with pytest.raises((BrokerRefused, BrokerUnreachable), match=told) as failure:
            await socks.open("broker.example", 443, None)

    assert type(failure.value) is kind
    assert "sesame" not in str(failure.value)


async def test_a_proxy_that_nobody_runs_is_told_from_a_broker() -> None:
    async with answering() as gone:
        pass

    for kind in ("http", "socks5"):
        with pytest.raises(
            ProxyUnreachable, match=rf"no proxy answers at 127.0.0.1:{gone.port} \(Connection refused\)"
        ):
            await Proxy(kind, "127.0.0.1", gone.port).open("broker.example", 443, None)


# Through the tunnel -------------------------------------------------------------------------------------


class Tunnels:
    """A proxy that takes everybody to one port here, whatever was asked for."""

    def __init__(self, port: int = 0) -> None:
        self.targets: list[str] = []
        self.logins: set[bytes] = set()
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.targets.append(head.split()[1].decode())
        self.logins.add(base64.b64decode(head.partition(b"Basic ")[2].strip()))
        if not self._port:
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\nProxy-Agent: of our own\r\n\r\n")
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            with suppress(OSError):
                await asyncio.gather(pump(reader, forth), pump(back, writer))
        finally:
            forth.transport.abort()


async def test_an_answer_in_two_segments_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, cycles = asyncio.StreamReader(), 5

    async def connect(*_: object) -> tuple[asyncio.StreamReader, Mock]:
        return reader, Mock()

    monkeypatch.setattr(asyncio, "open_connection", connect)
    opening = asyncio.create_task(Proxy("http", "proxy.example", 3128).open("broker.example", 5672, None))
    reader.feed_data(b"HTTP/1.1 200 Connection established\r\n")
    for _ in range(cycles):
        await asyncio.sleep(0)
    too_early = opening.done()
    reader.feed_data(b"Proxy-Agent: of our own\r\n\r\nAMQP")

    streams = await opening

    assert not too_early
    assert await streams.reader.read(100) == b"AMQP"


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(2**16):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await pump(reader, writer)


async def test_tls_runs_inside_the_tunnel_and_names_the_broker(tmp_path: Path) -> None:
    """Several brokers, or a broker and a web server, can share port 443 by the name that TLS tells (SNI)."""
    authority, named = Authority(tmp_path / "authority"), []
    files = authority.certify_server("broker.example", "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    context.sni_callback = lambda _socket, name, _context: named.append(name)
    tls = Tls(ca_file=authority.ca_file)

    async with listening(echo, tls=context) as port:
        tunnels = Tunnels(port)
        async with listening(tunnels.serve) as proxy:
            url = f"http://anna:se%2Fsame@127.0.0.1:{proxy}"
            (entrance,) = Access("amqps://broker.example:443/", tls=tls, proxy=url).entrances
            reader, writer = await entrance.open(entrance.context)
            writer.write(b"AMQP" * 100_000)
            answer = await reader.readexactly(400_000)
            writer.close()
            await writer.wait_closed()
        (directly,) = Access(f"amqps://localhost:{port}/", tls=tls).entrances
        _, writer = await directly.open(directly.context)
        writer.close()
        await writer.wait_closed()

    assert answer == b"AMQP" * 100_000
    assert (tunnels.targets, tunnels.logins) == (["broker.example:443"], {b"anna:se/same"})
    assert named == ["broker.example", "localhost"]


async def test_every_address_is_tried_through_the_proxy_and_its_last_word_is_told() -> None:
    tunnels = Tunnels()
    topology = topology_for(PartyId("anna"), Role.CLIENT)

    async with listening(tunnels.serve) as port:
        transport = RabbitMqTransport(
            "amqps://one.example:443/,amqps://[2001:db8::1]:443/",
            topology,
            login=Login("anna", "sesame"),
            proxy=f"http://anna:sesame@127.0.0.1:{port}",
            connect_timeout_s=2,
            reconnect_interval_s=60,
        )
        with pytest.raises(
            BrokerUnreachable, match=f"proxy at 127.0.0.1:{port} answers, and does not reach"
        ) as failure:
            await transport.__aenter__()

    assert tunnels.targets == ["one.example:443", "[2001:db8::1]:443"]
    assert "sesame" not in str(failure.value)


@pytest.mark.parametrize(
    ("refuses", "answer"), [(ProxyRefused, b"HTTP/1.1 403 No\r\n\r\n"), (ProxyUnreachable, b"none")]
)
async def test_a_service_ends_with_the_word_of_the_proxy(refuses: type[Exception], answer: bytes) -> None:
    async with answering(answer) as proxy:
        transport = RabbitMqTransport(
            "amqps://one.example:443/,amqps://two.example:443/",
            topology_for(PartyId("anna"), Role.CLIENT),
            proxy=f"http://{proxy.where}",
            connect_timeout_s=2,
            reconnect_interval_s=60,
        )
        with pytest.raises(refuses, match=f"the proxy at {proxy.where}"):
            await transport.__aenter__()
