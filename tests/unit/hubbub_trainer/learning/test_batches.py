"""Partitions of the samples over clients, slices of the test set, and the order of batches."""

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.errors import ConfigurationError, DataError
from hubbub_trainer.learning.batches import Partition, deal_training_samples, order_batches, slice_test_samples

LABELS = (np.arange(6_000) * 7 % 10).astype(np.uint8)


def digest(numbers: NDArray[np.int64]) -> str:
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()


def deal_all(
    partition: str,
    *,
    labels: NDArray[np.uint8] = LABELS,
    clients: int = 5,
    seed: int = 7,
    held_out_one_in: int = 6,
) -> list[NDArray[np.int64]]:
    return [
        Partition.parse(partition).deal(
            labels, index=index, clients=clients, seed=seed, held_out_one_in=held_out_one_in
        )
        for index in range(clients)
    ]


def test_the_even_deal_holds_out_a_part_and_follows_the_seed_as_in_earlier_versions() -> None:
    shares = [deal_training_samples(60_000, index=index, clients=5, seed=7) for index in range(5)]

    # As in the paper: 10,000 of MNIST for each of five clients, and 10,000 held out.
    assert [len(share) for share in shares] == [10_000] * 5
    assert len(np.unique(np.concatenate(shares))) == 50_000
    assert digest(np.concatenate(shares)) == "eef9c4c02fccd57bd04a41297ea2f2faa0857cabfa4459caa951fb1c5d1aada0"
    assert not np.array_equal(shares[1], deal_training_samples(60_000, index=1, clients=5, seed=8))
    for index, share in enumerate(deal_all("iid")):
        assert np.array_equal(share, deal_training_samples(6_000, index=index, clients=5, seed=7))
    assert [len(share) for share in deal_all("iid", held_out_one_in=5)] == [960] * 5


@pytest.mark.parametrize("partition", ["dirichlet:0.001", "dirichlet:0.1", "dirichlet:0.5", "dirichlet:1000000"])
@pytest.mark.parametrize(("count", "clients"), [(6_000, 5), (6_000, 7), (601, 3), (70, 50)])
def test_by_class_the_same_samples_are_dealt_as_iid_each_once(partition: str, count: int, clients: int) -> None:
    even = deal_all("iid", labels=LABELS[:count], clients=clients)

    shares = deal_all(partition, labels=LABELS[:count], clients=clients)

    assert np.array_equal(np.sort(np.concatenate(shares)), np.sort(np.concatenate(even)))
    assert min(map(len, shares)) >= min(64, len(even[0]))


def test_by_class_clients_differ_the_more_the_smaller_alpha_is() -> None:
    def spread(partition: str) -> float:
        counts = [np.bincount(LABELS[share], minlength=10) for share in deal_all(partition)]
        return float(np.std(counts, axis=0).mean())

    spreads = [spread(f"dirichlet:{alpha}") for alpha in (0.05, 0.5, 5, 1e6)]

    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] > 150
    assert spreads[-1] < 2


def test_by_class_the_seed_alone_decides() -> None:
    first, again, other = deal_all("dirichlet:0.5"), deal_all("dirichlet:0.5"), deal_all("dirichlet:0.5", seed=8)

    assert list(map(digest, first)) == list(map(digest, again))
    assert not set(map(digest, first)) & set(map(digest, other))
    # The proportions follow it, and not only who is in them.
    assert max(abs(len(one) - len(two)) for one, two in zip(first, other, strict=True)) > 50


def test_client_whom_the_draw_leaves_without_samples_gets_a_batch() -> None:
    shares = deal_all("dirichlet:0.001", clients=40)

    # Ten classes go, each almost whole, to at most ten clients.
    assert sorted(map(len, shares))[:30] == [64] * 30


@pytest.mark.parametrize(("wanted", "clients"), [(2, 5), (1, 10), (2, 7), (4, 3), (10, 4)])
def test_every_client_has_so_many_classes_and_all_samples_are_dealt_each_once(wanted: int, clients: int) -> None:
    shares = deal_all(f"classes:{wanted}", clients=clients)

    classes = [set(LABELS[share].tolist()) for share in shares]
    assert [len(each) for each in classes] == [wanted] * clients
    even = deal_all("iid", clients=clients)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.sort(np.concatenate(even)))
    for label in range(10):
        parts = [np.count_nonzero(LABELS[share] == label) for share in shares if (LABELS[share] == label).any()]
        assert max(parts) - min(parts) <= 1, "who have a class have equal parts of it"
    assert np.count_nonzero(np.diff(LABELS[shares[0]].astype(int))) > wanted - 1 or wanted == 1, "in random order"


def test_the_seed_alone_decides_which_classes_a_client_has() -> None:
    def classes_of(seed: int) -> list[set[int]]:
        return [set(LABELS[share].tolist()) for share in deal_all("classes:2", seed=seed)]

    first, again = deal_all("classes:2"), deal_all("classes:2")
    assert list(map(digest, first)) == list(map(digest, again))
    assert len({str(classes_of(seed)) for seed in range(5)}) == 5


def test_classes_that_no_client_would_have_or_nobody_can_share_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"at least 4 classes, .* and at most 10"):
        deal_all("classes:3", clients=3)
    with pytest.raises(ConfigurationError, match="classes:11 does not fit"):
        deal_all("classes:11")
    with pytest.raises(DataError, match=r"class \d has \d training samples for 10 clients"):
        deal_all("classes:2", labels=LABELS[:70], clients=50)


def test_a_partition_prints_as_it_is_written_and_other_text_is_refused(subtests: pytest.Subtests) -> None:
    for text in ("iid", "dirichlet:0.5", "dirichlet:100", "classes:2"):
        assert str(Partition.parse(text)) == text
    for text in [
        *("", "IID", "even", "iid:1", "dirichlet", "dirichlet:", "dirichlet:x", "dirichlet:0.5:2"),
        *("dirichlet:0", "dirichlet:-1", "dirichlet:nan", "dirichlet:inf", "dirichlet:1e-300"),
        *("classes", "classes:", "classes:0", "classes:-1", "classes:2.5", "classes:1000", "classes:x"),
    ]:
        said = f"no partition '{text}': choose iid, or dirichlet:A"
        with subtests.test(text), pytest.raises(ConfigurationError, match=said):
            Partition.parse(text)


def test_a_client_outside_of_the_cohort_or_without_samples_is_refused() -> None:
    for partition in (Partition(), Partition(0.5), Partition(classes=2)):
        with pytest.raises(ConfigurationError, match="no client 5 among 5"):
            partition.deal(LABELS, index=5, clients=5, seed=7)
        with pytest.raises(DataError, match="too few for 6 clients"):
            partition.deal(LABELS[:6], index=0, clients=6, seed=7)
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
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))
    assert not np.array_equal(flat[:10], flat[10:])
    assert order_batches(3, steps=2, batch_size=64, seed=3).shape == (2, 64), "fewer samples than a batch"
    with pytest.raises(ConfigurationError, match="at least one local step, not 0"):
        order_batches(10, steps=0, batch_size=4, seed=3)


def test_the_order_of_batches_follows_all_of_a_long_seed_as_in_earlier_versions() -> None:
    seed = 2**127 + 5

    order = order_batches(100, steps=7, batch_size=64, seed=seed)

    assert digest(order) == "05b60ca8f3156e6f563d80d80ccf3d4540a587bd0fc80ce6211cd67b8e57e7b7"
    for other in (seed - 2**127, seed + 1):
        assert not np.array_equal(order, order_batches(100, steps=7, batch_size=64, seed=other))
