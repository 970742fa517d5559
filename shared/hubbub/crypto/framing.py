"""One unambiguous byte string for several values: what is signed, sealed or hashed together."""

Part = bytes | str | int


def bind(*parts: Part) -> bytes:
    """Join parts, each after its length in 8 bytes, so that no two lists of parts give the same bytes."""
    pieces: list[bytes] = []
    for part in parts:
        encoded = _encode(part)
        pieces += (len(encoded).to_bytes(8, "big"), encoded)
    return b"".join(pieces)


def _encode(part: Part) -> bytes:
    """Integers are of a fixed width; who reads the parts knows which of them are integers."""
    if isinstance(part, bytes):
        return part
    return part.encode() if isinstance(part, str) else part.to_bytes(8, "big")
