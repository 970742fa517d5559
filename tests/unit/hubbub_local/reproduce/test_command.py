"""All runs of a plan, through the services: kept round by round, resumed, reported."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hubbub.errors import ConfigurationError, ProtocolError
from hubbub.protocol.metrics import Scores
from hubbub.protocol.modes import WireMode
from hubbub_local.reproduce import running
from hubbub_local.reproduce.command import reproduce
from hubbub_local.reproduce.plan import Plan, list_methods, papers_settings
from hubbub_local.reproduce.records import record_round
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Task, Theta, Training

SETTINGS = replace(papers_settings("mnist"), clients=2, max_rounds=2, local_steps=3, target=1.0)


class CountedLearner:
    """Counts how often it trains in its task, and breaks there when it is told to."""

    def __init__(self, inner: SyntheticLearner, task: CountedTask) -> None:
        self._inner = inner
        self._task = task

    @property
    def samples(self) -> int:
        return self._inner.samples

    @property
    def examples(self) -> int:
        return self._inner.examples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        self._task.trained += 1
        if self._task.trained > self._task.breaks_after:
            raise OSError("out of power")
        return self._inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        return self._inner.evaluate(theta, memory=memory)


class CountedTask(SyntheticTask):
    def __init__(self, breaks_after: int = 1000) -> None:
        super().__init__(300)
        self.trained = 0
        self.breaks_after = breaks_after

    def learner(self, *, index: int, clients: int, seed: int) -> CountedLearner:  # type: ignore[override]
        # Not a SyntheticLearner, but all that a task's learner must be.
        return CountedLearner(super().learner(index=index, clients=clients, seed=seed), self)


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than the runs."""
    monkeypatch.setattr("hubbub_local.reproduce.writing.draw_all", lambda *_: [])


def make_plan(*names: str, seeds: Sequence[int] = (0,)) -> Plan:
    return Plan(settings=SETTINGS, methods=[list_methods()[name] for name in names], seeds=seeds)


def run(plan: Plan, out: Path, task: Task, *, resume: bool = False) -> str:
    shown = io.StringIO()
    reproduce(plan, out=out, resume=resume, console=Console(file=shown, width=200), task=task)
    return shown.getvalue()


def read(out: Path) -> dict[tuple[str, int], dict[str, object]]:
    kept = json.loads((out / "results.json").read_text("utf-8"))["results"]
    return {(each["name"], each["seed"]): each for each in kept}


def test_every_run_is_done_kept_and_reported_and_the_cache_goes(tmp_path: Path) -> None:
    task = CountedTask()

    shown = run(make_plan("no-union", "partial-sec-union"), tmp_path, task)

    kept = read(tmp_path)
    assert list(kept) == [("no-union", 0), ("partial-sec-union", 0)]
    for each in kept.values():
        assert (each["rounds"], each["finished"], each["reached"]) == (2, True, False)
        assert each["total_bytes"] == each["predicted_bytes"]
        assert all(each[f"{who}_cpu_s"] for who in ("client", "server", "coordinator", "training"))
    assert task.trained == 4, "the second takes all its training from the first"
    assert {path.name for path in tmp_path.iterdir()} >= {"report.html", "report.md", "union-by-round.svg"}
    assert not (tmp_path / "cache").exists()
    assert "no-union, seed 0, round 2: " in shown
    assert "no-union, seed 0: stopped after 2 rounds at " in shown
    assert "about " in shown


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("wire", "bits"),
    [
        # Two clients: 300 signs mod 5 of 3 bits, a factor of 32; a share to and a sum from each of two servers.
        ("paper", 2 * 2 * 2 * (300 * 3 + 32)),
        # 24 signs mod 5 take 56 bits. C + C + S - 1 = 5 vectors, and a seed of each client.
        ("compact", 5 * (13 * 56 + 32) + 2 * 256),
    ],
)
def test_a_round_costs_the_formula_of_its_wire(wire: WireMode, bits: int, tmp_path: Path) -> None:
    plan = replace(make_plan("no-union"), settings=replace(SETTINGS, wire=wire, max_rounds=1))

    run(plan, tmp_path, CountedTask())

    kept = read(tmp_path)["no-union", 0]
    assert kept["total_bytes"] == kept["predicted_bytes"] == bits / 8


@pytest.mark.usefixtures("without_plots")
def test_a_run_ends_at_its_target(tmp_path: Path) -> None:
    plan = replace(make_plan("fedavg"), settings=replace(SETTINGS, target=0.01))

    shown = run(plan, tmp_path, CountedTask())

    assert (read(tmp_path)["fedavg", 0]["rounds"], read(tmp_path)["fedavg", 0]["reached"]) == (1, True)
    assert "reached 1 % after 1 round" in shown


@pytest.mark.usefixtures("without_plots")
def test_after_a_failure_what_is_there_is_reported_and_resume_does_the_rest(tmp_path: Path) -> None:
    plan = make_plan("fedavg", "no-union")
    # fedavg trains 4 times; no-union takes its first round from there, and breaks in its second.
    with pytest.raises(ProtocolError, match="no-union failed"):
        run(plan, tmp_path, CountedTask(breaks_after=4))
    cut_off = read(tmp_path)
    assert (cut_off["no-union", 0]["finished"], cut_off["no-union", 0]["rounds"]) == (False, 1)
    assert "no-union, seed 0: was cut off after 1 round" in (tmp_path / "report.md").read_text("utf-8")
    task = CountedTask()

    shown = run(plan, tmp_path, task, resume=True)

    resumed = read(tmp_path)
    assert "fedavg, seed 0: stopped after 2 rounds" in shown
    assert "kept from before" in shown
    assert resumed["fedavg", 0] == cut_off["fedavg", 0]
    assert (resumed["no-union", 0]["finished"], resumed["no-union", 0]["rounds"]) == (True, 2)
    assert task.trained == 2, "the round that was trained is taken from the cache"


@pytest.mark.usefixtures("without_plots")
def test_what_is_cut_off_in_its_very_first_round_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError):
        run(make_plan("fedavg"), tmp_path, CountedTask(breaks_after=1))
    assert not (tmp_path / "report.html").exists(), "there is nothing to report on"

    run(make_plan("fedavg"), tmp_path, CountedTask(), resume=True)

    assert read(tmp_path)["fedavg", 0]["finished"]


@pytest.mark.usefixtures("without_plots")
def test_more_seeds_may_be_added_to_what_is_there(tmp_path: Path) -> None:
    run(make_plan("fedavg"), tmp_path, CountedTask())
    task = CountedTask()

    run(make_plan("fedavg", seeds=(0, 1)), tmp_path, task, resume=True)

    assert list(read(tmp_path)) == [("fedavg", 0), ("fedavg", 1)]
    assert task.trained == 4


def test_what_no_manifest_can_say_is_refused_before_the_folder_is_made(tmp_path: Path) -> None:
    plan = replace(make_plan("no-union"), settings=replace(SETTINGS, servers=1))

    with pytest.raises(ConfigurationError, match="at least 2 aggregators"):
        run(plan, tmp_path / "out", CountedTask())

    assert not (tmp_path / "out").exists()


def test_without_matplotlib_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub_local.reproduce.plots.find_spec", lambda _: None)
    task = CountedTask()

    with pytest.raises(ConfigurationError, match=r"hubbub\[report\]"):
        run(make_plan("fedavg"), tmp_path / "out", task)

    assert task.trained == 0
    assert not (tmp_path / "out").exists()


def test_a_library_that_is_missing_for_the_task_is_told_before_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub_trainer.learning.installed.find_spec", lambda _: None)
    task = load_task("lenet", data="digits", cache_folder=tmp_path)

    with pytest.raises(ConfigurationError, match=r"task lenet needs torch.*pip install 'hubbub\[trainer\]'"):
        run(make_plan("fedavg"), tmp_path / "out", task)

    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_plots")
def test_a_run_that_costs_other_than_the_formula_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "record_round", lambda *told: replace(record_round(*told), predicted_bits=1))

    with pytest.raises(ProtocolError, match=r"bits were sent where 2 are due"):
        run(make_plan("fedavg"), tmp_path, CountedTask())

    assert (tmp_path / "report.html").exists()
