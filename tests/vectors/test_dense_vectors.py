"""The vectors of dense residues and expanded streams hold for Hubbub and for a second implementation."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import PeerError, RejectReason
from hubbub.protocol.dense import Word, pack_dense, unpack_dense, word_of
from hubbub.protocol.sharing import begin_total
from support import plain_dense
from support.plain_aes import counter_stream

FOLDER = Path(__file__).parent

# Enough for every vector here.
STREAM_BYTES = 1000


@dataclass(frozen=True)
class Case:
    """One case of a vector file; what a file does not have stays empty."""

    m: int
    n: int
    digits: int = 0
    bits: int = 0
    residues: tuple[int, ...] = ()
    packed: str = ""
    key: str = ""
    fault: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.fault or 'n=' + str(self.n)} m={self.m}"


def cases(name: str) -> list[Case]:
    loaded = json.loads((FOLDER / f"{name}.json").read_text())["cases"]
    return [Case(**{**case, "residues": tuple(case.get("residues", ()))}) for case in loaded]


@pytest.mark.parametrize("case", cases("dense_0"), ids=str)
def test_dense_residues(case: Case) -> None:
    packed = bytes.fromhex(case.packed)

    assert word_of(case.m) == Word(case.digits, case.bits)
    assert pack_dense(np.array(case.residues, dtype=np.uint32), case.m) == packed
    assert tuple(unpack_dense(packed, case.n, case.m).tolist()) == case.residues
    assert plain_dense.word(case.m) == (case.digits, case.bits)
    assert plain_dense.pack(case.residues, case.m) == packed
    assert tuple(plain_dense.unpack(packed, case.n, case.m)) == case.residues


@pytest.mark.parametrize("case", cases("expansion_0"), ids=str)
def test_expansion(case: Case) -> None:
    key = bytes.fromhex(case.key)

    total = begin_total(case.n, case.m)
    total.add_expanded(AesCtrStream(key))
    assert total.pack().hex() == case.packed
    words, _ = plain_dense.expand(counter_stream(key, STREAM_BYTES), case.n, case.m)
    assert plain_dense.pack_words(words, case.m).hex() == case.packed


REASONS = {
    "short": RejectReason.WRONG_LENGTH,
    "trailing byte": RejectReason.WRONG_LENGTH,
    "empty": RejectReason.WRONG_LENGTH,
    "word out of range": RejectReason.RESIDUE_OUT_OF_RANGE,
    "digit after the last": RejectReason.RESIDUE_OUT_OF_RANGE,
    "nonzero padding": RejectReason.NONZERO_PADDING,
}


@pytest.mark.parametrize("case", cases("dense_bad"), ids=str)
def test_bad_dense_residues_are_refused(case: Case) -> None:
    packed = bytes.fromhex(case.packed)

    with pytest.raises(PeerError) as caught:
        unpack_dense(packed, case.n, case.m)

    assert caught.value.reason is REASONS[case.fault]
    assert caught.value.reason.value == case.reason
    # The second implementation agrees that no vector over Z_m has these bytes.
    assert plain_dense.pack(plain_dense.unpack(packed, case.n, case.m), case.m) != packed


def test_every_fault_has_a_vector() -> None:
    assert {case.fault for case in cases("dense_bad")} == set(REASONS)
