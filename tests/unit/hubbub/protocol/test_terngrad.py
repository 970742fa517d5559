import numpy as np
import pytest

from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import BadUpdate
from hubbub.protocol.terngrad import ternarise

X = np.array([0.0, 0.5, -2.0, 1.0, -0.01, 0.0], dtype=np.float32)


def test_it_is_right_on_average() -> None:
    """Of 40,000 draws, the mean of an entry has a standard deviation of at most s/√40,000 = 0.01."""
    stream, draws = AesCtrStream(bytes(32)), 40_000
    copies = np.tile(X, draws)

    drawn = ternarise(copies, stream)

    assert drawn.factor == 2.0
    mean = drawn.factor * drawn.signs.reshape(draws, X.size).mean(axis=0)
    np.testing.assert_allclose(mean, X, atol=0.05)
    assert set(drawn.signs[2::6]) == {-1}, "the largest is always drawn"
    assert not drawn.signs[0::6].any()


def test_zeros_stay_zeros_and_what_is_not_finite_is_refused() -> None:
    nothing = ternarise(np.zeros(5, np.float32), AesCtrStream(bytes(32)))

    assert (nothing.factor, nothing.signs.tolist()) == (0.0, [0] * 5)
    with pytest.raises(BadUpdate):
        ternarise(np.array([1, np.nan], np.float32), AesCtrStream(bytes(32)))


def test_it_does_not_print_what_it_hides() -> None:
    assert "2.0" not in repr(ternarise(X, AesCtrStream(bytes(32))))
