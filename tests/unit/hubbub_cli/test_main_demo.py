"""`hubbub demo` as a user sees it: the file it writes, the lines it prints, and one line for what cannot be."""

import csv
import hashlib
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from hubbub.strategies.planner import choose_rho
from hubbub.strategies.registry import STRATEGIES
from support.command_line import Hubbub, run_hubbub, start_hubbub
from support.patience import HANG_S

QUICK = ("--task", "synthetic:300", "--local-steps", "3", "--rounds", "2", "--seed", "7")


@pytest.fixture
def quiet(hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch) -> Hubbub:
    """The command in this process, whose logging it leaves alone."""
    monkeypatch.setattr("hubbub.runtime.telemetry.log_as_json", lambda *_: None)
    return hubbub


def run_demo(tmp_path: Path, *options: str | Path, hubbub: Hubbub = run_hubbub) -> tuple[dict[str, Any], str]:
    file = tmp_path / "out.json"
    shown = hubbub("demo", *QUICK, *options, "--json", file).check_done()
    report: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return report, shown


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_report_of_every_strategy(strategy: str, tmp_path: Path, quiet: Hubbub) -> None:
    report, shown = run_demo(tmp_path, "--strategy", strategy, "--wire", "paper", "--q", "3", hubbub=quiet)

    assert (report["strategy"], report["clients"], report["servers"]) == (strategy, 5, 2)
    assert (report["parameters"], report["rho"]) == (300, choose_rho(STRATEGIES[strategy], 300))
    assert len(bytes.fromhex(report["model_sha256"])) == 32
    assert [each["round"] for each in report["rounds"]] == [1, 2]
    for each in report["rounds"]:
        assert each["members"] == [f"client-{number}" for number in range(1, 6)]
        assert each["metrics"].keys() == {"accuracy", "loss"}
        assert 0 <= each["accuracy"] == each["metrics"]["accuracy"] <= 1
        assert each["seconds"].keys() >= {"training", "protocol"}
        for cost in each["phases"].values():
            assert cost["payload_bits"] == cost["predicted_bits"] > 0
            assert cost["wire_bytes"] * 8 >= cost["payload_bits"]
    assert report["headline"] == {"name": "accuracy", "higher_is_better": True}
    assert "wire mode paper" in shown
    agree = not STRATEGIES[strategy].own_models
    assert (report["models_agree"], report["models_drift"] is None) == (agree, agree)
    assert ("All 5 clients hold the same model" in shown) == agree
    assert ("holds a model of its own" in shown) != agree
    warnings = [f"{strategy} is not private: {told}." for told in [STRATEGIES[strategy].reveals] if told]
    assert all(warning in " ".join(shown.split()) for warning in warnings)
    assert shown.count("not private") == len(warnings)


@pytest.mark.parametrize(
    ("strategy", "phases"),
    [
        ("no-union", {"signs", "factors", "tags", "scores"}),
        ("sec-union", {"union", "signs", "factors", "tags", "scores"}),
        ("fedavg", {"update", "tags", "scores"}),
        ("topbinary-sep", {"update", "tags", "scores"}),
    ],
)
def test_phases_are_counted_apart(strategy: str, phases: set[str], tmp_path: Path, quiet: Hubbub) -> None:
    report, shown = run_demo(tmp_path, "--strategy", strategy, hubbub=quiet)

    assert all(each["phases"].keys() == phases for each in report["rounds"])
    if strategy in {"no-union", "fedavg"}:
        assert {each["union_size"] for each in report["rounds"]} == {300}
    costs = [cost for each in report["rounds"] for cost in each["phases"].values()]
    assert all(cost["payload_bits"] == cost["predicted_bits"] > 0 for cost in costs)
    assert report["wire"] == "compact"
    assert "wire mode compact" in shown


def test_the_same_seed_gives_the_same_model_and_another_gives_another(tmp_path: Path) -> None:
    first, _ = run_demo(tmp_path, "--strategy", "sec-union", "--q", "2")
    again, _ = run_demo(tmp_path, "--strategy", "sec-union", "--q", "2")
    other, _ = run_demo(tmp_path, "--strategy", "sec-union", "--q", "2", "--seed", "8")

    assert first["model_sha256"] == again["model_sha256"] != other["model_sha256"]


def test_clients_train_at_the_learning_rate_that_is_asked_for(tmp_path: Path, quiet: Hubbub) -> None:
    own, slow = (
        run_demo(tmp_path, "--strategy", "fedavg", *rate, hubbub=quiet)[0]
        for rate in ((), ("--learning-rate", "1e-6"))
    )

    assert (own["learning_rate"], slow["learning_rate"]) == (None, 1e-6)
    assert own["rounds"][-1]["accuracy"] > slow["rounds"][-1]["accuracy"]


def test_the_run_ends_at_its_target_and_without_scores_there_is_none(tmp_path: Path, quiet: Hubbub) -> None:
    reached, _ = run_demo(tmp_path, "--rounds", "9", "--target", "0.01", hubbub=quiet)
    unscored, _ = run_demo(tmp_path, "--evaluate-every", "0", hubbub=quiet)

    assert len(reached["rounds"]) < 9
    assert reached["rounds"][-1]["accuracy"] >= 0.01
    assert len(unscored["rounds"]) == 2
    assert all("scores" not in each["phases"] for each in unscored["rounds"])


def test_a_run_that_does_not_improve_ends_after_its_patience_and_says_what_to_try(
    tmp_path: Path, quiet: Hubbub
) -> None:
    slow = ("--rounds", "9", "--strategy", "fedavg", "--learning-rate", "1e-6")
    report, shown = run_demo(tmp_path, *slow, "--patience", "2", hubbub=quiet)
    moving, untold = run_demo(tmp_path, "--rounds", "3", "--patience", "2", hubbub=quiet)

    assert len(report["rounds"]) == 3
    assert f"The run ended early: {report['reason']}." in " ".join(shown.split())
    assert f"warning: the run is stalled: {report['stalled']}." in " ".join(shown.split())
    assert (moving["reason"], moving["stalled"]) == ("all 3 rounds are done", "")
    assert "stalled" not in untold
    assert "ended early" not in untold


def test_blocks_are_run_where_they_are_asked_for_and_what_they_show_is_said(tmp_path: Path, quiet: Hubbub) -> None:
    report, shown = run_demo(tmp_path, "--strategy", "sec-union", "--block", "6", "--q", "3", hubbub=quiet)
    flat, untold = run_demo(tmp_path, "--strategy", "sec-union", "--q", "3", hubbub=quiet)

    assert (report["block"], flat["block"]) == (6, 1)
    assert {each["union_size"] % 6 for each in report["rounds"]} == {0}
    for each in report["rounds"]:
        assert all(cost["payload_bits"] == cost["predicted_bits"] > 0 for cost in each["phases"].values())
    assert "blocks of 6 indices clients are shown more: where all members' signs agree" in " ".join(shown.split())
    assert "shown more" not in untold


def test_the_table_shows_the_share_that_was_chosen_alone_and_a_log_is_written(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    report, shown = run_demo(tmp_path, "--strategy", "partial-sec-union", "--log", str(log))

    share = report["rounds"][0]["alone_share"]
    assert 0 < share <= 1
    assert f"{share:.1%}" in shown
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert any("is completed" in line["message"] for line in lines)


def test_the_table_leaves_out_a_share_that_clients_cannot_tell(tmp_path: Path, quiet: Hubbub) -> None:
    report, shown = run_demo(tmp_path, "--strategy", "sec-union", "--q", "1", hubbub=quiet)

    assert {each["alone_share"] for each in report["rounds"]} == {None}
    assert "alone" not in shown


def test_a_run_that_loses_many_indices_is_warned_about_and_still_runs(tmp_path: Path, quiet: Hubbub) -> None:
    options = ("--strategy", "sec-union", "--clients", "3")
    _, lossy = run_demo(tmp_path, *options, "--rho", "0.5", "--q", "1", hubbub=quiet)
    _, kept = run_demo(tmp_path, *options, hubbub=quiet)

    warning = "warning: sec-union with q = 1, rho = 0.5 and 3 clients loses 43% of the indices"
    assert warning in " ".join(lossy.split())
    assert "warning" not in kept


def test_a_run_in_which_clients_send_signs_of_few_parameters_is_warned_about(
    tmp_path: Path, quiet: Hubbub
) -> None:
    _, shown = run_demo(tmp_path, "--strategy", "no-union", "--rho", "0.1", hubbub=quiet)

    warning = "warning: no-union: with rho = 0.1 a client sends a compressed update of 30 of 300 parameters"
    assert warning in " ".join(shown.split())


def test_a_mask_is_recommended_only_to_a_task_whose_learning_rate_can_be_raised_for_it(
    tmp_path: Path, quiet: Hubbub
) -> None:
    large = ("--task", "synthetic:20000", "--clients", "3")
    chosen, told = run_demo(tmp_path, *large, hubbub=quiet)
    _, warned = run_demo(tmp_path, *large, "--strategy", "shared-mask", hubbub=quiet)
    _, untold = run_demo(tmp_path, *large, "--strategy", "shared-mask", "--learning-rate", "1", hubbub=quiet)

    assert chosen["strategy"] == "sec-union"
    assert "recommended: it learns at the task's own learning rate" in " ".join(told.split())
    assert "warning: shared-mask moves few parameters in a round" in " ".join(warned.split())
    assert "warning" not in told + untold


UNSCORED = """
import torch
from hubbub_trainer.learning.torch_task import Data, TorchTask

class Mine(TorchTask):
    def model(self):
        return torch.nn.Linear(8, 2)

    def data(self, site):
        return Data(train=(torch.randn(8, 8), torch.zeros(8).long()))
"""


def test_ctrl_c_keeps_the_rounds_that_have_ended_and_says_what_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start_hubbub("demo", *QUICK, "--rounds", "100000", "--out", out) as process:
        assert process.stdout is not None
        try:
            next(line for line in process.stdout if line.startswith("round 2: accuracy"))
            process.send_signal(signal.SIGINT)
            shown, complaints = process.communicate(timeout=HANG_S)
        finally:
            process.kill()

    assert (process.returncode, complaints) == (130, "")
    table, _, stopped = shown.rpartition("The run was stopped in round ")
    rounds = re.findall(r"^ +(\d+) +5 +[\d.]+% ", table.partition("Rounds")[2], re.MULTILINE)
    assert rounds[:2] == ["1", "2"]
    told = " ".join(stopped.split())
    assert "of 100000, with its 5 trainers, 2 aggregators and coordinator, and nothing was saved in" in told
    assert "Next" not in stopped
    assert list(out.iterdir()) == []


def test_the_end_says_what_to_do_next(quiet: Hubbub, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(UNSCORED, encoding="utf-8")

    first = quiet("demo", *QUICK, "--clients", "2").check_done()
    later = quiet("demo", *QUICK, "--clients", "2", "--task", file).check_done()

    for command in ("hubbub demo --dashboard", "hubbub federation new FOLDER"):
        assert command in first.rpartition("Next")[2]
        assert command in later.rpartition("Next")[2]
    assert "hubbub new FOLDER" in first
    assert "hubbub new FOLDER" not in later, "it has a model of its own"


def test_a_task_without_test_samples_runs_without_scores_and_that_is_said_once(
    tmp_path: Path, quiet: Hubbub
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(UNSCORED, encoding="utf-8")

    report, shown = run_demo(tmp_path, "--task", file, "--strategy", "secure-fedavg", hubbub=quiet)

    assert [each["metrics"] for each in report["rounds"]] == [{}, {}]
    assert report["headline"] is None
    assert shown.count("nothing is scored") == 1
    assert "3 local steps a round" in " ".join(shown.split())


OWN_PACE = """
from hubbub_trainer.learning.synthetic import SyntheticTask

class Mine(SyntheticTask):
    name = "mine"
    pace = "one epoch of your client"

task = Mine(300)
"""


def test_a_task_that_does_not_count_steps_says_what_a_round_is(tmp_path: Path, quiet: Hubbub) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN_PACE, encoding="utf-8")
    folder = tmp_path / "out"

    for resume in ((), ("--resume",)):  # The task is wrapped the second time.
        _, shown = run_demo(tmp_path, "--task", f"{file}:task", "--out", folder, *resume, hubbub=quiet)
        assert "300 parameters, one epoch of your client a round" in " ".join(shown.split())
        assert "local steps" not in shown


def test_a_warning_of_the_task_is_shown_at_the_end(tmp_path: Path, quiet: Hubbub) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{UNSCORED}\n    def schedule(self, number, rounds):\n        return number**-2\n", "utf-8")

    done = quiet("demo", *QUICK, "--task", file, "--strategy", "secure-fedavg", "--clients", "3")

    assert "`schedule` ends at less than 0.5 of its median" in done.err


def test_why_rho_and_q_were_chosen_is_said_unless_they_were_given(tmp_path: Path, quiet: Hubbub) -> None:
    options = ("--strategy", "sec-union", "--clients", "4", "--rounds", "1")
    _, chosen = run_demo(tmp_path, *options, hubbub=quiet)
    _, given = run_demo(tmp_path, *options, "--rho", "0.4", "--q", "2", hubbub=quiet)

    assert "ρ = 0.3334 is chosen because the model is small; q = 2 is chosen because less would lose" in " ".join(
        chosen.split()
    )
    assert "is chosen" not in given


@pytest.mark.parametrize(("strategy", "shown"), [("fedavg", False), ("sum", False), ("no-union", True)])
def test_a_share_that_a_strategy_does_not_use_is_not_shown(
    strategy: str, tmp_path: Path, quiet: Hubbub, *, shown: bool
) -> None:
    _, told = run_demo(tmp_path, "--strategy", strategy, "--clients", "2", hubbub=quiet)

    assert ("ρ" in told) == shown


def read_history(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "history.csv").read_text("utf-8").splitlines()))


def test_model_history_and_report_are_saved_and_a_later_demo_begins_with_the_model(
    tmp_path: Path, quiet: Hubbub
) -> None:
    out = tmp_path / "new" / "folder"
    saving = (*QUICK, "--strategy", "sec-union", "--q", "2", "--out", str(out))

    shown = quiet("demo", *saving).check_done()
    first = json.loads((out / "report.json").read_text("utf-8"))
    tensors = load_file(out / "model.safetensors")
    goes_on = quiet("demo", *saving, "--resume").check_done()
    later = json.loads((out / "report.json").read_text("utf-8"))

    assert "model.safetensors, history.csv, report.json" in " ".join(shown.split())
    theta = np.concatenate([each.ravel() for each in tensors.values()])
    assert first["model_sha256"] == hashlib.sha256(theta.tobytes()).hexdigest()
    assert first["resumed_from"] is None
    assert first["run"] != later["run"]
    assert later["resumed_from"] == first["run"]
    assert f"Begins with the model that run {first['run'][:12]} ended with" in goes_on
    assert later["rounds"][-1]["metrics"]["loss"] < first["rounds"][-1]["metrics"]["loss"]
    history = read_history(out)
    assert [(each["run"], each["round"]) for each in history] == [
        (report["run"][:12], str(number)) for report in (first, later) for number in (1, 2)
    ]
    assert [float(each["loss"]) for each in history] == [
        each["metrics"]["loss"] for report in (first, later) for each in report["rounds"]
    ]
    after = load_file(out / "model.safetensors")
    assert (
        hashlib.sha256(np.concatenate([each.ravel() for each in after.values()]).tobytes()).hexdigest()
        == (later["model_sha256"])
    )


def test_the_best_model_of_all_demos_in_a_folder_is_kept(tmp_path: Path, quiet: Hubbub) -> None:
    out, path = tmp_path / "out", tmp_path / "out" / "best.safetensors"
    saving = (*QUICK, "--strategy", "secure-fedavg", "--out", out)

    def read_labels() -> dict[str, str]:
        with safe_open(path, framework="numpy") as file:
            labels: dict[str, str] = file.metadata()
        return labels

    for more in ((), ("--resume",)):
        shown = quiet("demo", *saving, *more).check_done()
        assert "report.json, best.safetensors" in " ".join(shown.split())
        value, run, number = max(
            (float(each["accuracy"]), each["run"], each["round"]) for each in read_history(out)
        )
        labels = read_labels()
        assert (float(labels["value"]), labels["run"][:12], labels["round"]) == (value, run, number)
        assert labels["metric"] == "accuracy"
    assert load_file(path).keys() == load_file(out / "model.safetensors").keys()

    save_file(load_file(path), path, {**read_labels(), "value": "1.0"})
    before = path.read_bytes()
    quiet("demo", *saving, "--resume").check_done()
    assert path.read_bytes() == before, "an earlier demo's was better"


def damage(folder: Path) -> None:
    """Save another model under the labels of the first."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="numpy") as file:
        labels = file.metadata()
    save_file({name: each + 1 for name, each in load_file(path).items()}, path, labels)


def shorten(folder: Path) -> None:
    """Save a model with a tensor less under the labels of the first."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="numpy") as file:
        labels = file.metadata()
    save_file(dict(list(load_file(path).items())[1:]), path, labels)


@pytest.mark.parametrize(
    ("change", "options", "complaint"),
    [
        (None, (), "is not empty: begin with the model there with --resume, or choose another folder"),
        (None, ("--resume", "--task", "synthetic:400"), "of the task synthetic:300, and --task is synthetic:400"),
        (None, ("--resume", "--seed", "8"), "was trained with --seed 7: give the same"),
        (damage, ("--resume",), "is damaged: its values are not those that were saved"),
        (shorten, ("--resume",), "does not fit the task any more"),
        (lambda folder: (folder / "model.safetensors").unlink(), ("--resume",), "holds no model.safetensors"),
        (
            lambda folder: (folder / "model.safetensors").write_text("no", encoding="utf-8"),
            ("--resume",),
            "holds no model of a demo",
        ),
    ],
)
def test_a_folder_that_holds_something_else_is_refused_and_stays_as_it_is(
    change: Callable[[Path], object] | None,
    options: tuple[str, ...],
    complaint: str,
    saved: Path,
    tmp_path: Path,
    quiet: Hubbub,
) -> None:
    out = tmp_path / "out"
    copytree(saved, out)
    if change is not None:
        change(out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    quiet("demo", *QUICK, "--strategy", "no-union", "--out", out, *options).check_refused(complaint)

    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a demo has saved."""
    out = tmp_path_factory.mktemp("saved") / "out"
    run_hubbub("demo", *QUICK, "--strategy", "no-union", "--out", out).check_done()
    return out


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, quiet: Hubbub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    quiet("demo", *QUICK, "--out", tmp_path / "file").check_refused(f"--out: {tmp_path}")
    quiet("demo", *QUICK, "--out", tmp_path / "file" / "out").check_refused("cannot be used: Not a directory")
    # Root may write everywhere.
    monkeypatch.setattr("hubbub_local.demo_folder.os.access", lambda *_: False)
    quiet("demo", *QUICK, "--out", tmp_path / "out").check_refused("cannot be written to")


def test_data_are_dealt_out_as_asked_for(tmp_path: Path, quiet: Hubbub) -> None:
    options = ("--task", "lenet", "--data", "digits", "--clients", "2", "--rounds", "1", "--strategy", "fedavg")
    even, skewed = (
        run_demo(tmp_path, *options, "--partition", partition, hubbub=quiet)[0]
        for partition in ("iid", "dirichlet:0.05")
    )

    assert even["model_sha256"] != skewed["model_sha256"]


def test_a_run_that_compresses_updates_of_skewed_data_is_told_what_helps(tmp_path: Path, quiet: Hubbub) -> None:
    lenet = ("--task", "lenet", "--data", "digits", "--clients", "2", "--rounds", "1", "--partition", "classes:5")
    told, *untold = (
        " ".join(run_demo(tmp_path, *lenet, *options, hubbub=quiet)[1].split())
        for options in ((), ("--server-momentum", "0.5"), ("--strategy", "secure-fedavg"))
    )

    assert "--server-momentum 0.5 helps, and so does --strategy secure-fedavg" in told
    assert not any("learn more slowly" in each for each in untold)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--partition", "dirichlet:0.5"), "generates each client's data, iid: it cannot be 'dirichlet:0.5'"),
        (("--partition", "dirichlet"), "there is no partition 'dirichlet': choose iid, or dirichlet:A"),
        (
            ("--task", "examples/breast_cancer.py", "--partition", "dirichlet:0.5"),
            "the task examples/breast_cancer.py gets each client's data itself",
        ),
        (("--resume",), "--resume begins with the model in a folder: name it with --out"),
        (("--clients", "1"), "a cohort needs at least 2 clients"),
        (("--servers", "1"), "at least 2 aggregators"),
        (("--rho", "0"), "rho is 0.0; it must be above 0 and at most 1"),
        (("--strategy", "nonsense"), "there is no strategy 'nonsense'; choose one of: fedavg, "),
        (("--strategy", "sec-union", "--q", "0"), "q is 0"),
        (
            ("--strategy", "sec-union", "--block", "31", "--rho", "0.1"),
            "keeps 30 indices, less than one block of 31",
        ),
        (("--strategy", "sec-union", "--clients", "4", "--rho", "1", "--q", "1"), "nearly all marks cancel"),
        (("--strategy", "no-union", "--block", "2"), "blocks of indices are for sec-union alone"),
        (("--learning-rate", "0"), "learning_rate: Input should be greater than 0"),
        (("--learning-rate", "nan"), "learning_rate: Input should be a finite number"),
        (("--wire", "carrier-pigeon"), "there is no wire mode 'carrier-pigeon'"),
        (("--feedback", "none"), "there is no feedback 'none'; choose one of: lost, paper"),
        (("--alpha", "nrm"), "did you mean 'norm'?"),
        (("--target", "98"), "target: accuracy lies between 0 and 1, not at 98"),
        (("--target", "0.5", "--evaluate-every", "0"), "a target needs scores"),
        (("--task", "nonsense"), "there is no task 'nonsense'"),
        (("--json", "/nowhere/at/all.json"), "there is no folder /nowhere/at"),
        (("--log", "/nowhere/at/all.log"), "/nowhere/at/all.log cannot be written"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(options: tuple[str, ...], complaint: str, quiet: Hubbub) -> None:
    quiet("demo", *QUICK, *options).check_refused(complaint)


def test_a_corrupt_data_folder_fails_the_run_and_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"not an image file")
    ended = run_hubbub("demo", "--data", tmp_path)

    assert ended.code != 0
    assert str(tmp_path) in ended.err
    assert "Traceback" not in ended.err
