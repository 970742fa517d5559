"""A real trainer among parties made by hand: whatever they send, it goes on; it acts only on what all say."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import ConfigurationError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.base import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied, RoundDropped, RoundOpened
from hubbub.messages.runs import PartyFailed, RunEnded, RunJoined, RunProposed, RunRefused
from hubbub.messages.shares import ShareChunk, VectorClaim
from hubbub.messages.sums import SumChunk, VoidNotice
from hubbub.protocol.layout import pack_chunk, plan_chunks, unpack_chunk
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import dead_letter_queue, topology_for
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Learner, ProgressCallback, Score, Task, Theta, Training
from hubbub_trainer.service import Trainer
from hubbub_trainer.workspace import digest
from support.aio import aio
from support.builders import make_manifest, make_vectors
from support.stand_in import StandIn, stand_in

TASK = SyntheticTask(1_003)
FIELDS: dict[str, object] = {
    "parameters": TASK.count_parameters(),
    "task": TASK.name,
    "initial_model_sha256": digest(TASK.initial_model(7)),
    "chunk_bytes": 256,
}
MANIFEST = make_manifest(clients=3, servers=2, min_clients=2, **FIELDS)
ME, SECOND, THIRD = MANIFEST.clients
MEMBERS = (ME, SECOND)


class Scene:
    """The trainer under test, and everybody else.

    The other clients' updates are zero, and so are all shares of them: an aggregator's sum over this client and
    another is this client's share, and can be sent straight back.
    """

    def __init__(
        self, broker: MemoryBroker, coordinator: StandIn, aggregators: list[StandIn], folder: Path
    ) -> None:
        self.broker = broker
        self.coordinator = coordinator
        self.aggregators = aggregators
        self.folder = folder
        self.trainer: Trainer

    def dead(self) -> list[str]:
        return [letter.reason for letter in self.broker.dead_letters(dead_letter_queue(ME))]

    async def propose(self, manifest: Manifest = MANIFEST) -> None:
        await self.tell(RunProposed(manifest=manifest), 0, manifest=manifest)

    async def tell(self, body: Message, round_number: int = 0, *, manifest: Manifest = MANIFEST) -> None:
        await self.coordinator.say(body, to=ME, role=Role.CLIENT, run=manifest.run_id, round_number=round_number)

    async def open_round(self, number: int) -> None:
        await self.tell(RoundOpened(), number)

    async def say(
        self,
        aggregator: StandIn,
        body: Message,
        *,
        round_number: int = 1,
        phase: str = "signs",
        payload: bytes = b"",
        sender: PartyId | None = None,
    ) -> None:
        await aggregator.say(
            body,
            to=ME,
            role=Role.CLIENT,
            run=MANIFEST.run_id,
            round_number=round_number,
            phase=phase,
            payload=payload,
            sender=sender,
        )

    async def shares(self, aggregator: StandIn, round_number: int = 1) -> list[tuple[ShareChunk, bytes]]:
        """This client's whole share set at an aggregator."""
        heard = await aggregator.hear(ShareChunk, 2, round_number=round_number)
        return [(body, envelope.payload) for envelope, body in heard]

    async def release(
        self, aggregator: StandIn, round_number: int = 1, members: tuple[PartyId, ...] = MEMBERS
    ) -> None:
        for chunk, payload in await self.shares(aggregator, round_number):
            body = SumChunk(members=members, vectors=chunk.vectors, index=chunk.index)
            await self.say(aggregator, body, round_number=round_number, payload=payload)

    async def play_good_round(self, number: int) -> None:
        await self.open_round(number)
        for aggregator in self.aggregators:
            await self.release(aggregator, number)
        await self.coordinator.hear(RoundApplied, round_number=number)

    def digests(self) -> list[str]:
        path = self.folder / "runs" / MANIFEST.run_id / "rounds.jsonl"
        return path.read_text("utf-8").splitlines() if path.exists() else []


@asynccontextmanager
async def scene_of(folder: Path, task: Task = TASK) -> AsyncIterator[Scene]:
    broker = MemoryBroker()

    def load(name: str) -> Task:
        if name != task.name:
            raise ConfigurationError(f"there is no task {name!r}")
        return task

    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(stand_in(broker, MANIFEST.coordinator, Role.COORDINATOR))
        aggregators = [
            await stack.enter_async_context(stand_in(broker, name, Role.AGGREGATOR))
            for name in MANIFEST.aggregators
        ]
        transport = await stack.enter_async_context(MemoryTransport(broker, topology_for(ME, Role.CLIENT)))
        scene = Scene(broker, coordinator, aggregators, folder)
        scene.trainer = Trainer(name=ME, transport=transport, folder=folder, load_task=load, demo_seed=3)
        stack.push_async_callback(scene.trainer.runner.stop)
        stack.callback(scene.trainer.close)
        await scene.trainer.runner.start()
        yield scene


@asynccontextmanager
async def joined_scene(folder: Path, task: Task = TASK) -> AsyncIterator[Scene]:
    async with scene_of(folder, task) as scene:
        await scene.propose()
        await scene.coordinator.hear(RunJoined)
        yield scene


@aio
async def test_rounds_one_after_the_other(tmp_path: Path) -> None:
    async with joined_scene(tmp_path) as scene:
        for number in (1, 2):
            await scene.play_good_round(number)
        assert len(set(scene.digests())) == 2
        assert scene.dead() == []
        ended = RunEnded(outcome="completed", reason="done")
        await scene.tell(ended)
        await scene.tell(ended)  # Late, and only counted.
        await scene.propose(make_manifest(clients=3, servers=2, min_clients=2, nonce="1" * 32, **FIELDS))
        await scene.coordinator.hear(RunJoined, 2)
        theta = np.load(tmp_path / "runs" / MANIFEST.run_id / "model.npy")
        assert digest(theta) in scene.digests()[-1]
        assert not list((tmp_path / "spool").rglob("*.chunk"))


# Joining ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"initial_model_sha256": "f" * 64}, "is not the one that the manifest commits to"),
        ({"parameters": 1_004}, "1003 parameters here, the manifest says 1004"),
        ({"task": "magic"}, "there is no task 'magic'"),
        ({"strategy": "magic"}, "does not know the strategy magic"),
    ],
    ids=["digest", "parameters", "task", "strategy"],
)
@aio
async def test_a_run_that_is_not_its_own_is_refused_with_the_reason(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    manifest = make_manifest(clients=3, servers=2, min_clients=2, **{**FIELDS, **change})
    async with scene_of(tmp_path) as scene:
        await scene.propose(manifest)
        ((_, refusal),) = await scene.coordinator.hear(RunRefused)
        assert why in refusal.reason
        await scene.propose()
        await scene.coordinator.hear(RunJoined)


# What ends among the dead letters -----------------------------------------------------------------------

Misdeed = Callable[[Scene], Awaitable[None]]


def sum_like(chunk: ShareChunk, **changes: object) -> SumChunk:
    fields = {"members": MEMBERS, "vectors": chunk.vectors, "index": chunk.index, **changes}
    return SumChunk.model_validate(fields)


def misdeed(*, cut: int = 0, round_number: int = 1, phase: str = "signs", **changes: object) -> Misdeed:
    """A sum that is wrong in one thing."""

    async def do(scene: Scene) -> None:
        first = scene.aggregators[0]
        chunk, payload = (await scene.shares(first))[0]
        await scene.say(
            first,
            sum_like(chunk, **changes),
            round_number=round_number,
            phase=phase,
            payload=payload[: len(payload) - cut],
        )

    return do


async def void_of_an_unknown_phase(scene: Scene) -> None:
    await scene.say(scene.aggregators[0], VoidNotice(reason="?"), phase="union")


async def a_void_of_a_stranger(scene: Scene) -> None:
    await scene.say(scene.aggregators[0], VoidNotice(reason="?"), sender=PartyId("mallory"))


async def a_void_of_the_coordinator(scene: Scene) -> None:
    """It orders voids; only aggregators announce them."""
    await scene.tell(VoidNotice(reason="?"), 1)


async def poison(scene: Scene) -> None:
    await scene.aggregators[0].shout(b"\0" * 100, to=ME, role=Role.CLIENT)


OTHER_RING = tuple(
    VectorClaim(name=name, length=length, modulus=modulus)
    for name, length, modulus in (("signs", 1_003, 8), ("factors", 1, 2**32))
)


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        pytest.param(misdeed(cut=1), RejectReason.WRONG_LENGTH, id="short"),
        pytest.param(misdeed(index=9), RejectReason.WRONG_LENGTH, id="no-such-chunk"),
        pytest.param(misdeed(vectors=OTHER_RING), RejectReason.WRONG_RING, id="another-ring"),
        pytest.param(misdeed(members=(ME,)), RejectReason.TOO_FEW_MEMBERS, id="sum-over-one"),
        pytest.param(misdeed(members=(ME, ME)), RejectReason.NOT_IN_COHORT, id="member-twice"),
        pytest.param(misdeed(members=(ME, PartyId("mallory"))), RejectReason.NOT_IN_COHORT, id="stranger"),
        pytest.param(misdeed(round_number=2), RejectReason.TOO_EARLY, id="future-round"),
        pytest.param(misdeed(phase="union"), RejectReason.UNKNOWN_PHASE, id="sum-of-unknown-phase"),
        pytest.param(void_of_an_unknown_phase, RejectReason.UNKNOWN_PHASE, id="void-of-unknown-phase"),
        pytest.param(a_void_of_a_stranger, RejectReason.WRONG_SENDER, id="void-of-a-stranger"),
        pytest.param(a_void_of_the_coordinator, RejectReason.WRONG_SENDER, id="void-of-the-coordinator"),
        pytest.param(poison, RejectReason.MALFORMED, id="poison"),
    ],
)
@aio
async def test_a_bad_message_is_put_aside_and_the_round_completes(
    tmp_path: Path, do: Misdeed, reason: RejectReason
) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        await do(scene)
        await scene.play_good_round(1)  # Orders the round again, which changes nothing.
        assert scene.dead() == [reason.value]
        assert scene.trainer.counters.rejections(reason) == 1
        await scene.play_good_round(2)


# Verdicts -----------------------------------------------------------------------------------------------


@aio
async def test_a_void_round_is_dropped_and_the_model_stays(tmp_path: Path) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        for aggregator in scene.aggregators:
            await scene.shares(aggregator)
            await scene.say(aggregator, VoidNotice(reason="too few"))
        await scene.coordinator.hear(RoundDropped)
        assert scene.digests() == []
        await scene.play_good_round(2)
        assert len(scene.digests()) == 1


@dataclass
class RememberingLearner:
    """Writes down the memory it is given; the one it returns says in which training it was made."""

    inner: Learner
    given: list[float | None]

    @property
    def samples(self) -> int:
        return self.inner.samples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        self.given.append(None if memory is None else float(memory[0]))
        trained = self.inner.train(theta, steps=steps, seed=seed, progress=progress).theta
        return Training(trained, np.full_like(theta, len(self.given)))

    def evaluate(self, theta: Theta) -> Score:
        return self.inner.evaluate(theta)


class RememberingTask(SyntheticTask):
    def __init__(self) -> None:
        super().__init__(1_003)
        self.given: list[float | None] = []

    def learner(self, *, index: int, clients: int, seed: int) -> RememberingLearner:  # type: ignore[override]  # A Task.
        return RememberingLearner(super().learner(index=index, clients=clients, seed=seed), self.given)


@aio
async def test_the_optimisers_memory_lives_on_except_through_a_void_round(tmp_path: Path) -> None:
    task = RememberingTask()
    async with joined_scene(tmp_path, task) as scene:
        await scene.play_good_round(1)
        await scene.open_round(2)
        for aggregator in scene.aggregators:
            await scene.shares(aggregator, 2)
            await scene.say(aggregator, VoidNotice(reason="too few"), round_number=2)
        await scene.coordinator.hear(RoundDropped, round_number=2)
        await scene.play_good_round(3)
        await scene.play_good_round(4)
        assert task.given == [None, 1.0, 1.0, 3.0]


@aio
async def test_who_is_left_out_goes_on_with_the_memory_of_its_own_training(tmp_path: Path) -> None:
    task = RememberingTask()
    async with joined_scene(tmp_path, task) as scene:
        await scene.open_round(1)
        for aggregator in scene.aggregators:
            await scene.release(aggregator, members=(SECOND, THIRD))
        await scene.coordinator.hear(RoundApplied, round_number=1)
        await scene.play_good_round(2)
        assert task.given == [None, 1.0]


@aio
async def test_a_release_beside_a_void_ends_in_a_failure(tmp_path: Path) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        first, second = scene.aggregators
        await scene.release(first)
        await scene.say(second, VoidNotice(reason="too few"))
        ((_, failure),) = await scene.coordinator.hear(PartyFailed)
        assert "says void where aggregator-1 released" in failure.reason
        assert scene.digests() == []


def shift_factor(index: int, payload: bytes) -> bytes:
    """Add to the factor, wherever it is, more than the factors of two members can be."""
    vectors = make_vectors(MANIFEST)
    chunk = plan_chunks(vectors, MANIFEST.chunk_bytes)[index]
    pieces = list(unpack_chunk(chunk, vectors, payload))
    shift = np.uint32(3 * 2**30)
    values = [values + shift if vectors[piece.vector].name == "factors" else values for piece, values in pieces]
    return pack_chunk(chunk, vectors, values)


@aio
async def test_an_impossible_sum_is_refused_with_its_reason(tmp_path: Path) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        first, second = scene.aggregators
        await scene.release(first)
        for chunk, payload in await scene.shares(second):
            await scene.say(second, sum_like(chunk), payload=shift_factor(chunk.index, payload))
        ((_, failure),) = await scene.coordinator.hear(PartyFailed)
        assert "cannot add up to" in failure.reason
        assert scene.digests() == []


@dataclass
class BrokenLearner:
    inner: Learner

    @property
    def samples(self) -> int:
        return self.inner.samples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        training = self.inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)
        training.theta[5] = np.nan
        return training

    def evaluate(self, theta: Theta) -> Score:
        return self.inner.evaluate(theta)


class BrokenTask(SyntheticTask):
    def learner(self, *, index: int, clients: int, seed: int) -> BrokenLearner:  # type: ignore[override]  # A Task.
        return BrokenLearner(super().learner(index=index, clients=clients, seed=seed))


@aio
async def test_an_update_with_nan_is_never_sent(tmp_path: Path) -> None:
    async with joined_scene(tmp_path, BrokenTask(1_003)) as scene:
        await scene.open_round(1)
        ((_, failure),) = await scene.coordinator.hear(PartyFailed)
        assert "NaN or infinity" in failure.reason
        assert not any(aggregator.heard for aggregator in scene.aggregators)


@aio
async def test_what_leaves_is_a_share_to_each_and_never_the_same_twice(tmp_path: Path) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        first, second = [await scene.shares(aggregator) for aggregator in scene.aggregators]
        assert {chunk.set_id for chunk, _ in first} == {chunk.set_id for chunk, _ in second}
        assert len({chunk.set_id for chunk, _ in first}) == 1
        assert not {payload for _, payload in first} & {payload for _, payload in second}
