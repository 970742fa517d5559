"""Every type that holds a secret, formatted in every way that a log line or a traceback could format it."""

import dataclasses
import pprint
import traceback
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from hubbub.crypto.secret import ClientSecret
from hubbub.crypto.stream import AesCtrStream
from hubbub.ids import PartyId
from hubbub.messages.shares import ShareChunk
from hubbub.parameters import Parameters
from hubbub.protocol.compression import TopBinary
from hubbub.protocol.layout import Vector
from hubbub.runtime.runner import _Turn
from hubbub.runtime.settings import ServiceSettings
from hubbub.strategies.base import ClientInput, Conclusion, Release
from hubbub.strategies.registry import STRATEGIES
from hubbub.transport.base import DeadLetter, Delivery
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Training
from hubbub_trainer.workspace import OpenRound, Workspace
from support.builders import SET_ID, make_claims, make_envelope, make_manifest

MANIFEST = make_manifest(parameters=4, rho=0.5)
WORD = "open-sesame-12345678901234567890"
SECRET = WORD.encode()
# A number whose digits stand nowhere else, and that a float32 holds exactly.
NUMBER = 0.744140625
VECTOR = np.full(4, NUMBER, dtype=np.float32)


class PartySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="HUBBUB_PRINTED_")


def client_input() -> ClientInput:
    return ClientInput(theta=VECTOR, update=VECTOR, accumulator=VECTOR, samples=10, stream=AesCtrStream(SECRET))


def round_of(strategy: str) -> Callable[[], object]:
    parameters = Parameters(parameters=4, clients=3, servers=2, rho=0.5)
    return lambda: STRATEGIES[strategy].begin(parameters, client_input())


def workspace() -> Workspace:
    learner = SyntheticTask().learner(index=0, clients=3, seed=0)
    return Workspace(
        folder=Path("runs"),
        learner=learner,
        secret=ClientSecret(SECRET, bind_run=True),
        theta=VECTOR,
        accumulator=VECTOR,
        memory=VECTOR,
        rounds={1: OpenRound(Mock(), VECTOR)},
    )


def envelope() -> object:
    return make_envelope(
        ShareChunk(set_id=SET_ID, vectors=make_claims(MANIFEST), index=0),
        sender=PartyId("client-1"),
        recipient=PartyId("aggregator-1"),
        manifest=MANIFEST,
        payload=SECRET,
    )


HOLDERS: dict[str, Callable[[], object]] = {
    "AesCtrStream": lambda: AesCtrStream(SECRET),
    "ClientSecret": lambda: ClientSecret(SECRET, bind_run=True),
    "Envelope": envelope,
    "Delivery": lambda: Delivery(SECRET, redelivered=False),
    "DeadLetter": lambda: DeadLetter(SECRET, "hubbub.inbox.client-1", "malformed"),
    "TopBinary": lambda: TopBinary(alpha=NUMBER, signs=np.array([1, 0, -1, 0], np.int8)),
    "ClientInput": client_input,
    **{f"a round of {name}": round_of(name) for name in STRATEGIES},
    "Release": lambda: Release((Vector("update", 4, 2**32),), (VECTOR.view(np.uint32),)),
    "Conclusion": lambda: Conclusion(VECTOR, VECTOR, 4),
    "Training": lambda: Training(VECTOR, VECTOR),
    "OpenRound": lambda: OpenRound(Mock(), VECTOR),
    "Workspace": workspace,
    "Settings": lambda: PartySettings(
        name=PartyId("client-1"), amqp_url=SecretStr(f"amqp://client-1:{WORD}@broker/"), folder=Path("data")
    ),
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


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_a_secret_is_in_no_text(make: Callable[[], object]) -> None:
    for text in every_format(make()):
        lowered = text.lower()
        for trace in (WORD, SECRET.hex(), str(NUMBER), "0.7441", repr(list(SECRET))[1:-1], "array("):
            assert trace not in lowered, text


def test_the_search_finds_a_secret_that_is_printed() -> None:
    @dataclasses.dataclass
    class Careless:
        payload: bytes

    assert all(WORD in text for text in every_format(Careless(SECRET))[:8])
