"""`hubbub run` against a real coordinator: what it prints, and the exit code that a script goes by."""

import csv
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from hubbub.protocol.metrics import format_value
from hubbub.rest import FINAL_STATES, EventView, RunView, RunWithParties
from hubbub_cli.client import NoCoordinator, read
from hubbub_cli.formatting import show_metric
from hubbub_cli.run_report import describe_metrics, describe_pause, print_run, print_runs
from hubbub_cli.runs import State
from hubbub_coordinator.api.views import view_run
from hubbub_coordinator.phases import run as runs
from support.builders import make_manifest
from support.command_line import Hubbub
from support.coordinator_play import REGRESSED
from support.live_coordinator import LiveCoordinator, live_coordinator, make_run

FIRST, SECOND = make_run(1), make_run(2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCoordinator]:
    """A coordinator at which two runs are completed; nobody changes anything there."""
    with live_coordinator(tmp_path_factory.mktemp("finished")) as live:
        for manifest in (FIRST, SECOND):
            live.submit(manifest)
            live.wait_until(manifest.run_id, "completed")
        yield live


# Looking ---------------------------------------------------------------------------------------------------


def test_runs_are_listed_the_newest_first(finished: LiveCoordinator, hubbub: Hubbub) -> None:
    shown, told = hubbub("run", "list", *finished.options()), hubbub("run", "list", *finished.options(), "--json")

    answer = told.json
    assert [each["run"] for each in answer["items"]] == [SECOND.run_id, FIRST.run_id]
    assert answer["total"] == 2
    rows = [line.split() for line in shown.out.splitlines() if "completed" in line]
    assert [row[0] for row in rows] == [SECOND.run_id[:12], FIRST.run_id[:12]]
    assert rows[0][1:5] == ["completed", "no-union", "synthetic:300", "2/2"]
    assert (shown.code, told.code) == (0, 0)


def test_a_list_is_cut_and_has_only_runs_in_the_states_that_are_asked_for(
    finished: LiveCoordinator, hubbub: Hubbub
) -> None:
    cut = hubbub("run", "list", *finished.options(), "--limit", 1)
    none = hubbub("run", "list", *finished.options(), "--state", "failed", "--state", "running")
    all_of_them = hubbub("run", "list", *finished.options(), "--state", "failed", "--state", "completed", "--json")

    assert SECOND.run_id[:12] in cut.out
    assert FIRST.run_id[:12] not in cut.out
    assert "1 of 2; --limit shows more" in cut.out
    assert none.out == "no runs\n"
    assert len(all_of_them.json["items"]) == 2


def test_the_states_are_those_of_the_coordinator() -> None:
    assert [state.value for state in State] == [state.value for state in runs.State]
    assert {state.value for state in runs.OUTCOMES} == FINAL_STATES


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(finished: LiveCoordinator, hubbub: Hubbub, columns: int) -> None:
    for words in (("list",), ("show", "latest")):
        shown = hubbub("run", *words, *finished.options(), columns=columns).out

        assert max(len(line) for line in shown.splitlines()) <= columns
        assert "…" not in shown


def test_a_run_is_shown_with_its_parties_and_rounds(finished: LiveCoordinator, hubbub: Hubbub) -> None:
    shown = hubbub("run", "show", FIRST.run_id, *finished.options("read"))

    assert shown.code == 0
    assert "completed: all 2 rounds are done" in shown.out
    assert "2 of 2 released" in shown.out
    assert "no-union, paper wire, task synthetic:300, 300 parameters" in shown.out
    for party in (*FIRST.clients, *FIRST.aggregators):
        assert party in shown.out
    assert sum("released  3 clients" in line for line in shown.out.splitlines()) == 2
    assert re.search(r"scores +accuracy \d+\.\d\d%, loss \d", shown.out)
    answer = hubbub("run", "show", FIRST.run_id, *finished.options(), "--json").json
    assert answer["manifest"] == json.loads(FIRST.model_dump_json())
    assert {each["name"] for each in answer["participants"]} == {*FIRST.clients, *FIRST.aggregators}


HOUSES = make_manifest(rounds=5, target=2.5, metrics=REGRESSED[1:])
RUNNING = runs.CoordinatorRun(manifest=HOUSES, round=2, released=1, metrics={"mse": 4.0, "r2": 0.123456})
ANSWER = view_run(HOUSES.run_id, runs.State.RUNNING, RUNNING, None).model_dump(mode="json")


def test_the_answers_of_a_newer_coordinator_are_read() -> None:
    """They may have fields, states and kinds that this version does not know, and a manifest of another form."""
    newer = {"state": "hibernating", "wire": "tiny", "manifest": {"format": 99}, "mood": "fair"}
    party = {"name": "a", "role": "client", "organisation": "", "joined": True, "status": "", "state": "asleep"}
    parties = {"participants": [{**party, "waited_for": False, "since_s": None, "mood": "fair"}]}
    event = {"id": 1, "at_s": 1.0, "run": "0" * 64, "round": 0, "phase": "", "party": "", "text": "", "state": ""}

    run = read(RunWithParties, {**ANSWER, **newer, **parties})
    happened = read(EventView, {**event, "kind": "run-hibernated", "mood": "fair"})

    assert (run.state, run.is_over, run.participants[0].state) == ("hibernating", False, "asleep")
    assert (happened.kind, happened.ends_the_run) == ("run-hibernated", False)


def test_an_answer_that_lacks_a_field_is_of_another_version() -> None:
    with pytest.raises(NoCoordinator, match=r"needs \(headline\.name\): use the same version"):
        read(RunView, {**ANSWER, "headline": {"higher_is_better": False}})


@pytest.mark.parametrize(
    ("changes", "said", "in_a_list"),
    [
        ({}, "mse 4, r2 0.1235, target mse 2.5", "mse 4"),
        ({"metrics": {}}, "none yet, target mse 2.5", "-"),
        ({"headline": None, "target": None, "metrics": {}}, "none: this run sums no scores", "-"),
    ],
)
def test_a_regression_has_its_own_metrics_and_no_accuracy(
    capsys: pytest.CaptureFixture[str], changes: dict[str, object], said: str, in_a_list: str
) -> None:
    answer = {**ANSWER, **changes}

    print_runs([answer], 1)

    assert describe_metrics(read(RunView, answer)) == said
    listed = capsys.readouterr().out
    assert re.search(rf"1/5 +{in_a_list} ", listed)
    assert "%" not in listed


def test_a_run_that_is_stalled_is_shown_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for stalled in ("", "mse was no better"):
        answer = {**ANSWER, "stalled": stalled, "participants": []}
        print_run(answer, [])
        assert bool(re.search(r"stalled +mse was no better", capsys.readouterr().out)) is bool(stalled)

        print_runs([answer], 1)
        listed = capsys.readouterr().out
        assert ("running, stalled" in listed) is bool(stalled)
        assert max(map(len, listed.splitlines())) <= 80


def test_a_run_is_shown_with_the_name_and_note_that_it_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    named = {**ANSWER, "name": "Pilot", "note": "slow at night", "participants": []}

    print_run(named, [])
    shown = capsys.readouterr().out
    print_runs([named, ANSWER], 2)
    listed = capsys.readouterr().out
    print_runs([ANSWER], 1)

    assert re.search(r"name +Pilot\nnote +slow at night", re.sub(r" +\n", "\n", shown))
    assert re.search(r" name .*\n.*\n.* Pilot ", listed)
    assert max(map(len, listed.splitlines())) <= 80
    assert " name " not in capsys.readouterr().out


def test_a_metric_is_written_as_everywhere_else() -> None:
    for name, value in product(("accuracy", "auc", "mse"), (0.0, 0.98765, 123456.0)):
        assert show_metric(name, value) == format_value(name, value)


def test_when_a_run_pauses_is_told() -> None:
    before, open_round = (describe_pause(read(RunView, {**ANSWER, "round": number})) for number in (0, 3))

    assert (before, open_round) == ("before its first round", "when its open round has ended")


def test_a_run_is_found_by_what_is_unambiguous(finished: LiveCoordinator, hubbub: Hubbub) -> None:
    first = FIRST.run_id
    for name, run in ((first, first), (first[:8], first), (first[:8].upper(), first), ("latest", SECOND.run_id)):
        assert hubbub("run", "show", name, *finished.options(), "--json").json["run"] == run


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("0" * 64, "there is no run"),
        ("0000", "there is no run 0000 here: `hubbub run list`"),
        ("abc", "give at least 4 of the 64 hexadecimal digits"),
        ("0" * 65, "cannot name a run"),
        ("lastest", "did you mean 'latest'?"),
    ],
)
def test_a_name_of_no_run_is_told_in_one_line(
    finished: LiveCoordinator, hubbub: Hubbub, name: str, complaint: str
) -> None:
    hubbub("run", "show", name, *finished.options()).check_refused(complaint)


# Exporting -------------------------------------------------------------------------------------------------


def test_json_is_exported_whole(finished: LiveCoordinator, hubbub: Hubbub, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    out.write_text("what was there before", encoding="utf-8")

    ended = hubbub("run", "export", "latest", *finished.options(), "--out", out)

    document = json.loads(out.read_text("utf-8"))
    assert ended.code == 0
    assert f"{out.stat().st_size:,} bytes written to {out}" in ended.out
    assert document["run"]["run"] == SECOND.run_id
    assert [each["round"] for each in document["rounds"]] == [1, 2]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(("table", "column"), [("rounds", "metrics.accuracy"), ("costs", "payload_bits")])
def test_csv_has_a_header_and_rows(
    finished: LiveCoordinator, hubbub: Hubbub, tmp_path: Path, table: str, column: str
) -> None:
    out = tmp_path / "run.csv"

    hubbub("run", "export", "latest", *finished.options(), "--format", "csv", "--table", table, "--out", out)

    with out.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["round"] for row in rows} == {"1", "2"}
    assert column in rows[0]


def test_an_export_that_cannot_be_written_is_told(finished: LiveCoordinator, hubbub: Hubbub) -> None:
    for options, complaint in (
        (("--table", "rounds"), "--format csv"),
        (("--out", "/nowhere/at/all.json"), "/nowhere/at/all.json cannot be written: No such file or directory"),
    ):
        hubbub("run", "export", "latest", *finished.options(), *options).check_refused(complaint)


# Beginning and steering ------------------------------------------------------------------------------------


def test_a_manifest_is_submitted_once_and_again_with_its_key(held: LiveCoordinator, hubbub: Hubbub) -> None:
    file = held.manifest_file(FIRST)

    first = hubbub("run", "submit", file, *held.options(), "--idempotency-key", "monday")
    again = hubbub("run", "submit", file, *held.options(), "--idempotency-key", "monday")
    without = hubbub("run", "submit", file, *held.options())

    assert (first.code, again.code, without.code) == (0, 0, 2)
    assert f"run {FIRST.run_id}\n5 parties are asked to join" in first.out
    assert f"hubbub run watch {FIRST.run_id[:12]}" in first.out
    assert "submitted before with this key" in again.out
    assert "a new run needs a new nonce" in without.err


def test_a_run_that_loses_many_indices_is_warned_about_when_it_is_submitted_and_shown(
    held: LiveCoordinator, hubbub: Hubbub
) -> None:
    lossy = make_run(3, strategy="sec-union", rho=0.5)

    submitted = hubbub("run", "submit", held.manifest_file(lossy), *held.options(), "--json")
    shown = hubbub("run", "show", lossy.run_id, *held.options())
    quiet = hubbub("run", "submit", held.manifest_file(make_run(4, strategy="secure-fedavg")), *held.options())

    warning = "sec-union with q = 1, rho = 0.5 and 3 clients loses 43% of the indices"
    assert submitted.json["run"] == lossy.run_id
    assert f"warning: {warning}" in submitted.err
    assert f"warning {warning}" in shown.joined
    assert quiet.err == ""


def test_a_run_is_submitted_and_watched_to_its_end(held: LiveCoordinator, hubbub: Hubbub) -> None:
    held.silence.lift_all()

    ended = hubbub("run", "submit", held.manifest_file(FIRST), *held.options(), "--watch", "--json")

    events = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 0
    assert (events[0]["kind"], events[-1]["kind"]) == ("run-submitted", "run-completed")


def test_a_run_is_paused_resumed_and_cancelled(held: LiveCoordinator, hubbub: Hubbub) -> None:
    held.submit(FIRST)
    held.wait_until(FIRST.run_id, "round 2 collecting")

    paused = hubbub("run", "pause", "latest", *held.options())
    resumed = hubbub("run", "resume", "latest", *held.options(), "--json")
    cancelled = hubbub("run", "cancel", FIRST.run_id[:10], *held.options())
    late = hubbub("run", "cancel", "latest", *held.options())

    assert paused.out == f"run {FIRST.run_id} pauses when its open round has ended\n"
    assert resumed.json["pausing"] is False
    assert cancelled.out == f"run {FIRST.run_id} is cancelled\n"
    assert late.code == 2
    assert "is cancelled already" in late.err


def test_what_cannot_be_done_at_a_coordinator_without_runs_is_told(
    held: LiveCoordinator, hubbub: Hubbub, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"rounds": 2}', encoding="utf-8")

    for words, right, complaint in (
        (("submit", held.manifest_file(FIRST)), "read", "use the change token"),
        (("submit", tmp_path / "bad.json"), "change", "not a manifest"),
        (("submit", tmp_path / "missing.json"), "change", "missing.json cannot be read"),
        (("show", "latest"), "change", "has no run yet"),
    ):
        hubbub("run", *words, *held.options(right)).check_refused(complaint)
    assert hubbub("run", "list", *held.options()).out == "no runs\n"


# The way in ------------------------------------------------------------------------------------------------


def test_address_and_token_come_from_the_environment(
    finished: LiveCoordinator, hubbub: Hubbub, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = hubbub("run", "list")
    monkeypatch.setenv("HUBBUB_URL", finished.url)
    monkeypatch.setenv("HUBBUB_TOKEN_FILE", str(finished.token_file("read")))

    assert hubbub("run", "list").code == 0
    assert without.code == 2
    assert "--token-file (HUBBUB_TOKEN_FILE)" in without.err


def test_nobody_at_the_address_is_exit_code_1(finished: LiveCoordinator, hubbub: Hubbub) -> None:
    ended = hubbub("run", "list", "--url", "http://127.0.0.1:1", "--token-file", finished.token_file())

    assert ended.code == 1
    assert "nobody answers at http://127.0.0.1:1" in ended.err
    assert ended.err.count("\n") == 1
