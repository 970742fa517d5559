"""Real trainers among parties made by hand: whatever those send, they go on; they act only on what all say."""

import asyncio
import hashlib
import hmac
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import Code, LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied, RoundDropped, RoundOpened, SumChunk, VoidNotice
from hubbub.messages.runs import (
    GroupConfirmed,
    GroupContribution,
    PartyFailed,
    RunEnded,
    RunKey,
    RunKeys,
    RunReady,
    RunRefused,
)
from hubbub.messages.shares import ShareChunk, VectorClaim
from hubbub.protocol import signs
from hubbub.protocol.layout import Vector, pack_chunk, plan_chunks, unpack_chunk
from hubbub.protocol.metrics import Scores
from hubbub.protocol.ring import Residues
from hubbub.store.state_file import Vault
from hubbub.strategies.registry import find_phase
from hubbub_trainer import run_secrets
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Learner, ProgressCallback, Task, Theta, Training
from hubbub_trainer.policy import Policy
from hubbub_trainer.round_jobs import recombine_chunks
from hubbub_trainer.saved_model import read_kept_model
from hubbub_trainer.workspace import digest
from support.aio import aio, until
from support.builders import SIGNATURE, WRAPPED_KEY, make_manifest, make_run_key, make_vectors
from support.parties import identity_of, roster_of, sign_sum
from support.sealed_shares import open_share
from support.spooled import spooled_in
from support.stand_in import StandIn
from support.trainer_scene import Scene, Sealing, Shift, scene_of

TASK = SyntheticTask(1_003)
FIELDS: dict[str, object] = {
    "parameters": TASK.count_parameters(),
    "task": TASK.name,
    "initial_model_sha256": digest(TASK.initial_model(7)),
    "rounds": 9,
    "chunk_bytes": 256,
}


def draw_up(**changes: object) -> Manifest:
    fields = {**FIELDS, **changes}
    return make_manifest(clients=3, servers=2, **{"min_clients": 2, **fields})


MANIFEST = draw_up()
ME, SECOND, THIRD = MANIFEST.clients
MEMBERS = (ME, SECOND)
UNION = draw_up(strategy="sec-union", q=3)
PARTIAL = draw_up(strategy="partial-sec-union")


@asynccontextmanager
async def joined_scene(
    folder: Path, task: Task = TASK, *, manifest: Manifest = MANIFEST, real: int = 1
) -> AsyncIterator[Scene]:
    async with scene_of(folder, manifest, task, real=real) as scene:
        await scene.join()
        yield scene


async def hear_failure(scene: Scene) -> Code:
    ((_, failure),) = await scene.hear(scene.coordinator, PartyFailed)
    await scene.settle()
    return failure.code


@aio
async def test_what_was_drawn_for_a_round_is_nowhere_in_the_file_once_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_so_far: list[bytes] = []
    recall = run_secrets.get_or_create_outbox

    def note(vault: Vault, key: Key, phase: str, content: bytes) -> tuple[SetId, bytes]:
        set_id, secret = recall(vault, key, phase, content)
        assert any(secret in each for each in state_files()), "or this test looks in the wrong place"
        drawn_so_far.append(secret)
        return set_id, secret

    def state_files() -> list[bytes]:
        return [path.read_bytes() for path in (tmp_path / ME).glob("state.sqlite*")]

    monkeypatch.setattr(run_secrets, "get_or_create_outbox", note)
    async with joined_scene(tmp_path) as scene:
        for number in (1, 2):
            await scene.play_good_round(number)
            await scene.settle()

            assert drawn_so_far
            assert not any(secret in each for secret in drawn_so_far for each in state_files())


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
        await scene.settle()
        assert digest(read_kept_model(scene.run_folder(ME)).theta) in scene.digests()[-1]
        assert not spooled_in(tmp_path / ME / "spool")


# Joining ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        (
            {"initial_model_sha256": "f" * 64},
            Code.PROTOCOL_TASK,
            "is not the one that the manifest commits to",
        ),
        ({"parameters": 1_004}, Code.PROTOCOL_TASK, "1003 parameters here, the manifest says 1004"),
        ({"task": "magic"}, Code.PROTOCOL_TASK, "there is no task 'magic'"),
        ({"roster_sha256": "f" * 64}, Code.POLICY_ROSTER, "the manifest is for the roster ffff"),
    ],
    ids=["digest", "parameters", "task", "roster"],
)
@aio
async def test_a_run_that_is_not_its_own_is_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object], code: Code, why: str
) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        await scene.propose(draw_up(**change))
        ((_, refusal),) = await scene.coordinator.hear(RunRefused)
        await scene.settle()
        assert refusal.code is code
        assert why in caplog.text
        await scene.join()


@aio
async def test_everything_that_the_policy_has_against_a_run_is_in_the_log_and_a_code_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The demo's seed too: a trainer that is told to use it does not take part in what is real."""
    strict = Policy(roster_sha256=roster_of(MANIFEST).digest, max_rounds=1)
    async with scene_of(tmp_path, draw_up(strategy="fedavg"), TASK, policy=strict) as scene:
        await scene.propose()
        ((_, refusal),) = await scene.hear(scene.coordinator, RunRefused)
        await scene.settle()
    assert refusal.code is Code.POLICY_STRATEGY
    for why in (
        "the manifest's strategy is 'fedavg'",
        "min_clients is 2, the policy asks for at least 3",
        "is not approved",
        "has rounds = 9, the policy allows at most 1",
        "told to take its secrets from the demo's seed",
    ):
        assert why in caplog.text


@aio
async def test_the_demos_seed_alone_is_reason_enough_to_refuse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    careful = Policy.for_demo(roster_of(MANIFEST).digest).model_copy(update={"demo_seed": False})
    async with scene_of(tmp_path / "seed", MANIFEST, TASK, policy=careful) as scene:
        await scene.propose()
        ((_, refusal),) = await scene.hear(scene.coordinator, RunRefused)
        await scene.settle()
        assert refusal.code is Code.POLICY_SEED
        assert "start the trainer without the seed" in caplog.text
    async with scene_of(tmp_path / "none", MANIFEST, TASK, policy=careful, demo_seed=None) as scene:
        await scene.join()


# Keys and the group secret ------------------------------------------------------------------------------

Offer = Callable[[Scene], tuple[RunKey, ...]]


def with_a_key_of_the_coordinators_own(scene: Scene) -> tuple[RunKey, ...]:
    """For the first aggregator, signed by nobody who may."""
    mine = make_run_key(MANIFEST, MANIFEST.aggregators[0])
    forged = mine.model_copy(update={"signature": "00" * 64})
    return tuple(forged if key.party == mine.party else key for key in scene.peers.run_keys)


def with_a_key_of_another_run(scene: Scene) -> tuple[RunKey, ...]:
    other = make_run_key(draw_up(nonce="2" * 32), SECOND)
    return tuple(other if key.party == SECOND else key for key in scene.peers.run_keys)


def without_the_last(scene: Scene) -> tuple[RunKey, ...]:
    return scene.peers.run_keys[:-1]


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        (with_a_key_of_the_coordinators_own, RejectReason.BAD_SIGNATURE),
        (with_a_key_of_another_run, RejectReason.BAD_SIGNATURE),
        (without_the_last, RejectReason.CONTRADICTION),
    ],
)
@aio
async def test_run_keys_count_only_if_their_owners_signed_them_for_this_run(
    tmp_path: Path, offer: Offer, reason: RejectReason
) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        await scene.pledge()
        await scene.tell(RunKeys(keys=offer(scene)))
        await scene.exchange()
        assert scene.dead() == [reason.value]


@aio
async def test_a_second_key_of_a_party_is_refused(tmp_path: Path) -> None:
    """Its owner signed it, and still: a party has one key in a run."""
    async with joined_scene(tmp_path) as scene:
        second = make_run_key(MANIFEST, SECOND)
        keys = tuple(second if key.party == SECOND else key for key in scene.peers.run_keys)
        await scene.tell(RunKeys(keys=keys))
        await scene.play_good_round(1)
        assert scene.dead() == [RejectReason.SECOND_KEY.value]
        assert scene.count(RejectReason.SECOND_KEY) == 1


@aio
async def test_a_client_that_dealt_another_part_to_others_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        await scene.pledge()
        await scene.exchange()
        ((_, mine),) = await scene.hear(scene.parties[SECOND], GroupConfirmed)
        scene.peers.parts[THIRD] = b"another part than we were dealt!"
        theirs = scene.peers.agree().confirmation()
        assert theirs != mine.confirmation
        await scene.confirm(SECOND, to=ME, confirmation=theirs)
        assert await hear_failure(scene) is Code.PROTOCOL_GROUP
        assert "client-2 confirms another group secret" in caplog.text
        assert scene.count(RejectReason.DIFFERENT_GROUP) == 1
        assert not any(isinstance(envelope.body, RunReady) for envelope in scene.coordinator.heard)


@aio
async def test_a_part_that_does_not_open_ends_the_run_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        await scene.pledge()
        await scene.say(scene.parties[SECOND], GroupContribution(), round_number=0, phase="", payload=bytes(80))
        await scene.exchange()
        assert await hear_failure(scene) is Code.PROTOCOL_PEER
        assert "a seal does not open" in caplog.text
        assert scene.count(RejectReason.BROKEN_SEAL) == 1


def hmac_of_model(key: bytes, theta: Theta, means: Sequence[float]) -> str:
    """What clients compare: the model and the mean factors of the released rounds, as doubles."""
    model = hashlib.sha256(theta.astype("<f4").tobytes()).digest()
    return hmac.new(key, model + struct.pack(f"<{len(means)}d", *means), "sha256").hexdigest()


@aio
async def test_the_group_secret_steps_with_every_round_void_or_not_and_is_erased_at_the_end(
    tmp_path: Path,
) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        group = await scene.join()
        held = scene.trainer._spaces.open(MANIFEST.run_id).group_secret
        await scene.play_good_round(1)
        await scene.play_void_round(2)
        await scene.play_good_round(3)
        means = scene.trainer._spaces.open(MANIFEST.run_id).history
        assert len(means) == 2
        await scene.tell(RunEnded(outcome="completed", reason="done"))
        log = await scene.read_log()
        applied = {entry.fields["round"]: entry.fields["model_hmac"] for entry in log if entry.kind == "applied"}
        theta = read_kept_model(scene.run_folder(ME)).theta
        group.step()
        assert applied[3] != hmac_of_model(group.key_for("model"), theta, means)
        group.step()
        assert applied[3] == hmac_of_model(group.key_for("model"), theta, means)
        assert applied.keys() == {1, 3}
        with pytest.raises(LocalError, match="erased"):
            held.key_for("model")
        assert scene.trainer._spaces.find(MANIFEST.run_id) is None
        assert MANIFEST.run_id not in scene.trainer._seals


@aio
async def test_a_round_that_fails_while_it_waits_leaves_the_secret_to_the_round_that_is_open(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        group = await scene.join()
        for number in (1, 2):
            await scene.open_round(number)
        await misdeed(round_number=2)(scene)
        await scene.say(scene.aggregators[1], VoidNotice(), round_number=2)
        assert await hear_failure(scene) is Code.PROTOCOL_CONTRADICTION
        assert "says void where" in caplog.text
        await scene.play_good_round(1)
        means = scene.trainer._spaces.open(MANIFEST.run_id).history
        (applied,) = [entry.fields["model_hmac"] for entry in await scene.read_log() if entry.kind == "applied"]
        await scene.tell(RunEnded(outcome="failed", reason="two words of one phase"))
        await scene.settle()
        theta = read_kept_model(scene.run_folder(ME)).theta
        assert applied == hmac_of_model(group.key_for("model"), theta, means)


# Rounds in order ----------------------------------------------------------------------------------------


@aio
async def test_a_round_that_was_over_is_old_news(tmp_path: Path) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.play_good_round(1)
        await scene.open_round(1)
        await scene.play_good_round(2)
        assert (len(scene.digests()), scene.dead()) == (2, [])


@aio
async def test_who_has_wasted_too_many_shares_of_a_model_leaves_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined_scene(tmp_path, manifest=UNION) as scene:
        for number in (1, 2):
            await scene.open_round(number)
            for aggregator in scene.aggregators:
                await scene.release(aggregator, number, phase="union")
            for aggregator in scene.aggregators:
                await scene.sealed_shares(aggregator, number, "signs")
            await scene.void(number)
            await scene.hear(scene.coordinator, RoundDropped, number=number)
        assert await hear_failure(scene) is Code.POLICY_VOID_ROUNDS
        assert "2 rounds (2 of them from one model) were void" in caplog.text
        await scene.propose()  # Late, and only counted: it has left for good.
        await scene.open_round(3)
        ended = [entry.fields["outcome"] for entry in await scene.read_log() if entry.kind == "ended"]
        assert ended == ["left"]
        assert scene.dead() == []


@aio
async def test_the_audit_log_tells_what_it_took_part_in(tmp_path: Path) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.play_good_round(1)
        await scene.play_void_round(2)
        ((body, _), *_) = await scene.shares(scene.aggregators[0], 1)
        log = {(entry.kind, entry.fields.get("round")): entry.fields for entry in await scene.read_log()}
        assert [*log] == [
            ("joined", None),
            ("keys", None),
            ("group", None),
            ("released", 1),
            ("applied", 1),
            ("void", 2),
        ]
        assert log["released", 1]["transcript"] == body.transcript
        assert log["released", 1]["members"] == [*MEMBERS]
        assert log["void", 2]["phase"] == "signs"


# What ends among the dead letters -----------------------------------------------------------------------

Misdeed = Callable[[Scene], Awaitable[None]]


def sum_like(chunk: ShareChunk, **changes: object) -> SumChunk:
    fields = {
        "members": MEMBERS,
        "vectors": chunk.vectors,
        "transcript": chunk.transcript,
        "signature": SIGNATURE,
        "wrapped_key": WRAPPED_KEY,
        "index": chunk.index,
        **changes,
    }
    return SumChunk.model_validate(fields)


def misdeed(
    *,
    cut: int = 0,
    round_number: int = 1,
    phase: str = "signs",
    signer: PartyId | None = None,
    **changes: object,
) -> Misdeed:
    """A sum that is wrong in one thing."""

    async def do(scene: Scene) -> None:
        first = scene.aggregators[0]
        chunk, packed = (await scene.shares(first))[0]
        sealing = Sealing(scene.peers.seals[first.name], scene.stage(round_number, phase), ME)
        payload = sealing.encrypt(chunk.index, packed)
        body = sum_like(chunk, wrapped_key=sealing.wrapped_key, **changes)
        body = sign_sum(
            identity_of(MANIFEST, first.name), MANIFEST.run_id, body, round_number=round_number, phase=phase
        )
        await scene.say(
            first,
            body,
            round_number=round_number,
            phase=phase,
            payload=payload[: len(payload) - cut],
            signer=signer,
        )

    return do


async def void_of_an_unknown_phase(scene: Scene) -> None:
    await scene.say(scene.aggregators[0], VoidNotice(), phase="union")


async def a_void_of_a_stranger(scene: Scene) -> None:
    await scene.say(scene.aggregators[0], VoidNotice(), sender=PartyId("mallory"))


async def a_void_in_anothers_name(scene: Scene) -> None:
    first, second = scene.aggregators
    await scene.say(first, VoidNotice(), sender=second.name, signer=first.name)


async def a_void_of_the_coordinator(scene: Scene) -> None:
    """It orders voids; only aggregators announce them."""
    await scene.tell(VoidNotice(), 1)


async def a_round_opened_by_a_client(scene: Scene) -> None:
    await scene.say(scene.parties[SECOND], RoundOpened(), round_number=2, phase="")


async def poison(scene: Scene) -> None:
    await scene.aggregators[0].shout(b"\0" * 100, to=ME, role=Role.CLIENT)


OTHER_RING = tuple(
    VectorClaim(name=name, length=length, modulus=modulus)
    for name, length, modulus in (("signs", 1_003, 8), ("factors", 1, 2**32), ("tags", 3, 2**64))
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
        pytest.param(misdeed(round_number=3), RejectReason.TOO_EARLY, id="future-round"),
        pytest.param(misdeed(phase="union"), RejectReason.UNKNOWN_PHASE, id="sum-of-unknown-phase"),
        pytest.param(misdeed(signer=SECOND), RejectReason.BAD_SIGNATURE, id="sum-signed-by-another"),
        pytest.param(void_of_an_unknown_phase, RejectReason.UNKNOWN_PHASE, id="void-of-unknown-phase"),
        pytest.param(a_void_of_a_stranger, RejectReason.NOT_IN_ROSTER, id="void-of-a-stranger"),
        pytest.param(a_void_in_anothers_name, RejectReason.BAD_SIGNATURE, id="void-in-anothers-name"),
        pytest.param(a_void_of_the_coordinator, RejectReason.WRONG_SENDER, id="void-of-the-coordinator"),
        pytest.param(a_round_opened_by_a_client, RejectReason.WRONG_SENDER, id="round-opened-by-a-client"),
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
        assert scene.count(reason) == 1
        await scene.play_good_round(2)


# Verdicts -----------------------------------------------------------------------------------------------


@aio
async def test_a_void_round_is_dropped_and_the_model_stays(tmp_path: Path) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.play_void_round(1)
        assert scene.digests() == []
        await scene.play_good_round(2)
        assert len(scene.digests()) == 1


@dataclass
class RememberingLearner:
    """Writes down seed and memory it is given; the memory it returns says in which training it was made."""

    inner: Learner
    given: list[float | None]
    seeds: list[int]

    @property
    def samples(self) -> int:
        return self.inner.samples

    @property
    def examples(self) -> int:
        return self.inner.examples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        self.given.append(None if memory is None else float(memory[0]))
        self.seeds.append(seed)
        trained = self.inner.train(theta, steps=steps, seed=seed, progress=progress).theta
        return Training(trained, np.full_like(theta, len(self.given)))

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        return self.inner.evaluate(theta, memory=memory)


class RememberingTask(SyntheticTask):
    def __init__(self) -> None:
        super().__init__(1_003)
        self.given: list[float | None] = []
        self.seeds: list[int] = []

    def learner(self, *, index: int, clients: int, seed: int) -> RememberingLearner:  # type: ignore[override]  # A Task.
        inner = super().learner(index=index, clients=clients, seed=seed)
        return RememberingLearner(inner, self.given, self.seeds)


@aio
async def test_the_optimisers_memory_lives_on_except_through_a_void_round(tmp_path: Path) -> None:
    task = RememberingTask()
    async with joined_scene(tmp_path, task) as scene:
        await scene.play_good_round(1)
        await scene.play_void_round(2)
        await scene.play_good_round(3)
        await scene.play_good_round(4)
        assert task.given == [None, 1.0, 1.0, 3.0]
        assert len(set(task.seeds)) == 4, "after a void round the batches are fresh"


@aio
async def test_who_is_left_out_goes_on_with_the_memory_of_its_own_training(tmp_path: Path) -> None:
    task = RememberingTask()
    async with joined_scene(tmp_path, task) as scene:
        await scene.open_round(1)
        for aggregator in scene.aggregators:
            await scene.release(aggregator, members=(SECOND, THIRD))
        await scene.hear(scene.coordinator, RoundApplied, number=1)
        await scene.play_good_round(2)
        assert task.given == [None, 1.0]


@pytest.mark.parametrize(("demo_seed", "same"), [(3, True), (None, False)])
@aio
async def test_batches_follow_from_a_secret_of_the_run_unless_the_demo_fixes_them(
    tmp_path: Path, demo_seed: int | None, *, same: bool
) -> None:
    """The same seed in the manifest and another cohort: whose batches stayed the same could be subtracted."""
    task = RememberingTask()
    smaller = make_manifest(
        clients=2, servers=2, **{**FIELDS, "min_clients": 2, "roster_sha256": MANIFEST.roster_sha256}
    )
    async with scene_of(tmp_path, MANIFEST, task, demo_seed=demo_seed) as scene:
        for manifest in (MANIFEST, smaller):
            await scene.join(manifest)
            await scene.play_good_round(1)
            await scene.tell(RunEnded(outcome="completed", reason="done"))
    first, second = task.seeds
    assert (first == second) is same


@aio
async def test_a_release_beside_a_void_ends_in_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        first, second = scene.aggregators
        await scene.release(first)
        await scene.say(second, VoidNotice())
        assert await hear_failure(scene) is Code.PROTOCOL_CONTRADICTION
        assert "says void where aggregator-1 released" in caplog.text
        assert scene.count(RejectReason.CONTRADICTION) == 1
        assert scene.digests() == []


@aio
async def test_two_sums_of_one_aggregator_end_in_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        first, _ = scene.aggregators
        await scene.release(first)
        await scene.release(first)  # The same sum, under another key: nobody could tell that it is the same.
        assert await hear_failure(scene) is Code.PROTOCOL_CONTRADICTION
        assert "aggregator-1 released two sums of signs" in caplog.text
        assert scene.count(RejectReason.CONTRADICTION) == 1


def add_at(vectors: Sequence[Vector], name: str, place: int, by: int) -> Shift:
    """Add to one element of a sum."""
    plan = plan_chunks(vectors, MANIFEST.chunk_bytes)

    def lie(index: int, packed: bytes) -> bytes:
        changed = []
        for piece, values in unpack_chunk(plan[index], vectors, packed):
            vector = vectors[piece.vector]
            if vector.name == name and piece.start <= place < piece.stop:
                values[place - piece.start] = (int(values[place - piece.start]) + by) % vector.modulus
            changed.append(values)
        return pack_chunk(plan[index], vectors, changed)

    return lie


@aio
async def test_an_impossible_sum_is_refused_without_a_word_of_it_and_counted(tmp_path: Path) -> None:
    too_much = add_at(make_vectors(MANIFEST), "factors", 0, 3 * 2**30)
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        first, second = scene.aggregators
        await scene.release(first)
        await scene.release(second, shift=too_much)
        assert await hear_failure(scene) is Code.PROTOCOL_FALSE_SUM
        assert scene.count(RejectReason.FALSE_SUM) == 1
        assert scene.digests() == []


async def release_badly(scene: Scene, aggregator: StandIn, *, wrap_for: PartyId, flip: int) -> None:
    """A sum whose key or ciphertext is not what it should be; its length is right and it is signed."""
    seals, stage = scene.peers.seals[aggregator.name], scene.stage(1, "signs")
    sealing = Sealing(seals, stage, wrap_for)
    shares = await scene.shares(aggregator)
    for index, (chunk, packed) in enumerate(shares):
        unsigned = sum_like(chunk, wrapped_key=sealing.wrapped_key)
        body = sign_sum(identity_of(MANIFEST, aggregator.name), MANIFEST.run_id, unsigned)
        payload = bytearray(sealing.encrypt(index, packed))
        payload[0] ^= flip
        await scene.say(aggregator, body, payload=bytes(payload))


@pytest.mark.parametrize(("wrap_for", "flip"), [(ME, 1), (SECOND, 0)], ids=["flipped-bit", "anothers-key"])
@aio
async def test_a_sum_that_does_not_open_is_counted_and_ends_in_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrap_for: PartyId, flip: int
) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        first, second = scene.aggregators
        await scene.release(first)
        await release_badly(scene, second, wrap_for=wrap_for, flip=flip)
        assert await hear_failure(scene) is Code.PROTOCOL_PEER
        assert "does not open" in caplog.text
        assert scene.count(RejectReason.BROKEN_SEAL) == 1


@dataclass
class BrokenLearner:
    inner: Learner

    @property
    def samples(self) -> int:
        return self.inner.samples

    @property
    def examples(self) -> int:
        return self.inner.examples

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        training = self.inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)
        training.theta[5] = np.nan
        return training

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        return self.inner.evaluate(theta, memory=memory)


class BrokenTask(SyntheticTask):
    def learner(self, *, index: int, clients: int, seed: int) -> BrokenLearner:  # type: ignore[override]  # A Task.
        return BrokenLearner(super().learner(index=index, clients=clients, seed=seed))


@aio
async def test_an_update_with_nan_is_never_sent_and_the_client_says_nothing_instead(tmp_path: Path) -> None:
    async with joined_scene(tmp_path, BrokenTask(1_003)) as scene:
        await scene.play_good_round(1)
        first, second = scene.aggregators
        vectors, chunks = await scene.add(first, 1, "signs")
        _, others = await scene.add(second, 1, "signs")
        plan = plan_chunks(vectors, MANIFEST.chunk_bytes)
        phase = find_phase(MANIFEST.strategy, "signs")
        said = recombine_chunks(phase, plan, vectors, 2, lambda place, index: (chunks, others)[place][index])
        assert not any(values.any() for values in said)
        await scene.settle()
        assert not [envelope for envelope in scene.coordinator.heard if isinstance(envelope.body, PartyFailed)]


@aio
async def test_who_failed_early_sends_its_shares_when_training_would_have_been_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, gate = list[float](), asyncio.Event()

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await gate.wait()

    def fail_early(*_: object, **__: object) -> Training:
        raise ValueError("at the first step")

    monkeypatch.setattr(BrokenLearner, "train", fail_early)
    async with joined_scene(tmp_path, BrokenTask(1_003)) as scene:
        monkeypatch.setattr(scene.trainer._bench, "_sleep", wait)
        await scene.open_round(1)
        await until(lambda: bool(waits))
        await scene.settle()
        assert not any(aggregator.heard for aggregator in scene.aggregators)
        gate.set()
        await scene.sealed_shares(scene.aggregators[0])
    (waited_s,) = waits
    assert waited_s > 0


@aio
async def test_nothing_is_trained_or_evaluated_on_a_proposal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends one chooses what it makes run. A task is tried when its owner starts the trainer."""
    asked = list[str]()
    monkeypatch.setattr(BrokenLearner, "train", lambda *_, **__: asked.append("train"))
    monkeypatch.setattr(BrokenLearner, "evaluate", lambda *_, **__: asked.append("evaluate"))
    async with joined_scene(tmp_path, BrokenTask(1_003)) as scene:
        await scene.settle()
    assert asked == []


# Shares and transcripts ---------------------------------------------------------------------------------


@aio
async def test_shares_open_with_their_aggregators_key_alone_and_add_up_to_what_the_client_said(
    tmp_path: Path,
) -> None:
    async with joined_scene(tmp_path) as scene:
        await scene.open_round(1)
        first, second = scene.aggregators
        opened = [await scene.shares(aggregator) for aggregator in (first, second)]
        assert len({body.set_id for shares in opened for body, _ in shares}) == 1
        for thief, owner in ((second, first), (first, second)):
            for envelope, body in await scene.sealed_shares(owner):
                with pytest.raises(PeerError) as caught:
                    open_share(
                        scene.peers.seals[thief.name],
                        scene.stage(1, "signs"),
                        ME,
                        body.set_id,
                        body.index,
                        envelope.payload,
                    )
                assert caught.value.reason is RejectReason.BROKEN_SEAL
        vectors = make_vectors(MANIFEST)
        values, *_ = recombine_chunks(
            find_phase("no-union", "signs"),
            plan_chunks(vectors, MANIFEST.chunk_bytes),
            vectors,
            2,
            lambda place, index: opened[place][index][1],
        )
        said = signs.from_ring(values, 3)
        assert set(np.unique(said)) == {-1, 0, 1}
        assert np.count_nonzero(said) == MANIFEST.protocol_parameters.kept


@aio
async def test_no_two_shares_are_the_same_and_no_two_sets_have_one_id(tmp_path: Path) -> None:
    async with joined_scene(tmp_path, real=2) as scene:
        await scene.open_round(1)
        sets = [
            await scene.shares(aggregator, client=client)
            for aggregator in scene.aggregators
            for client in scene.real
        ]
        packed = [share for chunks in sets for _, share in chunks]
        assert len(set(packed)) == len(packed)
        assert len({body.set_id for chunks in sets for body, _ in chunks}) == 2


async def hear_transcripts(scene: Scene, number: int, phase: str) -> list[str]:
    """Each real client's, the same in all chunks that it sends to anybody."""
    found = []
    for client in scene.real:
        told = {
            body.transcript
            for aggregator in scene.aggregators
            for _, body in await scene.sealed_shares(aggregator, number, phase, client=client)
        }
        found.append(told.pop())
        assert not told
    return found


@pytest.mark.parametrize("manifest", [UNION, PARTIAL], ids=["sec-union", "partial-sec-union"])
@aio
async def test_clients_that_were_told_the_same_have_one_transcript_in_each_phase_of_each_round(
    tmp_path: Path, manifest: Manifest
) -> None:
    found = []
    async with joined_scene(tmp_path, manifest=manifest, real=2) as scene:
        for number in (1, 2):
            await scene.open_round(number)
            for phase in ("union", "signs"):
                first, second = await hear_transcripts(scene, number, phase)
                assert first == second
                found.append(first)
                for aggregator in scene.aggregators:
                    await scene.release(aggregator, number, phase=phase)
            await scene.hear(scene.coordinator, RoundApplied, number=number)
    assert len(set(found)) == 4


async def find_sum(scene: Scene, phase: str) -> tuple[tuple[Vector, ...], list[Residues]]:
    """What the real clients' values of the first round really add up to."""
    (vectors, first), (_, second) = [await scene.add(aggregator, 1, phase) for aggregator in scene.aggregators]
    plan, chunks = plan_chunks(vectors, MANIFEST.chunk_bytes), (first, second)
    rule = find_phase(scene.manifest.strategy, phase)
    return vectors, recombine_chunks(rule, plan, vectors, 2, lambda place, index: chunks[place][index])


def unverified(manifest: Manifest) -> Manifest:
    """The same without tags, so that clients take a sum that a server has shifted."""
    return manifest.model_copy(update={"verified": False})


async def lie_to_second(scene: Scene, phase: str, lie: Shift) -> None:
    """The first aggregator tells both clients the truth, the other tells it to one of them."""
    honest, liar = scene.aggregators
    await scene.release(honest, phase=phase)
    await scene.release(liar, phase=phase, to=[ME])
    await scene.release(liar, phase=phase, to=[SECOND], shift=lie)


@pytest.mark.parametrize(
    ("manifest", "from_", "to"),
    [
        pytest.param(UNION, 3, 0, id="another-union"),
        pytest.param(UNION, 3, 5, id="another-sum-and-the-same-union"),
        pytest.param(PARTIAL, 1, 0, id="another-union-with-counts"),
        pytest.param(PARTIAL, 1, 2, id="another-count-and-the-same-union"),
    ],
)
@aio
async def test_who_is_told_another_sum_has_another_transcript_in_the_next_phase(
    tmp_path: Path, manifest: Manifest, from_: int, to: int
) -> None:
    async with joined_scene(tmp_path, manifest=unverified(manifest), real=2) as scene:
        await scene.open_round(1)
        vectors, (total,) = await find_sum(scene, "union")
        place = int(np.flatnonzero(total == from_)[0])
        await lie_to_second(scene, "union", add_at(vectors, "union", place, to - from_))
        first, second = await hear_transcripts(scene, 1, "signs")
        assert first != second


@aio
async def test_who_is_told_other_members_has_another_transcript_in_the_next_phase(tmp_path: Path) -> None:
    async with joined_scene(tmp_path, manifest=UNION, real=2) as scene:
        await scene.open_round(1)
        for aggregator in scene.aggregators:
            await scene.release(aggregator, phase="union", to=[ME])
            await scene.release(aggregator, phase="union", to=[SECOND], members=UNION.clients)
        first, second = await hear_transcripts(scene, 1, "signs")
        assert first != second


@pytest.mark.parametrize(("vector", "by"), [("signs", 1), ("factors", 2**20)])
@aio
async def test_who_holds_another_model_has_another_transcript_in_the_next_round(
    tmp_path: Path, vector: str, by: int
) -> None:
    """Neither sum is impossible, so both clients apply what they were told."""
    async with joined_scene(tmp_path, manifest=unverified(MANIFEST), real=2) as scene:
        await scene.open_round(1)
        vectors, (total, _) = await find_sum(scene, "signs")
        untouched = int(np.flatnonzero(total == signs.to_ring(np.zeros(1, np.int8), 3)[0])[0])
        await lie_to_second(scene, "signs", add_at(vectors, vector, untouched if vector == "signs" else 0, by))
        await scene.hear(scene.coordinator, RoundApplied, number=1)
        assert scene.digests(ME) != scene.digests(SECOND)
        await scene.open_round(2)
        first, second = await hear_transcripts(scene, 2, "signs")
        assert first != second
