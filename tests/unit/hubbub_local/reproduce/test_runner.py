"""All runs of a plan, through the services: kept round by round, resumed, reported."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from hubbub.errors import ConfigurationError, ProtocolError
from hubbub.ids import WireMode
from hubbub_local.reproduce import runner
from hubbub_local.reproduce.plan import METHODS, PAPERS, Plan
from hubbub_local.reproduce.records import RoundRecord
from hubbub_trainer.learning.registry import load_task
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Task, Theta, Training

SETTINGS = replace(PAPERS["mnist"], clients=2, max_rounds=2, local_steps=3, target=1.0)


@dataclass
class Trainings:
    """A count of trainings; beyond the most a client fails."""

    count: int = 0
    most: int = 1000


@pytest.fixture(autouse=True)
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    counted, original = Trainings(), SyntheticLearner.train

    def train(
        learner: SyntheticLearner,
        theta: Theta,
        *,
        steps: int,
        seed: int,
        progress: ProgressCallback,
        memory: Theta | None = None,
    ) -> Training:
        counted.count += 1
        if counted.count > counted.most:
            raise OSError("out of power")
        return original(learner, theta, steps=steps, seed=seed, progress=progress, memory=memory)

    monkeypatch.setattr(SyntheticLearner, "train", train)
    # Plots take longer than the runs.
    monkeypatch.setattr("hubbub_local.reproduce.report.draw_plot", lambda *_: "")
    return counted


def make_plan(*names: str, seeds: Sequence[int] = (0,)) -> Plan:
    return Plan(settings=SETTINGS, methods=[METHODS[name] for name in names], seeds=seeds)


def run(plan: Plan, out: Path, *, resume: bool = False, task: Task | None = None) -> str:
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    runner.reproduce(plan, out=out, resume=resume, console=console, task=task or SyntheticTask(300))
    return shown.getvalue()


def read(out: Path) -> dict[tuple[str, int], dict[str, object]]:
    kept = json.loads((out / "results.json").read_text("utf-8"))["results"]
    return {(each["name"], each["seed"]): each for each in kept}


def test_every_run_is_done_kept_and_reported(tmp_path: Path) -> None:
    shown = run(make_plan("no-union", "partial-sec-union"), tmp_path)

    kept = read(tmp_path)
    assert list(kept) == [("no-union", 0), ("partial-sec-union", 0)]
    for each in kept.values():
        rounds = each["by_round"]
        assert isinstance(rounds, list)
        assert (len(rounds), each["finished"], each["reached"]) == (2, True, False)
        for one in rounds:
            assert one["payload_bits"] == one["predicted_bits"] < 8 * one["wire_bytes"]
            assert one["training_cpu_s"] > 0
            assert len(one["protocol_cpu_s"]) == 5
            assert all(spent > 0 for spent in one["protocol_cpu_s"].values())
    assert kept["no-union", 0]["model_sha256"] == kept["partial-sec-union", 0]["model_sha256"]
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "report.md", "accuracy.svg"}
    assert "no-union, seed 0, round 2: " in shown
    assert "no-union, seed 0: stopped after 2 rounds at " in shown


@pytest.mark.parametrize(
    ("wire", "bits"),
    [
        # Two clients: 300 signs mod 5 of 3 bits, a factor of 32; a share to and a sum from each of two servers.
        ("paper", 2 * 2 * 2 * (300 * 3 + 32)),
        # 24 signs mod 5 take 56 bits. C + C + S - 1 = 5 vectors, and a seed of each client.
        ("compact", 5 * (13 * 56 + 32) + 2 * 256),
    ],
)
def test_a_run_ends_at_its_target_and_a_round_costs_the_formula_of_its_wire(
    wire: WireMode, bits: int, tmp_path: Path
) -> None:
    plan = replace(make_plan("no-union"), settings=replace(SETTINGS, wire=wire, target=0.01))

    shown = run(plan, tmp_path)

    (only,) = json.loads((tmp_path / "results.json").read_text("utf-8"))["results"][0]["by_round"]
    assert only["payload_bits"] == only["predicted_bits"] == bits
    assert "reached 1 % after 1 round" in shown


def test_after_a_failure_what_is_there_is_reported_and_resume_does_the_rest(
    tmp_path: Path, trainings: Trainings
) -> None:
    plan = make_plan("fedavg", "no-union")
    # fedavg trains 4 times; no-union breaks in its second round.
    trainings.most = 6
    with pytest.raises(ProtocolError, match="no-union failed"):
        run(plan, tmp_path)
    cut_off = read(tmp_path)
    assert not cut_off["no-union", 0]["finished"]
    assert "no-union, seed 0: was cut off after 1 round" in (tmp_path / "report.md").read_text("utf-8")
    trainings.most = 1000

    shown = run(replace(plan, seeds=(0, 1)), tmp_path, resume=True)
    run(make_plan("plaintext-union"), tmp_path, resume=True)

    resumed = read(tmp_path)
    report = (tmp_path / "report.md").read_text("utf-8")
    assert "$ hubbub reproduce mnist --strategies fedavg,no-union --target 1.0" in report
    assert "--seeds 0,1\n$ hubbub reproduce mnist --strategies plaintext-union --target 1.0" in report
    assert "fedavg, seed 0: stopped after 2 rounds" in shown
    assert "kept from before" in shown
    assert resumed["fedavg", 0] == cut_off["fedavg", 0]
    assert [resumed[run]["finished"] for run in (("no-union", 0), ("fedavg", 1), ("no-union", 1))] == [True] * 3


def test_what_is_cut_off_in_its_very_first_round_can_be_resumed(tmp_path: Path, trainings: Trainings) -> None:
    trainings.most = 1
    with pytest.raises(ProtocolError):
        run(make_plan("fedavg"), tmp_path)
    assert not (tmp_path / "report.md").exists(), "there is nothing to report on"
    trainings.most = 1000

    run(make_plan("fedavg"), tmp_path, resume=True)

    assert read(tmp_path)["fedavg", 0]["finished"]


def test_what_cannot_be_run_or_drawn_is_refused_before_the_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigurationError, match="at least 2 aggregators"):
        run(replace(make_plan("no-union"), settings=replace(SETTINGS, servers=1)), out)
    monkeypatch.setattr("hubbub_trainer.learning.task.find_spec", lambda _: None)
    lenet = load_task("lenet", data="digits", cache_folder=tmp_path)
    with pytest.raises(ConfigurationError, match=r"task lenet needs torch.*pip install 'hubbub\[trainer\]'"):
        run(make_plan("fedavg"), out, task=lenet)
    monkeypatch.setattr("hubbub_local.figures.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"hubbub\[report\]"):
        run(make_plan("fedavg"), out)

    assert not out.exists()


def test_a_run_that_costs_other_than_the_formula_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = RoundRecord.of
    monkeypatch.setattr(RoundRecord, "of", lambda *told: replace(original(*told), predicted_bits=1))

    with pytest.raises(ProtocolError, match=r"bits were sent where 2 are due"):
        run(make_plan("fedavg"), tmp_path)

    assert (tmp_path / "report.md").exists()
