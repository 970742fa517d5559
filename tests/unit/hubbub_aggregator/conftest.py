import pytest

from support.aggregator_scene import Scene


@pytest.fixture(params=[0, 2], ids=["alone", "two workers"])
def crew_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """An aggregator that does all by itself, and one with workers, must be the same to everybody else."""
    size = int(request.param)
    monkeypatch.setattr(Scene, "workers", size)
    return size
