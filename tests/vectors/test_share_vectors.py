"""Sealed shares of the vector files, opened by Hubbub and by a second implementation of HPKE and AES-GCM."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hubbub.crypto.sealing import Kem, SealingKey
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, RunId, SetId
from hubbub.trust.seals import RunSeals, Stage, derive_share_key
from support import plain_hpke
from support.builders import make_manifest
from support.parties import identity_of
from support.plain_group import expand, frame
from support.sealed_shares import open_share

FOLDER = Path(__file__).parent
GOOD: dict[str, Any] = json.loads((FOLDER / "share_0.json").read_text())
BAD: dict[str, Any] = json.loads((FOLDER / "share_bad.json").read_text())
RUN_KEY = bytes.fromhex(GOOD["run_key"])
SEALED_KEY_BYTES = 80
MANIFEST = make_manifest()


@dataclass(frozen=True)
class Case:
    run: str
    round: int
    phase: str
    sender: str
    recipient: str
    set_id: str
    chunk: int
    payload: str
    share: str = ""
    fault: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return self.fault or f"chunk {self.chunk}"

    def open(self) -> bytes:
        """With the aggregator's run key."""
        identity = replace(identity_of(MANIFEST, MANIFEST.aggregators[0]), name=PartyId(self.recipient))
        seals = RunSeals(identity, RunId(self.run), SealingKey.from_bytes(Kem.X25519, RUN_KEY))
        place = (PartyId(self.sender), SetId(self.set_id), self.chunk)
        return open_share(seals, self.stage, *place, bytes.fromhex(self.payload))

    @property
    def stage(self) -> Stage:
        return Stage(RunId(self.run), self.round, self.phase)

    def plain_info(self, label: bytes) -> list[bytes]:
        """What is bound to the key, as the protocol's description says it; a chunk has its number too."""
        stage = (self.run.encode(), self.round.to_bytes(8, "big"), self.phase.encode())
        parties = (b"client", self.sender.encode(), b"aggregator", self.recipient.encode())
        return [label, *stage, *parties, self.set_id.encode()]


CASES = [Case(**case) for case in GOOD["cases"]]
BAD_CASES = [Case(**case) for case in BAD["cases"]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_share(case: Case) -> None:
    payload = bytes.fromhex(case.payload)

    assert case.open().hex() == case.share
    key = plain_hpke.open_sealed(
        payload[:SEALED_KEY_BYTES], RUN_KEY, frame(*case.plain_info(b"hubbub/1 share key"))
    )
    assert key.hex() == GOOD["share_key"]
    number = case.chunk.to_bytes(12, "big")
    associated = frame(*case.plain_info(b"hubbub/1 share"), number[-8:])
    assert plain_hpke.gcm_open(key, number, payload[SEALED_KEY_BYTES:], associated).hex() == case.share


def test_the_key_follows_from_what_was_drawn_for_the_set() -> None:
    (case, *_), secret = CASES, bytes.fromhex(GOOD["secret"])
    stage = (case.run.encode(), case.round.to_bytes(8, "big"), case.phase.encode())

    assert derive_share_key(case.stage, secret, PartyId(case.recipient)).to_bytes().hex() == GOOD["share_key"]
    plain = expand(secret, frame(b"hubbub/1 share key", *stage, case.recipient.encode()))
    assert plain.hex() == GOOD["share_key"]


@pytest.mark.parametrize("case", BAD_CASES, ids=str)
def test_bad_share_is_refused(case: Case) -> None:
    with pytest.raises(PeerError) as caught:
        case.open()

    assert caught.value.reason is RejectReason.BROKEN_SEAL
    assert caught.value.reason.value == case.reason


def test_every_bad_share_is_bad_in_its_own_way() -> None:
    good = replace(CASES[2], share="")
    assert BAD["run_key"] == GOOD["run_key"]
    assert len({good, *(replace(case, fault="", reason="") for case in BAD_CASES)}) == len(BAD_CASES) + 1
