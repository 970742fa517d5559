"""What a trainer is told that lacks what its task needs; tests/integration/test_wheel.py lacks it really."""

from pathlib import Path

import pytest

from hubbub.errors import ConfigurationError
from hubbub_trainer.learning.extras import require
from hubbub_trainer.learning.registry import TASKS_IN_TORCH, find_task, load_task


def test_what_is_missing_is_named_with_who_wants_it_and_what_brings_it() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        require("no_such_module", wanted_by="the page", extra="dashboard")

    assert str(refusal.value) == (
        "the page needs no_such_module, which is not installed here: pip install 'hubbub[dashboard]'"
    )


def test_what_is_there_is_no_matter() -> None:
    require("numpy", wanted_by="everybody", extra="none")


@pytest.mark.parametrize("name", sorted(TASKS_IN_TORCH))
def test_task_without_torch_is_refused_before_its_data_are_looked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub_trainer.learning.extras.find_spec", lambda _: None)
    task = load_task(name, data=str(tmp_path), cache_folder=tmp_path)

    with pytest.raises(ConfigurationError, match=rf"task {name} needs torch.*'hubbub\[trainer\]'"):
        task.learner(index=0, clients=2, seed=0)


def test_task_of_ones_own_without_torch_names_the_extra(tmp_path: Path) -> None:
    # What `import torch` raises where there is none.
    (tmp_path / "own.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')\n")

    with pytest.raises(ConfigurationError, match=r"own.py needs torch.*'hubbub\[trainer\]'"):
        find_task(str(tmp_path / "own.py"), data="")
