"""A real aggregator among parties made by hand: whatever they send, it goes on and adds rightly."""

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from hubbub.crypto.sealing import SealingKey
from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, Role, SetId
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import (
    ClosePhase,
    OrderRefused,
    PhaseReleased,
    PhaseVoided,
    SumChunk,
    VoidNotice,
    VoidPhase,
)
from hubbub.messages.runs import RunJoined, RunKey, RunKeys, RunProposed, RunReady, RunRefused
from hubbub.messages.shares import SetReceived, SetRefused, ShareChunk, SignedReceipt, declare
from hubbub.protocol.layout import Vector
from hubbub.trust.seals import RunSeals
from hubbub.trust.signed import check_receipt
from hubbub_aggregator.policy import AggregatorPolicy
from support.aggregator_scene import (
    ANOTHER,
    CANCELLED,
    CLIENTS,
    MANIFEST,
    ME,
    OTHER,
    PLAN,
    VECTORS,
    Scene,
    make_receipts,
    make_set,
    manifest_of,
    running_scene,
    scene_of,
    send_plain,
)
from support.aio import until
from support.builders import (
    TRANSCRIPT,
    make_cohort,
    make_envelope,
    make_manifest,
    make_sum_chunk,
)
from support.frames import encode
from support.parties import identity_of, roster_of, run_keys_of, sign_as, sign_receipts

FIRST = CLIENTS[0]


async def test_rounds_one_after_the_other_give_the_right_sums(tmp_path: Path) -> None:
    assert len(PLAN) == 2, "these tests need sets of several chunks"
    async with running_scene(tmp_path) as scene:
        for round_number in (1, 2, 3):
            await scene.play_good_round(round_number)
        assert scene.dead() == []
        assert not scene.spooled(), "shares do not stay on disk"


# Joining ------------------------------------------------------------------------------------------------


async def test_before_it_has_everybodys_keys_nothing_of_a_round_is_taken(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene, scene.start():
        keys = await scene.propose()
        await scene.send_chunk(FIRST, 0)
        await scene.close(1)
        await scene.order(VoidPhase(), 1)
        await scene.command(RunKeys(keys=keys))
        await scene.coordinator.hear(RunReady)
        assert await scene.bury(3) == [RejectReason.TOO_EARLY.value] * 3
        assert not scene.spooled()
        await scene.play_good_round(1)


async def test_asked_again_it_gives_the_key_that_it_gave_before(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene, scene.start():
        (first, *_) = await scene.propose()
        (again, *_) = await scene.propose()
        assert first == again


Garble = Callable[[tuple[RunKey, ...]], tuple[RunKey, ...]]


def another_key(party: PartyId, manifest: Manifest = MANIFEST) -> RunKey:
    key = SealingKey.generate(roster_of(MANIFEST).kem)
    return RunSeals(identity_of(MANIFEST, party), manifest.run_id, key).claim


GARBLED: dict[str, tuple[Garble, RejectReason]] = {
    "signed by another": (
        lambda keys: (*keys[:-1], keys[-1].model_copy(update={"signature": keys[0].signature})),
        RejectReason.BAD_SIGNATURE,
    ),
    "signed for another run, as a key that leaked would be": (
        lambda keys: (*keys[:-1], another_key(keys[-1].party, ANOTHER)),
        RejectReason.BAD_SIGNATURE,
    ),
    "one too few": (lambda keys: keys[:-1], RejectReason.CONTRADICTION),
    "one twice": (lambda keys: (*keys, another_key(keys[-1].party)), RejectReason.CONTRADICTION),
    "one of the coordinator": (
        lambda keys: (*keys[:-1], another_key(MANIFEST.coordinator)),
        RejectReason.CONTRADICTION,
    ),
}


@pytest.mark.parametrize("how", GARBLED)
async def test_wrong_run_keys_are_put_aside_and_the_right_ones_still_taken(tmp_path: Path, how: str) -> None:
    garble, reason = GARBLED[how]
    async with scene_of(tmp_path) as scene, scene.start():
        keys = await scene.propose()
        await scene.command(RunKeys(keys=garble(keys)))
        await scene.command(RunKeys(keys=keys))
        await scene.coordinator.hear(RunReady)
        assert await scene.bury() == [reason.value]
        await scene.play_good_round(1)


@pytest.mark.parametrize(
    ("manifest", "code", "why"),
    [
        pytest.param(
            make_manifest(aggregators=(PartyId("aggregator-8"), PartyId("aggregator-9"))),
            Code.PROTOCOL_MANIFEST,
            f"does not name {ME} as aggregator",
            id="does-not-name-it",
        ),
        pytest.param(
            make_manifest(clients=4), Code.POLICY_ROSTER, "the manifest is for the roster", id="another-roster"
        ),
        pytest.param(
            make_manifest(cohort=make_cohort(CLIENTS[::-1]), roster_sha256=MANIFEST.roster_sha256),
            Code.POLICY_ROSTER,
            "client-1 belongs to org-1 in the roster, and to org-3 in the manifest",
            id="another-organisation",
        ),
        pytest.param(
            make_manifest(clients=4, roster_sha256=MANIFEST.roster_sha256),
            Code.POLICY_ROSTER,
            "client-4 is not in the roster",
            id="a-stranger",
        ),
        pytest.param(
            make_manifest(strategy="magic"),
            Code.POLICY_STRATEGY,
            "'magic' (there is none such)",
            id="no-such-strategy",
        ),
    ],
)
async def test_a_run_that_it_cannot_agree_to_is_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, manifest: Manifest, code: Code, why: str
) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.command(RunProposed(manifest=manifest), run=manifest.run_id)
        ((_, refusal),) = await scene.coordinator.hear(RunRefused)
        assert refusal.code is code
        await scene.play_good_round(1)
        assert why in caplog.text
        assert scene.aggregator._seals.keys() == {scene.run}, "no key is kept for a run that was refused"


async def test_what_the_operators_policy_does_not_allow_is_refused_with_every_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The policy is read for each proposal, so that one that was edited counts at once."""
    async with scene_of(tmp_path) as scene, scene.start():
        scene.policy = AggregatorPolicy(roster_sha256=MANIFEST.roster_sha256, max_rounds=1, max_parameters=1)
        await scene.command(RunProposed(manifest=MANIFEST))
        ((_, refusal),) = await scene.coordinator.hear(RunRefused)
        assert refusal.code is Code.POLICY_MIN_CLIENTS
        await until(lambda: "edit max_parameters" in caplog.text and "edit max_rounds" in caplog.text)
        scene.policy = AggregatorPolicy.for_demo(MANIFEST.roster_sha256)
        other = make_manifest(nonce="7" * 32)
        await scene.command(RunProposed(manifest=other), run=other.run_id)
        await scene.coordinator.hear(RunJoined)


async def test_runs_are_counted_for_ever(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        scene.policy = scene.policy.model_copy(update={"max_runs": 1})
        async with scene.start():
            await scene.propose()
            await scene.command(CANCELLED)
        async with scene.start():
            other = make_manifest(nonce="7" * 32)
            await scene.command(RunProposed(manifest=other), run=other.run_id)
            ((_, refusal),) = await scene.coordinator.hear(RunRefused)
        assert refusal.code is Code.POLICY_RUNS


async def test_a_round_beyond_the_manifests_last_is_refused(tmp_path: Path) -> None:
    """With no released round, void ones come to an end all the same."""
    order, manifest = VoidPhase(), make_manifest(rounds=1, max_void_rounds=1)
    async with scene_of(tmp_path) as scene, scene.start():
        await scene.join(manifest)
        for number in (1, 2):
            await scene.command(order, run=manifest.run_id, round_number=number, phase="signs")
            await scene.coordinator.hear(PhaseVoided, number)
        await scene.command(order, run=manifest.run_id, round_number=3, phase="signs")
        assert await scene.bury() == [RejectReason.OVER.value]


# What ends among the dead letters -----------------------------------------------------------------------

Misdeed = Callable[[Scene], Awaitable[None]]


GOOD = make_set(FIRST, 1)
SIGNS, *REST = declare(VECTORS)


def replaced(frame: bytes, start: int, new: bytes) -> bytes:
    return frame[:start] + new + frame[start + len(new) :]


def flipped(frame: bytes) -> bytes:
    """A bit of the payload is another: the signature after it has 64 bytes."""
    return replaced(frame, -100, bytes([frame[-100] ^ 1]))


async def say_to_it(scene: Scene, body: Message, sender: PartyId | None = None) -> None:
    await scene.clients[FIRST].say(
        body, to=ME, role=Role.AGGREGATOR, run=scene.run, round_number=1, phase="signs", sender=sender
    )


async def send_two(scene: Scene, *, set_id: SetId | None = None, transcript: str = TRANSCRIPT) -> None:
    """The second chunk is not of the first one's set."""
    await scene.send_chunk(FIRST, 0)
    await scene.send_chunk(FIRST, 1, set_id=set_id, transcript=transcript)


async def send_other_run_keys(scene: Scene) -> None:
    """Every one signed by its owner, and one of them not the first that it signed."""
    own = scene.aggregator._seals[scene.run].claim
    *rest, last = run_keys_of(scene.seals[scene.run])
    await scene.command(RunKeys(keys=(own, *rest, another_key(last.party))))


async def close_with(scene: Scene, receipts: tuple[SignedReceipt, ...]) -> None:
    await scene.order(ClosePhase(members=CLIENTS, receipts=receipts), 1)


def forge_last(**changed: object) -> tuple[SignedReceipt, ...]:
    *rest, last = make_receipts(1)
    return (*rest, last.model_copy(update=changed))


STRANGE = make_receipts(1)[-1].receipt.model_copy(update={"aggregator": PartyId("aggregator-9")})

MISDEEDS: dict[RejectReason, dict[str, Misdeed]] = {
    RejectReason.WRONG_LENGTH: {
        "a short share": lambda s: s.send_chunk(FIRST, 0, payload=s.seal(FIRST, 0, GOOD.share(0)[:-1])),
        "a long share": lambda s: s.send_chunk(FIRST, 1, payload=s.seal(FIRST, 1, GOOD.share(1) + b"\0")),
        "a share in the open": lambda s: s.send_chunk(FIRST, 0, payload=GOOD.share(0)),
        "no share at all": lambda s: s.send_chunk(FIRST, 0, payload=b""),
        "another n": lambda s: s.send_chunk(FIRST, 0, vectors=(SIGNS.model_copy(update={"length": 1_004}), *REST)),
        "a vector too few": lambda s: s.send_chunk(FIRST, 0, vectors=(SIGNS,)),
        "a chunk that does not exist": lambda s: s.send_chunk(FIRST, 0, claimed_index=len(PLAN)),
    },
    RejectReason.WRONG_RING: {
        "another m": lambda s: s.send_chunk(FIRST, 0, vectors=(SIGNS.model_copy(update={"modulus": 8}), *REST)),
    },
    RejectReason.UNKNOWN_RUN: {"an unknown run": lambda s: s.send_chunk(FIRST, 0, run=ANOTHER.run_id)},
    RejectReason.TOO_EARLY: {
        "a future round": lambda s: s.send_chunk(FIRST, 0, round_number=2),
        "an order for a future round": lambda s: s.close(2),
    },
    RejectReason.UNKNOWN_PHASE: {"an unknown phase": lambda s: s.send_chunk(FIRST, 0, phase="union")},
    RejectReason.NOT_IN_ROSTER: {
        "a share of a stranger": lambda s: s.send_chunk(FIRST, 0, sender=PartyId("mallory")),
        "a receipt of a stranger": lambda s: close_with(s, forge_last(receipt=STRANGE)),
    },
    RejectReason.BAD_SIGNATURE: {
        "a share in another's name": lambda s: s.send_chunk(FIRST, 0, sender=CLIENTS[1], signer=FIRST),
        "a share that nobody signed": lambda s: s.shout(encode(good_envelope(s))),
        "a share with a bit flipped on the way": lambda s: s.shout(flipped(good_frame(s))),
        "a forged receipt": lambda s: close_with(s, forge_last(signature=make_receipts(1)[0].signature)),
        "receipts of another phase": lambda s: close_with(s, make_receipts(1, phase="union")),
        "receipts of another round": lambda s: close_with(s, make_receipts(1, signed_for=2)),
        "receipts of another run": lambda s: close_with(s, make_receipts(1, manifest=ANOTHER)),
    },
    RejectReason.WRONG_SENDER: {
        "a share of the coordinator": lambda s: s.send_chunk(FIRST, 0, sender=MANIFEST.coordinator),
        "an order of a client": lambda s: say_to_it(s, VoidPhase()),
    },
    RejectReason.WRONG_RECIPIENT: {
        "a message for somebody else": lambda s: s.send_chunk(FIRST, 0, recipient=OTHER),
        "a message that no aggregator takes": lambda s: say_to_it(s, make_sum_chunk(MANIFEST), OTHER),
    },
    RejectReason.SECOND_SET: {
        "a second set": lambda s: send_two(s, set_id=SetId("f" * 32)),
        "another transcript on the way": lambda s: send_two(s, transcript="7b" * 32),
    },
    RejectReason.SECOND_KEY: {"other run keys": send_other_run_keys},
    RejectReason.MALFORMED: {
        "poison": lambda s: s.shout(b"\xde\xad\xbe\xef" * 50),
        "a truncated frame": lambda s: s.shout(good_frame(s)[:-1]),
        "trailing bytes": lambda s: s.shout(good_frame(s) + b"!"),
    },
    RejectReason.UNKNOWN_VERSION: {
        "a version of the future": lambda s: s.shout(replaced(good_frame(s), 4, (99).to_bytes(2, "big")))
    },
    RejectReason.CONTRADICTION: {
        "a manifest of another run": lambda s: s.command(
            RunProposed(manifest=make_manifest(seed=9)), run=ANOTHER.run_id
        )
    },
}


def good_envelope(scene: Scene) -> Envelope:
    set_id = make_set(FIRST, 1).set_id
    body = ShareChunk(set_id=set_id, vectors=declare(VECTORS), transcript=TRANSCRIPT, index=0)
    return make_envelope(
        body,
        sender=FIRST,
        recipient=ME,
        manifest=MANIFEST,
        phase="signs",
        payload=scene.seal(FIRST, 0),
    )


def good_frame(scene: Scene) -> bytes:
    return encode(sign_as(MANIFEST, good_envelope(scene)))


@pytest.mark.parametrize(
    ("misdeed", "reason"),
    [
        pytest.param(misdeed, reason, id=name)
        for reason, misdeeds in MISDEEDS.items()
        for name, misdeed in misdeeds.items()
    ],
)
async def test_a_bad_message_is_put_aside_and_the_round_completes(
    tmp_path: Path, misdeed: Misdeed, reason: RejectReason
) -> None:
    async with running_scene(tmp_path) as scene:
        await misdeed(scene)
        await scene.play_good_round(1)
        assert await scene.bury() == [reason.value]
        assert scene.aggregator.counters.rejections(reason) == 1
        assert [entry for entry in scene.recorded("reason") if entry[0] == "refused"] == [
            ("refused", reason.value)
        ]
        await scene.play_good_round(2)
        assert len(scene.dead()) == 1


# Sets that cannot be opened -----------------------------------------------------------------------------

Forgery = Callable[[Scene], bytes]
"""A payload of the right length for the first chunk of the first client's set."""


FORGERIES: dict[str, Forgery] = {
    "garbage": lambda s: secrets.token_bytes(len(s.seal(FIRST, 0))),
    "sealed to another aggregator": lambda s: s.seal(FIRST, 0, to=OTHER),
    "sealed by another client": lambda s: s.seal(CLIENTS[1], 0, set_id=GOOD.set_id),
    "sealed for another round": lambda s: s.seal(FIRST, 0, round_number=2, set_id=GOOD.set_id),
    "sealed for another phase": lambda s: s.seal(FIRST, 0, phase="union"),
    "sealed for another set": lambda s: s.seal(FIRST, 0, set_id=SetId("f" * 32)),
    "sealed as another chunk": lambda s: s.seal(FIRST, 1, GOOD.share(0)),
    "sealed for another run": lambda s: s.seal(FIRST, 0, run=ANOTHER.run_id),
    # Sealed as it should be, but every 3 bits are 7, which Z_7 does not have.
    "values outside the ring": lambda s: s.seal(FIRST, 0, b"\xff" * len(GOOD.share(0))),
}


@pytest.mark.parametrize("how", FORGERIES)
async def test_a_set_that_cannot_be_opened_gets_no_receipt_and_the_others_are_added(
    tmp_path: Path, how: str
) -> None:
    inside = how == "values outside the ring"
    reason = RejectReason.RESIDUE_OUT_OF_RANGE if inside else RejectReason.BROKEN_SEAL
    async with running_scene(tmp_path) as scene:
        await scene.join(ANOTHER)
        bad, *good = CLIENTS
        await scene.send_chunk(bad, 0, payload=FORGERIES[how](scene))
        await scene.send_chunk(bad, 1)
        ((_, refusal),) = await scene.coordinator.hear(SetRefused)
        assert (refusal.client, refusal.reason) == (bad, reason)
        await scene.send_sets(1, tuple(good))
        await scene.close(1)
        ((_, declined),) = await scene.coordinator.hear(OrderRefused)
        assert declined.reason is RejectReason.MISSING_RECEIPT
        await scene.close(1, tuple(good))
        await scene.check_sum(1, tuple(good))
        assert (await scene.hear_receipts(1, tuple(good))).keys() == set(good)
        assert scene.dead() == []
        assert scene.aggregator.counters.rejections(reason) == 1
        assert ("refused", reason.value, bad) in scene.recorded("reason", "sender")
        await scene.play_good_round(2)


# What is counted and changes nothing --------------------------------------------------------------------


async def test_a_duplicate_chunk_is_added_once(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        for _ in range(3):
            await scene.send_chunk(FIRST, 0)
        scene.broker.lose_next_confirmation()  # The sender sends it again without knowing.
        await scene.send_chunk(CLIENTS[1], 0)
        await scene.play_good_round(1)
        receipts = await scene.coordinator.hear(SetReceived)
        assert sum(len(body.receipt.receipt.sets) for _, body in receipts) == 3
        ((_, released),) = await scene.coordinator.hear(PhaseReleased)
        arrived = sum(row.wire_bytes for row in released.traffic)
        frames = len(good_frame(scene)) * len(CLIENTS) * len(PLAN)
        assert arrived < frames * 1.1, "first deliveries only"
        assert scene.dead() == []


async def test_a_late_share_is_counted_and_not_added(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_sets(1, CLIENTS[:2])
        await scene.close(1, CLIENTS[:2])
        await scene.check_sum(1, CLIENTS[:2])
        for index in range(len(PLAN)):
            await scene.send_chunk(CLIENTS[2], index, round_number=1)
        await scene.play_good_round(2)
        assert scene.late("share-chunk") == len(PLAN)
        assert scene.dead() == []
        assert (await scene.hear_receipts(1, CLIENTS[:2])).keys() == set(CLIENTS[:2])


# Sealed, signed and recorded ----------------------------------------------------------------------------


async def test_a_receipt_is_signed_for_the_set_and_what_lies_on_disk_is_sealed(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        sealed = scene.seal(FIRST, 0)
        await scene.send_chunk(FIRST, 0, payload=sealed)
        await scene.send_chunk(FIRST, 1)
        ((_, body),) = await scene.coordinator.hear(SetReceived)  # So every chunk was opened.
        check_receipt(roster_of(MANIFEST), scene.run, 1, "signs", body.receipt)
        assert body.receipt == make_receipts(1, CLIENTS[:1])[0]
        found = scene.disk()
        assert any(sealed in content for content in found), "or else this test searches the wrong folder"
        for index in range(len(PLAN)):
            share = make_set(FIRST, 1).share(index)
            assert not any(share[:16] in content for content in found)


async def test_a_sum_is_encrypted_once_for_all_clients_and_its_key_sealed_to_each(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.play_good_round(1)
        sums = [await scene.open_sums(client, len(PLAN)) for client in CLIENTS]
        assert all(each == sums[0] for each in sums)
        for index, packed in sums[0].packed.items():
            assert packed[:16] not in sums[0].sealed[index]
        bodies = [body for client in CLIENTS for _, body in await scene.clients[client].hear(SumChunk)]
        assert len({body.wrapped_key for body in bodies}) == len(CLIENTS)
        await scene.play_good_round(2)
        assert (await scene.open_sums(FIRST, len(PLAN), 2)).key != sums[0].key, "a key serves one release"


async def test_the_audit_log_says_what_it_took_part_in_and_what_it_refused(
    tmp_path: Path,
) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_sets(1)
        await scene.close(1, CLIENTS[:1])
        ((_, refusal),) = await scene.coordinator.hear(OrderRefused)
        assert refusal.reason is RejectReason.TOO_FEW_MEMBERS
        assert scene.aggregator.counters.rejections(RejectReason.TOO_FEW_MEMBERS) == 1
        await scene.close(1)
        await scene.check_sum(1)
        await scene.coordinator.hear(PhaseReleased)
        await scene.order(VoidPhase(), 2)
        await scene.coordinator.hear(PhaseVoided)
        await scene.command(CANCELLED)
        await scene.join(ANOTHER)
        assert scene.recorded("reason", "round", "phase", "members", "transcript", "outcome")[:8] == [
            ("opened",),
            ("joined",),
            ("keys",),
            ("refused", "too-few-members"),
            ("released", 1, "signs", list(CLIENTS), TRANSCRIPT),
            ("void", 2, "signs"),
            ("ended", "cancelled"),
            ("joined",),
        ]
        assert scene.dead() == []


# Orders -------------------------------------------------------------------------------------------------


async def test_sets_after_different_sums_are_not_added_whatever_receipts_the_order_shows(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        *others, misled = CLIENTS
        await scene.send_sets(1, tuple(others))
        await scene.send_sets(1, (misled,), transcript="7b" * 32)
        ours = (await scene.hear_receipts())[misled].receipt
        theirs = [ours.model_copy(update={"aggregator": server}) for server in (ME, OTHER)]
        receipts = (*make_receipts(1, tuple(others)), *sign_receipts(MANIFEST, theirs))
        await scene.order(ClosePhase(members=CLIENTS, receipts=receipts), 1)
        ((_, refusal),) = await scene.coordinator.hear(OrderRefused)
        assert refusal.reason is RejectReason.DIFFERENT_TRANSCRIPT
        await scene.close(1, tuple(others))
        await scene.check_sum(1, tuple(others))
        assert scene.aggregator.counters.rejections(RejectReason.DIFFERENT_TRANSCRIPT) == 1


async def test_a_void_round_is_told_to_everybody_and_its_shares_are_forgotten(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_sets(1)
        await scene.order(VoidPhase(), 1)
        await scene.coordinator.hear(PhaseVoided)
        for client in scene.clients.values():
            await client.hear(VoidNotice)
        await scene.close(1)
        assert await scene.bury() == [RejectReason.ALREADY_ENDED.value]
        await scene.play_good_round(2)
        heard = scene.clients[FIRST].heard
        assert not [each for each in heard if isinstance(each.body, SumChunk) and each.round == 1]


async def test_after_the_release_the_same_order_is_old_news_and_any_other_is_refused(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.play_good_round(1)
        await scene.close(1, CLIENTS[::-1])
        await scene.close(1, CLIENTS[:2])
        await scene.order(VoidPhase(), 1)
        assert await scene.bury(2) == [RejectReason.ALREADY_ENDED.value] * 2
        assert scene.late("close-phase") == 1
        await scene.play_good_round(2)
        assert len(await scene.coordinator.hear(PhaseReleased, round_number=1)) == 1


# The end ------------------------------------------------------------------------------------------------


async def test_after_the_last_word_a_run_is_over_for_good_and_its_key_is_gone(tmp_path: Path) -> None:
    async with running_scene(tmp_path) as scene:
        await scene.send_chunk(FIRST, 0)
        await scene.command(CANCELLED)
        await scene.propose(ANOTHER)
        await scene.send_chunk(FIRST, 1)
        await scene.command(RunProposed(manifest=MANIFEST))
        await scene.command(RunProposed(manifest=ANOTHER), run=ANOTHER.run_id)
        await scene.coordinator.hear(RunJoined, 3)
        assert scene.late("share-chunk") == scene.late("run-proposed") == 1
        assert not scene.spooled()
        assert scene.aggregator._seals.keys() == {ANOTHER.run_id}


# Phases that only the first aggregator takes part in ----------------------------------------------------


async def test_fedavg_averages_by_weight_and_gives_everybody_the_same_under_a_key_of_its_own(
    tmp_path: Path,
) -> None:
    manifest = manifest_of("fedavg")
    vector = Vector("update", 100, 2**32)
    updates = [np.random.default_rng(number).standard_normal(100).astype(np.float32) for number in range(3)]
    weights = (1, 2, 5)
    async with running_scene(tmp_path) as scene:
        await scene.join(manifest)
        scene.run = manifest.run_id
        for client, update, weight in zip(CLIENTS, updates, weights, strict=True):
            await send_plain(scene, client, "update", vector, update.astype("<f4").tobytes(), weight=weight)
        receipts = tuple(dict.fromkeys((await scene.hear_receipts()).values()))
        order = ClosePhase(members=CLIENTS, receipts=receipts)
        await scene.command(order, round_number=1, phase="update")
        total = sum(update.astype(np.float64) * weight for update, weight in zip(updates, weights, strict=True))
        expected = np.asarray(total / 8).astype("<f4").tobytes()
        sums = [await scene.open_sums(client, 1, phase="update") for client in CLIENTS]
        assert [each.packed for each in sums] == [{0: expected}] * 3
        assert len({each.key for each in sums}) == len({each.sealed[0] for each in sums}) == 3
        ((_, released),) = await scene.coordinator.hear(PhaseReleased)
        assert released.vectors == declare((vector,))
        assert sum(row.payload_bits for row in released.traffic if row.direction == "down") == 3 * 3_200


async def test_marks_in_the_open_are_for_the_first_aggregator_alone(tmp_path: Path) -> None:
    manifest = manifest_of("plaintext-union", second=True)
    async with running_scene(tmp_path) as scene:
        await scene.join(manifest)
        scene.run = manifest.run_id
        await send_plain(scene, FIRST, "union", Vector("union", 100, 2), bytes(13))
        scene.run = MANIFEST.run_id
        await scene.play_good_round(1)
        assert await scene.bury() == [RejectReason.UNKNOWN_PHASE.value]


@pytest.mark.parametrize("phase", ["union", "signs"])
async def test_a_void_of_any_phase_ends_the_round_for_an_aggregator_with_part_in_one(
    tmp_path: Path, phase: str
) -> None:
    manifest = manifest_of("plaintext-union", second=True)
    async with running_scene(tmp_path) as scene:
        await scene.join(manifest)
        for number in (1, 2):
            body = VoidPhase()
            await scene.command(body, run=manifest.run_id, round_number=number, phase=phase)
            await scene.coordinator.hear(PhaseVoided, round_number=number)
            for client in scene.clients.values():
                await client.hear(VoidNotice, round_number=number)
        assert scene.dead() == []
