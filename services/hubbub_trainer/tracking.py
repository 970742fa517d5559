"""Tracking: writes this client's measurements to TensorBoard or MLflow.

`HUBBUB_TRAINER_TRACK` names TensorBoard (`tensorboard:FOLDER`), MLflow (`mlflow:URI`), or several of them. Every
round becomes one point: scores, durations, number of members, and traffic. The scores are those on this client's
own data, which nobody else is told. The manifest is written too.

Each tracker has its own worker thread and queue, and the run goes on whatever happens to it. Errors that may pass
(a server that is away, a full disk) are retried; any other is logged once and the note is dropped.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from hubbub.errors import ConfigurationError, LocalError
from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest
from hubbub.runtime.runner import Transition
from hubbub_trainer.events import Ended, Prepared, RoundOver
from hubbub_trainer.phases import admission, participation
from hubbub_trainer.phases import round as rounds
from hubbub_trainer.phases.admission import Admission
from hubbub_trainer.phases.participation import Participation

log = logging.getLogger(__name__)

MOST_NOTES = 10_000
"""The most notes in a tracker's queue; further ones are dropped."""
PAUSE_S = 15.0
"""Time between two attempts to reach a tracker."""
LAST_NOTES_S = 5.0
"""The longest time that trackers may delay the shutdown."""

SHORT = 12
"""Characters of a run id that tell runs apart for people."""
HOW_TO_TRACK = "write tensorboard:FOLDER or mlflow:URI, or several, separated by commas"

MLFLOW_DEFAULTS = {
    # Nobody else may learn that a run is trained here.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Log lines are ours to format.
    "MLFLOW_CONFIGURE_LOGGING": "false",
    # We retry ourselves.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # An operator who names a folder wants one.
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
"""Environment variables of MLflow, for those that the operator has not set."""
MLFLOW_EXPERIMENT = "hubbub"
MLFLOW_VALUE_CHARACTERS = 500
"""The longest parameter that every version of its servers takes."""
WITHOUT_A_DATABASE = frozenset({"", "file", "http", "https", "databricks"})
MLFLOW_STATUS = {"completed": "FINISHED", "cancelled": "KILLED"}
MAY_MEND = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class Away(LocalError):
    """A tracker cannot take a note now, and may take it later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Entry for a tracker: the start of a run, the measurements of a round, or the outcome of a run."""

    client: PartyId
    manifest: Manifest
    at_s: float
    round: int = 0
    measured: Mapping[str, float] = field(default_factory=dict)
    outcome: str = ""

    @property
    def run(self) -> RunId:
        """The run that it is about."""
        return self.manifest.run_id


# From a transition to a note ----------------------------------------------------------------------------


def write_note(moment: Transition) -> Note | None:
    """Make a note of a transition of this trainer; None if there is nothing to note."""
    match moment.data:
        case rounds.ClientRound() as data if moment.after in {rounds.State.APPLIED, rounds.State.VOID}:
            return Note(
                client=data.me,
                manifest=data.manifest,
                at_s=moment.at_s,
                round=data.key.round,
                measured={
                    **{f"evaluation/{name}": value for name, value in data.own_metrics.items()},
                    "seconds/training": data.training_s,
                    "seconds/evaluation": data.evaluation_s,
                    "round/released": float(moment.after is rounds.State.APPLIED),
                    "round/members": len(data.members),
                    "traffic/sent_payload_bytes": sum(each.payload_bits for each in data.sent) / 8,
                    "traffic/received_wire_bytes": sum(data.received.values()),
                },
            )
        case Admission() as data:
            return _note_admission(moment, data)
        case Participation() as data if moment.after is participation.State.ENDED:
            outcome = find_outcome(moment, data)
            return Note(client=data.me, manifest=data.manifest, at_s=moment.at_s, round=data.over, outcome=outcome)
    return None


def _note_admission(moment: Transition, data: Admission) -> Note | None:
    """Note that a run begins, or ended before its first round; nothing of a run that this client never joined."""
    begins = moment.after is admission.State.PLEDGED and isinstance(moment.event, Prepared)
    was_in = moment.before not in {admission.State.INVITED, admission.State.PREPARING}
    ends = moment.after is admission.State.ENDED and was_in
    if not begins and not ends:
        return None
    outcome = moment.event.outcome if isinstance(moment.event, Ended) else "failed"
    return Note(client=data.me, manifest=data.manifest, at_s=moment.at_s, outcome=outcome if ends else "")


def find_outcome(moment: Transition, data: Participation) -> str:
    """Return how the run ended for this client."""
    match moment.event:
        case Ended(outcome=outcome):
            return outcome
        case RoundOver() if moment.before is participation.State.LEAVING and data.caught_up:
            return "completed"
        case RoundOver():
            return "left"  # The data owner's policy allows no more void rounds.
    return "failed"


def _list_parameters(manifest: Manifest) -> dict[str, str]:
    """Return the run's parameters as names and values."""
    fields = manifest.model_dump(mode="json", exclude={"cohort"})
    fields |= {"run": manifest.run_id, "clients": list(manifest.clients)}
    lists = {name: ", ".join(map(str, value)) for name, value in fields.items() if isinstance(value, list)}
    return {name: lists.get(name, str(value)) for name, value in fields.items()}


# The trackers -------------------------------------------------------------------------------------------


class Tracker(Protocol):
    """Destination of notes; used by one thread."""

    def take(self, note: Note) -> None:
        """Write a note permanently, or raise `Away` if that may still succeed later."""

    def close(self) -> None:
        """Close open files and connections."""


def _import(module: str, *, extra: str) -> Any:
    """Import a module of an extra. It is `Any`, since not all of these are typed."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"HUBBUB_TRAINER_TRACK names {extra}, which is not installed here: pip install 'hubbub[{extra}]'"
        ) from None


class TensorBoardTracker:
    """Tracker that writes TensorBoard event files, in a folder for each run and client.

    A note is one record, so that it is there as a whole or not at all. Each process of a trainer writes a file of
    its own: a record that a crash tore hides nothing that was written after it. torch's `SummaryWriter` writes
    a record for each number, in a thread that prints a traceback if the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, IO[bytes]] = {}
        self._event = _import("tensorboard.compat.proto.event_pb2", extra="tensorboard").Event
        self._record = _import("tensorboard.summary.writer.record_writer", extra="tensorboard").RecordWriter
        self._text = _import("tensorboard.plugins.text.summary_v2", extra="tensorboard").text_pb

    def take(self, note: Note) -> None:
        """Append to the run's file; the first note of a process begins one."""
        folder = self._folder / note.run[:SHORT] / note.client
        try:
            file = self._files.get(folder) or self._begin_file(folder, note)
            if note.measured or note.outcome:
                texts = {"run/outcome": note.outcome} if note.outcome else {}
                self._append(file, note.at_s, note.round, note.measured, texts)
            if note.outcome:
                self._files.pop(folder).close()
        except OSError as error:
            # The end of the file may be torn, so the next attempt begins another.
            self._close(folder)
            raise Away(str(error)) from error

    def _begin_file(self, folder: Path, note: Note) -> IO[bytes]:
        folder.mkdir(parents=True, exist_ok=True)
        is_new = not any(folder.glob("*.tfevents.*"))
        # TensorBoard reads the files of a folder in the order of their names.
        path = folder / f"events.out.tfevents.{time.time_ns():020d}.hubbub"
        file = self._files[folder] = path.open("xb")
        try:
            self._write(file, self._event(wall_time=note.at_s, file_version="brain.Event:2"))
            if is_new:
                # TensorBoard shows text as Markdown.
                rows = (f"| {name} | {value} |" for name, value in _list_parameters(note.manifest).items())
                table = "\n".join(["| parameter | value |", "| --- | --- |", *rows])
                self._append(file, note.at_s, 0, {}, {"run/parameters": table})
        except OSError:
            path.unlink()  # Otherwise the next file would not count as the folder's first.
            raise
        return file

    def _append(
        self, file: IO[bytes], at_s: float, step: int, numbers: Mapping[str, float], texts: Mapping[str, str]
    ) -> None:
        event = self._event(wall_time=at_s, step=step)
        for tag, number in numbers.items():
            event.summary.value.add(tag=tag, simple_value=number)
        for tag, text in texts.items():
            event.summary.MergeFrom(self._text(tag, text))
        self._write(file, event)

    def _write(self, file: IO[bytes], event: Any) -> None:
        self._record(file).write(event.SerializeToString())
        file.flush()

    def _close(self, folder: Path) -> None:
        file = self._files.pop(folder, None)
        if file is not None:
            with suppress(OSError):
                file.close()

    def close(self) -> None:
        """Close all files; all notes are in them already."""
        for folder in list(self._files):
            self._close(folder)


class MlflowTracker:
    """Tracker that writes runs of an MLflow experiment, found again by their tags."""

    def __init__(self, uri: str) -> None:
        for name, value in MLFLOW_DEFAULTS.items():
            os.environ.setdefault(name, value)
        self._entities = _import("mlflow.entities", extra="mlflow")
        self._exception = _import("mlflow.exceptions", extra="mlflow").MlflowException
        self._connect = _import("mlflow.tracking", extra="mlflow").MlflowClient
        scheme = urlsplit(uri).scheme
        if scheme not in WITHOUT_A_DATABASE and find_spec("sqlalchemy") is None:
            raise ConfigurationError(
                f"HUBBUB_TRAINER_TRACK: to write to {scheme} itself, MLflow needs more than its client: "
                "pip install mlflow, or name an MLflow server (mlflow:http://...) or a folder (mlflow:file:...)"
            )
        self._uri = uri
        self._client: Any = None
        self._runs: dict[tuple[RunId, PartyId], str] = {}

    def take(self, note: Note) -> None:
        """Log to the run's counterpart in MLflow."""
        try:
            self._client = self._client or self._connect(tracking_uri=self._uri)
            name = self._runs.get((note.run, note.client)) or self._find_run(note)
            self._runs[note.run, note.client] = name
            self._log(name, note)
        except self._exception as error:
            status = error.get_http_status_code()
            if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in MAY_MEND:
                raise
            raise Away(str(error)) from error
        except OSError as error:
            raise Away(str(error)) from error

    def _log(self, name: str, note: Note) -> None:
        at_ms = round(note.at_s * 1000)
        metrics = [self._entities.Metric(key, value, at_ms, note.round) for key, value in note.measured.items()]
        if metrics:
            self._client.log_batch(name, metrics=metrics)
        if note.outcome:
            self._client.set_tag(name, "hubbub.outcome", note.outcome)
            self._client.set_terminated(name, MLFLOW_STATUS.get(note.outcome, "FAILED"), at_ms)
            del self._runs[note.run, note.client]

    def _find_run(self, note: Note) -> str:
        """Find the MLflow run that an earlier process began, or create one; log its parameters either way."""
        tags = {"hubbub.run": note.run, "hubbub.client": note.client}
        wanted = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())
        experiment = self._find_experiment()
        found = self._client.search_runs([experiment], wanted, max_results=1)
        title = f"{note.client} {note.run[:SHORT]}"
        run = found[0] if found else self._client.create_run(experiment, round(note.at_s * 1000), tags, title)
        parameters = [
            self._entities.Param(key, value[:MLFLOW_VALUE_CHARACTERS])
            for key, value in _list_parameters(note.manifest).items()
        ]
        self._client.log_batch(run.info.run_id, params=parameters)
        return str(run.info.run_id)

    def _find_experiment(self) -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", MLFLOW_EXPERIMENT)
        found = self._client.get_experiment_by_name(title)
        if found is None:
            # Another trainer may make it first.
            with suppress(self._exception):
                return str(self._client.create_experiment(title))
            found = self._client.get_experiment_by_name(title)
        if found is None:
            raise Away(f"the experiment {title} can be neither found nor made")
        return str(found.experiment_id)

    def close(self) -> None:
        """Do nothing: nothing is open between two notes."""


# Between the trainer and its trackers -------------------------------------------------------------------


class _Desk:
    """Worker of one tracker: its thread and its queue of notes."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker = tracker
        self._notes: SimpleQueue[Note | None] = SimpleQueue()
        self._closing = threading.Event()
        self._silent = False
        self._thread = threading.Thread(target=self._serve, name=f"tracking {name}", daemon=True)
        self._thread.start()

    def put(self, note: Note) -> None:
        """Queue a note; never waits."""
        if self._notes.qsize() < MOST_NOTES:
            self._notes.put(note)
        else:
            self._complain("too many notes wait for it")

    def stop(self) -> None:
        """Ask the worker to stop after one last attempt at the queued notes."""
        self._closing.set()
        self._notes.put(None)

    def join(self, deadline_s: float) -> None:
        """Wait for the worker to stop, until the deadline."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s is left with notes that it did not take", self._name)

    def _serve(self) -> None:
        while (note := self._notes.get()) is not None:
            if not self._deliver(note):
                break
        self._tracker.close()

    def _deliver(self, note: Note) -> bool:
        """Deliver a note, with retries; return whether to go on with the next one."""
        while True:
            closing = self._closing.is_set()
            try:
                self._tracker.take(note)
            except Away as error:
                self._complain(error)
                if closing:
                    return False
                self._closing.wait(PAUSE_S)
            except Exception as error:  # noqa: BLE001  (Whatever a tracker does, the run goes on.)
                self._complain(error)
                return True
            else:
                if self._silent:
                    self._silent = False
                    log.info("%s takes notes again", self._name)
                return True

    def _complain(self, problem: object) -> None:
        """Log a problem once, until the tracker works again."""
        if not self._silent:
            self._silent = True
            log.warning("%s takes no notes, and the run goes on without: %s", self._name, _redact(str(problem)))


def _redact(text: str) -> str:
    """Remove the user and password that an address may have."""
    return re.sub(r"//[^/@\s]*@", "//***@", text)


class Tracking:
    """Observes a trainer's transitions and queues notes for every tracker."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._desks = [_Desk(name, tracker) for name, tracker in trackers.items()]

    def observe(self, moment: Transition) -> None:
        """Queue a note of a transition, if there is one; never waits."""
        if (note := write_note(moment)) is not None:
            self.write_down(note)

    def write_down(self, note: Note) -> None:
        """Queue a note for every tracker; never waits."""
        for desk in self._desks:
            desk.put(note)

    def close(self) -> None:
        """Stop all workers; wait `LAST_NOTES_S` at most for the last notes."""
        for desk in self._desks:
            desk.stop()
        deadline_s = time.monotonic() + LAST_NOTES_S
        for desk in self._desks:
            desk.join(deadline_s)


TRACKERS: Mapping[str, Callable[[str], Tracker]] = {
    "tensorboard": lambda place: TensorBoardTracker(Path(place)),
    "mlflow": MlflowTracker,
}


def open_tracking(setting: str) -> Tracking:
    """Read `HUBBUB_TRAINER_TRACK`; an empty one tracks nothing."""
    trackers: dict[str, Tracker] = {}
    for target in filter(None, (part.strip() for part in setting.split(","))):
        kind, _, place = target.partition(":")
        if kind not in TRACKERS or not place:
            raise ConfigurationError(f"HUBBUB_TRAINER_TRACK: {_redact(target)!r} names no tracker; {HOW_TO_TRACK}")
        trackers[_redact(target)] = TRACKERS[kind](place)
    return Tracking(trackers)
