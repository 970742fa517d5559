"""The vectors hold for Hubbub, for a second implementation, and for the tool that writes them."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hubbub.crypto.key_derivation import GroupSecret, Transcript
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import RunId
from hubbub.protocol.ring import pack, residue_type, sample, unpack
from hubbub.protocol.sharing import split
from support import plain_group, plain_ring, plain_tags
from support.patience import HANG_S
from support.plain_aes import counter_stream

FOLDER = Path(__file__).parent
TOOL = FOLDER.parent.parent / "tools" / "make_vectors.py"
SHARING = sorted(path.stem for path in FOLDER.glob("sharing_*.json"))

# Enough for every vector here: at most half of the words are rejected on average.
STREAM_BYTES = 1000


@dataclass(frozen=True)
class Case:
    """One case of a vector file; what a file does not have stays empty."""

    m: int
    n: int
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


def test_tool_writes_the_same_bytes_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(TOOL), str(tmp_path)], check=True, timeout=HANG_S)

    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in FOLDER.glob("*.json")}


def test_stream() -> None:
    vector = json.loads((FOLDER / "stream_0.json").read_text())
    expected = bytes.fromhex(vector["bytes"])

    out = np.empty(len(expected), dtype=np.uint8)
    AesCtrStream(bytes.fromhex(vector["key"])).fill(out)

    assert out.tobytes() == expected
    assert counter_stream(bytes.fromhex(vector["key"]), len(expected)) == expected


@pytest.mark.parametrize("case", cases("sampling_0"), ids=str)
def test_sampling(case: Case) -> None:
    key = bytes.fromhex(case.key)

    assert tuple(sample(AesCtrStream(key), case.n, case.m).tolist()) == case.residues
    assert tuple(plain_ring.sample(counter_stream(key, STREAM_BYTES), case.n, case.m)[0]) == case.residues


@pytest.mark.parametrize("case", cases("packing_0"), ids=str)
def test_packing(case: Case) -> None:
    packed = bytes.fromhex(case.packed)

    assert pack(np.array(case.residues, dtype=np.uint32), case.m) == packed
    assert tuple(unpack(packed, case.n, case.m).tolist()) == case.residues
    assert plain_ring.pack(case.residues, case.m) == packed
    assert tuple(plain_ring.unpack(packed, case.n, case.m)) == case.residues


REASONS = {
    "short": RejectReason.WRONG_LENGTH,
    "trailing byte": RejectReason.WRONG_LENGTH,
    "empty": RejectReason.WRONG_LENGTH,
    "residue out of range": RejectReason.RESIDUE_OUT_OF_RANGE,
    "nonzero padding": RejectReason.NONZERO_PADDING,
}


@pytest.mark.parametrize("case", cases("packing_bad"), ids=str)
def test_bad_packing_is_refused(case: Case) -> None:
    packed = bytes.fromhex(case.packed)

    with pytest.raises(PeerError) as caught:
        unpack(packed, case.n, case.m)

    assert caught.value.reason is REASONS[case.fault]
    assert caught.value.reason.value == case.reason
    # The second implementation agrees that no vector over Z_m has these bytes.
    values = plain_ring.unpack(packed, case.n, case.m)
    assert max(values) >= case.m or plain_ring.pack(values, case.m) != packed


def test_every_fault_has_a_vector() -> None:
    assert {case.fault for case in cases("packing_bad")} == set(REASONS)


@pytest.mark.parametrize("name", SHARING)
def test_sharing(name: str) -> None:
    vector = json.loads((FOLDER / f"{name}.json").read_text())
    m, n, servers = vector["m"], vector["n"], len(vector["sums"])
    sums = [[0] * n for _ in range(servers)]

    for client in vector["clients"]:
        key, shares = bytes.fromhex(client["key"]), [bytes.fromhex(share) for share in client["shares"]]
        ours = split(np.array(client["input"], dtype=residue_type(m)), m, servers, AesCtrStream(key))
        plain = plain_ring.split(client["input"], m, servers, counter_stream(key, STREAM_BYTES))
        assert [pack(share, m) for share in ours] == shares
        assert [plain_ring.pack(share, m) for share in plain] == shares
        sums = [plain_ring.add(pair, m) for pair in zip(sums, plain, strict=True)]

    assert [plain_ring.pack(total, m).hex() for total in sums] == vector["sums"]
    assert plain_ring.add(sums, m) == vector["output"]
    assert plain_ring.add([client["input"] for client in vector["clients"]], m) == vector["output"]


def test_group() -> None:
    vector = json.loads((FOLDER / "group_0.json").read_text())
    contributions, run_keys = (
        [bytes.fromhex(each) for each in vector[name]] for name in ("contributions", "run_keys")
    )
    secret = GroupSecret.agree(contributions, run=RunId(vector["run"]), run_keys=run_keys)
    chain = plain_group.chain_values(contributions, vector["run"], run_keys, len(vector["rounds"]))

    assert secret.confirmation() == vector["confirmation"]
    assert plain_group.confirmation(chain[0], vector["run"]) == vector["confirmation"]
    for recorded, value in zip(vector["rounds"], chain, strict=True):
        assert secret.round == recorded["round"]
        for purpose, key in recorded["keys"].items():
            assert secret.key_for(purpose).hex() == key
            assert plain_group.round_key(value, recorded["round"], purpose).hex() == key
        check_transcript(recorded)
        secret.step()


def check_transcript(recorded: dict[str, Any]) -> None:
    key, parts = bytes.fromhex(recorded["keys"]["transcript"]), [bytes.fromhex(part) for part in recorded["parts"]]
    transcript = Transcript(key)
    transcript.note(*parts)

    for phase, digest in recorded["transcript"].items():
        assert transcript.digest(phase) == digest
        assert plain_group.transcript(key, parts, phase) == digest


@pytest.mark.parametrize("number", range(1, 7))
def test_tags(number: int) -> None:
    """The second implementation reads the residues as integers by itself."""
    case = json.loads((FOLDER / "tags_0.json").read_text())["cases"][number - 1]
    vectors, stage = case["vectors"], (case["run"], number, case["phase"])
    tables = {v["name"]: plain_tags.table_of(bytes.fromhex(case["group_key"]), *stage, v["name"]) for v in vectors}

    if case["kind"] == "marks":
        expected = plain_tags.tag_marks(vectors[0]["residues"], vectors[0]["m"], tables["union"])
    elif case["kind"] == "wide":
        expected = plain_tags.tag_wide(vectors[0]["residues"], tables["values"])
    else:
        integers = {
            v["name"]: [plain_tags.signed(x, v["m"]) if v["signed"] else x for x in v["residues"]] for v in vectors
        }
        expected = plain_tags.tag_integers(integers, tables)

    assert case["tags"] == expected
