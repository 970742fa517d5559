import numpy as np
import pytest

from hubbub.errors import ConfigurationError, DataError
from hubbub_trainer.learning.batches import deal_training_samples, order_batches, slice_test_samples


def test_five_clients_get_ten_thousand_of_mnist_each_and_ten_thousand_are_held_out() -> None:
    shares = [deal_training_samples(60_000, index=index, clients=5, seed=7) for index in range(5)]

    assert [len(share) for share in shares] == [10_000] * 5
    assert len(np.unique(np.concatenate(shares))) == 50_000


def test_data_are_dealt_out_by_the_seed() -> None:
    share = deal_training_samples(600, index=1, clients=5, seed=7)

    assert np.array_equal(share, deal_training_samples(600, index=1, clients=5, seed=7))
    assert not np.array_equal(share, deal_training_samples(600, index=1, clients=5, seed=8))
    assert not np.array_equal(share, np.sort(share))


def test_more_clients_than_samples_are_refused() -> None:
    with pytest.raises(DataError, match="too few for 6 clients"):
        deal_training_samples(6, index=0, clients=6, seed=7)
    with pytest.raises(DataError, match="too few for 6 clients"):
        slice_test_samples(5, index=0, clients=6)


@pytest.mark.parametrize(("count", "clients"), [(10_000, 5), (360, 7), (7, 7)])
def test_test_slices_cover_the_set_in_order(count: int, clients: int) -> None:
    slices = [slice_test_samples(count, index=index, clients=clients) for index in range(clients)]

    pieces = [np.arange(count)[piece] for piece in slices]
    assert np.array_equal(np.concatenate(pieces), np.arange(count))
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_batches_run_through_one_permutation_after_the_other() -> None:
    order = order_batches(10, steps=5, batch_size=4, seed=3)

    assert order.shape == (5, 4)
    flat = order.reshape(-1)
    assert sorted(flat[:10]) == list(range(10))
    assert sorted(flat[10:]) == list(range(10))
    assert not np.array_equal(flat[:10], flat[10:])


def test_fewer_samples_than_a_batch_still_fill_it() -> None:
    assert order_batches(3, steps=2, batch_size=64, seed=3).shape == (2, 64)


def test_all_of_a_long_seed_matters() -> None:
    seed = 2**127 + 5

    order = order_batches(100, steps=1, batch_size=64, seed=seed)

    assert np.array_equal(order, order_batches(100, steps=1, batch_size=64, seed=seed))
    assert not np.array_equal(order, order_batches(100, steps=1, batch_size=64, seed=seed - 2**127))
    assert not np.array_equal(order, order_batches(100, steps=1, batch_size=64, seed=seed + 1))


def test_round_without_steps_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one local step, not 0"):
        order_batches(10, steps=0, batch_size=4, seed=3)
