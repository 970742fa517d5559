"""A real aggregator on the compact wire: its one release is right to the bit, and made of nothing else."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.crypto.sealing import ChunkKey
from hubbub.errors import RejectReason
from hubbub.ids import PartyId, RunId, SetId
from hubbub.machine.effects import Key
from hubbub.messages.rounds import (
    ClosePhase,
    MaskedChunk,
    OrderRefused,
    PartialChunk,
    PhaseReleased,
    SumChunk,
    VoidPhase,
)
from hubbub.messages.runs import PartyFailed, RunEnded
from hubbub.messages.shares import DenseShareChunk, SetRefused, ShareChunk, ShareSeed, Traffic, declare
from hubbub.strategies.phase_plan import PhasePlan
from hubbub.trust.seals import RunSeals, ShareKey, Stage
from hubbub.trust.signed import sign_release
from hubbub_aggregator import spooled_shares
from hubbub_aggregator.phases.accumulation import CheckChunk
from hubbub_aggregator.spooled_shares import Openings
from support import plain_dense
from support.aggregator_scene import OTHER as PAPER_OTHER
from support.aggregator_scene import running_scene
from support.builders import TRANSCRIPT
from support.compact_scene import (
    CLIENTS,
    ME,
    PHASE,
    PLAN,
    SECOND,
    THIRD,
    VECTORS,
    CompactScene,
    compact_scene,
    cut,
    running_compact,
)
from support.deaths import Fate, live_through
from support.parties import identity_of
from support.sealed_shares import seal_share

both = pytest.mark.parametrize("combines", [True, False], ids=["combiner", "other"])


# Good rounds ----------------------------------------------------------------------------------------------


@both
async def test_rounds_in_which_it_combines_and_does_not_are_right_to_the_bit(
    tmp_path: Path, *, combines: bool
) -> None:
    async with running_compact(tmp_path, combines=combines) as scene:
        assert len(PLAN) == 2
        assert [scene.deal(client).holder == ME for client in CLIENTS].count(True) == 1, "sets in both forms"
        for number in (1, 2, 3):
            await scene.play_round(number)

        assert scene.dead() == []
        assert not scene.spooled(), "neither shares nor sums stay on disk"
        assert not scene.aggregator._jobs.opened._seeds, "nor opened seeds in memory"


async def test_a_run_that_ends_within_a_phase_takes_opened_seeds_and_keys_with_it(
    tmp_path: Path,
) -> None:
    async with running_compact(tmp_path, combines=False) as scene:
        await scene.deal_all()
        assert scene.aggregator._jobs.opened._seeds
        assert scene.aggregator._jobs.opened._share_keys

        await scene.command(RunEnded(outcome="failed", reason="enough"))
        await scene.empty_inbox()

        assert not scene.aggregator._jobs.opened._seeds
        assert not scene.aggregator._jobs.opened._share_keys
        assert not scene.aggregator._receipts


@pytest.mark.parametrize("restart", [True, False], ids=["restarted", "running"])
async def test_a_seed_is_opened_when_it_comes_and_again_only_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restart: bool
) -> None:
    opened: list[PartyId] = []
    open_seed = RunSeals.open_seed

    def note(self: RunSeals, stage: Stage, sender: PartyId, set_id: SetId, sealed: bytes) -> bytes:
        opened.append(sender)
        return open_seed(self, stage, sender, set_id, sealed)

    async def end_round(scene: CompactScene) -> None:
        opened.clear()
        await scene.order_close()
        await scene.check_release()

    monkeypatch.setattr(RunSeals, "open_seed", note)
    async with compact_scene(tmp_path, combines=False) as scene:
        seeded = sorted(client for client in CLIENTS if scene.deal(client, 1).holder != ME)
        async with scene.start():
            await scene.join()
            await scene.deal_all()
            assert sorted(opened) == seeded
            if not restart:
                await end_round(scene)
        if restart:
            async with scene.start():
                await end_round(scene)
    assert sorted(opened) == seeded * restart


async def test_the_key_of_a_share_set_is_opened_once_and_kept_in_memory_until_the_phase_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[PartyId] = []
    open_share_key = RunSeals.open_share_key

    def note(self: RunSeals, stage: Stage, sender: PartyId, set_id: SetId, payload: bytes) -> ShareKey:
        opened.append(sender)
        return open_share_key(self, stage, sender, set_id, payload)

    monkeypatch.setattr(RunSeals, "open_share_key", note)
    async with running_compact(tmp_path, combines=False) as scene:
        client = scene.owes_all()
        deal, seals = scene.deal(client), scene.seals[scene.run][client]
        key = seals.make_share_key(scene.stage(), ME, deal.set_id, ChunkKey.fresh())
        assert len(PLAN) > 1
        for index, chunk in enumerate(PLAN):
            body = DenseShareChunk(
                set_id=deal.set_id, vectors=declare(VECTORS), transcript=TRANSCRIPT, index=index
            )
            await scene.send(client, body, key.seal(index, cut(deal.share(ME), chunk)))
        await scene.hear_receipts(1, (client,))
        await scene.deal_all(clients=[each for each in CLIENTS if each != client])
        await scene.order_close()
        await scene.check_release()

        assert opened.count(client) == 1
        assert not scene.aggregator._jobs.opened._share_keys


@both
async def test_a_client_that_drops_out_or_is_not_ordered_is_in_nobodys_sum(
    tmp_path: Path, *, combines: bool
) -> None:
    for missing in CLIENTS:
        members = tuple(client for client in CLIENTS if client != missing)
        async with running_compact(tmp_path / missing, combines=combines) as scene:
            if missing == CLIENTS[0]:
                await scene.deal_all()
            await scene.play_round(1, members)


async def test_sums_of_the_others_may_come_before_our_order_and_no_void_is_obeyed_then(tmp_path: Path) -> None:
    async with running_compact(tmp_path, combines=True) as scene:
        await scene.deal_all()
        await scene.send_partials()
        await scene.command(VoidPhase(), round_number=1, phase=PHASE)
        ((_, refusal),) = await scene.coordinator.hear(OrderRefused)
        assert refusal.reason is RejectReason.CONTRADICTION

        await scene.order_close()

        await scene.check_release()


async def test_nothing_leaves_the_combiner_while_a_chunk_is_missing(tmp_path: Path) -> None:
    async with running_compact(tmp_path, combines=True) as scene:
        await scene.deal_all()
        await scene.order_close()
        for index in range(len(PLAN)):
            await scene.send_partial(SECOND, index)
        await scene.send_partial(THIRD, 0)
        await scene.send_partial(THIRD, 0)
        # A refusal is the answer to something sent after all that.
        await scene.command(VoidPhase(), round_number=1, phase=PHASE)
        await scene.coordinator.hear(OrderRefused)

        assert not [each for each in scene.clients[CLIENTS[0]].heard if isinstance(each.body, MaskedChunk)]

        await scene.send_partial(THIRD, 1)
        await scene.check_release()


async def test_what_came_up_and_across_and_went_down_is_counted(tmp_path: Path) -> None:
    async with running_compact(tmp_path, combines=True) as scene:
        await scene.play_round()

        ((_, report),) = await scene.coordinator.hear(PhaseReleased)

    def rows(direction: str) -> list[Traffic]:
        return [row for row in report.traffic if row.direction == direction]

    assert {row.counts_as for row in rows("across")} == {"signs", "factors", "tags"}
    seeds_and_share, partials = (sum(row.wire_bytes for row in rows(each)) for each in ("up", "across"))
    packed = sum(len(cut(scene.partial(ME), chunk)) for chunk in PLAN)
    assert packed < seeds_and_share, "one full share and two seeds"
    assert 2 * packed < partials
    digits, bits = plain_dense.word(VECTORS[0].modulus)
    words = math.ceil(VECTORS[0].length / digits)
    assert [row.payload_bits for row in rows("down")] == [3 * words * bits, 3 * 32, 3 * 3 * 64]


# Refused --------------------------------------------------------------------------------------------------

Misdeed = Callable[[CompactScene], Awaitable[None]]


async def a_share_of_the_papers_wire(scene: CompactScene) -> None:
    client = scene.owes_all()
    set_id = scene.deal(client).set_id
    body = ShareChunk(set_id=set_id, vectors=declare(VECTORS), transcript=TRANSCRIPT, index=0)
    sealed = seal_share(scene.seals[scene.run][client], scene.stage(), ME, set_id, 0, bytes(252))
    await scene.send(client, body, sealed)


async def send_odd_seed(scene: CompactScene, size: int) -> None:
    client = scene.owes_seed()
    seals, set_id = scene.seals[scene.run][client], scene.deal(client).set_id
    await scene.send_seed(client, payload=seals.seal_seed(scene.stage(), ME, set_id, bytes(size)))


async def send_sum(
    scene: CompactScene,
    sender: PartyId = SECOND,
    *,
    index: int = 0,
    number: int = 1,
    sealed_for: int | None = None,
    signature: str | None = None,
) -> None:
    """A good partial sum, but for its sender, its place or its signature."""
    body = scene.make_partial(SECOND, index, number, signature=signature)
    packed = cut(scene.partial(SECOND), PLAN[index]) if index < len(PLAN) else bytes(10)
    sealed = scene.seal_partial(SECOND, index, packed, sealed_for or number)
    await scene.send(sender, body, sealed, number)


def signed_as(*, run: RunId | None = None, number: int = 1, phase: str = PHASE, **claim: object) -> Misdeed:
    """A sum whose release is signed for something else than its message says."""

    def misdeed(scene: CompactScene) -> Awaitable[None]:
        release = scene.claim(SECOND).model_copy(update=claim)
        identity = identity_of(scene.manifest, SECOND)
        return send_sum(scene, signature=sign_release(identity, run or scene.run, number, phase, release))

    return misdeed


async def a_second_sum(scene: CompactScene) -> None:
    await scene.send_partial(SECOND, 0)
    await scene.send_partial(SECOND, 1, members=CLIENTS[1:])


MISDEEDS: dict[RejectReason, dict[str, Misdeed]] = {
    RejectReason.UNEXPECTED: {
        "a share of the paper's wire": a_share_of_the_papers_wire,
        "a seed where the share is owed": lambda s: s.send_seed(s.owes_all()),
        "a share where a seed is owed": lambda s: s.send_full(s.owes_seed(), 0),
    },
    RejectReason.WRONG_LENGTH: {
        "a long seed": lambda s: send_odd_seed(s, 33),
        "a short seed": lambda s: send_odd_seed(s, 31),
        "a share of another length": lambda s: s.send_full(s.owes_all(), 0, share=bytes(10)),
        "a sum of another length": lambda s: s.send_partial(SECOND, 0, packed=bytes(10)),
        "a chunk that no sum has": lambda s: send_sum(s, index=len(PLAN)),
    },
    RejectReason.WRONG_SENDER: {
        "a sum by a client": lambda s: send_sum(s, CLIENTS[0]),
        "a sum by the coordinator": lambda s: send_sum(s, s.coordinator.name),
    },
    RejectReason.BAD_SIGNATURE: {
        "a sum that another signed": lambda s: send_sum(s, THIRD),
        "signed for another round": signed_as(number=2),
        "signed for another phase": signed_as(phase="union"),
        "signed for another run": signed_as(run=RunId("0" * 32)),
        "signed for other members": signed_as(members=CLIENTS[1:]),
        "signed for another transcript": signed_as(transcript="7b" * 32),
    },
    RejectReason.TOO_EARLY: {"a sum of a round to come": lambda s: send_sum(s, number=4)},
    RejectReason.CONTRADICTION: {"a second sum": a_second_sum},
}


@pytest.mark.parametrize(
    ("misdeed", "reason"),
    [
        pytest.param(misdeed, reason, id=name)
        for reason, misdeeds in MISDEEDS.items()
        for name, misdeed in misdeeds.items()
    ],
)
async def test_what_has_not_its_form_is_put_aside_and_the_round_is_right(
    tmp_path: Path, misdeed: Misdeed, reason: RejectReason
) -> None:
    async with running_compact(tmp_path, combines=True) as scene:
        await misdeed(scene)
        assert await scene.bury() == [reason.value]

        await scene.play_round()
        assert scene.dead() == [reason.value]


async def test_who_does_not_combine_takes_no_sum(tmp_path: Path) -> None:
    async with running_compact(tmp_path, combines=False) as scene:
        await scene.send_partial(THIRD, 0)
        await scene.send_partial(scene.combiner, 0)

        assert await scene.bury(2) == [RejectReason.UNEXPECTED.value] * 2
        await scene.play_round()


@pytest.mark.parametrize("body", ["seed", "dense", "partial"])
async def test_on_the_papers_wire_nothing_of_this_is_taken(tmp_path: Path, body: str) -> None:
    """Nor is a dense share, which would be read as another one."""
    async with running_scene(tmp_path) as paper:
        claims = declare(VECTORS)
        shared = {"set_id": "5e" * 16, "vectors": claims, "transcript": TRANSCRIPT}
        bodies = {
            "seed": ShareSeed.model_validate(shared),
            "dense": DenseShareChunk.model_validate({**shared, "index": 0}),
            "partial": PartialChunk(
                members=CLIENTS, vectors=claims, transcript=TRANSCRIPT, signature="5a" * 64, index=0
            ),
        }
        sender = PAPER_OTHER if body == "partial" else CLIENTS[0]
        await paper.clients[CLIENTS[0]].say(
            bodies[body],
            to=ME,
            role=paper.aggregator.runner.identity.role,
            run=paper.run,
            round_number=1,
            phase=PHASE,
            payload=bytes(200),
            sender=sender,
        )

        assert await paper.bury() == [RejectReason.UNEXPECTED.value]
        await paper.play_good_round(1)


@both
async def test_a_sum_of_a_phase_that_is_over_is_late_and_changes_nothing(
    tmp_path: Path, *, combines: bool
) -> None:
    async with running_compact(tmp_path, combines=combines) as scene:
        for number in (1, 2):
            await scene.play_round(number)
        over = next(number for number in (1, 2, 3) if scene.combiner_of(number) == ME)
        if over == 3:
            await scene.play_round(3)
        await scene.send_partial(SECOND, 0, over)
        await scene.send_partial(SECOND, 1, over, members=CLIENTS[1:])

        await scene.play_round(4 if over == 3 else 3)

        assert scene.dead() == []
        assert scene.late(PartialChunk.kind) == 2


# Spoilt ---------------------------------------------------------------------------------------------------


async def spoil_seed(scene: CompactScene) -> PartyId:
    """It is sealed to the right party for another round."""
    client = scene.owes_seed()
    seals, deal = scene.seals[scene.run][client], scene.deal(client)
    elsewhere = replace(scene.stage(), round=2)
    await scene.send_seed(client, payload=seals.seal_seed(elsewhere, ME, deal.set_id, deal.seed(ME)))
    return client


async def seal_seed_as_a_share_key(scene: CompactScene) -> PartyId:
    client = scene.owes_seed()
    seals, deal = scene.seals[scene.run][client], scene.deal(client)
    key = seals.make_share_key(scene.stage(), ME, deal.set_id, ChunkKey(deal.seed(ME)))
    await scene.send_seed(client, payload=key.sealed)
    return client


async def seal_a_share_as_a_sum(scene: CompactScene) -> PartyId:
    client = scene.owes_all()
    deal, seals = scene.deal(client), scene.seals[scene.run][client]
    key, stage = ChunkKey.fresh(), scene.stage()
    sealed = seals.wrap_sum_key(stage, ME, key) + seals.encrypt_sum(stage, key, 0, cut(deal.share(ME), PLAN[0]))
    body = DenseShareChunk(set_id=deal.set_id, vectors=declare(VECTORS), transcript=TRANSCRIPT, index=0)
    await scene.send(client, body, sealed)
    return client


@pytest.mark.parametrize("spoil", [spoil_seed, seal_seed_as_a_share_key, seal_a_share_as_a_sum])
@both
async def test_a_spoilt_set_earns_no_receipt_and_the_others_are_added(
    tmp_path: Path, spoil: Callable[[CompactScene], Awaitable[PartyId]], *, combines: bool
) -> None:
    async with running_compact(tmp_path, combines=combines) as scene:
        client = await spoil(scene)
        ((_, refused),) = await scene.coordinator.hear(SetRefused)
        set_id, reason = scene.deal(client).set_id, RejectReason.BROKEN_SEAL
        assert refused == SetRefused(client=client, set_id=set_id, reason=reason)

        await scene.play_round(1, tuple(each for each in CLIENTS if each != client))


async def test_seeds_are_not_spooled_and_a_spoilt_one_after_a_good_one_changes_nothing(tmp_path: Path) -> None:
    async with running_compact(tmp_path, combines=False) as scene:
        await scene.deal_all(1, CLIENTS)
        assert {name.split(".")[2] for name in scene.spooled()} == {scene.owes_all()}
        await spoil_seed(scene)

        await scene.order_close(1, CLIENTS)
        await scene.check_release(1, CLIENTS)


@pytest.mark.parametrize("at_once", [True, False], ids=["short", "long"])
async def test_a_chunk_is_checked_at_once_if_it_is_short_and_by_a_job_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    checked = list[CheckChunk]()
    check = Openings.check

    def check_watched(self: Openings, key: Key, wire: PhasePlan, job: CheckChunk) -> None:
        checked.append(job)
        check(self, key, wire, job)

    monkeypatch.setattr(Openings, "check", check_watched)
    monkeypatch.setattr(spooled_shares, "AT_ONCE_BYTES", 2**19 if at_once else 0)
    async with running_compact(tmp_path, combines=True) as scene:
        await scene.play_round(1)

        looked_at = [] if at_once else [(scene.owes_all(), index) for index in range(len(PLAN))]
    assert sorted((job.client, job.index) for job in checked) == looked_at


@pytest.mark.parametrize("contradicts", [True, False])
async def test_a_sum_that_cannot_be_added_ends_the_run_and_no_client_is_sent_all_of_it(
    tmp_path: Path, *, contradicts: bool
) -> None:
    """It is over other members, or sealed for another round."""
    reason = RejectReason.CONTRADICTION if contradicts else RejectReason.BROKEN_SEAL
    async with running_compact(tmp_path, combines=True) as scene:
        await scene.deal_all()
        await scene.order_close()
        if contradicts:
            await scene.send_partial(SECOND, 0, members=CLIENTS[1:])
        else:
            await send_sum(scene, sealed_for=2)
            await scene.send_partial(SECOND, 1)
            for index in range(len(PLAN)):
                await scene.send_partial(THIRD, index)

        await scene.coordinator.hear(PartyFailed)

        assert scene.aggregator.counters.rejections(reason) == 1
        for client in scene.clients.values():
            heard = {each.body.index for each in client.heard if isinstance(each.body, MaskedChunk | SumChunk)}
            assert 0 not in heard, "of a sum that is broken in one chunk, others may be out"


# Deaths ---------------------------------------------------------------------------------------------------


async def play(scene: CompactScene) -> None:
    await scene.join()
    await scene.play_round()


def instants(combines: bool) -> list[tuple[str, int]]:  # noqa: FBT001
    """From the order on: before and after each thing that is kept or sent, the first time and the last."""
    sent = ("masked-chunk", len(CLIENTS) * len(PLAN)) if combines else ("partial-chunk", len(PLAN))
    kept = [("CloseOrdered", 1), ("PhaseEnded", 1), ("SumSent", 1)]
    kept += [("PartialArrived", 2 * len(PLAN))] if combines else []
    events = [(f"keeping {name}", count) for name, count in kept]
    events += [(f"sending {name}", count) for name, count in (sent, ("phase-released", 1))]
    return [
        (f"{when} {what}", at)
        for what, count in events
        for when in ("before", "after")
        for at in sorted({0, count - 1})
    ]


@pytest.mark.parametrize(
    ("combines", "instant", "at"),
    [(combines, *each) for combines in (True, False) for each in instants(combines)],
)
async def test_dead_at_any_instant_it_releases_the_identical_sum_over_the_identical_set(
    tmp_path: Path, instant: str, at: int, *, combines: bool
) -> None:
    async with compact_scene(tmp_path, combines=combines) as scene:
        fate = Fate(at=at, counts=lambda each: each == instant)

        await live_through(scene.start, play(scene), fate)

        assert fate.met.is_set()
        assert scene.dead() == []
        await scene.check_release()
        reports = [body for _, body in await scene.coordinator.hear(PhaseReleased)]
        assert all(report == reports[0] for report in reports)


@pytest.mark.parametrize("instant", ["before keeping CloseOrdered", "after keeping CloseOrdered"])
@pytest.mark.parametrize("void", [True, False], ids=["void", "other-members"])
@both
async def test_once_journalled_no_other_order_is_obeyed_after_a_restart(
    tmp_path: Path, instant: str, *, void: bool, combines: bool
) -> None:
    async with compact_scene(tmp_path, combines=combines) as scene:
        fate = Fate(at=0, counts=lambda each: each == instant)
        async with scene.start(fate):
            await scene.join()
            await scene.deal_all()
            await scene.order_close()
            await fate.met.wait()
        other = ClosePhase(members=CLIENTS[1:], receipts=scene.show_receipts(1, CLIENTS[1:]))
        async with scene.start():
            await scene.command(VoidPhase() if void else other, round_number=1, phase=PHASE)
            if combines:
                await scene.send_partials()

            await scene.check_release()
            await scene.empty_inbox()

        heard = [each.body for each in scene.coordinator.heard]
        refused = [each.reason for each in heard if isinstance(each, OrderRefused)]
        assert [*refused, *map(RejectReason, scene.dead())] == [RejectReason.ALREADY_ENDED]


async def test_sums_that_came_before_a_restart_need_not_be_sent_again(tmp_path: Path) -> None:
    async with compact_scene(tmp_path, combines=True) as scene:
        async with scene.start():
            await scene.join()
            await scene.deal_all()
            await scene.order_close()
            for index in range(len(PLAN)):
                await scene.send_partial(SECOND, index)
            await scene.send_partial(THIRD, 0)
            await scene.command(VoidPhase(), round_number=1, phase=PHASE)
            await scene.coordinator.hear(OrderRefused)
        async with scene.start():
            await scene.send_partial(THIRD, 1)

            await scene.check_release()
