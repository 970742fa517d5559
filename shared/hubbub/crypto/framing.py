"""One unambiguous byte string for several values: what is signed, sealed or hashed together."""

Part = bytes | str | int


def bind(*parts: Part) -> bytes:
    """Join parts, each after its length in 8 bytes, so that no two lists of parts give the same bytes."""
    return b"".join(piece for part in parts for piece in _framed(_encode(part)))


def _framed(part: bytes) -> tuple[bytes, bytes]:
    return len(part).to_bytes(8, "big"), part


def _encode(part: Part) -> bytes:
    """Integers are of a fixed width; who reads the parts knows which of them are integers."""
    match part:
        case bytes():
            return part
        case str():
            return part.encode()
        case int():
            return part.to_bytes(8, "big")
