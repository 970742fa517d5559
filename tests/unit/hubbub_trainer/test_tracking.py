"""Tracking: a trainer's notes, read back as TensorBoard and MLflow read them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import Manifest
from hubbub.messages.shares import Traffic
from hubbub.runtime.process import Party
from hubbub.runtime.runner import Observer, Transition
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import topology_for
from hubbub_coordinator.phases import round as rounds
from hubbub_local.demo import draw_up
from hubbub_local.federation import start_federation
from hubbub_local.options import DemoOptions
from hubbub_trainer import __main__ as process
from hubbub_trainer import tracking
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.phases import round as trainer_rounds
from hubbub_trainer.service import Trainer
from hubbub_trainer.tracking import MLFLOW_DEFAULTS, Away, Note, Tracking, open_tracking
from hubbub_trainer.workspace import digest
from support.builders import make_manifest
from support.parties import parties_of
from support.patience import HANG_S
from support.trainer_scene import Scene, scene_of

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]  # Untyped.
        EventAccumulator,
    )

TASK = SyntheticTask(300)
MANIFEST = make_manifest(
    parameters=TASK.count_parameters(),
    task=TASK.name,
    initial_model_sha256=digest(TASK.initial_model(7)),
    rounds=9,
    min_clients=2,
)
ME = MANIFEST.clients[0]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow is told through the environment; no other test is."""
    for name in (*MLFLOW_DEFAULTS, "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def read_board(folder: Path, manifest: Manifest, client: PartyId) -> EventAccumulator:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    board = EventAccumulator(str(folder / manifest.run_id[:12] / client))
    board.Reload()
    return board


def read_points(board: EventAccumulator, tag: str) -> list[tuple[int, object]]:
    return [(each.step, pytest.approx(each.value)) for each in board.Scalars(tag)]


def read_text(board: EventAccumulator, tag: str) -> list[str]:
    return [each.tensor_proto.string_val[0].decode() for each in board.Tensors(tag)]


def connect(folder: Path) -> MlflowClient:
    from mlflow.tracking import MlflowClient  # noqa: PLC0415  # It takes most of a second to import.

    return MlflowClient(tracking_uri=f"file:{folder}")


def read_runs(folder: Path) -> list[Run]:
    client = connect(folder)
    experiment = client.get_experiment_by_name("hubbub")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def read_metric(folder: Path, run: Run, name: str) -> list[tuple[int, object]]:
    client = connect(folder)
    return [(each.step, pytest.approx(each.value)) for each in client.get_metric_history(run.info.run_id, name)]


@contextmanager
def following(scene: Scene, setting: str) -> Iterator[Tracking]:
    """Have the real trainer of a scene tracked, until it is killed."""
    watch = open_tracking(setting)
    scene.observer = watch.observe
    try:
        yield watch
    finally:
        scene.observer = lambda _: None
        watch.close()


# What is written ----------------------------------------------------------------------------------------


async def test_every_client_is_found_in_both_with_what_the_coordinator_was_told(tmp_path: Path) -> None:
    reports: dict[int, list[tuple[PartyId, Traffic]]] = {}
    own: dict[tuple[int, PartyId], trainer_rounds.ClientRound] = {}

    def note_times(moment: Transition) -> None:
        watch.observe(moment)
        if isinstance(moment.data, trainer_rounds.ClientRound) and moment.after is trainer_rounds.State.APPLIED:
            own[moment.key.round, moment.data.me] = moment.data

    def overhear(moment: Transition) -> None:
        if isinstance(moment.data, rounds.CoordinatorRound) and moment.after is rounds.State.RELEASED:
            reports[moment.key.round] = list(moment.data.traffic)

    options = DemoOptions(clients=3, rounds=2, local_steps=3, seed=7, strategy="sec-union", q=3)
    manifest, parties = draw_up(options, TASK)
    watch = open_tracking(f"tensorboard:{tmp_path / 'board'}, mlflow:file:{tmp_path / 'flow'}")
    async with start_federation(
        manifest,
        parties=parties,
        folder=tmp_path,
        load_task=lambda _: TASK,
        demo_seed=7,
        observer=overhear,
        trainer_observer=note_times,
    ) as federation:
        await federation.run(manifest)
    await asyncio.to_thread(watch.close)

    runs = {run.data.tags["hubbub.client"]: run for run in read_runs(tmp_path / "flow")}
    assert runs.keys() == set(manifest.clients)
    assert reports.keys() == {1, 2}
    for client in manifest.clients:
        board = read_board(tmp_path / "board", manifest, client)
        expected = {
            "evaluation/accuracy": [(n, own[n, client].own_metrics["accuracy"]) for n in (1, 2)],
            "evaluation/loss": [(n, own[n, client].own_metrics["loss"]) for n in (1, 2)],
            "seconds/training": [(n, own[n, client].training_s) for n in (1, 2)],
            "seconds/evaluation": [(n, own[n, client].evaluation_s) for n in (1, 2)],
            "round/members": [(1, 3), (2, 3)],
            "round/released": [(1, 1), (2, 1)],
            "traffic/sent_payload_bytes": [(n, count_sent(reports[n], client)) for n in (1, 2)],
            "traffic/received_wire_bytes": [(n, count_received(reports[n], client)) for n in (1, 2)],
        }
        assert set(board.Tags()["scalars"]) == runs[client].data.metrics.keys() == expected.keys()
        for name, points in expected.items():
            assert read_points(board, name) == points, name
            assert read_metric(tmp_path / "flow", runs[client], name) == points, name
        assert read_text(board, "run/outcome") == ["completed"]
        assert f"| run | {manifest.run_id} |" in read_text(board, "run/parameters")[0]
        assert runs[client].info.status == "FINISHED"
        assert runs[client].data.tags["hubbub.outcome"] == "completed"
        parameters = runs[client].data.params
        assert (parameters["run"], parameters["q"]) == (manifest.run_id, "3")
        assert parameters["clients"] == "client-1, client-2, client-3"


def count_sent(told: list[tuple[PartyId, Traffic]], client: PartyId) -> float:
    return sum(row.payload_bits for party, row in told if party == client and row.direction == "up") / 8


def count_received(told: list[tuple[PartyId, Traffic]], client: PartyId) -> int:
    return sum(row.wire_bytes for party, row in told if party == client and row.direction == "down")


async def test_a_trainer_that_was_killed_goes_on_where_it_was_and_repeats_nothing(tmp_path: Path) -> None:
    board, flow = tmp_path / "board", tmp_path / "flow"
    setting = f"tensorboard:{board},mlflow:file:{flow}"
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        with following(scene, setting):
            await scene.join()
            await scene.play_good_round(1)
            await scene.play_void_round(2)
            await scene.settle()
        tear_last_record(board)
        await scene.restart()
        with following(scene, setting):
            await scene.play_good_round(3)
            await scene.end("cancelled")

    seen = read_board(board, MANIFEST, ME)
    assert read_points(seen, "round/released") == [(1, 1), (3, 1)], "what was torn is lost, and nothing else"
    assert len(read_text(seen, "run/parameters")) == 1
    assert read_text(seen, "run/outcome") == ["cancelled"]
    (run,) = read_runs(flow)
    assert read_metric(flow, run, "round/released") == [(1, 1), (2, 0), (3, 1)]
    assert (run.info.status, run.data.tags["hubbub.outcome"]) == ("KILLED", "cancelled")


def tear_last_record(folder: Path) -> None:
    """As a crash does that comes in the middle of a write."""
    (file,) = folder.rglob("*.tfevents.*")
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 3)


async def test_a_run_that_was_refused_is_not_written_down(tmp_path: Path) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        with following(scene, f"tensorboard:{tmp_path / 'board'}"):
            await scene.settle()  # Proposes a run whose task is not there.

    assert not (tmp_path / "board").exists()


# A tracker that fails -----------------------------------------------------------------------------------


def begin_run(number: int = 0) -> Note:
    """Make the note of a trainer that joins a run."""
    manifest = MANIFEST.model_copy(update={"nonce": f"{number:032x}"})
    return Note(client=ME, manifest=manifest, at_s=1_700_000_000.0)


class Recorder:
    """A tracker that does as it is told."""

    def __init__(self, *troubles: Exception) -> None:
        self.troubles = list(troubles)
        self.taken: list[Note] = []
        self.asked = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.closed = False

    def take(self, note: Note) -> None:
        self.asked.set()
        self.may_go_on.wait()
        if self.troubles:
            raise self.troubles.pop(0)
        self.taken.append(note)

    def has(self, count: int) -> bool:
        return len(self.taken) == count

    def close(self) -> None:
        self.closed = True


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_passing_problem_is_retried_and_logged_once_and_a_refused_note_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "PAUSE_S", 0.0)
    recorder = Recorder(*[Away("no answer from http://user:secret@flow/")] * 3)
    watch = Tracking({"flow": recorder})
    watch.write_down(begin_run(1))
    wait_for(partial(recorder.has, 1))
    recorder.troubles.append(ValueError("this one never"))
    for number in (2, 3):
        watch.write_down(begin_run(number))
    watch.close()

    assert [note.manifest.nonce[-1] for note in recorder.taken] == ["1", "3"]
    assert warnings_of(caplog) == [
        "flow takes no notes, and the run goes on without: no answer from http://***@flow/",
        "flow takes no notes, and the run goes on without: this one never",
    ]
    assert recorder.closed


def test_a_hanging_tracker_stops_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tracking, "MOST_NOTES", 3)
    monkeypatch.setattr(tracking, "LAST_NOTES_S", 0.05)
    hanging, other = Recorder(), Recorder()
    hanging.may_go_on.clear()
    watch = Tracking({"hanging": hanging, "other": other})
    watch.write_down(begin_run(0))
    assert hanging.asked.wait(HANG_S)
    for number in range(1, 10):
        watch.write_down(begin_run(number))
        wait_for(partial(other.has, number + 1))
    began_s = time.monotonic()
    watch.close()

    assert time.monotonic() - began_s < 5
    assert warnings_of(caplog) == [
        "hanging takes no notes, and the run goes on without: too many notes wait for it",
        "hanging is left with notes that it did not take",
    ]
    hanging.may_go_on.set()
    wait_for(lambda: hanging.closed)
    assert len(hanging.taken) == 4, "one in its hands, three that waited"


def test_what_waits_for_a_tracker_that_is_away_does_not_hold_up_the_end() -> None:
    recorder = Recorder(*[Away("away")] * 100)
    watch = Tracking({"flow": recorder})
    for number in range(3):
        watch.write_down(begin_run(number))
    assert recorder.asked.wait(HANG_S)
    watch.close()

    assert recorder.closed
    assert recorder.taken == []
    assert len(recorder.troubles) >= 97, "a last attempt, not one for each note"


def test_a_folder_that_cannot_be_written_is_written_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "PAUSE_S", 0.01)
    folder = tmp_path / "board"
    folder.write_text("a file is in the way")
    watch = open_tracking(f"tensorboard:{folder}")
    watch.write_down(begin_run())
    wait_for(lambda: bool(warnings_of(caplog)))
    folder.unlink()
    wait_for(folder.is_dir)
    watch.close()

    (message,) = warnings_of(caplog)
    assert message.startswith(f"tensorboard:{folder} takes no notes, and the run goes on without: ")
    assert len(read_text(read_board(folder, begin_run().manifest, ME), "run/parameters")) == 1


def test_a_server_that_is_away_is_said_once_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    watch = open_tracking("mlflow:http://me:secret@127.0.0.1:9/")
    watch.write_down(begin_run())
    wait_for(lambda: bool(warnings_of(caplog)))
    watch.close()

    (message,) = warnings_of(caplog)
    assert message.startswith("mlflow:http://***@127.0.0.1:9/ takes no notes, and the run goes on without: ")
    assert "secret" not in caplog.text


def wait_for(condition: Callable[[], bool]) -> None:
    """Another thread does it."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# The setting --------------------------------------------------------------------------------------------


def test_a_setting_that_cannot_be_followed_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_tracking("")._desks == []
    for setting in ("wandb:here", "tensorboard", "tensorboard:", "http://me:secret@flow/"):
        with pytest.raises(ConfigurationError, match="names no tracker; write tensorboard:FOLDER or mlf") as error:
            open_tracking(setting)
        assert "secret" not in str(error.value)
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="pip install mlflow, or name an MLflow server"):
        open_tracking("mlflow:sqlite:///runs.db")
    for kind, module in (("tensorboard", "tensorboard.compat.proto.event_pb2"), ("mlflow", "mlflow.tracking")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigurationError, match=rf"pip install 'hubbub\[{kind}\]'"):
            open_tracking(f"{kind}:somewhere")


def test_nobody_else_is_told_that_mlflow_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    open_tracking("mlflow:file:somewhere").close()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    open_tracking("mlflow:file:somewhere").close()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77", "what the operator sets stays"


async def test_a_trainer_is_tracked_as_its_setting_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observers: list[Observer] = []

    class Spied(Trainer):
        def __init__(self, **arguments: Any) -> None:
            observers.append(arguments["observer"])
            super().__init__(**arguments)

    monkeypatch.setattr(process, "Trainer", Spied)
    parties = parties_of(MANIFEST)
    settings = process.TrainerSettings(
        identity=tmp_path / "unread",
        roster=tmp_path / "unread",
        policy=tmp_path / "unread",
        amqp_url=SecretStr("amqp://unused"),
        folder=tmp_path / ME,
        track=SecretStr(f"tensorboard:{tmp_path / 'board'}"),
    )
    stop = asyncio.Event()
    stop.set()
    transport = MemoryTransport(MemoryBroker(), topology_for(ME, Role.CLIENT))
    async with transport:
        await process.serve(settings, Party(parties.identities[ME], parties.roster, transport), stop)

    (observer,) = observers
    watch = getattr(observer, "__self__", None)
    assert isinstance(watch, Tracking)
    assert [desk._name for desk in watch._desks] == [f"tensorboard:{tmp_path / 'board'}"]
    assert not any(desk._thread.is_alive() for desk in watch._desks), "it ends with the trainer"
