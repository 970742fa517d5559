import pytest

from hubbub.errors import ConfigurationError
from hubbub.protocol import costs
from hubbub.protocol.costs import Headcount


def test_upload_counts_senders_and_download_counts_recipients() -> None:
    heads = Headcount(cohort=5, senders=3, recipients=4, servers=2)

    assert costs.secure_sum_bits(10, 32, heads) == 2 * 3 * 10 * 5 + 2 * 4 * 10 * 5


def test_ring_of_the_signs_follows_the_cohort_whoever_drops_out() -> None:
    heads = Headcount(cohort=8, senders=3, recipients=3, servers=2)

    assert costs.signs_bits(10, heads) == 2 * (3 + 3) * 10 * 5


def test_no_union_is_the_sum_of_its_phases() -> None:
    heads = Headcount(cohort=5, senders=5, recipients=4, servers=3)

    total = costs.no_union_bits(100, heads, factor_bits=16)

    assert total == costs.signs_bits(100, heads) + costs.factors_bits(heads, 16)
    assert costs.factors_bits(heads, 16) == 3 * 9 * 16


@pytest.mark.parametrize(("senders", "recipients"), [(6, 5), (5, 6), (-1, 5), (5, -1)])
def test_more_parties_than_the_cohort_has_are_refused(senders: int, recipients: int) -> None:
    with pytest.raises(ConfigurationError, match="5 clients"):
        Headcount(cohort=5, senders=senders, recipients=recipients, servers=2)
