"""Real trainers among parties made by hand: whatever those send, they go on; they act only on what all say."""

import asyncio
import hashlib
import hmac
import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hubbub.crypto.key_derivation import GroupSecret
from hubbub.errors import Code, LocalError, PeerError, RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied, RoundOpened, VoidNotice
from hubbub.messages.runs import GroupContribution, RunKeys
from hubbub.messages.shares import VectorClaim
from hubbub.protocol import signs
from hubbub.protocol.layout import Vector, pack_chunk, plan_chunks, unpack_chunk
from hubbub.protocol.ring import Residues
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Theta
from hubbub_trainer.policy import Policy
from hubbub_trainer.round_jobs import recombine_chunks
from hubbub_trainer.saved_model import read_kept_model
from hubbub_trainer.workspace import digest
from support.aio import until
from support.builders import make_run_key, make_vectors
from support.parties import roster_of
from support.sealed_shares import open_share
from support.spooled import spooled_in
from support.trainer_scene import Release, Scene, Shift, draw_up, find_phase, scene_of
from support.watched_task import WatchedTask

TASK = SyntheticTask(1_003)
MANIFEST = draw_up(TASK)
ME, SECOND, THIRD = MANIFEST.clients
MEMBERS = (ME, SECOND)
UNION = draw_up(TASK, strategy="sec-union", q=3)
PARTIAL = draw_up(TASK, strategy="partial-sec-union")
joined = partial(scene_of, joined=True)


def hmac_of_model(key: bytes, theta: Theta, means: Sequence[float]) -> str:
    """The HMAC that clients compare, of the model and the mean factors of the released rounds, as doubles."""
    model = hashlib.sha256(theta.astype("<f4").tobytes()).digest()
    return hmac.new(key, model + struct.pack(f"<{len(means)}d", *means), "sha256").hexdigest()


async def test_a_run_with_a_void_round_from_its_first_round_to_its_end(tmp_path: Path) -> None:
    task = WatchedTask()
    async with scene_of(tmp_path, MANIFEST, task) as scene:
        group = await scene.join()
        await scene.settle()
        assert (task.seeds, task.evaluations) == ([], 0), "whoever proposes a run chooses what it makes run"
        run, space = scene.trainer.context_of(MANIFEST.run_id), scene.space_of()
        held = space.group_secret
        await scene.play_good_round(1)
        ((body, _), *_) = await scene.shares(scene.aggregators[0], 1)
        await scene.play_void_round(2)
        assert len(scene.digests()) == 1, "the model stays"
        await scene.open_round(1)  # Old news.
        await scene.play_good_rounds(3, 4)
        assert len(set(scene.digests())) == len(space.history) == 3
        for _ in range(2):  # The second is late, and only counted.
            await scene.end()
        log = {(entry.kind, entry.fields.get("round")): entry.fields for entry in await scene.read_log()}
        assert scene.dead() == []
        theta = read_kept_model(scene.run_folder(ME)).theta
        assert digest(theta) in scene.digests()[-1]
        assert not spooled_in(tmp_path / ME / "spool")
        assert MANIFEST.run_id not in scene.trainer._seals
        with pytest.raises(PeerError, match="has not joined"):
            scene.trainer.context_of(MANIFEST.run_id)
        with pytest.raises(LocalError, match="there is no key for run"):
            run.seals.public(ME)
    assert task.memories == [None, 1.0, 1.0, 3.0], "the optimiser's memory does not live on through a void round"
    assert len(set(task.seeds)) == 4, "after a void round the batches are fresh"
    assert [*log] == [
        *(("joined", None), ("keys", None), ("group", None), ("released", 1), ("applied", 1), ("void", 2)),
        *(("released", 3), ("applied", 3), ("released", 4), ("applied", 4), ("ended", None)),
    ]
    assert log["released", 1]["transcript"] == body.transcript
    assert log["released", 1]["members"] == [*MEMBERS]
    assert log["void", 2]["phase"] == "signs"
    group.advance_to(3)
    assert log["applied", 4]["model_hmac"] != hmac_of_model(group.key_for("model"), theta, space.history)
    group.step()  # Once for every round, void or not.
    assert log["applied", 4]["model_hmac"] == hmac_of_model(group.key_for("model"), theta, space.history)
    with pytest.raises(LocalError, match="erased"):
        held.key_for("model")


# Joining ------------------------------------------------------------------------------------------------


async def test_a_run_that_is_not_its_own_is_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused: tuple[tuple[dict[str, object], Code, str], ...] = (
        ({"initial_model_sha256": "f" * 64}, Code.PROTOCOL_TASK, "is not the one that the manifest commits to"),
        ({"parameters": 1_004}, Code.PROTOCOL_TASK, "1003 parameters here, the manifest says 1004"),
        ({"task": "magic"}, Code.PROTOCOL_TASK, "there is no task 'magic'"),
        ({"roster_sha256": "f" * 64}, Code.POLICY_ROSTER, "the manifest is for the roster ffff"),
    )
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        for change, code, why in refused:
            assert await scene.refusal(draw_up(TASK, **change)) is code
            assert why in caplog.text
        await scene.join(MANIFEST)


async def test_everything_that_the_policy_has_against_a_run_is_in_the_log_and_a_code_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The demo's seed too: a trainer that is told to use it does not take part in what is real."""
    strict = Policy(roster_sha256=roster_of(MANIFEST).digest, max_rounds=1)
    async with scene_of(tmp_path / "strict", draw_up(TASK, strategy="fedavg"), TASK, policy=strict) as scene:
        assert await scene.refusal() is Code.POLICY_STRATEGY
    for why in (
        "the manifest's strategy is 'fedavg'",
        "min_clients is 2, the policy asks for at least 3",
        "is not approved",
        "has rounds = 9, the policy allows at most 1",
        "told to take its secrets from the demo's seed",
    ):
        assert why in caplog.text
    careful = Policy.for_demo(roster_of(MANIFEST).digest).model_copy(update={"demo_seed": False})
    async with scene_of(tmp_path / "seed", MANIFEST, TASK, policy=careful) as scene:
        assert await scene.refusal() is Code.POLICY_SEED
        assert "start the trainer without the seed" in caplog.text
    async with scene_of(tmp_path / "none", MANIFEST, TASK, policy=careful, demo_seed=None) as scene:
        await scene.join()


async def test_a_strategy_whose_package_is_missing_is_refused_with_what_to_install(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub_trainer.learning.task.find_spec", lambda module: None if module == "phe" else 1)
    async with scene_of(tmp_path, draw_up(TASK, strategy="eastly-he"), TASK) as scene:
        assert await scene.refusal() is Code.PROTOCOL_STRATEGY
    assert "eastly-he needs phe, which is not installed here: pip install 'hubbub[eastly]'" in caplog.text


# Keys and the group secret ------------------------------------------------------------------------------


async def test_a_part_that_does_not_open_ends_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        await scene.pledge()
        await scene.say(scene.parties[SECOND], GroupContribution(), round_number=0, phase="", payload=bytes(80))
        await scene.exchange()
        assert await scene.failure() is Code.PROTOCOL_PEER
        assert "a seal does not open" in caplog.text
        assert scene.count(RejectReason.BROKEN_SEAL) == 1


async def test_a_round_that_fails_while_it_waits_leaves_the_secret_to_the_round_that_is_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene_of(tmp_path, MANIFEST, TASK) as scene:
        group = await scene.join()
        await scene.open_round(1)
        await scene.open_round(2)
        await misdeed(round_number=2)(scene)
        await scene.say(scene.aggregators[1], VoidNotice(), round_number=2)
        assert await scene.failure() is Code.PROTOCOL_CONTRADICTION
        assert "says void where" in caplog.text
        await scene.play_good_round(1)
        means = scene.space_of().history
        (applied,) = [entry.fields["model_hmac"] for entry in await scene.read_log() if entry.kind == "applied"]
        await scene.end("failed")
        theta = read_kept_model(scene.run_folder(ME)).theta
        assert applied == hmac_of_model(group.key_for("model"), theta, means)


@pytest.mark.parametrize(("strategy", "phase"), [("no-union", "signs"), ("shared-mask", "levels")])
async def test_only_a_strategy_with_a_mask_has_a_key_for_it(
    strategy: str, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived, derive = list[str](), GroupSecret.key_for

    def note(group: GroupSecret, purpose: str) -> bytes:
        derived.append(purpose)
        return derive(group, purpose)

    monkeypatch.setattr(GroupSecret, "key_for", note)
    async with scene_of(tmp_path, draw_up(TASK, strategy=strategy), TASK, joined=True, demo_seed=None) as scene:
        await scene.open_round(1)
        await scene.shares(scene.aggregators[0], 1, phase=phase)

    assert ("mask" in derived) is (strategy == "shared-mask")
    assert "transcript" in derived


async def test_who_has_wasted_too_many_shares_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with joined(tmp_path, UNION, TASK) as scene:
        for number in (1, 2):
            await scene.play_void_round(number)
        assert await scene.failure() is Code.POLICY_VOID_ROUNDS
        assert "2 rounds (2 of them from one model) were void" in caplog.text
        await scene.propose()  # Late, and only counted: it has left for good.
        await scene.open_round(3)
        ended = [entry.fields["outcome"] for entry in await scene.read_log() if entry.kind == "ended"]
        assert (ended, scene.dead()) == (["left"], [])


# What ends among the dead letters -----------------------------------------------------------------------

Misdeed = Callable[[Scene], Awaitable[None]]


def misdeed(
    *, cut: int = 0, round_number: int = 1, phase: str = "signs", signer: PartyId | None = None, **changes: object
) -> Misdeed:
    """A sum that is wrong in one thing."""

    async def do(scene: Scene) -> None:
        first = scene.aggregators[0]
        chunk, packed = (await scene.shares(first))[0]
        said = {"members": MEMBERS, "vectors": chunk.vectors, "transcript": chunk.transcript, **changes}
        release = Release(scene, first, ME, round_number, phase)
        await release.send(0, packed, said, spoil=lambda payload: payload[: len(payload) - cut], signer=signer)

    return do


OTHER_RING = tuple(
    VectorClaim(name=name, length=length, modulus=modulus)
    for name, length, modulus in (("signs", 1_003, 8), ("factors", 1, 2**32), ("tags", 3, 2**64))
)


async def test_a_bad_message_is_put_aside_and_the_round_completes(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        first, second = scene.aggregators
        client, void, say = scene.parties[SECOND], VoidNotice(), scene.say
        run_keys, second_key = scene.peers.run_keys, make_run_key(MANIFEST, SECOND)
        other_keys = tuple(second_key if key.party == SECOND else key for key in run_keys)
        bad: tuple[tuple[Misdeed, RejectReason], ...] = (
            (misdeed(cut=1), RejectReason.WRONG_LENGTH),
            (misdeed(index=9), RejectReason.WRONG_LENGTH),
            (misdeed(vectors=OTHER_RING), RejectReason.WRONG_RING),
            (misdeed(members=(ME,)), RejectReason.TOO_FEW_MEMBERS),
            (misdeed(members=(ME, ME)), RejectReason.NOT_IN_COHORT),
            (misdeed(members=(ME, first.name)), RejectReason.NOT_IN_COHORT),
            (misdeed(members=(ME, PartyId("mallory"))), RejectReason.NOT_IN_ROSTER),
            (misdeed(round_number=3), RejectReason.TOO_EARLY),
            (misdeed(phase="union"), RejectReason.UNKNOWN_PHASE),
            (misdeed(signer=SECOND), RejectReason.BAD_SIGNATURE),
            (lambda _: say(first, void, phase="union"), RejectReason.UNKNOWN_PHASE),
            (lambda _: say(first, void, sender=PartyId("mallory")), RejectReason.NOT_IN_ROSTER),
            (lambda _: say(first, void, sender=second.name, signer=first.name), RejectReason.BAD_SIGNATURE),
            # The coordinator orders voids; only aggregators announce them.
            (lambda scene: scene.tell(void, 1), RejectReason.WRONG_SENDER),
            (lambda _: say(client, RoundOpened(), round_number=2, phase=""), RejectReason.WRONG_SENDER),
            (lambda _: scene.tell(RunKeys(keys=run_keys[:-1])), RejectReason.CONTRADICTION),
            # Its owner signed it, and still: a party has one key in a run.
            (lambda _: scene.tell(RunKeys(keys=other_keys)), RejectReason.SECOND_KEY),
            (lambda _: first.shout(b"\0" * 100, to=ME, role=Role.CLIENT), RejectReason.MALFORMED),
        )
        await scene.open_round(1)
        for number, (do, reason) in enumerate(bad):
            await do(scene)
            await scene.settle()
            assert scene.dead()[number:] == [reason.value], number
        assert scene.count(RejectReason.WRONG_LENGTH) == 2
        await scene.play_good_round(1)  # Orders the round again, which changes nothing.
        await scene.play_good_round(2)
        assert len(scene.dead()) == len(bad)


# Verdicts -----------------------------------------------------------------------------------------------


async def test_who_is_left_out_goes_on_with_the_memory_of_its_own_training(tmp_path: Path) -> None:
    task = WatchedTask()
    async with joined(tmp_path, MANIFEST, task) as scene:
        await scene.play_good_round(1, members=(SECOND, THIRD))
        await scene.play_good_round(2)
    assert task.memories == [None, 1.0]


@pytest.mark.parametrize(("demo_seed", "same"), [(3, True), (None, False)])
async def test_batches_follow_from_a_secret_of_the_run_unless_the_demo_fixes_them(
    tmp_path: Path, demo_seed: int | None, *, same: bool
) -> None:
    """The same seed in the manifest and another cohort: whose batches stayed the same could be subtracted."""
    task, smaller = WatchedTask(), draw_up(TASK, 2, roster_sha256=MANIFEST.roster_sha256)
    async with scene_of(tmp_path, MANIFEST, task, demo_seed=demo_seed) as scene:
        for manifest in (MANIFEST, smaller):
            await scene.join(manifest)
            await scene.play_good_round(1)
            await scene.end()
    first, second = task.seeds
    assert (first == second) is same


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


async def release_badly(scene: Scene, *, wrap_for: PartyId, flip: int) -> None:
    """A sum whose key or ciphertext is not what it should be; its length is right and it is signed."""

    def spoil(payload: bytes) -> bytes:
        return bytes([payload[0] ^ flip]) + payload[1:]

    release = Release(scene, scene.aggregators[1], ME, wrapped_for=wrap_for)
    for chunk, packed in await scene.shares(scene.aggregators[1]):
        said = {"members": MEMBERS, "vectors": chunk.vectors, "transcript": chunk.transcript}
        await release.send(chunk.index, packed, said, spoil=spoil)


TOO_MUCH = add_at(make_vectors(MANIFEST), "factors", 0, 3 * 2**30)
CONTRADICTION = (Code.PROTOCOL_CONTRADICTION, RejectReason.CONTRADICTION)
BROKEN_SEAL = (Code.PROTOCOL_PEER, RejectReason.BROKEN_SEAL, "does not open")
FATAL: dict[str, tuple[Misdeed, Code, RejectReason, str]] = {
    "void beside a release": (
        lambda scene: scene.say(scene.aggregators[1], VoidNotice()),
        *(*CONTRADICTION, "says void where aggregator-1 released"),
    ),
    # The same sum, under another key: nobody could tell that it is the same.
    "two sums": (
        lambda scene: scene.release(scene.aggregators[0]),
        *(*CONTRADICTION, "aggregator-1 released two sums of signs"),
    ),
    "impossible sum": (
        lambda scene: scene.release(scene.aggregators[1], shift=TOO_MUCH),
        *(Code.PROTOCOL_FALSE_SUM, RejectReason.FALSE_SUM, ""),
    ),
    "flipped bit": (lambda scene: release_badly(scene, wrap_for=ME, flip=1), *BROKEN_SEAL),
    "another's key": (lambda scene: release_badly(scene, wrap_for=SECOND, flip=0), *BROKEN_SEAL),
}


@pytest.mark.parametrize(("do", "code", "reason", "why"), FATAL.values(), ids=FATAL)
async def test_what_cannot_be_put_aside_is_counted_and_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, do: Misdeed, code: Code, reason: RejectReason, why: str
) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.open_round(1)
        await scene.release(scene.aggregators[0])
        await do(scene)
        assert await scene.failure() is code
        assert why in caplog.text
        assert (scene.count(reason), scene.digests()) == (1, [])


# Failing tasks ------------------------------------------------------------------------------------------


async def test_an_update_with_nan_is_never_sent_and_the_client_says_nothing_instead(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, WatchedTask(spoil=lambda theta: theta.put(5, np.nan))) as scene:
        await scene.play_good_round(1)
        _, said = await find_sum(scene, "signs")
        assert not any(values.any() for values in said)
        await scene.settle()
        assert scene.failures == []


async def test_who_failed_early_sends_its_shares_when_training_would_have_been_done(tmp_path: Path) -> None:
    waits, gate = list[float](), asyncio.Event()

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await gate.wait()

    def fail() -> None:
        raise ValueError("at the first step")

    async with joined(tmp_path, MANIFEST, WatchedTask(before=fail), sleep=wait) as scene:
        await scene.open_round(1)
        await until(lambda: bool(waits))
        await scene.settle()
        assert not any(aggregator.heard for aggregator in scene.aggregators)
        gate.set()
        await scene.sealed_shares(scene.aggregators[0])
    (waited_s,) = waits
    assert waited_s > 0


# Shares and transcripts ---------------------------------------------------------------------------------


async def test_shares_open_with_their_aggregators_key_alone_and_add_up(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK, real=2) as scene:
        await scene.open_round(1)
        first, second = scene.aggregators
        sets = [
            await scene.shares(aggregator, client=client) for aggregator in (first, second) for client in MEMBERS
        ]
        packed = [share for chunks in sets for _, share in chunks]
        assert len(set(packed)) == len(packed), "no two shares are the same"
        assert len({body.set_id for chunks in sets for body, _ in chunks}) == 2, "one set of each client"
        stage = scene.stage(1, "signs")
        for thief, owner in ((second, first), (first, second)):
            seals = scene.peers.seals[thief.name]
            for envelope, body in await scene.sealed_shares(owner):
                with pytest.raises(PeerError) as caught:
                    open_share(seals, stage, ME, body.set_id, body.index, envelope.payload)
                assert caught.value.reason is RejectReason.BROKEN_SEAL
        vectors, opened = make_vectors(MANIFEST), (sets[0], sets[2])
        plan, phase = plan_chunks(vectors, MANIFEST.chunk_bytes), find_phase("no-union", "signs")
        values, *_ = recombine_chunks(phase, plan, vectors, range(2), lambda place, index: opened[place][index][1])
        said = signs.from_ring(values, 3)
        assert set(np.unique(said)) == {-1, 0, 1}
        assert np.count_nonzero(said) == MANIFEST.protocol_parameters.kept


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
async def test_clients_that_were_told_the_same_have_one_transcript_in_each_phase_of_each_round(
    tmp_path: Path, manifest: Manifest
) -> None:
    found = []
    async with joined(tmp_path, manifest, TASK, real=2) as scene:
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
    """The true sum of the real clients' values in the first round."""
    (vectors, first), (_, second) = [await scene.add(aggregator, 1, phase) for aggregator in scene.aggregators]
    plan, chunks = plan_chunks(vectors, MANIFEST.chunk_bytes), (first, second)
    rule = find_phase(scene.manifest.strategy, phase)
    return vectors, recombine_chunks(rule, plan, vectors, range(2), lambda place, index: chunks[place][index])


def add_to_sum(phase: str, vector: str, value: int, by: int) -> Misdeed:
    """One aggregator adds to an element with this value in what it tells one of two clients."""

    async def do(scene: Scene) -> None:
        honest, liar = scene.aggregators
        vectors, (total, *_) = await find_sum(scene, phase)
        place = 0 if vector == "factors" else int(np.flatnonzero(total == value)[0])
        await scene.release(honest, phase=phase)
        await scene.release(liar, phase=phase, to=[ME])
        await scene.release(liar, phase=phase, to=[SECOND], shift=add_at(vectors, vector, place, by))

    return do


async def tell_other_members(scene: Scene) -> None:
    for aggregator in scene.aggregators:
        await scene.release(aggregator, phase="union", to=[ME])
        await scene.release(aggregator, phase="union", to=[SECOND], members=UNION.clients)


def unverified(manifest: Manifest) -> Manifest:
    """The same without tags, so that clients take a sum that a server has shifted."""
    return manifest.model_copy(update={"verified": False})


@pytest.mark.parametrize(
    ("manifest", "mislead"),
    [
        pytest.param(unverified(UNION), add_to_sum("union", "union", 3, -3), id="another-union"),
        pytest.param(unverified(UNION), add_to_sum("union", "union", 3, 2), id="another-sum-and-the-same-union"),
        pytest.param(unverified(PARTIAL), add_to_sum("union", "union", 1, -1), id="another-union-with-counts"),
        pytest.param(
            unverified(PARTIAL), add_to_sum("union", "union", 1, 1), id="another-count-and-the-same-union"
        ),
        pytest.param(UNION, tell_other_members, id="other-members"),
    ],
)
async def test_who_is_told_another_sum_or_members_has_another_transcript_in_the_next_phase(
    tmp_path: Path, manifest: Manifest, mislead: Misdeed
) -> None:
    async with joined(tmp_path, manifest, TASK, real=2) as scene:
        await scene.open_round(1)
        await mislead(scene)
        first, second = await hear_transcripts(scene, 1, "signs")
        assert first != second


NO_SIGN = int(signs.to_ring(np.zeros(1, np.int8), 3)[0])


@pytest.mark.parametrize(("vector", "by"), [("signs", 1), ("factors", 2**20)])
async def test_who_holds_another_model_has_another_transcript_in_the_next_round(
    tmp_path: Path, vector: str, by: int
) -> None:
    """Neither sum is impossible, so both clients apply what they were told."""
    async with joined(tmp_path, unverified(MANIFEST), TASK, real=2) as scene:
        await scene.open_round(1)
        await add_to_sum("signs", vector, NO_SIGN, by)(scene)
        await scene.hear(scene.coordinator, RoundApplied, number=1)
        assert scene.digests(ME) != scene.digests(SECOND)
        await scene.open_round(2)
        first, second = await hear_transcripts(scene, 2, "signs")
        assert first != second
