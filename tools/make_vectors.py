"""Generate tests/vectors, byte for byte: `python tools/make_vectors.py [FOLDER]`.

Everything follows from the fixed keys and moduli below. A change of these files is a change of the wire format.
"""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from dense_vectors import dense_files
from message_vectors import key_for, message_files
from share_vectors import share_files

from hubbub.crypto.key_derivation import GroupSecret, Transcript
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import PeerError
from hubbub.ids import RunId
from hubbub.protocol import tags
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues, element_bits, pack, sample, unpack
from hubbub.protocol.sharing import accumulate, recombine, split
from hubbub.trust.seals import Stage, TagCoefficients

FOLDER = Path(__file__).parent.parent / "tests" / "vectors"

MODULI = (2, 3, 6, 11, 17, 21, 32, 255, 256, 257, 1000, 2**16, 2**31, 2**31 + 1, 2**32 - 1, 2**32)
SHARING = (
    ("sharing_0", 11, 2, 5),
    ("sharing_1", 32, 3, 2),
    ("sharing_2", 2**32, 2, 3),
    ("sharing_3", 6, 4, 2),
    ("sharing_4", 2**64, 3, 3),
)

Json = dict[str, object]


def stream_vector(name: str) -> Json:
    """Return the beginning of a stream."""
    out = np.empty(100, dtype=np.uint8)
    AesCtrStream(key_for(name)).fill(out)
    return {"key": key_for(name).hex(), "bytes": out.tobytes().hex()}


def sampling_case(m: int, n: int) -> Json:
    """Return the residues that the stream of one key gives."""
    key = key_for(f"sampling {m}")
    return {"m": m, "n": n, "key": key.hex(), "residues": sample(AesCtrStream(key), n, m).tolist()}


def packing_case(m: int, n: int) -> Json:
    """Return a vector and its packed form; it always has the largest residue."""
    x = sample(AesCtrStream(key_for(f"packing {m} {n}")), n, m)
    x[: min(n, 1)] = m - 1
    return {"m": m, "n": n, "residues": x.tolist(), "packed": pack(x, m).hex()}


def sharing_vector(name: str, m: int, servers: int, clients: int) -> Json:
    """Return Alg. 1 from inputs to output; client i's shares are drawn from the stream of key i."""
    n = 9
    stream = AesCtrStream(key_for(f"{name} inputs"))
    inputs = [sample(stream, n, m) for _ in range(clients)]
    keys = [key_for(f"{name} client {i}") for i in range(clients)]
    shares = [split(x, m, servers, AesCtrStream(key)) for x, key in zip(inputs, keys, strict=True)]
    sums = [add([row[j] for row in shares], m) for j in range(servers)]
    return {
        "m": m,
        "n": n,
        "clients": [
            {"key": key.hex(), "input": x.tolist(), "shares": [pack(share, m).hex() for share in row]}
            for key, x, row in zip(keys, inputs, shares, strict=True)
        ],
        "sums": [pack(total, m).hex() for total in sums],
        "output": recombine(sums, m).tolist(),
    }


def add(vectors: Sequence[Residues], m: int) -> Residues:
    """Add vectors as one server does."""
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        accumulate(total, vector, m)
    return total


def bad_cases(m: int, n: int) -> list[Json]:
    """Corrupt one packed vector in every way that is detected."""
    x = sample(AesCtrStream(key_for(f"bad {m} {n}")), n, m)
    packed, used = pack(x, m), n * element_bits(m)
    spoiled = {
        "short": packed[:-1],
        "trailing byte": packed + b"\x00",
        "empty": b"",
    }
    if m < 2 ** element_bits(m):
        # The last element becomes m itself, the smallest value that is not a residue.
        low = int.from_bytes(packed, "little") % 2 ** (used - element_bits(m))
        value = low | m << (used - element_bits(m))
        spoiled["residue out of range"] = value.to_bytes(len(packed), "little")
    if used % 8:
        spoiled["nonzero padding"] = packed[:-1] + bytes([packed[-1] | 0x80])
    return [
        {"fault": fault, "m": m, "n": n, "packed": data.hex(), "reason": refusal(data, n, m)}
        for fault, data in spoiled.items()
    ]


def refusal(data: bytes, n: int, m: int) -> str:
    """Return the reason why these bytes are refused."""
    try:
        unpack(data, n, m)
    except PeerError as error:
        return error.reason.value
    raise AssertionError(f"{data.hex()} was taken for {n} residues mod {m}")


def group_vector(name: str, clients: int, rounds: int) -> Json:
    """Return the group secret's tag, some keys of its first rounds, and a transcript under one of them."""
    run = RunId(key_for(f"{name} run").hex())
    contributions = [key_for(f"{name} contribution {i}") for i in range(clients)]
    run_keys = [key_for(f"{name} run key {i}") for i in range(clients)]
    secret = GroupSecret.agree(contributions, run=run, run_keys=run_keys)
    return {
        "run": run,
        "contributions": [contribution.hex() for contribution in contributions],
        "run_keys": [key.hex() for key in run_keys],
        "confirmation": secret.confirmation(),
        "rounds": [group_round(secret) for _ in range(rounds)],
    }


def group_round(secret: GroupSecret) -> Json:
    """Return keys and transcript of one round, and advance the secret to the next."""
    parts = [key_for(f"part {secret.round}")[: 7 * secret.round], b"", b"sum"]
    transcript = Transcript(secret.key_for("transcript"))
    transcript.note(*parts)
    recorded: Json = {
        "round": secret.round,
        "keys": {purpose: secret.key_for(purpose).hex() for purpose in ("transcript", "masks")},
        "parts": [part.hex() for part in parts],
        "transcript": {phase: transcript.digest(phase) for phase in ("union", "signs")},
    }
    secret.step()
    return recorded


TAGS: tuple[tuple[tags.Kind, tuple[Vector, ...]], ...] = (
    ("integers", (Vector("signs", 9, 11, signed=True), Vector("factors", 1, 2**32))),
    ("integers", (Vector("signs", 9, 11), Vector("factors", 1, 2**32))),
    ("integers", (Vector("values", 9, 2**32, signed=True),)),
    ("marks", (Vector("union", 9, 2),)),
    ("marks", (Vector("union", 9, 2**5),)),
    ("wide", (Vector("values", 9, 2**64, signed=True),)),
)


def tags_case(kind: tags.Kind, vectors: tuple[Vector, ...], number: int) -> Json:
    """Return values and their tags under a group's key, in one phase of one round."""
    stage = Stage(RunId(key_for("tags run").hex()), number, "union" if kind == "marks" else "signs")
    group_key = key_for(f"tags {number}")
    values = [sample(AesCtrStream(key_for(f"tags {number} {v.name}")), v.length, v.modulus) for v in vectors]
    found = tags.compute(
        kind, vectors, values, partial(TagCoefficients(stage.run, stage.round, group_key), stage.phase)
    )
    return {
        "kind": kind,
        "group_key": group_key.hex(),
        "run": stage.run,
        "round": stage.round,
        "phase": stage.phase,
        "vectors": [
            {"name": v.name, "m": v.modulus, "signed": v.signed, "residues": x.tolist()}
            for v, x in zip(vectors, values, strict=True)
        ],
        "tags": found.tolist(),
    }


def all_vectors() -> dict[str, Json]:
    """Return every file's content, by name."""
    files: dict[str, Json] = {
        "stream_0": stream_vector("stream_0"),
        "sampling_0": {"cases": [sampling_case(m, 20) for m in MODULI]},
        "packing_0": {"cases": [packing_case(m, n) for m in MODULI for n in (0, 1, 13, 67)]},
        "packing_bad": {"cases": [case for m in (2, 3, 11, 21, 1000, 2**31 + 1) for case in bad_cases(m, 13)]},
        "group_0": group_vector("group_0", clients=3, rounds=3),
        "tags_0": {"cases": [tags_case(*case, number) for number, case in enumerate(TAGS, 1)]},
    }
    for name, m, servers, clients in SHARING:
        files[name] = sharing_vector(name, m, servers, clients)
    return files | dense_files() | message_files() | share_files()


def main(arguments: list[str]) -> None:
    """Write all files into the given folder, or into tests/vectors."""
    folder = Path(arguments[0]) if arguments else FOLDER
    for name, content in all_vectors().items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
