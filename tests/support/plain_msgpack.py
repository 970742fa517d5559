"""MessagePack's shortest forms, from its specification: nil, booleans, integers, floats, text, bytes, arrays."""

import struct

_UNSIGNED = ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8))
_SIGNED = ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8))


def pack(value: object) -> bytes:
    match value:
        case None | bool():
            return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
        case int():
            return _pack_integer(value)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            text = value.encode()
            return _head(len(text), short=(0xA0, 32), long=((0xD9, 1), (0xDA, 2), (0xDB, 4))) + text
        case bytes():
            return _head(len(value), short=(0, 0), long=((0xC4, 1), (0xC5, 2), (0xC6, 4))) + value
        case list():
            head = _head(len(value), short=(0x90, 16), long=((0xDC, 2), (0xDD, 4)))
            return head + b"".join(map(pack, value))
    raise AssertionError(f"{value!r} is in no message")


def _pack_integer(value: int) -> bytes:
    if -32 <= value < 128:
        return value.to_bytes(1, "big", signed=value < 0)
    for mark, width in _SIGNED if value < 0 else _UNSIGNED:
        if value < 1 << 8 * width and value >= -(1 << 8 * width - 1):
            return bytes([mark]) + value.to_bytes(width, "big", signed=value < 0)
    raise AssertionError(f"{value} has more than 64 bits")


def _head(length: int, *, short: tuple[int, int], long: tuple[tuple[int, int], ...]) -> bytes:
    base, limit = short
    if length < limit:
        return bytes([base + length])
    mark, width = next((mark, width) for mark, width in long if length < 1 << 8 * width)
    return bytes([mark]) + length.to_bytes(width, "big")
