import pytest

from hubbub.errors import ConfigurationError
from hubbub.protocol import costs
from hubbub.protocol.costs import Headcount

HEADS = Headcount(cohort=5, senders=4, recipients=3, servers=3)
WIDE = Headcount(cohort=8, senders=3, recipients=3, servers=2)


@pytest.mark.parametrize(("senders", "recipients"), [(6, 5), (5, 6), (-1, 5), (5, -1)])
def test_more_parties_than_the_cohort_has_are_refused(senders: int, recipients: int) -> None:
    with pytest.raises(ConfigurationError, match="5 clients"):
        Headcount(cohort=5, senders=senders, recipients=recipients, servers=2)


def test_what_is_shared_goes_up_from_every_sender_and_down_to_every_recipient_by_every_server() -> None:
    heads = Headcount(cohort=5, senders=3, recipients=4, servers=2)

    assert costs.secure_sum_bits(10, 32, heads) == 2 * 3 * 10 * 5 + 2 * 4 * 10 * 5
    assert costs.factors_bits(HEADS, 16) == 3 * (4 + 3) * 16
    for q in (7, 32):
        assert costs.sec_union_bits(100, q, HEADS) == 3 * (4 + 3) * 100 * q, "q bits an index"


def test_rings_of_signs_and_counts_follow_the_cohort_whoever_drops_out() -> None:
    assert costs.signs_bits(10, WIDE) == 2 * (3 + 3) * 10 * 5
    assert costs.partial_sec_union_bits(100, HEADS) == 3 * (4 + 3) * 100 * 3
    assert costs.partial_sec_union_bits(100, WIDE) == 2 * (3 + 3) * 100 * 4


def test_plaintext_goes_to_and_from_one_server_however_many_there_are() -> None:
    up = 4 * (32 + 100 + 10)

    assert costs.plaintext_union_bits(100, HEADS) == (4 + 3) * 100
    assert costs.fedavg_update_bits(100, HEADS) == (4 + 3) * 32 * 100
    assert costs.fedavg_update_bits(100, Headcount.complete(5, 2)) == costs.fedavg_bits(100, 5), "the paper's"
    assert costs.top_binary_direct_bits(100, 10, 25, HEADS) == up + 3 * (100 + 32 * 25)
    assert costs.top_binary_sep_bits(100, 10, 25, HEADS) == up + 3 * (32 + 100 + 25 * 4)


def test_an_empty_union_costs_no_signs() -> None:
    assert costs.signs_bits(0, HEADS) == 0
    assert costs.top_binary_sep_bits(100, 10, 0, HEADS) == 4 * 142 + 3 * 132


def test_key_sizes_of_the_related_work_can_be_chosen() -> None:
    assert costs.bonawitz_bits(10, 2, key_bits=1, share_bits=1, modulus=2) == 2 * (4 + 6 + 20)
    assert costs.eastly_he_bits(10, 2, precision_bits=3, padding_bits=4) == 4 * 2 * 10 * 7
    assert costs.eastly_tss_bits(10, 8, 3) == 2 * 3 * 8 * 10 * 5
