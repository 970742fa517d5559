"""The memory that shares are decrypted into."""

from concurrent.futures import ThreadPoolExecutor

from hubbub_aggregator.spooled_shares import Room


def test_a_thread_is_given_the_same_memory_again_and_more_if_it_needs_more() -> None:
    room = Room()

    first = room.take(5)
    first[:] = b"first"
    again = room.take(3)
    longer = room.take(8)

    assert bytes(again) == b"fir"
    assert (len(longer), bytes(first)) == (8, b"first")
    assert room.take(8).obj is longer.obj is not first.obj


def test_no_two_threads_share_memory() -> None:
    room = Room()
    mine = room.take(4)
    mine[:] = b"mine"

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: room.take(4).__setitem__(slice(None), b"ours")).result()

    assert bytes(mine) == b"mine"
