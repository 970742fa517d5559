"""Everything that crosses the broker in a run, in the hands of whoever runs all but one of the aggregators.

The run is real and so are the keys that the eavesdropper is given: those of the coordinator and of all aggregators
but one. It opens what it was sent, and nothing else. That the tools would find more if there were more is shown
each time: with the last aggregator's key they read every client's signs, with a client's key the sums.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import generate_latest
from safetensors.numpy import load

from hubbub.crypto.sealing import SUM_OVERHEAD
from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.protocol import signs
from hubbub.protocol.layout import pack_chunk, plan_chunks
from hubbub.protocol.ring import Residues
from hubbub.runtime.participant import STATE_FILE, Participant
from hubbub.runtime.runner import Moment, Runner
from hubbub.runtime.telemetry import log_as_json
from hubbub.strategies.base import Theta
from hubbub.transport.base import Transport
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import Topology, merge, topology_for
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from hubbub_local.federation import Connect, Federation, start_federation
from hubbub_local.parties import Parties
from hubbub_trainer.learning.synthetic import SyntheticLearner, SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Score, Task, Training
from hubbub_trainer.workspace import digest
from support.aio import aio
from support.broker import declared
from support.builders import make_cohort, make_manifest
from support.coordinator_scene import TOKENS
from support.eavesdropper import Eavesdropper, Loot, Search
from support.onlooker import Onlooker, onlooking
from support.parties import parties_of
from support.recorder import (
    DELIVER,
    PUBLISH,
    Place,
    Recording,
    Said,
    WireTap,
    Witness,
    connect_recorded,
)
from support.statistics import against_each_other, against_uniform, bound, joint_counts

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

    def __str__(self) -> str:
        return f"{self.strategy}, C={self.clients}, S={self.servers}"

    def draw_up(self, task: Task = TASK, **overrides: object) -> Manifest:
        """A run between parties whose names nobody else on a broker has."""
        suffix = uuid4().hex[:12]
        fields: dict[str, object] = {
            "cohort": make_cohort([PartyId(f"client-{number}-{suffix}") for number in range(self.clients)]),
            "aggregators": tuple(PartyId(f"aggregator-{number}-{suffix}") for number in range(self.servers)),
            "coordinator": PartyId(f"coordinator-{suffix}"),
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


TWO_PHASES = Scenario("sec-union", clients=3, servers=2, rounds=2)
SCENARIOS = (
    TWO_PHASES,
    Scenario("no-union", clients=5, servers=3, rounds=1),
    Scenario("partial-sec-union", clients=3, servers=2, rounds=1),
)


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

        def note(moment: Moment) -> None:
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
    onlooker: Onlooker = field(repr=False)
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
            async with onlooking(federation.coordinator, manifest, TOKENS) as onlooker:
                state, run = await federation.run(manifest)
            assert state is runs.State.COMPLETED, run.reason
            ears.ask_for_metrics(federation)
            ears.look_at_the_end(federation)
        for name in parties.identities:
            ears.look_at(folder, name)
    return Recorded(manifest, parties, recording, witness, ears, onlooker)


@pytest.fixture(scope="module", params=SCENARIOS, ids=str)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    found: list[Recorded] = []

    @aio
    async def listen() -> None:
        found.append(await listen_to(request.param.draw_up(), tmp_path_factory.mktemp("run")))

    listen()
    return found[0]


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


# The search itself ----------------------------------------------------------------------------------------

VECTOR = np.linspace(-0.3, 0.7, 40, dtype=np.float32)
SPARSE = np.array([0, 1, 0, 0, -1, 0, 1, 1] * 5, dtype=np.int8)
FORMS: dict[str, bytes] = {
    "raw": b"header" + VECTOR.tobytes(),
    "a piece": VECTOR.tobytes()[5:40],
    "hexadecimal": b'{"x":"' + VECTOR.tobytes().hex().encode() + b'"}',
    "hexadecimal, shifted": b'"f' + VECTOR.tobytes().hex().upper().encode(),
    "base64": b"token " + base64.b64encode(b"?" + VECTOR.tobytes()),
    "base64 for URLs": base64.urlsafe_b64encode(b"??" + VECTOR.tobytes()),
    "a printed byte string": repr(VECTOR.tobytes()).encode(),
    "a byte string in JSON": json.dumps({"message": repr(VECTOR.tobytes())}).encode(),
    "bytes as JSON characters": json.dumps(VECTOR.tobytes().decode("latin-1")).encode(),
    "a list": json.dumps(VECTOR.tolist()).encode(),
    "a printed array": repr(VECTOR).encode(),
    "a long array, printed": repr(np.concatenate([VECTOR, np.zeros(2_000, np.float32)])).encode(),
    "a digest": b"sha256=" + hashlib.sha256(VECTOR.tobytes()).hexdigest().encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_search_finds_a_vector_in_every_form(form: str) -> None:
    search = Search()
    search.add_vector("the vector", VECTOR)

    assert search.find(FORMS[form]) == {"the vector"}
    assert not search.find(FORMS[form][:12])


@pytest.mark.parametrize("text", [str(SPARSE.tolist()), repr(SPARSE), str(SPARSE.astype(np.int64))])
def test_the_search_finds_signs_in_a_text(text: str) -> None:
    search = Search()
    search.add_vector("the signs", SPARSE)

    assert search.find(text.encode()) == {"the signs"}


def test_the_search_finds_numbers_and_words_that_stand_alone() -> None:
    search = Search()
    search.add_number("the number", 1234567)
    search.add_word("the word", "open-sesame")

    assert search.find(b'{"factor":1234567}', b"amqp://me:open-sesame@broker/") == {"the number", "the word"}
    assert not search.find(b"a1234567b 12345678 0.1234567")


# The recording --------------------------------------------------------------------------------------------


def test_all_but_one_aggregator_open_their_own_shares_and_nothing_else(recorded: Recorded) -> None:
    for honest in recorded.manifest.aggregators:
        corrupt = recorded.all_but(honest)
        eavesdropper, loot = recorded.eavesdrop(*corrupt)

        assert loot == Loot(shares=recorded.shares_to(corrupt))
        assert {place.recipient for place in loot.shares} == set(corrupt)
        assert {place.recipient for place in eavesdropper.shares} == {honest, *corrupt}
        assert eavesdropper.rebuild_inputs(loot) == {}
        assert eavesdropper.rebuild_sums(loot) == {}


def test_all_that_is_readable_holds_no_plaintext(recorded: Recorded) -> None:
    assert recorded.find_in(*recorded.frames) == set()


def test_what_all_but_one_aggregator_opened_holds_no_input_no_sum_and_none_of_its_shares(
    recorded: Recorded,
) -> None:
    for honest in recorded.manifest.aggregators:
        _, loot = recorded.eavesdrop(*recorded.all_but(honest))
        opened = list(loot.everything())

        assert recorded.inputs_and_sums.find(*opened) == set()
        assert look_for_shares(recorded, [honest]).find(*opened) == set()
        assert recorded.shares.find(*opened), "the search would know a share"


def test_with_the_last_aggregators_key_every_input_is_read(recorded: Recorded) -> None:
    """The control: what the others lack is this one key."""
    manifest, witness = recorded.manifest, recorded.witness
    eavesdropper, loot = recorded.eavesdrop(*manifest.aggregators)

    inputs = eavesdropper.rebuild_inputs(loot)

    assert inputs.keys() == witness.said.keys()
    for key, values in inputs.items():
        assert all(map(np.array_equal, values, witness.said[key].values)), key
    for (client, number), truth in witness.signs_of.items():
        read = signs.from_ring(inputs[client, number, "signs"][0], len(manifest.cohort))
        everywhere = np.arange(truth.size)
        support = everywhere if manifest.strategy == "no-union" else indices_of_union(recorded, number)
        assert np.array_equal(read, truth[support])
        assert read.any()


def indices_of_union(recorded: Recorded, number: int) -> NDArray[np.int64]:
    (total,) = recorded.witness.add_up(recorded.manifest.clients, number, "union")
    return np.flatnonzero(total)


def test_with_a_clients_key_the_sums_are_read_and_no_input(recorded: Recorded) -> None:
    """A client may know the sums; beside them it is given the other clients' parts of the group secret."""
    manifest, witness = recorded.manifest, recorded.witness
    for client in manifest.clients[:2]:
        eavesdropper, loot = recorded.eavesdrop(client)
        sums = eavesdropper.rebuild_sums(loot)

        assert loot.sums == witness.sums
        assert sums.keys() == {(number, phase) for _, number, phase in witness.said}
        for (number, phase), values in sums.items():
            assert all(map(np.array_equal, values, witness.add_up(manifest.clients, number, phase)))
        assert {place.recipient for place in loot.sum_keys} == {client}
        assert loot.contributions == {
            place: part for place, part in witness.contributions.items() if place.recipient == client
        }
        assert loot.shares == {}
        assert loot.elsewhere == []
        found = recorded.inputs_and_sums.find(*loot.everything())
        assert all(name.startswith(("sum ", "contribution ")) for name in found), found


def test_no_two_ciphertexts_are_made_with_the_same_keystream(recorded: Recorded) -> None:
    """Or the difference of two plaintexts could be read without any key."""
    eavesdropper, _ = recorded.eavesdrop()
    sealed = {**eavesdropper.shares, **eavesdropper.sums}
    plain = {**recorded.witness.shares, **recorded.witness.sums}
    streams = []
    for place, each in sealed.items():
        text = plain[place]
        covered = each.ciphertext[-len(text) - SUM_OVERHEAD : -SUM_OVERHEAD]
        streams.append(bytes(a ^ b for a, b in zip(covered[:16], text[:16], strict=True)))

    assert plain.keys() == sealed.keys()
    assert len(set(streams)) == len(streams)


# Beside the broker ----------------------------------------------------------------------------------------


def test_logs_metrics_and_events_tell_no_plaintext(recorded: Recorded) -> None:
    ears, run = recorded.ears, recorded.manifest.run_id
    told = {
        "logs": (ears.logs.getvalue(), f'"run": "{run}"'),
        "metrics": (ears.metrics, 'hubbub_messages_received_total{kind="sum-chunk"}'),
        "events": ("\n".join(ears.moments), "Concluded("),
    }

    for what, (text, known) in told.items():
        assert known in text, what
        assert "array(" not in text, what
        assert recorded.find_in(text.encode()) == set(), what


def test_the_interface_tells_no_plaintext_at_any_time_of_a_run(recorded: Recorded) -> None:
    """Every route that reads, exports and metrics in all their forms, and the stream: all that is on the wire."""
    onlooker, run = recorded.onlooker, recorded.manifest.run_id.encode()
    told = list(onlooker.everything())

    assert recorded.find_in(*told) == set()
    assert look_for_passwords(recorded).find(*told) == set()
    assert not any(b"array(" in each for each in told)
    # Or else this test looks at nothing: all was answered, also while the run went on, and the stream to its end.
    assert all(200 in statuses for statuses in onlooker.statuses.values()), onlooker.statuses
    assert run in b"".join(onlooker.answers["/api/v1/runs/{run}/export"])
    assert {b'"state":"running"', b'"state":"completed"'} <= {
        state
        for answer in onlooker.answers["/api/v1/runs/{run}"]
        for state in re.findall(rb'"state":"[a-z]+"', answer)
    }
    assert all(b"event: " + kind in onlooker.stream for kind in (b"sum-released", b"run-completed"))


def look_for_passwords(recorded: Recorded) -> Search:
    """What stands in the roster of the broker's passwords, salts before all, is not for the interface to show."""
    search = Search()
    for party, identity in recorded.parties.identities.items():
        salted = identity.public().broker_password_hash
        search.add_word(f"salted password of {party}", salted)
        search.add_bytes(f"salted password of {party}", base64.b64decode(salted))
    return search


def test_the_pages_are_the_same_before_a_run_and_after_it(recorded: Recorded) -> None:
    """They and their libraries hold nothing of any run: a page asks the interface like everybody else."""
    pages = recorded.onlooker.pages

    assert {"/", "/docs"} < pages.keys()
    for path, (before, after) in pages.items():
        assert before, path
        assert before == after, path


def test_the_disks_of_coordinator_and_aggregators_hold_no_plaintext(recorded: Recorded) -> None:
    manifest, ears = recorded.manifest, recorded.ears

    for name in (manifest.coordinator, *manifest.aggregators):
        assert ears.disk[name], name
        assert recorded.find_in(*ears.disk[name].values()) == set(), name
        assert recorded.find_in(*ears.at_the_end[name].values()) == set(), f"{name} ran on after the run"
    assert "a model" in recorded.find_in(*ears.disk[manifest.clients[0]].values()), "where it belongs"


def test_while_a_run_lasts_an_aggregator_keeps_its_own_keys_in_its_state_and_nothing_else(
    recorded: Recorded,
) -> None:
    manifest, past = recorded.manifest, recorded.ears.past

    for name in manifest.aggregators:
        files = past[name].items()
        own = {f"run key of {name}", *(each for each in recorded.witness.secrets if f"sum key of {name}," in each)}
        in_state = [data for path, all_data in files if path.name.startswith(STATE_FILE) for data in all_data]
        elsewhere = [data for path, all_data in files if not path.name.startswith(STATE_FILE) for data in all_data]
        found = recorded.find_in(*in_state)
        assert f"run key of {name}" in found, "or else this test looks in the wrong place"
        assert found <= own
        assert recorded.find_in(*elsewhere) == set()
    everything = [data for all_data in past[manifest.coordinator].values() for data in all_data]
    assert recorded.find_in(*everything) == set()


def test_aggregators_spool_shares_as_they_came_sealed(recorded: Recorded) -> None:
    eavesdropper, _ = recorded.eavesdrop()
    sealed = {each.ciphertext for each in eavesdropper.shares.values()}
    disks = [recorded.ears.disk[name].items() for name in recorded.manifest.aggregators]

    assert {data for disk in disks for path, data in disk if path.suffix == ".chunk"} == sealed


# Shares of different inputs -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpposedLearner:
    """A client whose update is positive everywhere, or negative everywhere, and otherwise the same."""

    inner: SyntheticLearner
    direction: int

    @property
    def samples(self) -> int:
        return self.inner.samples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        del steps, seed, progress, memory
        sizes = np.random.default_rng(SEED).uniform(0.5, 1.0, theta.size)
        return Training(theta=theta + (self.direction * sizes).astype(np.float32), memory=None)

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Score:
        return self.inner.evaluate(theta, memory=memory)


class OpposedTask(SyntheticTask):
    def learner(self, *, index: int, clients: int, seed: int) -> OpposedLearner:  # type: ignore[override]
        inner = super().learner(index=index, clients=clients, seed=seed)
        return OpposedLearner(inner, -1 if index else 1)


@aio
async def test_shares_of_opposite_inputs_look_alike(tmp_path: Path) -> None:
    """The first two clients choose the same half of all indices, with opposite signs.

    Of their shares any S - 1 are uniform, together, where the inputs differ most; all S together are not.
    """
    task = OpposedTask(6_001)
    manifest = Scenario("no-union", clients=3, servers=3, rounds=1).draw_up(task, rho=0.5, chunk_bytes=4_096)
    recorded = await listen_to(manifest, tmp_path, task=task)
    chosen = np.flatnonzero(recorded.witness.signs_of[manifest.clients[0], 1])
    modulus = manifest.protocol_parameters.signs_modulus

    def read(eavesdropper: Eavesdropper, loot: Loot, client: PartyId) -> list[Residues]:
        shares = eavesdropper.read_shares(loot, client, 1, "signs")
        return [signs_share[chosen] for signs_share, _ in shares.values()]

    for honest in manifest.aggregators:
        attack = recorded.eavesdrop(*recorded.all_but(honest))
        first, second = (joint_counts(read(*attack, client), modulus) for client in manifest.clients[:2])
        limit = bound(modulus ** len(recorded.all_but(honest)))
        assert against_uniform(first) < limit
        assert against_uniform(second) < limit
        assert against_each_other(first, second) < limit
    attack = recorded.eavesdrop(*manifest.aggregators)
    first, second = (joint_counts(read(*attack, client), modulus) for client in manifest.clients[:2])
    limit = bound(modulus ** len(manifest.aggregators))
    assert min(against_uniform(first), against_uniform(second), against_each_other(first, second)) > limit


# The bytes on the wire ------------------------------------------------------------------------------------


@pytest.mark.broker
@aio
async def test_every_byte_between_the_parties_and_a_real_broker(tmp_path: Path, amqp_url: str) -> None:
    """Both directions of all connections, without TLS: what the broker's operator and the network see."""
    manifest, url = TWO_PHASES.draw_up(), urlsplit(amqp_url)
    credentials = url.netloc.rpartition("@")[0]
    parties = parties_of(manifest)
    everything = merge(topology_for(each.name, each.role) for each in parties.identities.values())
    async with declared(amqp_url, everything), WireTap(url.hostname or "127.0.0.1", url.port or 5672) as tap:
        tapped = url._replace(netloc=f"{credentials}@127.0.0.1:{tap.port}").geturl()

        def connect(name: PartyId, topology: Topology) -> Transport:
            return RabbitMqTransport(tapped, topology, connection_name=name)

        recorded = await listen_to(manifest, tmp_path, connect=connect)
    published, delivered = tap.read(PUBLISH), tap.read(DELIVER)

    assert len(tap.streams) == 4 * len(parties.identities)
    assert set(published) == set(recorded.recording)
    assert set(delivered) <= set(published)
    assert recorded.find_in(*map(bytes, tap.streams)) == set()
    for honest in manifest.aggregators:
        corrupt = recorded.all_but(honest)
        _, loot = replace(recorded, recording=published).eavesdrop(*corrupt)
        assert loot == Loot(shares=recorded.shares_to(corrupt))
