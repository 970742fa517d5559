"""Runs that go on from each other's models, with clients that were there before and clients that were not.

One story is told once and looked at from several sides: a run of three clients, its successor with two newcomers
and a roster that has grown, and the successor's own successor, for which one of the first three comes back.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.messages.snapshots import SnapshotChunk
from hubbub.run_options import RunOptions
from hubbub.runtime.runner import Observer, Transition
from hubbub.runtime.telemetry import log_as_json
from hubbub.strategies.base import Theta
from hubbub.trust.succession import EndorsedModel, read_endorsement
from hubbub_coordinator.events import DeadlinePassed, ReceiptArrived
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import Connect, Parties, gather, make_parties, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest
from hubbub_trainer.run_context import TaskLoader
from hubbub_trainer.saved_model import commit, read_kept_model, recall_for_successor
from hubbub_trainer.workspace import digest
from support.frames import decode, know_roster
from support.held_task import HeldTask, Silence
from support.patience import HANG_S
from support.plain_run import run_plainly
from support.recorder import Recording, connect_recorded

TASK = SyntheticTask(1_003)
DEMO_SEED = 11
ALL = make_parties(clients=5, servers=2)
BEFORE = gather([identity for name, identity in ALL.identities.items() if name != "client-5"])
"""The same parties, before the last one came."""
FIRST = ["client-1", "client-2", "client-3"]
SECOND = ["client-4", "client-1", "client-5", "client-3"]
THIRD = ["client-5", "client-2", "client-4"]

OPTIONS = RunOptions(strategy="sec-union", local_steps=2, rounds=2, seed=3, server_momentum=0.5)
"""The velocity of a run is zero in its successor."""

draw_up = partial(draw_up_manifest, TASK, aggregators=["aggregator-1", "aggregator-2"])


async def run(
    folder: Path,
    manifest: Manifest,
    parties: Parties = ALL,
    *,
    connect: Connect | None = None,
    observer: Observer = lambda _: None,
    load_task: TaskLoader = lambda _: TASK,
) -> tuple[runs.State, str]:
    """Run a manifest to its end: how it ended, and why."""
    async with (
        asyncio.timeout(HANG_S),
        start_federation(
            manifest,
            parties=parties,
            folder=folder,
            load_task=load_task,
            demo_seed=DEMO_SEED,
            connect=connect,
            observer=observer,
        ) as federation,
    ):
        state, data = await federation.run(manifest)
        return state, data.reason


def folder_of(folder: Path, manifest: Manifest, name: str) -> Path:
    return folder / name / "runs" / manifest.run_id


def endorsements(folder: Path, manifest: Manifest, clients: Sequence[str]) -> list[EndorsedModel]:
    return [read_endorsement(folder_of(folder, manifest, name) / "endorsement.json") for name in clients]


def left_at(folder: Path, manifest: Manifest) -> tuple[bytes, Theta]:
    """The one salt and the one model that a run has left at all of its clients."""
    left = [recall_for_successor(folder_of(folder, manifest, name)) for name in manifest.clients]
    found = {(each[0], each[1].tobytes()) for each in left if each}
    assert None not in left
    ((salt, model),) = found
    return salt, np.frombuffer(model, dtype=np.float32)


def noted(folder: Path, manifest: Manifest, name: str) -> list[str]:
    """The digests of the models after each round, as a client wrote them down."""
    lines = (folder_of(folder, manifest, name) / "rounds.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["model_sha256"] for line in lines]


@dataclass
class Story:
    """Three runs, each from the model that the one before left."""

    folder: Path
    manifests: list[Manifest] = field(default_factory=list)
    recording: Recording = field(default_factory=list)
    logs: io.StringIO = field(default_factory=io.StringIO)
    files: dict[Path, set[bytes]] = field(default_factory=dict)
    """Whatever stood on anybody's disk when the coordinator did something."""

    def look_around(self, _: Transition | None = None) -> None:
        for path in self.folder.rglob("*"):
            try:
                self.files.setdefault(path, set()).add(path.read_bytes())
            except (FileNotFoundError, IsADirectoryError):
                continue  # Spools come and go.

    async def tell(self) -> None:
        signers: list[EndorsedModel] = []
        for parties, clients, min_clients in ((BEFORE, FIRST, 2), (ALL, SECOND, 3), (ALL, THIRD, 2)):
            options = replace(OPTIONS, min_clients=min_clients)
            manifest = draw_up(options, roster=parties.roster, clients=clients, endorsed=signers)
            connect = connect_recorded(self.recording)
            state, reason = await run(self.folder, manifest, parties, connect=connect, observer=self.look_around)
            assert state is runs.State.COMPLETED, reason
            self.manifests.append(manifest)
            signers = endorsements(self.folder, manifest, clients[:min_clients])
        self.look_around()


@contextmanager
def hear_logs(stream: io.StringIO) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log_as_json("everybody", "debug", stream)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    told = Story(tmp_path_factory.mktemp("story"))
    with hear_logs(told.logs):
        asyncio.run(told.tell())
    return told


# The models ---------------------------------------------------------------------------------------------


def test_every_run_goes_on_from_the_last_model_as_the_plaintext_algorithm_would(story: Story) -> None:
    """Bit for bit, at all clients, with every accumulator at zero; newcomers hold what the others hold."""
    model: Theta | None = None
    for manifest in story.manifests:
        reference = run_plainly(manifest, TASK, demo_seed=DEMO_SEED)
        if model is not None:
            reference.theta = model
        expected = []
        for number in (1, 2):
            reference.play_round(number)
            expected.append(reference.digest())
        assert {name: noted(story.folder, manifest, name) for name in manifest.clients} == dict.fromkeys(
            manifest.clients, expected
        )
        _, model = left_at(story.folder, manifest)
        assert digest(model) == expected[-1]


def test_every_manifest_names_the_run_before_and_commits_to_its_model(story: Story) -> None:
    first, second, third = story.manifests

    assert first.predecessor is None
    for before, after in ((first, second), (second, third)):
        assert after.predecessor is not None
        assert (after.predecessor.run, after.predecessor.cohort) == (before.run_id, before.cohort)
        assert after.initial_model_sha256 == commit(*left_at(story.folder, before))


def test_every_run_has_a_salt_of_its_own_which_all_of_its_clients_know(story: Story) -> None:
    assert len({left_at(story.folder, manifest)[0] for manifest in story.manifests}) == 3


def test_only_who_lacks_the_model_is_sent_it_by_one_who_has_it(story: Story) -> None:
    know_roster(BEFORE.roster)
    know_roster(ALL.roster)
    sent = set()
    for published in story.recording:
        envelope = decode(published.frame)
        if isinstance(envelope.body, SnapshotChunk):
            sent.add((envelope.run, envelope.sender, envelope.recipient))
    _, second, third = (manifest.run_id for manifest in story.manifests)
    assert {(run, taker) for run, _, taker in sent} == {
        (second, "client-4"),
        (second, "client-5"),
        (third, "client-2"),
    }
    assert {giver for run, giver, _ in sent if run == second} <= {"client-1", "client-3"}
    assert {giver for run, giver, _ in sent if run == third} <= {"client-4", "client-5"}


# The salt -----------------------------------------------------------------------------------------------


def forms_of(secret: bytes) -> list[bytes]:
    """A secret's halves as bytes, in hexadecimal, and as base64 has them wherever they begin."""
    forms = []
    for half in (secret[:16], secret[16:]):
        shifted = [base64.b64encode(b"?" * shift + half)[4 * (shift > 0) : -4] for shift in range(3)]
        forms += [half, half.hex().encode(), half.hex().upper().encode(), repr(half).encode()[2:-1], *shifted]
    return forms


def holds(haystack: bytes, forms: Sequence[bytes]) -> bool:
    return any(form in haystack for form in forms)


def test_the_salt_is_in_the_clients_own_file_and_nowhere_else(story: Story) -> None:
    for manifest in story.manifests:
        salt, _ = left_at(story.folder, manifest)
        forms = forms_of(salt)
        own = {folder_of(story.folder, manifest, name) / "succession.json" for name in manifest.clients}
        found = {path for path, contents in story.files.items() if any(holds(each, forms) for each in contents)}

        assert found - {path.with_name(f"{path.name}.part") for path in own} == own
        assert not any(holds(each.frame, forms) for each in story.recording)
        assert manifest.run_id in story.logs.getvalue()
        assert not holds(story.logs.getvalue().encode(), forms)


def test_nobody_but_its_clients_is_told_the_plain_digest_of_a_model(story: Story) -> None:
    """It would tell who guesses the model that the guess is right. Those who go on from it have it too."""
    for manifest, following in zip(story.manifests, (*story.manifests[1:], None), strict=True):
        _, model = left_at(story.folder, manifest)
        forms = forms_of(bytes.fromhex(digest(model)))
        clients = [story.folder / name for name in (*manifest.clients, *(following.clients if following else ()))]
        elsewhere = {
            path: contents for path, contents in story.files.items() if not any(map(path.is_relative_to, clients))
        }

        assert any((story.folder / "coordinator") in path.parents for path in elsewhere)
        assert not [path for path, contents in elsewhere.items() if any(holds(each, forms) for each in contents)]
        assert not any(holds(each.frame, forms) for each in story.recording)
        assert not holds(story.logs.getvalue().encode(), forms)


async def test_a_client_that_was_left_out_of_the_last_round_has_the_same_salt(tmp_path: Path) -> None:
    manifest = draw_up(replace(OPTIONS, min_clients=2, strategy="no-union"), roster=ALL.roster, clients=FIRST)
    silence = Silence((2, 2))
    absent = PartyId(FIRST[2])

    def observe(moment: Transition) -> None:
        data = moment.data
        if not isinstance(data, rounds.CoordinatorRound) or data.number != 2:
            return
        if isinstance(moment.event, ReceiptArrived) and data.missing() == (absent,):
            federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        if moment.after is rounds.State.APPLYING:
            assert absent not in data.members
            silence.lift(2)

    async with start_federation(
        manifest,
        parties=ALL,
        folder=tmp_path,
        load_task=HeldTask(TASK, silence).load,
        demo_seed=DEMO_SEED,
        observer=observe,
    ) as federation:
        try:
            state, data = await federation.run(manifest)
        finally:
            silence.lift_all()
    assert state is runs.State.COMPLETED, data.reason
    assert len({each.commitment for each in endorsements(tmp_path, manifest, FIRST)}) == 1
    left_at(tmp_path, manifest)


# What is no successor -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("completed")
    manifest = draw_up(replace(OPTIONS, min_clients=2), roster=ALL.roster, clients=FIRST)
    state, reason = asyncio.run(run(folder, manifest))
    assert state is runs.State.COMPLETED, reason
    return folder, manifest


async def test_a_manifest_with_a_forged_endorsement_is_not_even_proposed(completed: tuple[Path, Manifest]) -> None:
    folder, first = completed
    good = draw_up(OPTIONS, roster=ALL.roster, clients=SECOND, endorsed=endorsements(folder, first, FIRST))
    forged = good.model_copy(update={"initial_model_sha256": "0" * 64})

    with pytest.raises(ConfigurationError, match="the endorsement of client-1 does not hold"):
        await run(folder, forged)
    assert not list(folder.glob(f"*/runs/{forged.run_id}"))


async def test_an_heir_without_the_endorsed_model_ends_the_run_and_says_why(
    completed: tuple[Path, Manifest],
) -> None:
    """The others cannot know whether it is the one that is wrong."""
    folder, first = completed
    manifest = draw_up(OPTIONS, roster=ALL.roster, clients=SECOND, endorsed=endorsements(folder, first, FIRST))
    kept = folder_of(folder, first, "client-3") / "model.safetensors"
    good = kept.read_bytes()
    model = read_kept_model(kept.parent)
    kept.write_bytes(replace(model, theta=model.theta * np.float32(2)).write())
    try:
        state, reason = await run(folder, manifest)
    finally:
        kept.write_bytes(good)

    assert state is runs.State.FAILED
    assert reason.startswith("client-3 refused the run (protocol-task)")
    assert not list(folder.glob(f"*/runs/{manifest.run_id}/endorsement.json"))
