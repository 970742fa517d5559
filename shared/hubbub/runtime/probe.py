"""`python -m hubbub.runtime.probe URL`: is a service of this machine well? For images that have no other client.

It exits with 0 if the answer is 2xx, with 1 if it is another or none comes in time, with 2 if asked wrongly.
"""

from __future__ import annotations

import http.client
import sys
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

TIMEOUT_S = 3.0
"""For connecting and for each read; a health check that takes longer has its answer."""
_SHOWN_BYTES = 500
"""As much of an answer as is worth repeating: it says what is missing."""

EXIT_UNWELL = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Ask once, and say in one line what came of it."""
    if len(arguments) != 1:
        return _tell("usage: python -m hubbub.runtime.probe http://HOST:PORT/PATH", EXIT_USAGE)
    (url,) = arguments
    try:
        host, port, path = _take_apart(url)
    except ValueError as error:
        return _tell(f"{url}: {error}; give an address such as http://127.0.0.1:8751/healthz", EXIT_USAGE)
    try:
        status, text = _ask(host, port, path)
    except (OSError, http.client.HTTPException) as error:
        return _tell(f"{url}: no answer: {error or type(error).__name__}", EXIT_UNWELL)
    well = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
    return _tell(f"{url}: {status} {text}".rstrip(), 0 if well else EXIT_UNWELL)


def _take_apart(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    if parts.scheme != "http":
        raise ValueError("only http is asked")
    if not parts.hostname:
        raise ValueError("there is no host in it")
    return parts.hostname, parts.port or http.client.HTTP_PORT, parts.path or "/"


def _ask(host: str, port: int, path: str) -> tuple[int, str]:
    """Get a page directly: unlike urllib, this asks no proxy that the environment names."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(_SHOWN_BYTES).decode(errors="replace").replace("\n", " ")
    finally:
        connection.close()


def _tell(line: str, code: int) -> int:
    (sys.stderr if code else sys.stdout).write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
