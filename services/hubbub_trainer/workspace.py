"""Workspace of a trainer in a run: the task, the model, the accumulator and the group secret.

It is kept on disk, and stays on this machine. The clients agree on the group secret from everybody's parts; it
advances a step with every round.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hubbub.crypto.key_derivation import ClientSecret, GroupSecret, Transcript
from hubbub.disk import sync_folder
from hubbub.errors import LocalError, StorageDamaged, StorageFailed
from hubbub.ids import PartyId
from hubbub.protocol import aggregate
from hubbub.protocol.aggregate import NO_HISTORY, History
from hubbub.protocol.compression import squared_norm
from hubbub.protocol.dense import Digits
from hubbub.protocol.metrics import Metric, Scores, is_better
from hubbub.protocol.packing import BYTE_BITS, WORD_MODULUS
from hubbub.protocol.ring import word_type
from hubbub.strategies.base import ClientRound, Conclusion, Release, Restriction, Theta
from hubbub.strategies.scores import ScoreRound
from hubbub_trainer.learning.task import HasBuffers, Learner
from hubbub_trainer.saved_model import (
    BEST,
    ENDORSEMENT,
    FILE,
    SALT,
    Headline,
    KeptModel,
    read_best_model,
    write_file,
)

Array = Theta | NDArray[np.float64] | NDArray[np.uint8]

MODEL_DIGEST, NOTES, RECORD = "model.sha256", "rounds.jsonl", "task.json"
_CHECKSUM = "sha256"
_HEADER_LENGTH = struct.Struct("<Q")
"""The first field of a safetensors file."""
LEFT_BEHIND = frozenset({FILE, BEST, MODEL_DIGEST, NOTES, SALT, ENDORSEMENT})
"""Files that stay when a run is over."""


def digest(theta: Theta) -> str:
    """Return the SHA-256 of the model's float32 values, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(theta, dtype="<f4").data).hexdigest()


def model_hmac(group: GroupSecret, model_sha256: str, history: History, velocity: Theta | None = None) -> str:
    """Digest the state of a round's end under the group's key of the round, so that no server can guess it."""
    state = bytes.fromhex(model_sha256) + b"".join(digest_parts(history, velocity))
    return hmac.digest(group.key_for("model"), state, "sha256").hex()


def digest_parts(history: History, velocity: Theta | None) -> tuple[bytes, ...]:
    """Return what clients compare besides the model: the history and, with momentum, the velocity's SHA-256."""
    parts = (aggregate.pack(history, len(history)),)
    return parts if velocity is None else (*parts, bytes.fromhex(digest(velocity)))


def _shortened(each: Restriction) -> tuple[str, NDArray[np.uint8] | NDArray[np.signedinteger]]:
    """Encode ascending indices for a digest: as they are, or as bits up to the last one if that is shorter."""
    indices = each.indices
    end = int(indices[-1]) + 1 if indices.size else 0
    if end > BYTE_BITS * indices.nbytes:
        return "indices", np.ascontiguousarray(indices, dtype="<i8")
    if each.bits is not None:
        return "bits", each.bits[: -(-end // BYTE_BITS)]
    marked = np.zeros(end, dtype=np.uint8)
    marked[indices] = 1
    return "bits", np.packbits(marked, bitorder="little")


def _packed(residues: Digits, modulus: int) -> Digits:
    """Encode residues for a digest, in as few bytes as their ring needs; bits are packed."""
    narrow = residues.astype(word_type(modulus), copy=False)
    return np.packbits(narrow, bitorder="little") if modulus == 2 else narrow  # noqa: PLR2004 - the ring of bits.


@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """A round without a verdict yet: this client's side of it, and the memory to keep if it counts."""

    client_round: ClientRound
    memory: Theta | None
    transcript: Transcript
    """Covers everything from others that this client's shares depend on."""
    scores: ScoreRound | None = None
    """The scores, unless this is a round of training."""
    absorbed: list[str] = field(default_factory=list)
    """The phases whose sums are taken in."""
    transcripts: dict[str, str] = field(default_factory=dict)
    """Transcripts of the share sets so far, by phase; later sums change none of them."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while sums are taken in, and while a share set is made again in another thread."""

    def transcript_of(self, phase: str) -> str:
        """Return the transcript of a phase's share set; it covers the indices that the set is restricted to."""
        if phase not in self.transcripts:
            lists = self.client_round.restricted_to(phase)
            noted = self.transcript.copy()
            noted.note(len(lists))
            for each in lists:
                noted.note(each.indices.size, *_shortened(each))
            self.transcripts[phase] = noted.digest(phase)
        return self.transcripts[phase]

    def note_sums(self, phase: str, members: Sequence[PartyId], release: Release) -> None:
        """Add the released sums of a phase, the same for everybody, to the transcript."""
        self.transcript.note(phase, len(members), *members, len(release.vectors))
        for vector, values in zip(release.vectors, release.values, strict=True):
            ring = vector.modulus % WORD_MODULUS  # In 64 bits; 0 stands for 2^64.
            self.transcript.note(ring, values.size, _packed(values, vector.modulus))

    def __repr__(self) -> str:
        return "<OpenRound>"


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """Result of training for a round. It is as secret as the update, so it does not print."""

    update: Theta
    memory: Theta | None
    """The memory to keep if the round counts."""
    silent: bool = False
    """Training failed: the client contributes nothing."""

    def __repr__(self) -> str:
        return "<Learnt>"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """Record of the task: the job begun last, how often, and the last successful training."""

    round: int = 0
    what: str = ""
    begun: int = 0
    """Number of processes that began it: 1 unless one of them died in it."""
    training_s: float = 0.0


@dataclass(slots=True)
class Workspace:
    """State of one client in one run. Nothing of it prints."""

    folder: Path
    learner: Learner
    secret: ClientSecret
    theta: Theta
    accumulator: Theta
    memory: Theta | None = None
    """The optimiser's memory from the last round that counted."""
    history: History = NO_HISTORY
    """The mean factors of the released rounds so far, which bound the next one; new in every run."""
    velocity: Theta | None = None
    """With server momentum, the last movement of the model; new in every run, and None without momentum."""
    applied: int = 0
    """The last round that is applied to this model."""
    step: float = 0.0
    """Distance that the model moved when it was last replaced, as a Euclidean norm.

    With momentum it is at most what the round's sums alone come to: they have not moved a model that moves on by
    itself.
    """
    group: GroupSecret | None = None
    rounds: dict[int, OpenRound] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held to train, apply a round or take over a model: a job of an overtaken round may still run."""
    sums: str = ""
    """Digest of the first model and all sums since, if clients have models of their own; else empty."""
    tensors: tuple[int, ...] = ()
    """The sizes of the tensors that the model is made of, in order."""
    examples: int = 1
    """Number of examples that a model is scored on here, as of when we joined."""
    scoring: dict[int, OpenRound] = field(default_factory=dict)
    record: TaskRecord = field(default_factory=TaskRecord)
    _begun: tuple[int, str] = (0, "")
    """The job that this process has begun itself."""
    _digested: tuple[Theta, str] | None = None
    """Cache: the last model that was digested, and its digest. A round needs it three times."""

    def __repr__(self) -> str:
        return f"<Workspace of {self.theta.size} parameters>"

    @property
    def group_secret(self) -> GroupSecret:
        """The group secret, once it is agreed on."""
        if self.group is None:
            raise LocalError("the clients have not agreed on a group secret yet")
        return self.group

    @contextmanager
    def at_round(self, number: int) -> Iterator[None]:
        """Hold the lock, with the group secret at a round; raise `LocalError` for an earlier round."""
        with self.lock:
            self.group_secret.advance_to(number)
            yield

    def digest_of(self, theta: Theta) -> str:
        """Return a model's digest, computed once."""
        if self._digested is None or self._digested[0] is not theta:
            self._digested = theta, digest(theta)
        return self._digested[1]

    @property
    def agreed_sha256(self) -> str:
        """The digest of the model, or of the sums that every client applied to its own."""
        return self.sums or self.digest_of(self.theta)

    def model_hmac(self) -> str:
        """Return a digest of the state that only this run's clients can compare, in this round alone."""
        return model_hmac(self.group_secret, self.agreed_sha256, self.history, self.velocity)

    def note_round(self, number: int, conclusion: Conclusion) -> None:
        """Note a round's model digest and private facts, once a round, in this file only.

        The private facts are who chose alone, how many of our numbers could not be sent as they are, and what the
        mean factor was scaled by if it was clamped.
        """
        fields: dict[str, object] = {
            "model_sha256": self.digest_of(conclusion.theta),
            "alone_share": conclusion.alone_share,
        }
        if conclusion.changed:
            fields["changed"] = conclusion.changed
        if conclusion.scale < 1:
            fields["scale"] = conclusion.scale
        self.note(number, fields)

    def note_trouble(self, number: int, what: str) -> None:
        """Note, in this file only, which job of the task failed in a round."""
        known = self._read_notes().get(number, {}).get("trouble", [])
        self.note(number, {"trouble": sorted({*known, what})})

    def note_changes(self, changes: Sequence[str]) -> None:
        """Note, in this file only, which parts of the task were changed since the last noted round."""
        self.note(max((self.applied, *self._read_notes())), {"task_changed": list(changes)})

    def note(self, number: int, fields: Mapping[str, object]) -> None:
        """Add fields to the notes of a round, in this file only; notes of later rounds are dropped."""
        notes = {each: note for each, note in self._read_notes().items() if each <= number}
        notes[number] = {"round": number, **notes.get(number, {}), **fields}
        write_file(self.folder / NOTES, "".join(f"{json.dumps(note)}\n" for note in notes.values()).encode())

    def _read_notes(self) -> dict[int, dict[str, Any]]:
        path = self.folder / NOTES
        if not path.exists():
            return {}
        with _damage_named(path):
            return {note["round"]: note for note in map(json.loads, path.read_text("utf-8").splitlines())}

    # What survives a restart ----------------------------------------------------------------------------

    def conclude(
        self, number: int, conclusion: Conclusion, memory: Theta | None, momentum: float, sums: str = ""
    ) -> None:
        """Apply a round, with momentum if the run has it."""
        theta, velocity = conclusion.theta, self.velocity
        if velocity is not None:
            theta, velocity = aggregate.add_momentum(self.theta, theta, velocity, momentum)
        alone = _distance(conclusion.theta, self.theta)
        self.note_round(number, replace(conclusion, theta=theta))
        self.advance(
            number,
            theta,
            conclusion.accumulator,
            memory,
            conclusion.history,
            velocity=velocity,
            most_step=alone,
            sums=sums,
        )

    def advance(
        self,
        number: int,
        theta: Theta,
        accumulator: Theta,
        memory: Theta | None,
        history: History,
        *,
        velocity: Theta | None = None,
        most_step: float = math.inf,
        sums: str = "",
    ) -> None:
        """Replace the state by that after a round: write it to disk first, and delete the old state last."""
        step = min(_distance(theta, self.theta), most_step)
        arrays: dict[str, Array] = {"theta": theta, "accumulator": accumulator, "history": np.array(history)}
        arrays |= {name: each for name, each in (("memory", memory), ("velocity", velocity)) if each is not None}
        if sums:
            arrays["sums"] = np.frombuffer(bytes.fromhex(sums), dtype=np.uint8)
        kept = self.folder / f"state-{number:06d}.safetensors"
        _save(kept, {**arrays, "step": np.array([step], dtype=np.float64)} if number else arrays)
        self.applied, self.theta, self.accumulator, self.memory = number, theta, accumulator, memory
        self.history, self.velocity, self.step, self.sums = history, velocity, step, sums
        for path in self.folder.glob("state-*.safetensors"):
            if path != kept:
                path.unlink()
        drop_update(self.folder, number)

    def recall(self) -> None:
        """Load the last kept state; if there is none, keep the initial model."""
        self._make_folder()
        if (self.folder / RECORD).exists():
            self.record = TaskRecord(**_load_json(self.folder / RECORD))
        found = sorted(self.folder.glob("state-*.safetensors"))
        if not found:
            self.advance(0, self.theta, self.accumulator, self.memory, self.history, velocity=self.velocity)
            return
        arrays = _load(found[-1])
        self.applied = int(found[-1].stem.removeprefix("state-"))
        self.theta, self.accumulator, self.memory = arrays["theta"], arrays["accumulator"], arrays.get("memory")
        self.history, self.velocity = tuple(arrays["history"].tolist()), arrays.get("velocity")
        self.step = float(arrays["step"][0]) if "step" in arrays else 0.0
        self.sums = arrays["sums"].tobytes().hex() if "sums" in arrays else ""

    def _make_folder(self) -> None:
        """Make a folder that survives a crash; every start does, since the last may have died before the sync."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
                sync_folder(folder)
        except OSError as error:
            raise StorageFailed(f"{self.folder} cannot be made: {error.strerror}") from None

    def learnt(self, theta: Theta) -> Theta:
        """Return the update: the difference of the trained model and this one."""
        return theta - self.theta

    def keep_update(self, number: int, learnt: Learnt) -> None:
        """Keep the update of a round before anything of it is sent."""
        about = np.array([learnt.silent], dtype=np.int64)
        memory = {} if learnt.memory is None else {"memory": learnt.memory}
        _save(update_file(self.folder, number), {"update": learnt.update, "about": about, **memory})

    def recall_update(self, number: int) -> Learnt | None:
        """Return the update of a round, if training finished."""
        path = update_file(self.folder, number)
        if not path.exists():
            return None
        arrays = _load(path)
        return Learnt(arrays["update"], arrays.get("memory"), silent=bool(arrays["about"][-1]))

    def keep_scores(self, number: int, scores: Scores) -> None:
        """Keep our scores of a round's model before anything of them is sent."""
        _save_json(scores_file(self.folder, number), dict(scores))

    def recall_scores(self, number: int) -> Scores | None:
        """Return our scores of a round's model, if it was evaluated."""
        path = scores_file(self.folder, number)
        return _load_json(path) if path.exists() else None

    # How often the task was begun -----------------------------------------------------------------------

    def begin(self, what: str, number: int) -> int:
        """Note on disk that a job of the task begins in a round; return the number of processes that began it."""
        if self._begun != (number, what):
            earlier = self.record.begun if (self.record.round, self.record.what) == (number, what) else 0
            self._keep_record(replace(self.record, round=number, what=what, begun=earlier + 1))
            self._begun = number, what
        return self.record.begun

    def take_back(self) -> None:
        """Take back the note of the last job: this process is being stopped and did not die in it."""
        self._keep_record(replace(self.record, begun=self.record.begun - 1))
        self._begun = 0, ""

    def note_training(self, training_s: float) -> None:
        """Note a successful training in memory; it is written to disk when the next job begins."""
        self.record = replace(self.record, training_s=training_s)

    def _keep_record(self, record: TaskRecord) -> None:
        _save_json(self.folder / RECORD, asdict(record))
        self.record = record

    def recall_local_state(self) -> Theta | None:
        """Return a memory of the model's own state that is not shared, without the optimiser's."""
        learner = self.learner
        return learner.remember(learner.buffers(self.memory)) if isinstance(learner, HasBuffers) else None

    def save_model(self, *, run: str, task: str, seed: int) -> None:
        """Save the model and its digest permanently, before the rest of the run is deleted."""
        write_file(self.folder / FILE, self._describe_model(run, task, seed).write())
        write_file(self.folder / MODEL_DIGEST, f"{self.digest_of(self.theta)}\n".encode("ascii"))

    def keep_best(self, metric: Metric, value: float, *, run: str, task: str, seed: int) -> None:
        """Keep the model if this value of the headline metric, of the last applied round, is the best so far."""
        try:
            best = read_best_model(self.folder)
        except (OSError, ValueError):
            best = None  # It is damaged; nothing but the owner depends on it.
        if best and best.headline and not is_better(metric, value, best.headline.value):
            return
        headline = Headline(round=self.applied, metric=metric.name, value=value)
        write_file(self.folder / BEST, replace(self._describe_model(run, task, seed), headline=headline).write())

    def _describe_model(self, run: str, task: str, seed: int) -> KeptModel:
        buffers = self.learner.buffers(self.memory) if isinstance(self.learner, HasBuffers) else {}
        return KeptModel(run=run, task=task, seed=seed, theta=self.theta, buffers=buffers)


def _distance(one: Theta, other: Theta) -> float:
    """Return the Euclidean distance of two models; infinite if one of them is not finite."""
    with np.errstate(invalid="ignore"):
        found = math.sqrt(squared_norm(np.subtract(one, other, dtype=np.float64)))
    return math.inf if math.isnan(found) else found


def has_model(folder: Path) -> bool:
    """Return whether a run's folder still has a kept state."""
    return any(folder.glob("state-*.safetensors"))


def drop_update(folder: Path, number: int) -> None:
    """Delete the update of a round that is over."""
    update_file(folder, number).unlink(missing_ok=True)


def clean_up(folder: Path) -> None:
    """Delete a run's files except those in `LEFT_BEHIND`: its models, the notes, salt and endorsement."""
    for path in folder.glob("*"):
        if path.name not in LEFT_BEHIND:
            path.unlink()


def update_file(folder: Path, number: int) -> Path:
    """Return the path of a round's update."""
    return folder / f"update-{number:06d}.safetensors"


def scores_file(folder: Path, number: int) -> Path:
    """Return the path of our scores of a round's model."""
    return folder / f"scores-{number:06d}.json"


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    # Not numpy's own format: its header is parsed as Python, which in CPython 3.11 fails now and then while
    # another thread does the same.
    whole = {name: np.ascontiguousarray(each) for name, each in arrays.items()}
    write_file(path, save(whole, {_CHECKSUM: _digest_arrays(whole)}))


def _save_json(path: Path, value: Mapping[str, Any]) -> None:
    write_file(path, json.dumps({_CHECKSUM: _digest_json(value), "value": value}).encode())


def _load(path: Path) -> dict[str, NDArray[Any]]:
    with _damage_named(path):
        content = path.read_bytes()
        arrays = load(content)
        (header_bytes,) = _HEADER_LENGTH.unpack_from(content)
        header = json.loads(content[_HEADER_LENGTH.size : _HEADER_LENGTH.size + header_bytes])
        _compare(_digest_arrays(arrays), header["__metadata__"][_CHECKSUM])
        return arrays


def _load_json(path: Path) -> dict[str, Any]:
    with _damage_named(path):
        content = json.loads(path.read_text("utf-8"))
        value: dict[str, Any] = content["value"]
        _compare(_digest_json(value), content[_CHECKSUM])
        return value


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn errors that show a damaged file into `StorageDamaged`, which names the file."""
    try:
        yield
    except OSError as error:
        raise StorageDamaged(path, f"cannot be read ({error.strerror})") from None
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, struct.error):
        raise StorageDamaged(path, "does not hold what was written") from None


def _compare(found: str, written: object) -> None:
    if found != written:
        raise ValueError("the checksum is another")


def _digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    found = hashlib.sha256()
    for name, each in sorted(arrays.items()):
        found.update(f"{name} {each.dtype.str} {each.shape}".encode())
        found.update(each.data)
    return found.hexdigest()


def _digest_json(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
