import pytest
from pydantic import ValidationError

from hubbub.messages.shares import Traffic, VectorClaim, count_arrivals, count_payload, declare, share_wire_bytes
from hubbub.protocol.costs import Headcount, factors_bits, signs_bits
from hubbub.protocol.layout import Vector, chunk_payload_bytes, plan_chunks

VECTORS = (Vector("signs", 1_000, 11), Vector("factors", 1, 2**32))


def test_payload_is_counted_for_each_vector_and_every_copy() -> None:
    assert count_payload(VECTORS, "up", copies=3) == (
        Traffic(counts_as="signs", direction="up", payload_bits=3 * 4_000),
        Traffic(counts_as="factors", direction="up", payload_bits=3 * 32),
    )


def test_payload_of_all_parties_is_the_papers_formula() -> None:
    clients, servers = 5, 2
    up = [item for _ in range(clients) for item in count_payload(VECTORS, "up", copies=servers)]
    down = [item for _ in range(servers) for item in count_payload(VECTORS, "down", copies=clients)]

    heads = Headcount.complete(clients, servers)
    assert sum(item.payload_bits for item in (*up, *down)) == signs_bits(1_000, heads) + factors_bits(heads)


def test_the_first_vector_of_a_frame_carries_the_framing() -> None:
    payload = {"signs": 500, "factors": 4}

    shares = share_wire_bytes(payload, frame_bytes=900)

    assert shares == {"signs": 896, "factors": 4}
    assert payload == {"signs": 500, "factors": 4}


def test_arrivals_count_wire_bytes_and_no_payload() -> None:
    assert count_arrivals({"signs": 896, "factors": 4}, "down") == (
        Traffic(counts_as="signs", direction="down", wire_bytes=896),
        Traffic(counts_as="factors", direction="down", wire_bytes=4),
    )


@pytest.mark.parametrize("amount", [-1, 2**63, 1.0, True])
def test_amounts_are_whole_numbers_that_a_database_holds(amount: object) -> None:
    with pytest.raises(ValidationError):
        Traffic.model_validate({"counts_as": "signs", "direction": "up", "payload_bits": amount})


def test_a_declared_vector_is_the_vector() -> None:
    claims = declare(VECTORS)

    assert claims[0] == VectorClaim(name="signs", length=1_000, modulus=11)
    assert tuple(claim.vector for claim in claims) == VECTORS


def test_vectors_that_count_as_one_are_added_up() -> None:
    """The parts of a coded update: a factor, a bit for every parameter, and the signs."""
    vectors = [Vector("update.factor", 1, 2**32), Vector("update.indices", 100, 2), Vector("union", 100, 6)]

    assert [(row.counts_as, row.payload_bits) for row in count_payload(vectors, "up", copies=2)] == [
        ("update", 64),
        ("update", 200),
        ("union", 600),
    ]
    (chunk,) = plan_chunks(vectors, 1_024)
    assert chunk_payload_bytes(chunk, vectors) == {"update": 4 + 13, "union": 38}
