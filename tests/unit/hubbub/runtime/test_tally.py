"""What one process counts for another comes to the same numbers."""

from hubbub.ids import SetId
from hubbub.messages.rounds import RoundOpened
from hubbub.messages.shares import DenseShareChunk, ShareSeed, declare
from hubbub.runtime.tally import Tally
from hubbub.runtime.telemetry import Counters
from support.builders import TRANSCRIPT, make_envelope, make_manifest, make_sum_chunk, make_vectors

MANIFEST = make_manifest(clients=3, servers=2, parameters=1_003, chunk_bytes=256)
VECTORS = declare(make_vectors(MANIFEST))
SET_ID = SetId("0" * 32)
ME, YOU = MANIFEST.aggregators
BODIES = [
    make_sum_chunk(MANIFEST, index=0),
    make_sum_chunk(MANIFEST, index=1),
    DenseShareChunk(set_id=SET_ID, vectors=VECTORS, transcript=TRANSCRIPT, index=0),
    ShareSeed(set_id=SET_ID, vectors=VECTORS, transcript=TRANSCRIPT),
    RoundOpened(),
]


def test_what_was_tallied_elsewhere_counts_as_what_was_sent_here() -> None:
    here, there, tally = Counters(), Counters(), Tally()
    for size, body in enumerate(BODIES, start=100):
        envelope = make_envelope(body, sender=ME, recipient=YOU, manifest=MANIFEST, phase="signs")
        here.sent(envelope, size)
        tally.note(envelope, size)

    for sending in tally.take():
        there.sent_elsewhere(sending)

    assert read(there) == read(here)
    assert tally.take() == ()


def read(counters: Counters) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in counters.registry.collect()
        for sample in family.samples
        if sample.name in {"hubbub_messages_sent_total", "hubbub_wire_bytes_total", "hubbub_payload_bytes_total"}
    }
