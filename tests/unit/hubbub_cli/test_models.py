"""`hubbub model`: a model under its own names, read by programs that know nothing of Hubbub."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hubbub_trainer.saved_model import BEST, FILE, Headline, KeptModel
from support.command_line import Hubbub
from support.program import run_python

RUN = "ab" * 32
TASK = """
from torch import nn
from hubbub_trainer.learning.torch_task import TorchTask

class Grades(TorchTask):
    def model(self):
        return nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.BatchNorm1d(3), nn.Linear(3, 2))
"""
# What a user has who knows nothing of Hubbub: torch, and the model's class.
READ_WITHOUT_HUBBUB = """
import sys, torch
from torch import nn
sys.modules["hubbub_trainer"] = sys.modules["hubbub"] = None
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
model.load_state_dict(torch.load(sys.argv[1], weights_only=True))
print(model[1].running_mean.tolist(), model[2].bias.tolist())
"""


def keep(folder: Path, task: str = "grades", parameters: int = 3 + 3 + 6 + 2) -> Path:
    theta = np.arange(parameters, dtype=np.float32)
    buffers = {"1.running_mean": np.array([4.0, 5.0, 6.0], dtype=np.float32)} if task == "grades" else {}
    place = folder / "trainer" / "runs" / RUN
    place.mkdir(parents=True)
    (place / FILE).write_bytes(KeptModel(run=RUN, task=task, seed=3, theta=theta, buffers=buffers).write())
    (folder / "grades.py").write_text(TASK, encoding="utf-8")
    return folder / "trainer"


def test_it_is_listed(hubbub: Hubbub, tmp_path: Path) -> None:
    folder = keep(tmp_path)

    listed = hubbub("model", "list", "--folder", folder, "--json").json

    assert listed == {"models": [{"run": RUN, "task": "grades", "parameters": 14}]}
    assert "grades" in hubbub("model", "list", "--folder", folder).check_done()


def test_a_task_of_ones_own_is_written_with_what_is_frozen_and_its_buffers(hubbub: Hubbub, tmp_path: Path) -> None:
    folder, out = keep(tmp_path), tmp_path / "out.safetensors"

    options = ("--folder", folder, "--task", tmp_path / "grades.py", "--out", out)
    said = hubbub("model", "export", RUN[:6], *options).check_done()

    arrays = load_file(out)
    assert "9 arrays" in said
    assert arrays["2.bias"].tolist() == [12.0, 13.0]
    assert arrays["1.running_mean"].tolist() == [4.0, 5.0, 6.0]
    assert arrays["1.num_batches_tracked"].tolist() == 0, "as the model makes it"
    assert arrays["0.weight"].shape == (3, 2)


def test_the_best_model_is_written_where_it_is_asked_for(hubbub: Hubbub, tmp_path: Path) -> None:
    folder = keep(tmp_path)
    options = ("--folder", folder, "--task", tmp_path / "grades.py", "--best", "--out")
    missing = hubbub("model", "export", *options, tmp_path / "none.safetensors")
    best = KeptModel(
        run=RUN,
        task="grades",
        seed=3,
        theta=np.full(14, 7, np.float32),
        headline=Headline(round=9, metric="auc", value=0.925),
    )
    (folder / "runs" / RUN / BEST).write_bytes(best.write())

    said = hubbub("model", "export", *options, tmp_path / "best.safetensors").check_done()

    assert missing.code == 2
    assert "has left no best model: it was not scored" in missing.err
    assert f"of run {RUN[:12]}, round 9 with auc 0.925, written to" in " ".join(said.split())
    assert load_file(tmp_path / "best.safetensors")["2.bias"].tolist() == [7.0, 7.0]


def test_a_state_dict_is_loaded_without_hubbub(hubbub: Hubbub, tmp_path: Path) -> None:
    folder, out = keep(tmp_path), tmp_path / "out.pt"
    task = tmp_path / "grades.py"
    hubbub(
        "model", "export", "--folder", folder, "--task", task, "--out", out, "--format", "state_dict"
    ).check_done()

    done = run_python("-c", READ_WITHOUT_HUBBUB, out)

    assert done.stdout == "[4.0, 5.0, 6.0] [12.0, 13.0]\n", done.stderr


@pytest.mark.parametrize(
    ("task", "parameters", "shapes"),
    [
        ("synthetic:23", 23, {"weights": (10, 2), "biases": (3,)}),
        ("lenet", 61_706, {"conv1.weight": (6, 1, 5, 5), "fc3.bias": (10,)}),
    ],
)
def test_our_own_tasks_have_names_too(
    hubbub: Hubbub, tmp_path: Path, task: str, parameters: int, shapes: dict[str, tuple[int, ...]]
) -> None:
    folder, out = keep(tmp_path, task, parameters), tmp_path / "out.safetensors"

    hubbub("model", "export", "--folder", folder, "--out", out).check_done()

    arrays = load_file(out)
    assert {name: arrays[name].shape for name in shapes} == shapes
    assert sum(each.size for each in arrays.values()) == parameters


@pytest.mark.parametrize(
    ("task", "parameters", "said"),
    [
        ("other", 14, "the model is of task 'other', and --task is 'grades'"),
        ("grades", 15, "the model has 15 parameters, and task 'grades' here has 14"),
        ("grades", 14, "is there already"),
    ],
)
def test_the_wrong_task_is_refused_and_nothing_is_overwritten(
    hubbub: Hubbub, tmp_path: Path, task: str, parameters: int, said: str
) -> None:
    folder, out = keep(tmp_path, task, parameters), tmp_path / "out"
    out.write_bytes(b"precious")

    options = ("--folder", folder, "--task", tmp_path / "grades.py", "--out", out)
    hubbub("model", "export", *options).check_refused(said)
    assert out.read_bytes() == b"precious"
