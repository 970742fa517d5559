import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hubbub.runtime import probe
from hubbub.runtime.probe import EXIT_UNWELL, EXIT_USAGE, main


class Answers(BaseHTTPRequestHandler):
    """Answers with the number that is asked for."""

    def do_GET(self) -> None:
        status = int(self.path.removeprefix("/"))
        body = b'{"missing":\n"the broker"}' if status >= 300 else b""
        self.send_response(status)
        if status in {301, 302}:
            self.send_header("Location", "/200")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (So it is called there.)
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def silent() -> Iterator[str]:
    """An address where connections are taken and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("status", [200, 204, 302, 404, 503])
def test_who_is_well_gets_a_zero_and_any_other_answer_is_told_in_one_line(
    page: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = main([f"{page}/{status}"])

    if status < 300:
        assert (ended, capsys.readouterr()) == (0, (f"{page}/{status}: {status}\n", ""))
    else:
        told = f'{page}/{status}: {status} {{"missing": "the broker"}}\n'
        assert (ended, capsys.readouterr()) == (EXIT_UNWELL, ("", told))


def test_silence_is_not_waited_for_and_nobodys_address_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.05)
    with silent() as address:
        assert main([f"{address}/healthz"]) == EXIT_UNWELL
    assert capsys.readouterr().err == f"{address}/healthz: no answer: timed out\n"
    # Nobody listens any more.
    assert main([f"{address}/healthz"]) == EXIT_UNWELL
    assert capsys.readouterr().err == f"{address}/healthz: no answer: [Errno 111] Connection refused\n"


def test_what_is_not_http_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def talk() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"AMQP\x00\x00\x09\x01\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        assert main([address]) == EXIT_UNWELL
        thread.join()

    assert capsys.readouterr().err.startswith(f"{address}: no answer: ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "usage: "),
        (["http://127.0.0.1/", "more"], "usage: "),
        (["https://127.0.0.1/"], "https://127.0.0.1/: only http is asked; give an address such as "),
        (["127.0.0.1:8751/healthz"], "127.0.0.1:8751/healthz: only http is asked; "),
        (["http:///healthz"], "http:///healthz: there is no host in it; "),
        (["http://127.0.0.1:port/"], "http://127.0.0.1:port/: Port could not be cast to integer value"),
    ],
)
def test_a_wrong_address_is_told(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == EXIT_USAGE

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(complaint)


def test_as_a_command_it_asks_no_proxy_and_brings_no_library_along(page: str) -> None:
    nowhere = dict.fromkeys(["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"], "http://127.0.0.1:1")
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"} | nowhere

    # Without site-packages there is nothing but the standard library.
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "hubbub.runtime.probe", f"{page}/200"],
        env={**environment, "PYTHONPATH": str(Path(probe.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{page}/200: 200\n", "")
