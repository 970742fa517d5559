"""A real run with everything that can be read of it, and what nobody may find there."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import generate_latest
from safetensors.numpy import load

from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.protocol import signs
from hubbub.protocol.layout import pack_chunk, plan_chunks
from hubbub.runtime.participant import Participant
from hubbub.runtime.runner import Runner, Transition
from hubbub.runtime.telemetry import log_as_json
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from hubbub_local.federation import Connect, Federation, Parties, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.workspace import digest
from support.api_reader import ApiReader, reading_api
from support.builders import make_cohort, make_manifest
from support.coordinator_scene import TOKENS
from support.eavesdropper import Eavesdropper, Loot, Search
from support.parties import parties_of
from support.recorder import (
    Place,
    Recording,
    Said,
    Witness,
    connect_recorded,
)
from support.spooled import chunk_in

# Several chunks of 256 bytes for what has a place for each parameter, and no whole byte at the end.
TASK = SyntheticTask(1_003)
SEED = 7


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run to listen to."""

    strategy: str
    clients: int
    servers: int
    rounds: int
    block: int = 1

    def __str__(self) -> str:
        blocks = f" in blocks of {self.block}" if self.block > 1 else ""
        return f"{self.strategy}{blocks}, C={self.clients}, S={self.servers}"

    def draw_up(self, task: Task = TASK, **overrides: object) -> Manifest:
        """A run between parties whose names nobody else on a broker has."""
        suffix = uuid4().hex[:12]
        fields: dict[str, object] = {
            "cohort": make_cohort([PartyId(f"client-{number}-{suffix}") for number in range(self.clients)]),
            "aggregators": tuple(PartyId(f"aggregator-{number}-{suffix}") for number in range(self.servers)),
            "coordinator": PartyId(f"coordinator-{suffix}"),
            "block": self.block,
            "strategy": self.strategy,
            "q": 3,
            "parameters": task.count_parameters(),
            "task": task.name,
            "rounds": self.rounds,
            "seed": SEED,
            "initial_model_sha256": digest(task.initial_model(SEED)),
            "chunk_bytes": 256,
        }
        return make_manifest(clients=self.clients, servers=self.servers, **{**fields, **overrides})


# A run, with everything that can be read of it ------------------------------------------------------------


@dataclass(slots=True)
class Ears:
    """What a run's parties say outside of their messages."""

    moments: list[str] = field(default_factory=list)
    logs: io.StringIO = field(default_factory=io.StringIO)
    metrics: str = ""
    disk: dict[PartyId, dict[Path, bytes]] = field(default_factory=dict)
    """Every file that a party ever had, as it was when it was last seen."""
    past: dict[PartyId, dict[Path, list[bytes]]] = field(default_factory=dict)
    """Everything that stood in these files at some time; what was only appended to is there once."""
    at_the_end: dict[PartyId, dict[Path, bytes]] = field(default_factory=dict)
    """What was there when the run was over and the parties still ran."""

    @contextmanager
    def hear_logs(self) -> Iterator[None]:
        """Take down all log lines, as a service writes them, at the most talkative level."""
        root = logging.getLogger()
        loggers = [root, *map(logging.getLogger, ("aio_pika", "aiormq"))]
        handlers, levels = root.handlers[:], [each.level for each in loggers]
        log_as_json("everybody", "debug", self.logs)
        try:
            yield
        finally:
            root.handlers[:] = handlers
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)

    def listen(self, federation: Federation) -> None:
        """Print every step of every party, and look at its disk after it."""
        for runner in (each.runner for each in services_of(federation)):
            self._listen_to(runner, federation.folder)

    def _listen_to(self, runner: Runner, folder: Path) -> None:
        observe = runner._observer

        def note(moment: Transition) -> None:
            self.moments.append(repr(moment))
            self.look_at(folder, runner.identity.name)
            observe(moment)

        runner._observer = note

    def look_at(self, folder: Path, name: PartyId) -> None:
        found = self.disk.setdefault(name, {})
        for path in (folder / name).rglob("*"):
            # Spools come and go.
            with suppress(FileNotFoundError, IsADirectoryError):
                found[path] = path.read_bytes()
                self._note_past(name, path, found[path])

    def _note_past(self, name: PartyId, path: Path, content: bytes) -> None:
        past = self.past.setdefault(name, {}).setdefault(path, [b""])
        if content.startswith(past[-1]):
            past[-1] = content
        else:
            past.append(content)

    def spooled_by(self, *names: PartyId) -> set[bytes]:
        """All chunks that these parties ever had in their spools."""
        versions = [(path, each) for name in names for path, all_of in self.past[name].items() for each in all_of]
        found = [chunk_in(path, content) for path, content in versions]
        return {each[1] for each in found if each is not None}

    def look_at_the_end(self, federation: Federation) -> None:
        for name in (each.runner.identity.name for each in services_of(federation)):
            files = [path for path in (federation.folder / name).rglob("*") if path.is_file()]
            self.at_the_end[name] = {path: path.read_bytes() for path in files}

    def ask_for_metrics(self, federation: Federation) -> None:
        """What all parties count; the coordinator's interface is asked for the rest."""
        registries = [each.counters.registry for each in services_of(federation)]
        self.metrics = "\n".join(generate_latest(each).decode() for each in registries)


def services_of(federation: Federation) -> list[Coordinator | Participant]:
    return [federation.coordinator, *federation.aggregators, *federation.trainers]


@dataclass(eq=False)
class Recorded:
    """A run that is over."""

    manifest: Manifest
    parties: Parties
    recording: Recording = field(repr=False)
    witness: Witness = field(repr=False)
    ears: Ears = field(repr=False)
    api_reader: ApiReader = field(repr=False)
    _attacks: dict[tuple[PartyId, ...], tuple[Eavesdropper, Loot]] = field(
        init=False, repr=False, default_factory=dict
    )

    @property
    def frames(self) -> list[bytes]:
        return [each.frame for each in self.recording]

    def eavesdrop(self, *corrupt: PartyId) -> tuple[Eavesdropper, Loot]:
        """Attack with all keys of some parties, and of the coordinator."""
        if corrupt not in self._attacks:
            eavesdropper = Eavesdropper(
                self.frames,
                run_keys=[self.witness.run_keys[name] for name in corrupt],
                identities=[self.parties.identities[name] for name in (*corrupt, self.manifest.coordinator)],
            )
            self._attacks[corrupt] = eavesdropper, eavesdropper.open_all()
        return self._attacks[corrupt]

    def all_but(self, honest: PartyId) -> list[PartyId]:
        return [name for name in self.manifest.aggregators if name != honest]

    def shares_to(self, servers: Sequence[PartyId]) -> dict[Place, bytes]:
        return {place: share for place, share in self.witness.shares.items() if place.recipient in servers}

    @cached_property
    def inputs_and_sums(self) -> Search:
        """For everything that no set of aggregators short of all may know."""
        return look_for_all(self)

    @cached_property
    def shares(self) -> Search:
        """For every share of everybody."""
        return look_for_shares(self, self.manifest.aggregators)

    def find_in(self, *haystacks: bytes) -> set[str]:
        return self.inputs_and_sums.find(*haystacks) | self.shares.find(*haystacks)


async def listen_to(
    manifest: Manifest, folder: Path, *, task: Task = TASK, connect: Connect | None = None
) -> Recorded:
    """Run a manifest to its end, with secrets from the operating system as in earnest."""
    recording: Recording = []
    witness, ears, parties = Witness(), Ears(), parties_of(manifest)
    with ExitStack() as stack:
        witness.watch(stack.enter_context(pytest.MonkeyPatch.context()))
        stack.enter_context(ears.hear_logs())
        async with start_federation(
            manifest,
            parties=parties,
            folder=folder,
            load_task=lambda _: task,
            demo_seed=None,
            connect=connect_recorded(recording, connect),
        ) as federation:
            ears.listen(federation)
            async with reading_api(federation.coordinator, manifest, TOKENS) as api_reader:
                state, run = await federation.run(manifest)
            assert state is runs.State.COMPLETED, run.reason
            ears.ask_for_metrics(federation)
            ears.look_at_the_end(federation)
        for name in parties.identities:
            ears.look_at(folder, name)
    return Recorded(manifest, parties, recording, witness, ears, api_reader)


# What nobody may find -------------------------------------------------------------------------------------


def look_for_all(recorded: Recorded) -> Search:
    """Every secret, and every plaintext but single shares, in every form that the code gives it."""
    search = Search()
    look_for_inputs(search, recorded)
    look_for_sums(search, recorded)
    look_for_models(search, recorded)
    look_for_secrets(search, recorded)
    return search


def look_for_shares(recorded: Recorded, servers: Sequence[PartyId]) -> Search:
    search = Search()
    for place, share in recorded.shares_to(servers).items():
        search.add_bytes(f"share at {place}", share)
    return search


def look_for_inputs(search: Search, recorded: Recorded) -> None:
    witness = recorded.witness
    for number, (mine, chosen) in enumerate(zip(witness.inputs, witness.signs, strict=True)):
        search.add_vector(f"update {number}", mine.update, "f8")
        search.add_vector(f"update {number} and accumulator", mine.update + mine.accumulator, "f8")
        if mine.accumulator.any():
            search.add_vector(f"accumulator {number}", mine.accumulator, "f8")
        search.add_vector(f"signs {number}", chosen, "i4", "i8")
        look_for_indices(search, f"indices {number}", np.flatnonzero(chosen), chosen.size)
    for factor in witness.factors:
        look_for_factor(search, recorded.manifest, factor)
    for (client, number, phase), said in witness.said.items():
        look_for_residues(search, f"{phase} of {client} in round {number}", recorded.manifest, said)


def look_for_sums(search: Search, recorded: Recorded) -> None:
    manifest, witness = recorded.manifest, recorded.witness
    for number, phase in {(number, phase) for _, number, phase in witness.said}:
        vectors = witness.said[manifest.clients[0], number, phase].vectors
        total = witness.add_up(manifest.clients, number, phase)
        look_for_residues(search, f"sum of {phase}, round {number}", manifest, Said(vectors, total))
        if phase == "union":
            look_for_indices(search, f"V of round {number}", np.flatnonzero(total[0]), total[0].size)
        else:
            search.add_vector(f"D of round {number}", signs.from_ring(total[0], len(manifest.cohort)), "i1", "i8")
            look_for_factor(search, manifest, int(total[1][0]))
    for place, packed in witness.sums.items():
        search.add_bytes(f"sum at {place}", packed)


def look_for_models(search: Search, recorded: Recorded) -> None:
    """The one that the run began with is public, and so is its digest."""
    initial = TASK.initial_model(SEED)
    disks = [recorded.ears.disk[client].items() for client in recorded.manifest.clients]
    kept = [load(data)["theta"] for disk in disks for path, data in disk if path.name == "model.safetensors"]
    assert len(kept) == len(disks)
    for theta in (*(mine.theta for mine in recorded.witness.inputs), *kept):
        if not np.array_equal(theta, initial):
            search.add_vector("a model", theta, "f8")


def look_for_secrets(search: Search, recorded: Recorded) -> None:
    for name, secret in recorded.witness.secrets.items():
        search.add_bytes(name, secret)
    for party, key in recorded.witness.run_keys.items():
        search.add_bytes(f"run key of {party}", key.to_bytes())
    for party, identity in recorded.parties.identities.items():
        search.add_bytes(f"identity key of {party}", identity.key.to_bytes())
        search.add_word(f"broker password of {party}", identity.broker_password)
    for right, token in (("read", TOKENS.read), ("change", TOKENS.change)):
        search.add_word(f"the {right} token", token)


def look_for_indices(search: Search, name: str, indices: NDArray[np.int64], size: int) -> None:
    search.add_vector(name, indices, "i4", "u2")
    chosen = np.zeros(size, dtype=np.uint8)
    chosen[indices] = 1
    search.add_bytes(name, chosen.tobytes())
    search.add_bytes(name, np.packbits(chosen, bitorder="little").tobytes())
    search.add_bytes(name, np.packbits(chosen).tobytes())


def look_for_residues(search: Search, name: str, manifest: Manifest, said: Said) -> None:
    for vector, values in zip(said.vectors, said.values, strict=True):
        search.add_vector(f"{vector.name}: {name}", values, "u1", "i8")
    for chunk in plan_chunks(said.vectors, manifest.chunk_bytes):
        pieces = [said.values[piece.vector][piece.elements] for piece in chunk]
        search.add_bytes(f"packed: {name}", pack_chunk(chunk, said.vectors, pieces))


def look_for_factor(search: Search, manifest: Manifest, factor: int) -> None:
    """Four bytes stand anywhere by chance, but not so many digits between two words."""
    for number in (factor, manifest.protocol_parameters.fixed_point.from_ring(factor)):
        if len(str(number)) > 5:
            search.add_number("a factor", number)
