"""Code and commands that pages show, run as they are written there."""

import re
import shlex
from pathlib import Path

import numpy as np

from hubbub_trainer.learning.registry import find_task, try_task
from support.program import run_python
from support.thorough import only_thorough

ROOT = Path(__file__).parents[2]
HUBBUB = ("-c", "from hubbub_cli.main import main; main()")


def read_blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_demo(arguments: str) -> str:
    """Run a demo that the README has, by the `hubbub demo` of this environment."""
    assert arguments in (ROOT / "README.md").read_text(encoding="utf-8")
    done = run_python(*HUBBUB, "demo", *shlex.split(arguments), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_of_scikit_learn_is_trained_by_the_class_that_its_page_shows(tmp_path: Path) -> None:
    (block,) = (block for block in read_blocks("docs/frameworks.md", "python") if block.startswith("# grades.py"))
    (tmp_path / "grades.py").write_text(block, encoding="utf-8")
    dice = np.random.default_rng(1)
    inputs, more = dice.normal(size=(40, 30)), dice.normal(size=(10, 30))
    labels, more_labels = (np.where(each[:, 0] > 0, 1, 0) for each in (inputs, more))
    np.savez(tmp_path / "rows.npz", inputs=inputs, labels=labels, more_inputs=more, more_labels=more_labels)

    task = find_task(str(tmp_path / "grades.py"), data=str(tmp_path / "rows.npz"))

    try_task(task)
    assert task.count_parameters() == 31


def test_the_demo_of_ones_own_model_in_the_readme_trains_it() -> None:
    said = run_demo("--task examples/breast_cancer.py --clients 3 --local-steps 20")

    (score,) = re.findall(r"^ +5 +3 +(0\.\d+) ", said, re.MULTILINE)
    assert float(score) > 0.97


@only_thorough
def test_the_demo_that_the_readme_shows_ends_as_it_says() -> None:
    (shown,) = read_blocks("README.md", "text")
    last_round = r"^ +5 +5 +(\d+\.\d+)% +(\S+) +(\S+ KB) "

    said = run_demo("--data digits")

    (accuracy, *sizes), (shown_accuracy, *shown_sizes) = (
        re.findall(last_round, text, re.MULTILINE)[0] for text in (said, shown)
    )
    assert sizes == shown_sizes
    assert abs(float(accuracy) - float(shown_accuracy)) < 3
