"""Every type that holds a secret, formatted in every way that a log line or a traceback could format it."""

import copy
import dataclasses
import pickle
import pprint
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from hubbub.crypto.key_derivation import ClientSecret, GroupSecret, Transcript
from hubbub.crypto.peer_ciphers import PEER_CIPHERS
from hubbub.crypto.sealing import ChunkKey, Kem, SealingKey
from hubbub.crypto.signing import SigningKey
from hubbub.crypto.stream import AesCtrRows, AesCtrStream
from hubbub.errors import LocalError
from hubbub.ids import PartyId, Role
from hubbub.messages.shares import ShareChunk
from hubbub.parameters import Parameters
from hubbub.protocol.compression import TopBinary
from hubbub.protocol.layout import Vector
from hubbub.runtime.process import Party
from hubbub.runtime.runner import _Turn
from hubbub.runtime.settings import ServiceSettings
from hubbub.secure_sum import Share
from hubbub.store.state_file import Vault
from hubbub.strategies.base import ClientInput, Conclusion, Release
from hubbub.strategies.registry import STRATEGIES
from hubbub.transport.access import Access, Login
from hubbub.transport.base import DeadLetter, Delivery
from hubbub.transport.proxy import read_proxy
from hubbub.trust.identity import Identity, _PrivateFile
from hubbub.trust.seals import RunSeals, TagCoefficients
from hubbub_coordinator.api.access import Tokens
from hubbub_local.federation import Parties
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Training
from hubbub_trainer.workspace import OpenRound, Workspace
from support.builders import SET_ID, TRANSCRIPT, make_claims, make_envelope, make_manifest
from support.parties import roster_of

MANIFEST = make_manifest(parameters=4, rho=0.5)
WORD = "open-sesame-12345678901234567890"
SECRET = WORD.encode()
# A number whose digits stand nowhere else, and that a float32 holds exactly.
NUMBER = 0.744140625
VECTOR = np.full(4, NUMBER, dtype=np.float32)


class PartySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="HUBBUB_PRINTED_")


def client_input() -> ClientInput:
    return ClientInput(
        theta=VECTOR,
        update=VECTOR,
        accumulator=VECTOR,
        samples=10,
        stream=AesCtrStream(SECRET),
        shared=AesCtrStream(SECRET),
        mask=np.array([1, 3]),
        coefficients=tag_coefficients(),
        ciphers=PEER_CIPHERS,
    )


def tag_coefficients() -> TagCoefficients:
    return TagCoefficients(MANIFEST.run_id, 1, SECRET)


def round_of(strategy: str) -> Callable[[], object]:
    parameters = Parameters(model_size=4, clients=3, servers=2, rho=0.5)
    return lambda: STRATEGIES[strategy].begin(parameters, client_input())


def open_round() -> OpenRound:
    transcript = Transcript(SECRET)
    transcript.note(VECTOR)
    return OpenRound(Mock(), VECTOR, transcript)


def identity() -> Identity:
    key = SigningKey.from_bytes(SECRET)
    return Identity(PartyId("client-1"), Role.CLIENT, PartyId("org-1"), key, WORD.ljust(43, "x"))


def run_seals() -> RunSeals:
    """With a key that is known, so that it would be found."""
    return RunSeals(identity(), MANIFEST.run_id, SealingKey.from_bytes(Kem.X25519, SECRET))


def vault() -> Vault:
    """With a secret in it, in a file that is gone when this returns."""
    with TemporaryDirectory() as folder:
        kept = Vault(Path(folder) / "state.sqlite")
        kept.put(MANIFEST.run_id, "run key", SECRET)
        kept.close()
        return kept


def workspace() -> Workspace:
    learner = SyntheticTask().learner(index=0, clients=3, seed=0)
    return Workspace(
        folder=Path("runs"),
        learner=learner,
        secret=ClientSecret(SECRET, bind_run=True),
        theta=VECTOR,
        accumulator=VECTOR,
        memory=VECTOR,
        group=GroupSecret(bytearray(SECRET), WORD),
        rounds={1: open_round()},
    )


def envelope() -> object:
    return make_envelope(
        ShareChunk(set_id=SET_ID, vectors=make_claims(MANIFEST), transcript=TRANSCRIPT, index=0),
        sender=PartyId("client-1"),
        recipient=PartyId("aggregator-1"),
        manifest=MANIFEST,
        payload=SECRET,
    )


HOLDERS: dict[str, Callable[[], object]] = {
    "AesCtrStream": lambda: AesCtrStream(SECRET),
    "AesCtrRows": lambda: AesCtrRows(SECRET),
    "ClientSecret": lambda: ClientSecret(SECRET, bind_run=True),
    "SigningKey": lambda: SigningKey.from_bytes(SECRET),
    "SealingKey": lambda: SealingKey.from_bytes(Kem.X25519, SECRET),
    "SealingKey, hybrid": lambda: SealingKey.from_bytes(Kem.HYBRID, SECRET * 3),
    "ChunkKey": lambda: ChunkKey.from_bytes(SECRET),
    "GroupSecret": lambda: GroupSecret(bytearray(SECRET), WORD),
    "Transcript": lambda: Transcript(SECRET),
    "Envelope": envelope,
    "Delivery": lambda: Delivery(SECRET, redelivered=False),
    "DeadLetter": lambda: DeadLetter(SECRET, "hubbub.inbox.client-1", "malformed"),
    "TopBinary": lambda: TopBinary(alpha=NUMBER, signs=np.array([1, 0, -1, 0], np.int8)),
    "ClientInput": client_input,
    "TagCoefficients": tag_coefficients,
    **{f"a round of {name}": round_of(name) for name in STRATEGIES},
    "Release": lambda: Release((Vector("update", 4, 2**32),), (VECTOR.view(np.uint32),)),
    "Share": lambda: Share(VECTOR.view(np.uint32), server=1),
    "Conclusion": lambda: Conclusion(VECTOR, VECTOR, 4),
    "Training": lambda: Training(VECTOR, VECTOR),
    "OpenRound": open_round,
    "Workspace": workspace,
    "Settings": lambda: PartySettings(
        identity=Path("me.identity.json"),
        roster=Path("roster.json"),
        amqp_url=SecretStr(f"amqp://client-1:{WORD}@broker/"),
        proxy=SecretStr(f"http://client-1:{WORD}@proxy:3128"),
        folder=Path("data"),
    ),
    "Identity": identity,
    "an identity's private file": lambda: _PrivateFile.of(identity()),
    "an identity's public file": lambda: identity().public(),
    "Party": lambda: Party(identity(), roster_of(MANIFEST), Mock()),
    "Parties": lambda: Parties(roster_of(MANIFEST), {PartyId("client-1"): identity()}),
    "Login": lambda: Login("client-1", WORD),
    "Access": lambda: Access(
        "amqp://broker/", Login("client-1", WORD), proxy=f"http://client-1:{WORD}@proxy:3128"
    ),
    "Proxy": lambda: read_proxy(f"http://client-1:{WORD}@proxy:3128", "the proxy's URL"),
    "RunSeals": run_seals,
    "Vault": vault,
    "Tokens": lambda: Tokens(read=f"read-{WORD}", change=f"change-{WORD}"),
    "a queued event": lambda: _Turn(list, SECRET, Mock()),
}


def every_format(holder: object) -> list[str]:
    texts = [repr(holder), str(holder), f"{holder}", f"{holder!r}", f"{[holder]}", f"{ {'x': holder} }"]
    texts.append(pprint.pformat(holder))
    texts.append("%s %r" % (holder, holder))  # noqa: UP031 - as logging does
    try:
        raise RuntimeError(holder)  # noqa: TRY301 - formatted below
    except RuntimeError as error:
        texts.extend(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    return texts


def test_a_secret_is_in_no_text(subtests: pytest.Subtests) -> None:
    for name, make in HOLDERS.items():
        with subtests.test(name):
            for text in every_format(make()):
                lowered = text.lower()
                for trace in (WORD, SECRET.hex(), str(NUMBER), "0.7441", repr(list(SECRET))[1:-1], "array("):
                    assert trace not in lowered, text


SHOWN = {
    "AesCtrStream": "AesCtrStream(<secret>)",
    **{name: f"<{name}>" for name in ("SigningKey", "SealingKey", "ChunkKey", "GroupSecret")},
    "SealingKey, hybrid": "<SealingKey>",
}


def test_a_key_or_a_stream_shows_its_type_alone_and_a_copy_of_it_is_refused(subtests: pytest.Subtests) -> None:
    for name, shown in SHOWN.items():
        with subtests.test(name):
            secret = HOLDERS[name]()
            assert f"{secret!r} {secret} {[secret]}" == f"{shown} {shown} [{shown}]"
            for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(LocalError, match="cannot be copied"):
                    duplicate(secret)


def test_the_search_finds_a_secret_that_is_printed() -> None:
    @dataclasses.dataclass
    class Careless:
        payload: bytes

    assert all(WORD in text for text in every_format(Careless(SECRET))[:8])
