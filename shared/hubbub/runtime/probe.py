"""Health check for container images without an HTTP client: `python -m hubbub.runtime.probe URL`.

It exits with 0 if the answer is 2xx, with 1 if it is another or none comes in time, with 2 on wrong usage.
"""

from __future__ import annotations

import http.client
import sys
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

TIMEOUT_S = 3.0
"""Timeout of connecting and of each read; a slower service counts as unhealthy."""
_SHOWN_BYTES = 500
"""Bytes of the answer that are printed: it says what is missing."""

EXIT_UNWELL = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Send one request and print the result in one line."""
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
    """Get a page directly: unlike urllib, this uses no proxy from the environment."""
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
