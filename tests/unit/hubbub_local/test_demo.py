"""The demo's task is one object for all trainers: its data are loaded once."""

from hubbub_local.demo import _share
from hubbub_trainer.learning.synthetic import SyntheticTask


def test_all_trainers_use_the_demos_own_task_and_others_are_loaded_when_asked_for() -> None:
    task = SyntheticTask(50)
    find = _share(task, lambda name: SyntheticTask(int(name.partition(":")[2])))

    assert find("synthetic:50") is task
    assert find("synthetic:60").count_parameters() == 60
