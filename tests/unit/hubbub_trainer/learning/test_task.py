import numpy as np
import pytest

from hubbub.errors import ConfigurationError, LocalError
from hubbub_trainer.learning.task import Training, check_client, check_memory, check_theta, report_interval_steps


def test_model_of_the_right_type_and_length_passes() -> None:
    check_theta(np.zeros(7, dtype=np.float32), 7)


@pytest.mark.parametrize(("shape", "dtype"), [((6,), np.float32), ((7,), np.float64), ((7, 1), np.float32)])
def test_any_other_vector_is_refused(shape: tuple[int, ...], dtype: type[np.float32]) -> None:
    with pytest.raises(LocalError, match="flat float32 vector of 7 elements"):
        check_theta(np.zeros(shape, dtype=dtype), 7)


def test_a_memory_is_none_or_as_long_as_the_model() -> None:
    check_memory(None, 7)
    check_memory(np.zeros(7, dtype=np.float32), 7)

    with pytest.raises(LocalError, match=r"memory in this task is a flat .* of 7 elements, not float64"):
        check_memory(np.zeros(7), 7)  # type: ignore[arg-type]  # That is the point.


def test_what_was_trained_prints_its_shapes_alone() -> None:
    vector = np.full(3, 0.744140625, dtype=np.float32)

    assert repr(Training(vector, vector)) == "<Training: a model of (3,), a memory of (3,)>"
    assert str(Training(vector, None)) == "<Training: a model of (3,), no memory>"


@pytest.mark.parametrize(("index", "clients"), [(5, 5), (-1, 5), (0, 0)])
def test_client_outside_of_the_cohort_is_refused(index: int, clients: int) -> None:
    with pytest.raises(ConfigurationError, match=f"no client {index} among {clients}"):
        check_client(index, clients)


@pytest.mark.parametrize("steps", [1, 2, 19, 20, 21, 39, 100, 1_001])
def test_progress_is_reported_at_most_twenty_times(steps: int) -> None:
    reports = [done for done in range(1, steps + 1) if done % report_interval_steps(steps) == 0]

    assert len(reports) <= 20
    assert len(reports) >= min(steps, 10)
