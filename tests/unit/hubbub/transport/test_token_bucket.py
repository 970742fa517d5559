from hubbub.transport.token_bucket import TokenBucket


def test_a_burst_passes_and_then_what_comes_back_with_time() -> None:
    bucket = TokenBucket(10, per_s=2)

    assert bucket.take(10, now_s=100)
    assert not bucket.take(1, now_s=100.4)
    assert bucket.take(1, now_s=100.5)


def test_no_more_than_a_burst_comes_back_and_what_is_refused_costs_nothing() -> None:
    bucket = TokenBucket(10, per_s=2)

    assert bucket.take(10, now_s=100)
    assert not bucket.take(11, now_s=1_000)
    assert bucket.take(10, now_s=1_000)
