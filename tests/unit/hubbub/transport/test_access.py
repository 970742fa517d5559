"""Logins, TLS files and what TLS objects to; the servers here speak TLS and nothing else."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from hubbub.errors import ConfigurationError
from hubbub.transport.access import Access, Login, Tls
from support.certificates import Authority, CertificateFiles, write_key
from support.listening import listening

LOGIN = Login("anna", "s/e:s@me")


def test_login_is_for_a_url_without_one_and_its_password_is_never_printed() -> None:
    without, with_one = Access("amqp://host/", LOGIN), Access("amqp://bert:s%2Fe@host/", LOGIN)

    assert (without.user, without.entrances[0].url.password) == ("anna", "s/e:s@me")
    assert (with_one.user, with_one.entrances[0].url.password) == ("bert", "s/e")
    assert Access("amqp://host/").user == "guest"
    assert Access("amqp://a:se%2Csame@one/").entrances[0].url.password == "se,same"
    shown = f"{LOGIN} {LOGIN!r} {without!r} {with_one} {without.entrances} {with_one.entrances}"
    assert not [part for part in ("s/e", "s%2Fe", "s@me", "s%40me") if part in shown]
    assert repr(without) == "Access('anna' at host:5672)"


# Several addresses --------------------------------------------------------------------------------------


def test_several_urls_are_entrances_in_their_order_with_one_login_and_one_context() -> None:
    access = Access("amqps://one/v,amqps://two:1234/v, amqps://three/v", LOGIN)

    assert access.where == "one:5671, two:1234, three:5671"
    ((user, password, path, context),) = {
        (each.url.user, each.url.password, each.url.path, each.context) for each in access.entrances
    }
    assert (user, password, path) == ("anna", "s/e:s@me", "/v")
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("urls", "complaint"),
    [
        ("amqp://a:sesame@one/,http://a:sesame@two/", "URL 2 of 2 of the broker must look like"),
        ("amqp://a:sesame@one:5672,two:5672/", "URL 2 of 2 of the broker must look like"),
        ("amqp://a:sesame@one/,", "URL 2 of 2 of the broker must look like"),
        ("amqp://a:se,same@one/", "%2C"),
        ("amqp://a:sesame@one/,amqps://a:sesame@two/", "differ in scheme"),
        ("amqp://a:sesame@one/v,amqp://a:sesame@two/w", "differ in virtual host"),
        ("amqp://a:sesame@one/,amqp://b:sesame@two/", "differ in user"),
        ("amqp://a:sesame@one/,amqp://two/", "differ in user"),
        ("amqp://a:sesame@one/,amqp://a:sesame@two/?name=x", "differ in options"),
        ("amqp://a:sesame@one/,amqp://a:sesame@one:5672", "same host and port twice"),
        ("amqps://a:sesame@one/,amqps://a:sesame@two/?no_verify_ssl=1", "URL 2 of 2 .*always verified"),
        ("amqps://a:sesame@one/?cafile=/etc/ca.pem", "URL cannot carry cafile: .*always verified"),
        ("amqps://a:sesame@one/?certfile=a&keyfile=b", "URL cannot carry certfile, keyfile: .*always verified"),
    ],
)
def test_a_wrong_url_is_told_and_no_password(urls: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as refusal:
        Access(urls)

    assert "sesame" not in str(refusal.value)
    assert "same@" not in str(refusal.value)


def test_plain_connection_needs_no_tls_and_takes_no_files_for_it(tmp_path: Path) -> None:
    assert Access("amqp://host/", tls=Tls()).entrances[0].context is None
    with pytest.raises(ConfigurationError, match=r"ca_file.*amqps://"):
        Access("amqp://host/", tls=Tls(ca_file=tmp_path / "ca.pem"))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def client(authority: Authority) -> CertificateFiles:
    return authority.certify_client("anna")


@pytest.mark.parametrize("which", ["ca_file", "cert_file", "key_file"])
def test_file_that_cannot_be_read_is_named(client: CertificateFiles, tmp_path: Path, which: str) -> None:
    (tmp_path / "folder").mkdir()

    for name, complaint in (("nowhere.pem", "No such file"), ("folder", "Is a directory")):
        files = {"cert_file": client.cert, "key_file": client.key, which: tmp_path / name}
        with pytest.raises(ConfigurationError, match=f"{name} cannot be read: {complaint}"):
            Access("amqps://host/", tls=Tls(**files))


def test_files_with_other_contents_are_named(
    authority: Authority, client: CertificateFiles, tmp_path: Path
) -> None:
    garbage, locked = tmp_path / "garbage.pem", tmp_path / "locked.key"
    garbage.write_text("nothing of use")
    locked.write_bytes(write_key(ec.generate_private_key(ec.SECP256R1()), b"sesame"))
    other = authority.certify_client("bert")

    for tls, complaint in (
        (Tls(ca_file=garbage), r"garbage\.pem is no PEM file of CA certificates"),
        (Tls(cert_file=garbage, key_file=client.key), r"garbage\.pem and .*anna\.key do not hold"),
        (Tls(cert_file=client.cert), r"anna\.pem and .*anna\.pem do not hold"),
        (
            Tls(cert_file=client.cert, key_file=other.key),
            r"bert\.key is not that of the certificate in .*anna\.pem",
        ),
        (Tls(cert_file=client.cert, key_file=locked), r"locked\.key is encrypted"),
        (Tls(key_file=client.key), r"anna\.key is given without its certificate"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            Access("amqps://host/", tls=tls)


def test_a_ca_file_replaces_the_systems_store_and_a_certificate_may_be_in_one_file_with_its_key(
    authority: Authority, client: CertificateFiles, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(client.cert.read_bytes() + client.key.read_bytes())

    (entrance,) = Access("amqps://host/", tls=Tls(ca_file=authority.ca_file, cert_file=both)).entrances

    assert entrance.context is not None
    assert len(entrance.context.get_ca_certs()) == 1


# Objections ---------------------------------------------------------------------------------------------


@contextmanager
def tls_server(
    authority: Authority,
    *hosts: str,
    demands_certificate: bool = False,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Iterator[int]:
    """Give the port of a server that shakes hands and then waits, as a broker does."""
    files = authority.certify_server(*hosts)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.ca_file)
    context.load_cert_chain(files.cert, files.key)
    context.maximum_version = version
    if demands_certificate:
        context.verify_mode = ssl.CERT_REQUIRED

    def serve() -> None:
        # In a thread: asyncio's servers hang up without saying what they object to.
        while not stopping.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                # Also when the client objects.
                with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(1)

    stopping = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stopping.set()
            thread.join()


async def find_trouble(port: int, tls: Tls, scheme: str = "amqps") -> str | None:
    (entrance,) = Access(f"{scheme}://127.0.0.1:{port}/", LOGIN, tls).entrances
    return await entrance.find_tls_trouble()


@pytest.mark.parametrize(
    ("version", "said"),
    [(ssl.TLSVersion.TLSv1_2, "may demand a client"), (ssl.TLSVersion.TLSv1_3, "demands a client certificate")],
)
async def test_demand_for_a_client_certificate_is_understood(
    authority: Authority, client: CertificateFiles, version: ssl.TLSVersion, said: str
) -> None:
    with_one = Tls(ca_file=authority.ca_file, cert_file=client.cert, key_file=client.key)
    with tls_server(authority, "127.0.0.1", demands_certificate=True, version=version) as port:
        assert said in str(await find_trouble(port, Tls(ca_file=authority.ca_file)))
        assert await find_trouble(port, with_one) is None


async def test_a_certificate_that_does_not_verify_and_tls_that_was_not_expected_are_told(
    authority: Authority, tmp_path: Path
) -> None:
    unknown = Authority(tmp_path / "other").ca_file
    with tls_server(authority, "broker.example") as port:
        named_otherwise = str(await find_trouble(port, Tls(ca_file=authority.ca_file)))
        assert "certificate is not valid for '127.0.0.1'" in named_otherwise
        assert "does not verify" in str(await find_trouble(port, Tls(ca_file=unknown)))
    with tls_server(authority, "127.0.0.1") as port:
        assert "amqps://" in str(await find_trouble(port, Tls(), "amqp"))


@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
async def test_a_connection_that_is_merely_lost_or_silent_is_no_objection(scheme: str) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listening(hang_up) as port:
        assert await find_trouble(port, Tls(), scheme) is None

    # Nobody listens any more.
    assert await find_trouble(port, Tls(), scheme) is None

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with listening(wait) as port:
        assert await find_trouble(port, Tls(), "amqp") is None
