"""Words of residues and expanded streams for tests/vectors."""

import numpy as np
from message_vectors import Json, key_for

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import PeerError
from hubbub.protocol.dense import (
    count_words,
    dense_bits,
    pack_dense,
    pack_words,
    unpack_dense,
    word_of,
    words_type,
)
from hubbub.protocol.ring import sample
from hubbub.protocol.sharing import begin_total

MODULI = (2, 3, 5, 6, 7, 11, 17, 21, 32, 201, 255, 256, 257, 1000, 2**16, 2**31 + 1, 2**32 - 1, 2**32)


def dense_files() -> dict[str, Json]:
    """Return every file's content, by name."""
    return {
        "dense_0": {"cases": [_dense_case(m, n) for m in MODULI for n in (0, 1, 13, 67)]},
        "dense_bad": {"cases": [case for m in (2, 6, 11, 17, 21, 201, 257) for case in _bad_cases(m, 13)]},
        "expansion_0": {"cases": [_expansion_case(m, n) for m in MODULI for n in (1, 21)]},
    }


def _dense_case(m: int, n: int) -> Json:
    """Return a vector and its packed form; it always has the largest residue."""
    x = sample(AesCtrStream(key_for(f"dense {m} {n}")), n, m)
    x[: min(n, 1)] = m - 1
    word = word_of(m)
    sizes = {"digits": word.digits, "bits": word.bits}
    return {"m": m, "n": n, **sizes, "residues": x.tolist(), "packed": pack_dense(x, m).hex()}


def _expansion_case(m: int, n: int) -> Json:
    """Return the packed words that the stream of one key expands to."""
    key = key_for(f"expansion {m}")
    total = begin_total(n, m)
    total.add_expanded(AesCtrStream(key))
    return {"m": m, "n": n, "key": key.hex(), "packed": total.pack().hex()}


def _bad_cases(m: int, n: int) -> list[Json]:
    """Corrupt one packed vector in every way that is detected."""
    x = sample(AesCtrStream(key_for(f"bad dense {m} {n}")), n, m)
    packed, word = pack_dense(x, m), word_of(m)
    spoiled = {"short": packed[:-1], "trailing byte": packed + b"\x00", "empty": b""}
    if m**word.digits < 2**word.bits:
        # The first word becomes the smallest that is not a number of so many digits.
        words = np.zeros(count_words(n, m), dtype=words_type(m))
        words[0] = m**word.digits
        spoiled["word out of range"] = pack_words(words, m)
    if n % word.digits:
        spoiled["digit after the last"] = pack_dense(np.append(x, np.uint32(1)), m)
    if dense_bits(n, m) % 8:
        spoiled["nonzero padding"] = packed[:-1] + bytes([packed[-1] | 0x80])
    return [
        {"fault": fault, "m": m, "n": n, "packed": data.hex(), "reason": _refusal(data, n, m)}
        for fault, data in spoiled.items()
    ]


def _refusal(data: bytes, n: int, m: int) -> str:
    """Return the reason why these bytes are refused."""
    try:
        unpack_dense(data, n, m)
    except PeerError as error:
        return error.reason.value
    raise AssertionError(f"{data.hex()} was taken for {n} residues mod {m}")
