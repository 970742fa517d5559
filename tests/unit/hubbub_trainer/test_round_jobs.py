"""Jobs of a round: a set has one digest, and what is dealt on the compact wire adds up in any number of chunks."""

from functools import partial
from itertools import repeat

import numpy as np
import pytest

from hubbub.crypto.stream import AesCtrStream
from hubbub.ids import PartyId, RunId
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import DENSE, MIN_CHUNK_BYTES, Chunk, Vector, plan_chunks
from hubbub.protocol.sharing import accumulate_chunk
from hubbub.trust.seals import SealContext, Stage, share_stream
from hubbub_trainer.round_jobs import Compact, digest_content

CLIENTS = [PartyId(f"client-{number}") for number in range(1, 4)]
SEEDED = PartyId("aggregator-2")
STAGE = Stage(RunId("ab" * 32), 3, "signs")
COMPACT = Compact(STAGE, bytes(range(32)))


def secret_of(client: PartyId) -> bytes:
    return bytes([CLIENTS.index(client)]) * 32


def values_of(client: PartyId, vectors: tuple[Vector, ...]) -> list[Digits]:
    """Bits, so that the sums of three clients do not wrap."""
    rng = np.random.default_rng(CLIENTS.index(client))
    return [rng.integers(0, 2, vector.length).astype(np.uint8) for vector in vectors]


def combine(index: int, chunk: Chunk, vectors: tuple[Vector, ...]) -> bytes:
    """The masked sum of all clients' shares of a chunk."""

    def expand(client: PartyId, vector: Vector) -> AesCtrStream:
        seed = COMPACT.seed_for(secret_of(client), SEEDED)
        return share_stream(STAGE, seed, client, SEEDED, SealContext(vector.name, vector.modulus, index))

    def deal(client: PartyId) -> bytes:
        values = values_of(client, vectors)
        return COMPACT.deal_chunk(
            index, chunk, vectors, values, me=client, secret=secret_of(client), seeded=[SEEDED]
        )

    full = [partial(deal, client) for client in CLIENTS]
    return accumulate_chunk(chunk, vectors, full=full, seeded=[partial(expand, client) for client in CLIENTS])


@pytest.mark.parametrize("chunk_bytes", [MIN_CHUNK_BYTES, 2 * MIN_CHUNK_BYTES, 2**20])
@pytest.mark.parametrize("lengths", [(100_000, 1), (0, 1), (1, 0), (30_000, 0, 70_000), (1, 1)])
def test_vectors_that_are_cut_or_whole_or_empty_are_decoded_to_their_sums(
    lengths: tuple[int, ...], chunk_bytes: int
) -> None:
    vectors = tuple(Vector(f"v{place}", length, 11) for place, length in enumerate(lengths))
    plan = plan_chunks(vectors, chunk_bytes, DENSE)
    combined = [combine(index, chunk, vectors) for index, chunk in enumerate(plan)]

    sums, possible = COMPACT.decode_chunks(plan, vectors, CLIENTS, combined.__getitem__)

    everybody = zip(*map(values_of, CLIENTS, repeat(vectors)), strict=True)
    assert [each.tolist() for each in sums] == [np.sum(each, axis=0).tolist() for each in everybody]
    assert possible
    assert {each.dtype for each in sums} == {np.dtype(np.uint8)}


def test_the_digest_is_of_all_that_a_set_says() -> None:
    vector, values = Vector("signs", 3, 11), np.array([1, 0, 10], dtype=np.uint8)
    said = digest_content([vector], [values], 1, "7a" * 32)

    assert digest_content([vector], [values.copy()], 1, "7a" * 32) == said
    others = [
        digest_content([vector], [np.array([1, 0, 9], dtype=np.uint8)], 1, "7a" * 32),
        digest_content([vector], [values], 2, "7a" * 32),
        digest_content([vector], [values], 1, "7b" * 32),
        digest_content([Vector("union", 3, 11)], [values], 1, "7a" * 32),
        digest_content([Vector("signs", 3, 13)], [values], 1, "7a" * 32),
        digest_content([vector, vector], [values, values], 1, "7a" * 32),
    ]
    assert len({said, *others}) == len(others) + 1
