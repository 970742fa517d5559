"""Words survive their line, and troubles are raised as what they are."""

import pytest

from hubbub.errors import LocalError, PeerError, RejectReason, StorageFailed, TransportError
from hubbub.ids import PartyId, RunId, SetId
from hubbub.machine.effects import Key
from hubbub.runtime.edge import Refusal
from hubbub.runtime.tally import Sending
from hubbub.transport.base import ACK, reject
from hubbub_aggregator.events import ChunkBroken, ChunkChecked, SumSent
from hubbub_aggregator.phases.accumulation import Accumulation, ShareSet
from hubbub_aggregator.shards.words import (
    Answer,
    Arrived,
    Briefing,
    Check,
    Checked,
    Declined,
    Dismissal,
    Faring,
    Release,
    Released,
    Trouble,
    Unable,
    Word,
    WorkerFailed,
    admit_trouble,
    read_word,
    trouble_of,
    write_word,
)
from support.aggregator_scene import CLIENTS, MANIFEST, ME, VECTORS

RUN = RunId(MANIFEST.run_id)
KEY = Key("phase", RUN, 2, "signs")
SET = ShareSet(set_id=SetId("0" * 32), vectors=VECTORS, weight=1, transcript="1" * 64, chunks=2)
DATA = Accumulation(
    me=ME,
    key=KEY,
    run=Key("run", RUN),
    manifest=MANIFEST,
    servers=MANIFEST.aggregators,
    sets=dict.fromkeys(CLIENTS, SET),
    members=CLIENTS,
)
BROKEN = ChunkBroken(client=CLIENTS[0], index=1, reason=RejectReason.BROKEN_SEAL, explanation="no\nline")
WORDS: list[Word] = [
    Briefing(run=RUN, manifest=MANIFEST, publics={CLIENTS[0]: bytes(range(32))}),
    Dismissal(RUN),
    Answer(7, ACK),
    Answer(8, reject("second-set")),
    Check(9, KEY, CLIENTS[0], SET, 1),
    Release(10, KEY, DATA, (0, 2, 4)),
    Arrived(11, b"HBUB\n\x00\xff", 1_000, "ab", 900),
    Declined(12, Refusal(RejectReason.MALFORMED, "not a frame")),
    Checked(13, ChunkChecked(client=CLIENTS[0], index=1)),
    Checked(14, BROKEN),
    Released(15, SumSent(vectors=VECTORS, traffic=())),
    Unable(16, Trouble.PEER, "two\nlines", RejectReason.WRONG_RING),
    Faring(("there is no connection",), (Sending("sum-chunk", "signs", 3, 4_000, {"signs": 1.5}),)),
]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_a_word_is_one_line_that_is_read_as_the_same_word(word: Word) -> None:
    line = write_word(word)

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert read_word(line) == word


@pytest.mark.parametrize("line", [b"Payload {}\n", b'Answer [{"number": "x"}]\n', b"\n", b"Answer\n"])
def test_a_line_that_is_no_word_is_refused(line: bytes) -> None:
    with pytest.raises(LocalError):
        read_word(line)


@pytest.mark.parametrize(
    ("met", "raised"),
    [
        (TransportError("away"), TransportError),
        (StorageFailed("full"), TransportError),
        (PeerError(RejectReason.BROKEN_SEAL, "no"), PeerError),
        (LocalError("over"), LocalError),
        (ZeroDivisionError("oops"), WorkerFailed),
    ],
)
def test_what_a_worker_meets_is_raised_at_its_head_by_what_is_done_about_it(
    met: Exception, raised: type[Exception]
) -> None:
    word = admit_trouble(3, met, "Traceback of a bug")

    error = trouble_of(word)

    assert word.number == 3
    assert type(error) is raised
    if isinstance(error, PeerError):
        assert error.reason is RejectReason.BROKEN_SEAL
    assert str(error) == ("Traceback of a bug" if raised is WorkerFailed else str(met))


def test_names_of_parties_stay_names() -> None:
    word = read_word(write_word(WORDS[0]))

    assert isinstance(word, Briefing)
    assert list(word.publics) == [PartyId(CLIENTS[0])]
