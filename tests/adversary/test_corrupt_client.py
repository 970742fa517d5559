"""One client is corrupt: it spoils its own part at most, and what it spoils is told from what it is not."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, SetId
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.rounds import ClosePhase, RoundOpened, SumChunk, VoidNotice
from hubbub.messages.runs import (
    GroupConfirmed,
    GroupContribution,
    PartyFailed,
    RunEnded,
    RunJoined,
    RunKey,
    RunProposed,
)
from hubbub.messages.shares import SetReceived, ShareChunk
from hubbub_aggregator.journal import PhaseOutcome
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.reasons import tell_failure
from support.builders import TRANSCRIPT, make_claims, make_receipt, make_run_key, make_sum_chunk
from support.corrupt_party import Rewrite, Scene, corrupt_federation, draw_up, is_said, say
from support.held_task import Silence
from support.parties import sign_as, sign_receipts

MANIFEST = draw_up()
FIRST, OTHER = MANIFEST.aggregators
ANNA, BERT, CORRUPT = MANIFEST.clients
EVERYBODY = MANIFEST.clients
COORDINATOR = MANIFEST.coordinator

Replace = Callable[[Scene, Envelope], Sequence[Envelope]]


def instead(
    make: Replace, kind: type[Message], *, number: int = 1, phase: str = "", to: PartyId | None = None
) -> Callable[[Scene], Rewrite]:
    """Say something else than the messages of a kind."""

    def begin(scene: Scene) -> Rewrite:
        def rewrite(envelope: Envelope) -> Sequence[Envelope]:
            if is_said(envelope, kind, number=number, phase=phase, to=to):
                return make(scene, envelope)
            return [envelope]

        return rewrite

    return begin


def was_spoilt(data: rounds.CoordinatorRound) -> bool:
    """Nobody waits any longer for a client whose set an aggregator refused."""
    return data.missing() == (CORRUPT,) and CORRUPT in data.record.spoilt


# The group secret -----------------------------------------------------------------------------------------


def deal(contribution: bytes) -> Replace:
    def make(scene: Scene, envelope: Envelope) -> Sequence[Envelope]:
        seals = scene.trainer(envelope.sender)._seals[envelope.run]
        return [say(envelope, payload=seals.seal_contribution(envelope.recipient, contribution))]

    return make


def assert_no_share_was_sent(scene: Scene) -> None:
    assert [each for each in scene.sent if isinstance(each.body, (RoundOpened, ShareChunk))] == []


def deal_unequally(scene: Scene) -> Rewrite:
    """Deal another part to Anna than to Bert, and let them find out from each other."""
    deal_another = instead(deal(bytes(32)), GroupContribution, number=0, to=ANNA)(scene)

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        return [] if isinstance(envelope.body, (GroupConfirmed, PartyFailed)) else deal_another(envelope)

    return rewrite


async def test_parts_of_the_group_secret_that_differ_end_the_run_before_its_first_round(tmp_path: Path) -> None:
    async with corrupt_federation(MANIFEST, tmp_path, {CORRUPT: deal_unequally}) as scene:
        state, run = await scene.run()

        assert (state, run.round) == (runs.State.FAILED, 0)
        assert run.reason == tell_failure(run.failed_party or CORRUPT, Code.PROTOCOL_GROUP)
        refused = scene.refused()
        # Whoever finds it out first ends the run, also for the other.
        assert refused.keys() & {ANNA, BERT}
        assert all(each == {RejectReason.DIFFERENT_GROUP: 1} for each in refused.values())
        assert_no_share_was_sent(scene)


def confirm_another(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
    return [say(envelope, body=GroupConfirmed(confirmation="0" * 64))]


def garble(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
    return [say(envelope, payload=secrets.token_bytes(len(envelope.payload)))]


@pytest.mark.parametrize(
    ("make", "kind", "reason"),
    [
        (confirm_another, GroupConfirmed, RejectReason.DIFFERENT_GROUP),
        (garble, GroupContribution, RejectReason.BROKEN_SEAL),
        (deal(bytes(31)), GroupContribution, RejectReason.MALFORMED),
    ],
    ids=["another-confirmation", "garbage", "too-short"],
)
async def test_a_client_that_cannot_agree_ends_the_run_before_its_first_round(
    tmp_path: Path, make: Replace, kind: type[Message], reason: RejectReason
) -> None:
    corrupt = {CORRUPT: instead(make, kind, number=0, to=ANNA)}
    async with corrupt_federation(MANIFEST, tmp_path, corrupt) as scene:
        state, run = await scene.run()

        assert (state, run.round) == (runs.State.FAILED, 0)
        assert run.failed_party == ANNA
        assert scene.refused() == {ANNA: {reason: 1}}
        assert_no_share_was_sent(scene)


# Shares that are no shares --------------------------------------------------------------------------------


def put_sevens(share: bytearray) -> None:
    """The first elements of Z_7 are 7."""
    share[0] = 0xFF


def put_padding(share: bytearray) -> None:
    """103 signs of 3 bits leave the last 3 bits of the 39th byte."""
    share[38] |= 0x80


def reseal(change: Callable[[bytearray], None]) -> Replace:
    def make(scene: Scene, envelope: Envelope) -> Sequence[Envelope]:
        share = bytearray(scene.open_share(envelope))
        change(share)
        return [scene.seal_share(envelope, bytes(share))]

    return make


SPOILT = pytest.mark.parametrize(
    ("make", "reason"),
    [
        (garble, RejectReason.BROKEN_SEAL),
        (reseal(put_sevens), RejectReason.RESIDUE_OUT_OF_RANGE),
        (reseal(put_padding), RejectReason.NONZERO_PADDING),
    ],
    ids=["garbage", "residues", "padding"],
)


@SPOILT
async def test_a_set_that_one_aggregator_cannot_use_is_left_out_by_all(
    tmp_path: Path, make: Replace, reason: RejectReason
) -> None:
    manifest = draw_up(strategy="no-union")
    corrupt = {CORRUPT: instead(make, ShareChunk, to=FIRST)}
    async with corrupt_federation(manifest, tmp_path, corrupt, overdue=was_spoilt) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {FIRST: {reason: 1}}
        assert CORRUPT not in receipts_of(scene, FIRST)
        assert CORRUPT in receipts_of(scene, OTHER)
        assert scene.verdicts(1, "signs") == [PhaseOutcome((ANNA, BERT))] * 2
        ((_, data),) = scene.rounds()
        assert data.record.spoilt == {CORRUPT: f"{FIRST} refused its shares: {reason}"}
        assert scene.has_models({1: (ANNA, BERT)})


def receipts_of(scene: Scene, aggregator: PartyId) -> set[PartyId]:
    """For whose sets an aggregator has signed."""
    return {
        client
        for each in scene.sent
        if isinstance(each.body, SetReceived) and each.sender == aggregator
        for client in each.body.receipt.receipt.set_of
    }


async def test_if_nobody_can_be_spared_a_spoilt_set_voids_the_round(tmp_path: Path) -> None:
    manifest = draw_up(min_clients=3, max_void_rounds=0)
    corrupt = {CORRUPT: instead(garble, ShareChunk, to=FIRST)}
    async with corrupt_federation(manifest, tmp_path, corrupt, overdue=was_spoilt) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert run.reason.endswith(f"{CORRUPT} did not deliver, and 2 clients are too few")
        assert scene.refused() == {FIRST: {RejectReason.BROKEN_SEAL: 1}}
        assert scene.verdicts(1, "union") == [PhaseOutcome(())] * 2
        assert [each for each in scene.sent if isinstance(each.body, SumChunk)] == []


# Two sets -------------------------------------------------------------------------------------------------

ANOTHER_SET = SetId("ee" * 16)


def send_another_set(scene: Scene, envelope: Envelope) -> Sequence[Envelope]:
    """A second one, complete and well sealed."""
    return [envelope, scene.seal_share(envelope, scene.open_share(envelope), ANOTHER_SET)]


def send_another_transcript(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
    return [envelope, say(envelope, body=envelope.body.model_copy(update={"transcript": TRANSCRIPT}))]


@pytest.mark.parametrize("make", [send_another_set, send_another_transcript])
async def test_a_second_set_is_refused_and_the_first_one_counts(tmp_path: Path, make: Replace) -> None:
    corrupt = {CORRUPT: instead(make, ShareChunk, phase="union", to=FIRST)}
    async with corrupt_federation(MANIFEST, tmp_path, corrupt) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {FIRST: {RejectReason.SECOND_SET: 1}}
        assert scene.dead(FIRST) == [RejectReason.SECOND_SET.value]
        assert scene.has_models({1: EVERYBODY})


def flip_everything(share: bytearray) -> None:
    """Another union: marks of 3 bits, of which 103 leave 3 bits of the last byte."""
    for place in range(len(share) - 1):
        share[place] ^= 0xFF


async def test_another_content_under_the_same_set_id_changes_nothing(tmp_path: Path) -> None:
    def send_both(scene: Scene, envelope: Envelope) -> Sequence[Envelope]:
        return [envelope, *reseal(flip_everything)(scene, envelope)]

    corrupt = {CORRUPT: instead(send_both, ShareChunk, phase="union", to=FIRST)}
    async with corrupt_federation(MANIFEST, tmp_path, corrupt) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {}
        assert scene.has_models({1: EVERYBODY})


def change_set_id(scene: Scene, envelope: Envelope) -> Sequence[Envelope]:
    return [scene.seal_share(envelope, scene.open_share(envelope), ANOTHER_SET)]


async def test_a_different_set_for_each_aggregator_makes_no_member(tmp_path: Path) -> None:
    manifest = draw_up(strategy="no-union")
    corrupt = {CORRUPT: instead(change_set_id, ShareChunk, to=FIRST)}
    async with corrupt_federation(manifest, tmp_path, corrupt) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {COORDINATOR: {RejectReason.SECOND_SET: 1}}
        assert scene.verdicts(1, "signs") == [PhaseOutcome((ANNA, BERT))] * 2
        assert scene.has_models({1: (ANNA, BERT)})


async def test_not_even_with_the_coordinator_are_different_sets_of_one_client_added(tmp_path: Path) -> None:
    """The order shows every aggregator's true receipts, which name two sets of the client."""
    corrupt = {
        CORRUPT: instead(change_set_id, ShareChunk, to=FIRST),
        COORDINATOR: instead(order_everybody, ClosePhase),
    }
    async with corrupt_federation(draw_up(strategy="no-union"), tmp_path, corrupt) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert "refused the order on signs (missing-receipt)" in run.reason
        assert CORRUPT in receipts_of(scene, FIRST) & receipts_of(scene, OTHER)
        assert scene.refused()[FIRST] == {RejectReason.MISSING_RECEIPT: 1}
        assert scene.sums_sent(1, "signs") == []


# Somebody else's shares -----------------------------------------------------------------------------------


async def test_shares_that_the_broker_swapped_are_refused(tmp_path: Path) -> None:
    """It delivers the true ones too, later, so that the round goes on."""
    kept: list[Envelope] = []

    def swap(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
        kept.append(envelope)
        if len(kept) == 1:
            return []
        one, two = kept
        return [replace(one, payload=two.payload), replace(two, payload=one.payload), one, two]

    corrupt = dict.fromkeys((ANNA, BERT), instead(swap, ShareChunk, phase="union", to=FIRST))
    async with corrupt_federation(MANIFEST, tmp_path, corrupt) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {FIRST: {RejectReason.BAD_SIGNATURE: 2}}
        assert scene.dead(FIRST) == [RejectReason.BAD_SIGNATURE.value] * 2
        assert scene.has_models({1: EVERYBODY})


def steal_payload(own: Envelope, other: Envelope) -> Envelope:
    return say(own, payload=other.payload)


def steal_all(own: Envelope, other: Envelope) -> Envelope:
    """Set id and transcript too."""
    return say(own, payload=other.payload, body=other.body)


@pytest.mark.parametrize("steal", [steal_payload, steal_all])
@pytest.mark.parametrize(
    ("sender", "recipient", "number"),
    [(ANNA, FIRST, 2), (CORRUPT, OTHER, 2), (CORRUPT, FIRST, 1)],
    ids=["another-client's", "another-aggregator's", "an-earlier-round's"],
)
async def test_a_sealed_share_opens_nowhere_but_where_it_belongs(
    tmp_path: Path,
    steal: Callable[[Envelope, Envelope], Envelope],
    sender: PartyId,
    recipient: PartyId,
    number: int,
) -> None:
    """In round 2 the corrupt client sends the first aggregator, as its own, a share that was sealed elsewhere."""
    silence, held = Silence((EVERYBODY.index(CORRUPT), 2)), list[Envelope]()

    def resend(scene: Scene, envelope: Envelope) -> Sequence[Envelope]:
        held.append(envelope)
        if envelope.recipient != OTHER:
            return []
        theirs = next(
            each
            for each in (*scene.sent, *held)
            if is_said(each, ShareChunk, number=number, phase="union", to=recipient) and each.sender == sender
        )
        return [steal(each, theirs) if each.recipient == FIRST else each for each in held]

    def let_go(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
        silence.lift(2)
        return [envelope]

    corrupt = {
        CORRUPT: instead(resend, ShareChunk, number=2, phase="union"),
        ANNA: instead(let_go, ShareChunk, number=2, phase="union", to=OTHER),
    }
    async with corrupt_federation(
        draw_up(rounds=2), tmp_path, corrupt, overdue=was_spoilt, silence=silence
    ) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {FIRST: {RejectReason.BROKEN_SEAL: 1}}
        assert scene.verdicts(2, "union") == [PhaseOutcome((ANNA, BERT))] * 2
        assert scene.has_models({1: EVERYBODY, 2: (ANNA, BERT)})


# Another transcript ---------------------------------------------------------------------------------------


def with_transcript(envelope: Envelope, transcript: str) -> Envelope:
    return say(envelope, body=envelope.body.model_copy(update={"transcript": transcript}))


def make_one_up(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
    return [with_transcript(envelope, TRANSCRIPT)]


def tell_one_aggregator_another(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
    return [with_transcript(envelope, TRANSCRIPT) if envelope.recipient == FIRST else envelope]


def copy_an_old_one(scene: Scene, envelope: Envelope) -> Sequence[Envelope]:
    """Anna's first, of whatever round and phase it was."""
    old = next(each.body for each in scene.sent if each.sender == ANNA and isinstance(each.body, ShareChunk))
    return [with_transcript(envelope, old.transcript)]


@pytest.mark.parametrize("make", [make_one_up, tell_one_aggregator_another, copy_an_old_one])
async def test_who_has_another_transcript_is_added_to_nobody(tmp_path: Path, make: Replace) -> None:
    corrupt = {CORRUPT: instead(make, ShareChunk, number=2, phase="union")}
    async with corrupt_federation(draw_up(rounds=2), tmp_path, corrupt) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 2, 0)
        assert scene.refused() == {COORDINATOR: {RejectReason.DIFFERENT_TRANSCRIPT: 1}}
        assert scene.verdicts(2, "union") == [PhaseOutcome((ANNA, BERT))] * 2
        assert scene.has_models({1: EVERYBODY, 2: (ANNA, BERT)})


@pytest.mark.parametrize("make", [make_one_up, tell_one_aggregator_another, copy_an_old_one])
async def test_in_a_later_phase_another_transcript_voids_the_round(tmp_path: Path, make: Replace) -> None:
    corrupt = {CORRUPT: instead(make, ShareChunk, phase="signs")}
    async with corrupt_federation(MANIFEST, tmp_path, corrupt) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 1, 1)
        assert scene.refused() == {COORDINATOR: {RejectReason.DIFFERENT_TRANSCRIPT: 1}}
        assert scene.verdicts(1, "signs") == [PhaseOutcome(())] * 2
        assert scene.sums_sent(1, "signs") == []
        assert scene.has_models({2: EVERYBODY})


# Out of turn ----------------------------------------------------------------------------------------------


def butt_in(scene: Scene, envelope: Envelope) -> Sequence[Envelope]:
    """Beside Anna's share of the signs, a well-made one of the client that is no member of the round."""
    own = replace(envelope, sender=CORRUPT)
    sealed = scene.seal_share(own, scene.open_share(envelope), ANOTHER_SET)
    return [sign_as(scene.manifest, sealed), envelope]


def order_everybody(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
    return [say(envelope, body=envelope.body.model_copy(update={"members": EVERYBODY}))]


async def test_a_set_of_a_client_that_is_no_member_is_not_added(tmp_path: Path) -> None:
    corrupt = {
        CORRUPT: instead(garble, ShareChunk, phase="union", to=FIRST),
        ANNA: instead(butt_in, ShareChunk, phase="signs"),
    }
    async with corrupt_federation(MANIFEST, tmp_path, corrupt, overdue=was_spoilt) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {FIRST: {RejectReason.BROKEN_SEAL: 1}}
        assert scene.verdicts(1, "signs") == [PhaseOutcome((ANNA, BERT))] * 2
        assert scene.has_models({1: (ANNA, BERT)})


async def test_not_even_with_the_coordinator_is_a_client_added_that_is_no_member(tmp_path: Path) -> None:
    corrupt = {
        CORRUPT: instead(garble, ShareChunk, phase="union", to=FIRST),
        ANNA: instead(butt_in, ShareChunk, phase="signs"),
        COORDINATOR: instead(order_everybody, ClosePhase, phase="signs"),
    }
    async with corrupt_federation(MANIFEST, tmp_path, corrupt, overdue=was_spoilt) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert "refused the order on signs (different-members)" in run.reason
        assert scene.refused()[FIRST] == {RejectReason.BROKEN_SEAL: 1, RejectReason.DIFFERENT_MEMBERS: 1}
        assert scene.sums_sent(1, "signs") == []


CLAIMS = make_claims(MANIFEST)
(RECEIPT,) = sign_receipts(MANIFEST, [make_receipt(MANIFEST, aggregator=FIRST, client=CORRUPT)])
NOT_FOR_CLIENTS: tuple[tuple[Message, PartyId, RejectReason], ...] = (
    (make_sum_chunk(MANIFEST), ANNA, RejectReason.WRONG_SENDER),
    (VoidNotice(), ANNA, RejectReason.WRONG_SENDER),
    (RoundOpened(), ANNA, RejectReason.WRONG_SENDER),
    (RunEnded(outcome="completed", reason="I say so"), ANNA, RejectReason.WRONG_SENDER),
    (RunProposed(manifest=MANIFEST), ANNA, RejectReason.WRONG_SENDER),
    (ClosePhase(members=EVERYBODY, receipts=(RECEIPT,)), FIRST, RejectReason.WRONG_SENDER),
    (RunEnded(outcome="completed", reason="I say so"), FIRST, RejectReason.WRONG_SENDER),
    (SetReceived(receipt=RECEIPT), COORDINATOR, RejectReason.WRONG_SENDER),
    (GroupConfirmed(confirmation="0" * 64), FIRST, RejectReason.WRONG_RECIPIENT),
    (RoundOpened(), COORDINATOR, RejectReason.WRONG_RECIPIENT),
)


async def test_a_client_cannot_speak_as_an_aggregator_or_a_coordinator(tmp_path: Path) -> None:
    def speak(_: Scene, envelope: Envelope) -> Sequence[Envelope]:
        said = [say(envelope, body=body, recipient=to, payload=b"") for body, to, _ in NOT_FOR_CLIENTS]
        return [*said, envelope]

    corrupt = {CORRUPT: instead(speak, ShareChunk, phase="union", to=FIRST)}
    async with corrupt_federation(MANIFEST, tmp_path, corrupt) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        refused: dict[PartyId, Counter[RejectReason]] = {}
        for _, to, reason in NOT_FOR_CLIENTS:
            refused.setdefault(to, Counter())[reason] += 1
        assert scene.refused() == refused
        assert scene.has_models({1: EVERYBODY})


def join_with(key: RunKey) -> Replace:
    """Before the true answer, so that it would count."""
    return lambda _, envelope: [say(envelope, body=RunJoined(run_key=key)), envelope]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (make_run_key(MANIFEST, ANNA), RejectReason.WRONG_SENDER),
        (make_run_key(MANIFEST, ANNA).model_copy(update={"party": CORRUPT}), RejectReason.BAD_SIGNATURE),
        (make_run_key(draw_up(seed=8), CORRUPT), RejectReason.BAD_SIGNATURE),
    ],
    ids=["another's", "another's-as-its-own", "its-own-of-another-run"],
)
async def test_a_client_joins_with_no_key_but_its_own_of_this_run(
    tmp_path: Path, key: RunKey, reason: RejectReason
) -> None:
    corrupt = {CORRUPT: instead(join_with(key), RunJoined, number=0)}
    async with corrupt_federation(MANIFEST, tmp_path, corrupt) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {COORDINATOR: {reason: 1}}
        assert scene.has_models({1: EVERYBODY})
