"""`digits`: 1,797 handwritten digits out of scikit-learn's wheel. What works with nothing fetched at all.

They are 8×8 pixels of 17 grey levels, scaled here to 28×28 pixels of 8 bits by bilinear interpolation
between pixel centres (the border repeats outwards). Pixel i of 28 has its centre at (4i - 5)/14 of the
eight, so the weights are fourteenths and all is computed in integers, exactly.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hubbub.errors import DataError
from hubbub_trainer.learning.images import SIDE_PIXELS, ImageData

_SMALL_SIDE_PIXELS = 8
_SMALL_WHITE = 16
_WHITE = 255
_WEIGHT_SUM = 14
_TEST_ONE_IN = 5


def load_digits_images() -> ImageData:
    """Return the data set; every fifth image belongs to the test set."""
    table = _read_table()
    images = enlarge(table[:, :-1].reshape(-1, _SMALL_SIDE_PIXELS, _SMALL_SIDE_PIXELS))
    labels = table[:, -1].astype(np.uint8)
    test = np.arange(len(labels)) % _TEST_ONE_IN == _TEST_ONE_IN - 1
    return ImageData(
        name="digits",
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
    )


def enlarge(small: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Scale images of 8×8 pixels from 0 to 16 to 28×28 pixels from 0 to 255."""
    weights = _interpolation_weights()
    sums = weights @ small @ weights.T
    whole = _WEIGHT_SUM**2 * _SMALL_WHITE
    # Half of the divisor is added to round to nearest.
    return ((sums * _WHITE + whole // 2) // whole).astype(np.uint8)


def _interpolation_weights() -> NDArray[np.int64]:
    """Return how many fourteenths of each of 8 pixels make up each of 28."""
    last = _SMALL_SIDE_PIXELS - 1
    centres = np.clip(4 * np.arange(SIDE_PIXELS) - 5, 0, last * _WEIGHT_SUM)
    left, part = np.divmod(centres, _WEIGHT_SUM)
    weights = np.zeros((SIDE_PIXELS, _SMALL_SIDE_PIXELS), dtype=np.int64)
    rows = np.arange(SIDE_PIXELS)
    weights[rows, left] += _WEIGHT_SUM - part
    weights[rows, np.minimum(left + 1, last)] += part
    return weights


def _read_table() -> NDArray[np.int64]:
    """Return one row per digit: 64 pixels, then the label."""
    specification = find_spec("sklearn")
    if specification is None or specification.origin is None:
        raise DataError(
            "the data set 'digits' comes with scikit-learn, which is missing: pip install 'hubbub[demo]'"
        )
    path = Path(specification.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        # Read past the package, because importing it takes two seconds, in every trainer.
        with gzip.open(path, "rt", encoding="ascii") as file:
            return np.loadtxt(file, delimiter=",").astype(np.int64)
    return _import_table()


def _import_table() -> NDArray[np.int64]:
    """Return the same by way of scikit-learn's own function."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  # Slow to import, and rarely needed.

    digits = load_digits()
    return np.column_stack([digits.data, digits.target]).astype(np.int64)
