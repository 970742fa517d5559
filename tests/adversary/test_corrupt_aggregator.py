"""One aggregator is corrupt: what it can do to the sums, what stops it, and what nothing stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import Code, RejectReason
from hubbub.ids import PartyId, SetId
from hubbub.messages.envelope import Envelope, Message
from hubbub.messages.rounds import (
    ClosePhase,
    MaskedChunk,
    OrderRefused,
    PhaseReleased,
    PhaseVoided,
    RoundApplied,
    SumChunk,
    VoidNotice,
    VoidPhase,
)
from hubbub.messages.shares import SetReceived
from hubbub.protocol.ring import Residues
from hubbub.trust.comparison import DifferenceKind, compare
from hubbub.trust.signed import sign_receipt
from hubbub_aggregator.journal import PhaseOutcome
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.reasons import tell_declined, tell_failure
from hubbub_trainer.phases import catchup
from support.builders import make_claims, name_sets
from support.corrupt_party import (
    DEMO_SEED,
    TASK,
    Change,
    Rewrite,
    Scene,
    corrupt_federation,
    draw_up,
    is_said,
    say,
)
from support.held_task import Silence
from support.parties import identity_of
from support.plain_run import run_plainly

HONEST, CORRUPT = draw_up().aggregators
VICTIM, SECOND, THIRD = draw_up().clients
EVERYBODY = draw_up().clients
VOID = PhaseOutcome(())


def tell(
    scene: Scene, change: Change, *, number: int = 1, phase: str = "signs", to: PartyId | None = None
) -> Rewrite:
    """Tell one client, or all, a changed sum of a phase."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if is_said(envelope, SumChunk, number=number, phase=phase, to=to):
            return [scene.change_sum(envelope, change)]
        return [envelope]

    return rewrite


def shift_factor(values: list[Residues]) -> None:
    """By so much that the model changes, and so little that it is possible."""
    values[1] += np.uint32(1 << 20)


# Two clients are told different sums ----------------------------------------------------------------------


def move_an_index(values: list[Residues]) -> None:
    """Another V of the same size, in which one index stands for another."""
    (marks,) = values
    given = np.flatnonzero(marks == 0)[0]
    marks[np.flatnonzero(marks)[0]] = 0
    marks[given] = 1


def change_a_mark(values: list[Residues]) -> None:
    """The same V, of another sum."""
    (marks,) = values
    marks[np.flatnonzero(marks == 1)[0]] = 2


def tell_another_union(scene: Scene, *numbers: int, change: Change = move_an_index) -> Rewrite:
    """The victim is told another sum of the union."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if envelope.round in numbers and is_said(
            envelope, SumChunk, number=envelope.round, phase="union", to=VICTIM
        ):
            return [scene.change_sum(envelope, change)]
        # It would obey any order.
        return [] if isinstance(envelope.body, OrderRefused) else [envelope]

    return rewrite


@pytest.mark.parametrize("change", [move_an_index, change_a_mark])
@pytest.mark.parametrize("strategy", ["sec-union", "partial-sec-union"])
async def test_a_victim_that_was_told_another_union_is_added_to_nobody(
    tmp_path: Path, strategy: str, change: Change
) -> None:
    manifest = draw_up(strategy=strategy)
    corrupt = {CORRUPT: lambda scene: tell_another_union(scene, 1, change=change)}
    async with corrupt_federation(manifest, tmp_path, corrupt) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 1, 1)
        first = scene.rounds()[0][1]
        assert (
            first.reason
            == f"{VICTIM} delivered after other sums than the others in signs, and members cannot change"
        )
        assert scene.verdicts(1, "union") == [PhaseOutcome(EVERYBODY)] * 2
        assert scene.verdicts(1, "signs") == [VOID] * 2
        assert scene.sums_sent(1, "signs") == []
        assert_no_sum_mixes_transcripts(scene)
        assert scene.has_models({2: EVERYBODY})
        assert scene.refused() == {manifest.coordinator: {RejectReason.DIFFERENT_TRANSCRIPT: 1}}


def assert_no_sum_mixes_transcripts(scene: Scene) -> None:
    """Whatever is released adds up sets of one transcript, as every aggregator's receipts tell."""
    said: dict[tuple[int, str, PartyId], set[str]] = {}
    for each in scene.sent:
        if isinstance(each.body, SetReceived):
            receipt = each.body.receipt.receipt
            for client in receipt.set_of:
                said.setdefault((each.round, each.phase, client), set()).add(receipt.transcript)
    for each in scene.sent:
        if isinstance(each.body, SumChunk):
            mixed = set.union(*(said[each.round, each.phase, member] for member in each.body.members))
            assert len(mixed) == 1


async def test_clients_leave_a_run_in_which_unions_are_shifted_again_and_again(tmp_path: Path) -> None:
    manifest = draw_up(rounds=2, max_void_rounds=10)
    async with corrupt_federation(
        manifest, tmp_path, {CORRUPT: lambda scene: tell_another_union(scene, *range(1, 10))}
    ) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert run.reason == tell_failure(run.failed_party or CORRUPT, Code.POLICY_VOID_ROUNDS)
        assert [scene.sums_sent(number, "signs") for number in (1, 2, 3)] == [[], [], []]
        assert scene.digests() == dict.fromkeys(EVERYBODY, manifest.initial_model_sha256)
        assert scene.refused() == {manifest.coordinator: {RejectReason.DIFFERENT_TRANSCRIPT: 2}}


def collude(scene: Scene, members: Sequence[PartyId]) -> Rewrite:
    """A coordinator that orders a sum over these members where it should order a void."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if not is_said(envelope, VoidPhase, phase="signs"):
            return [envelope]
        signed = [
            each.body.receipt
            for each in scene.sent
            if is_said(each, SetReceived, phase="signs") and isinstance(each.body, SetReceived)
        ]
        return [say(envelope, body=ClosePhase(members=tuple(members), receipts=tuple(signed)))]

    return rewrite


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (EVERYBODY, RejectReason.DIFFERENT_TRANSCRIPT),
        ((VICTIM, SECOND), RejectReason.DIFFERENT_MEMBERS),
        ((SECOND, THIRD), RejectReason.DIFFERENT_MEMBERS),
        ((VICTIM,), RejectReason.TOO_FEW_MEMBERS),
    ],
)
async def test_not_even_with_the_coordinator_is_a_misled_victims_set_added(
    tmp_path: Path, members: tuple[PartyId, ...], reason: RejectReason
) -> None:
    manifest = draw_up(strategy="partial-sec-union")
    corrupt = {
        CORRUPT: lambda scene: tell_another_union(scene, 1),
        manifest.coordinator: lambda scene: collude(scene, members),
    }
    async with corrupt_federation(manifest, tmp_path, corrupt) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert f"{HONEST} refused the order on signs ({reason})" in run.reason
        assert [each for each in scene.sums_sent(1, "signs") if each.sender == HONEST] == []
        assert scene.refused()[HONEST] == {reason: 1}
        assert scene.digests() == dict.fromkeys(EVERYBODY, manifest.initial_model_sha256)


async def test_a_victim_with_another_model_ends_the_run_and_is_named(tmp_path: Path) -> None:
    async with corrupt_federation(
        draw_up(rounds=3), tmp_path, {CORRUPT: lambda scene: tell(scene, shift_factor, to=VICTIM)}
    ) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.round) == (runs.State.FAILED, 0, 1)
        assert run.reason.startswith(f"{VICTIM} hold")
        assert run.reason.endswith(f"another model than {SECOND}, {THIRD}")
        assert scene.sums_sent(2, "") == []
    found = [each for each in compare(scene.logs()) if each.kind is DifferenceKind.MODELS]
    assert [each.place for each in found] == ["round 1"]


@pytest.fixture
def coordinator_looks_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not compare what the clients say of their models, because it is in league with the aggregator."""
    monkeypatch.setattr("hubbub_coordinator.phases.round._find_other_models", lambda _: "")


# A victim that was told another model than the others -----------------------------------------------------


def tell_the_victim(scene: Scene) -> Rewrite:
    """The victim alone is told another sum of the first round; it takes the model that follows for everybody's."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if is_said(envelope, SumChunk, to=VICTIM):
            return [scene.change_sum(envelope, shift_factor)]
        if is_said(envelope, MaskedChunk, to=VICTIM):
            return [scene.change_masked(envelope, shift_factor)]
        return [envelope]

    return rewrite


def applied_by(scene: Scene, client: PartyId) -> dict[int, str]:
    """The rounds that a client has reported as applied, each with its score, and the digest of the model."""
    said = [(each.round, each.body) for each in scene.sent if each.sender == client]
    return {number: body.model_hmac for number, body in said if isinstance(body, RoundApplied)}


@pytest.mark.usefixtures("coordinator_looks_away")
@pytest.mark.parametrize("wire", ["paper", "compact"])
async def test_without_the_rule_a_misled_victim_goes_on_scoring_models_that_are_made_for_it(
    tmp_path: Path, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is that a client compares the transcript of a release with its own. It is switched off here."""
    monkeypatch.setattr("hubbub_trainer.round_jobs.differs", lambda *_: False)
    manifest = draw_up(rounds=3, strategy="no-union", wire=wire)
    async with corrupt_federation(manifest, tmp_path, {CORRUPT: tell_the_victim}) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 3, 0)
        left_out = frozenset({SECOND, THIRD})
        assert [data.members for _, data in scene.rounds()] == [frozenset(EVERYBODY), left_out, left_out]
        misled, others = applied_by(scene, VICTIM), applied_by(scene, SECOND)
        assert misled.keys() == others.keys() == {1, 2, 3}
        assert all(misled[number] != others[number] for number in others)
        digests = scene.digests()
    assert digests[SECOND] == digests[THIRD] != digests[VICTIM]


@pytest.mark.usefixtures("coordinator_looks_away")
@pytest.mark.parametrize(("wire", "releases"), [("paper", 2), ("compact", 1)])
async def test_a_misled_victim_says_nothing_of_the_next_round_and_takes_its_peers_model(
    tmp_path: Path, wire: str, releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "ASK_AGAIN_S", 0.05)
    manifest = draw_up(rounds=3, strategy="no-union", wire=wire)
    async with corrupt_federation(manifest, tmp_path, {CORRUPT: tell_the_victim}, unheard={2: VICTIM}) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 3, 0)
        misled, others = applied_by(scene, VICTIM), applied_by(scene, SECOND)
        assert (sorted(misled), sorted(others)) == ([1, 3], [1, 2, 3])
        assert (misled[1] != others[1], misled[3] == others[3]) == (True, True)
        assert [data.members for _, data in scene.rounds()] == [
            frozenset(EVERYBODY),
            frozenset({SECOND, THIRD}),
            frozenset(EVERYBODY),
        ]
        assert scene.refused() == {
            VICTIM: {RejectReason.DIFFERENT_TRANSCRIPT: releases},
            manifest.coordinator: {RejectReason.DIFFERENT_TRANSCRIPT: 1},
        }
        reference = run_plainly(manifest, TASK, demo_seed=DEMO_SEED)
        for number, members in {1: (0, 1, 2), 2: (1, 2), 3: (0, 1, 2)}.items():
            reference.play_round(number, members)
            if number == 2:  # The accumulator of who takes a peer's model begins at zero.
                reference.clients[0].delta[:] = 0
        assert scene.digests() == dict.fromkeys(EVERYBODY, reference.digest())
    found = [each for each in compare(scene.logs()) if each.kind is DifferenceKind.MODELS]
    assert [each.place for each in found] == ["round 1"], "the logs tell where it was misled"


@pytest.mark.usefixtures("coordinator_looks_away")
async def test_if_nobody_can_be_spared_different_models_void_the_rounds_to_come(tmp_path: Path) -> None:
    manifest = draw_up(rounds=2, min_clients=3, max_void_rounds=1)
    async with corrupt_federation(
        manifest, tmp_path, {CORRUPT: lambda scene: tell(scene, shift_factor, to=VICTIM)}
    ) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.FAILED, 1, 2)
        assert f"{VICTIM} delivered after other sums than the others, and 2 clients are too few" in run.reason
        assert [scene.sums_sent(number, "") for number in (2, 3)] == [[], []]
        assert scene.refused() == {manifest.coordinator: {RejectReason.DIFFERENT_TRANSCRIPT: 2}}


# Sums that are no sums ------------------------------------------------------------------------------------


def choose(position: int, at: int | slice, value: int) -> Callable[[Scene], Change]:
    """Have clients decode this value at these indices of one vector."""

    def change(values: list[Residues]) -> None:
        values[position][at] = value

    return lambda _: change


def choose_where_one_chose(value: int) -> Callable[[Scene], Change]:
    """Have clients decode this value where, as the counts tell, a single client has a sign."""

    def make(scene: Scene) -> Change:
        def change(values: list[Residues]) -> None:
            counts, *_ = scene.true_sum(1, "union")
            alone = np.flatnonzero(counts[counts != 0] == 1)[0]
            values[0][alone] = value

        return change

    return make


@dataclass(frozen=True, slots=True)
class Impossible:
    """What clients are to decode in a phase."""

    phase: str
    change: Callable[[Scene], Change]
    strategy: str = "sec-union"
    absent: tuple[PartyId, ...] = ()
    """The ring is made for three clients, so that with two members there is room for what cannot be."""


IMPOSSIBLE = {
    "too many indices": Impossible("union", choose(0, slice(None), 1)),
    "too many choosers": Impossible("union", choose(0, 0, 3), "partial-sec-union", (THIRD,)),
    "signs beyond the members": Impossible("signs", choose(0, 0, 3), "no-union", (THIRD,)),
    "signs beyond the members, below zero": Impossible("signs", choose(0, 5, 4), "no-union", (THIRD,)),
    "signs beyond the choosers": Impossible("signs", choose_where_one_chose(3), "partial-sec-union"),
    "signs of the wrong parity": Impossible("signs", choose_where_one_chose(0), "partial-sec-union"),
    "factors too large": Impossible("signs", choose(1, 0, 2**32 - 1)),
}


@pytest.mark.parametrize("case", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
async def test_an_impossible_sum_ends_the_run_before_anybody_acts_on_it(tmp_path: Path, case: Impossible) -> None:
    manifest = draw_up(strategy=case.strategy)
    silence = Silence(*((EVERYBODY.index(client), 1) for client in case.absent))

    def lie(scene: Scene) -> Rewrite:
        return tell(scene, case.change(scene), phase=case.phase)

    async with corrupt_federation(
        manifest,
        tmp_path,
        {CORRUPT: lie},
        overdue=lambda data: data.missing() == case.absent,
        silence=silence,
    ) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        # The first to say so ends the run; the others may not even come to look at it.
        first = run.failed_party
        assert first in EVERYBODY
        assert run.reason == tell_failure(first, Code.PROTOCOL_FALSE_SUM)
        assert scene.refused_by(first) == {RejectReason.FALSE_SUM: 1}
        assert scene.digests() == dict.fromkeys(EVERYBODY, manifest.initial_model_sha256)


def with_sevens(packed: bytes) -> bytes:
    """The first elements of Z_7 are 7."""
    return b"\xff" + packed[1:]


def seal_nothing_they_can_open(scene: Scene, envelope: Envelope) -> Envelope:
    del scene
    return say(envelope, payload=bytes(len(envelope.payload)))


def send_other_residues(scene: Scene, envelope: Envelope) -> Envelope:
    return scene.repack_sum(envelope, with_sevens)


@pytest.mark.parametrize(
    ("garble", "reason"),
    [
        (seal_nothing_they_can_open, RejectReason.BROKEN_SEAL),
        (send_other_residues, RejectReason.RESIDUE_OUT_OF_RANGE),
    ],
)
async def test_a_sum_that_cannot_be_read_ends_the_run(
    tmp_path: Path, garble: Callable[[Scene, Envelope], Envelope], reason: RejectReason
) -> None:
    def lie(scene: Scene) -> Rewrite:
        def rewrite(envelope: Envelope) -> Sequence[Envelope]:
            return [garble(scene, envelope) if is_said(envelope, SumChunk, phase="signs", to=VICTIM) else envelope]

        return rewrite

    async with corrupt_federation(draw_up(), tmp_path, {CORRUPT: lie}) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert run.reason == tell_failure(VICTIM, Code.PROTOCOL_PEER)
        assert scene.refused() == {VICTIM: {reason: 1}}
        assert scene.digests()[VICTIM] == scene.manifest.initial_model_sha256


# Verdicts that cannot both be true ------------------------------------------------------------------------


def instead(make: Callable[[Envelope], Sequence[Envelope]], *, phase: str = "signs") -> Callable[[Scene], Rewrite]:
    """Send the victim something else than the sum of a phase."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        return make(envelope) if is_said(envelope, SumChunk, phase=phase, to=VICTIM) else [envelope]

    return lambda _: rewrite


def say_void(envelope: Envelope) -> Sequence[Envelope]:
    return [say(envelope, body=VoidNotice(), payload=b"")]


def say_both(envelope: Envelope) -> Sequence[Envelope]:
    return [envelope, *say_void(envelope)]


def say_void_beforehand(envelope: Envelope) -> Sequence[Envelope]:
    """Of the phase that comes next, so that the honest release of it is heard after the void."""
    return [envelope, *(replace(each, phase="signs") for each in say_void(envelope))]


def release_twice(envelope: Envelope) -> Sequence[Envelope]:
    """With another key, so that it is another sum, whatever is in it."""
    assert isinstance(envelope.body, SumChunk)
    wrapped = envelope.body.wrapped_key[::-1]
    return [envelope, say(envelope, body=envelope.body.model_copy(update={"wrapped_key": wrapped}))]


def name_other_members(envelope: Envelope) -> Sequence[Envelope]:
    return [say(envelope, body=envelope.body.model_copy(update={"members": (VICTIM, SECOND)}))]


def declare_other_vectors(envelope: Envelope) -> Sequence[Envelope]:
    """One sign less, which is a byte less in the union's 3 bits an index."""
    assert isinstance(envelope.body, SumChunk)
    first, *rest = envelope.body.vectors
    shorter = first.model_copy(update={"length": first.length - 8})
    body = envelope.body.model_copy(update={"vectors": (shorter, *rest)})
    return [say(envelope, body=body, payload=envelope.payload[3:])]


@pytest.mark.parametrize(
    ("make", "phase", "complaint"),
    [
        (say_void, "union", "void"),
        (say_void, "signs", "void"),
        (say_both, "union", f"{CORRUPT} says void where"),
        (say_void_beforehand, "union", "released signs where another says void"),
        (release_twice, "union", f"{CORRUPT} released two sums of union"),
        (name_other_members, "union", "names other members than were named before"),
        (name_other_members, "signs", f"{CORRUPT} names other members than were named before"),
        (declare_other_vectors, "signs", "declares other vectors than another aggregator did"),
    ],
)
async def test_verdicts_that_contradict_each_other_end_the_run(
    tmp_path: Path,
    make: Callable[[Envelope], Sequence[Envelope]],
    phase: str,
    complaint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with corrupt_federation(draw_up(), tmp_path, {CORRUPT: instead(make, phase=phase)}) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert run.reason == tell_failure(VICTIM, Code.PROTOCOL_CONTRADICTION)
        assert complaint in caplog.text, "what it is about is in the victim's own log"
        assert scene.refused() == {VICTIM: {RejectReason.CONTRADICTION: 1}}
        assert scene.digests()[VICTIM] == scene.manifest.initial_model_sha256


@pytest.mark.parametrize(
    ("report", "complaint"),
    [
        (PhaseVoided(), f"{CORRUPT} ended union as void, against its order"),
        (
            PhaseReleased(members=(VICTIM, SECOND), vectors=make_claims(draw_up()), traffic=()),
            f"{CORRUPT} released a sum over other members",
        ),
        (
            PhaseReleased(members=EVERYBODY, vectors=make_claims(draw_up()), traffic=()),
            "released other vectors than another did",
        ),
    ],
    ids=["void", "other-members", "other-vectors"],
)
async def test_a_report_against_the_order_ends_the_run(tmp_path: Path, report: Message, complaint: str) -> None:
    def lie(_: Scene) -> Rewrite:
        def rewrite(envelope: Envelope) -> Sequence[Envelope]:
            return [say(envelope, body=report) if is_said(envelope, PhaseReleased, phase="union") else envelope]

        return rewrite

    async with corrupt_federation(draw_up(), tmp_path, {CORRUPT: lie}) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert complaint in run.reason
        assert scene.refused() == {scene.manifest.coordinator: {RejectReason.CONTRADICTION: 1}}
        assert scene.digests() == dict.fromkeys(EVERYBODY, scene.manifest.initial_model_sha256)


async def test_a_sum_over_too_few_members_is_not_even_looked_at(tmp_path: Path) -> None:
    """The true one comes after it, and so the run is unharmed."""

    def name_the_victim_alone(envelope: Envelope) -> Sequence[Envelope]:
        return [say(envelope, body=envelope.body.model_copy(update={"members": (VICTIM,)})), envelope]

    async with corrupt_federation(draw_up(), tmp_path, {CORRUPT: instead(name_the_victim_alone)}) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {VICTIM: {RejectReason.TOO_FEW_MEMBERS: 1}}
        assert scene.dead(VICTIM) == [RejectReason.TOO_FEW_MEMBERS.value]
        assert scene.has_models({1: EVERYBODY})


# Receipts for what is not there ---------------------------------------------------------------------------

SOME_SET = SetId("ab" * 16)


def sign_for_nothing(scene: Scene) -> Rewrite:
    """In its first receipt, name beside the true sets one that the absent client never dealt."""
    run, done = scene.manifest.run_id, set[int]()

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if not is_said(envelope, SetReceived) or envelope.round in done:
            # It would obey any order.
            return [] if isinstance(envelope.body, OrderRefused) else [envelope]
        assert isinstance(envelope.body, SetReceived)
        done.add(envelope.round)
        true = envelope.body.receipt.receipt
        made_up = true.model_copy(update={"sets": (*true.sets, *name_sets({THIRD: SOME_SET}))})
        identity = identity_of(scene.manifest, CORRUPT)
        signed = sign_receipt(identity, run, envelope.round, envelope.phase, made_up)
        return [say(envelope, body=SetReceived(receipt=signed))]

    return rewrite


async def test_a_receipt_for_a_set_that_nobody_sent_makes_no_member(tmp_path: Path) -> None:
    manifest = draw_up(strategy="no-union")
    async with corrupt_federation(
        manifest,
        tmp_path,
        {CORRUPT: sign_for_nothing},
        overdue=lambda data: data.missing() == (THIRD,),
        silence=Silence((EVERYBODY.index(THIRD), 1)),
    ) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.verdicts(1, "signs") == [PhaseOutcome((VICTIM, SECOND))] * 2
        assert scene.refused() == {}
        assert scene.has_models({1: (VICTIM, SECOND)})


def order_everybody(scene: Scene) -> Rewrite:
    """A coordinator that counts the made-up receipt as all that is needed."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if not isinstance(envelope.body, ClosePhase):
            return [envelope]
        receipts = [each.body.receipt for each in scene.sent if isinstance(each.body, SetReceived)]
        return [say(envelope, body=ClosePhase(members=EVERYBODY, receipts=tuple(receipts)))]

    return rewrite


async def test_not_even_with_the_coordinator_is_a_made_up_receipt_worth_anything(tmp_path: Path) -> None:
    manifest = draw_up(strategy="no-union")
    async with corrupt_federation(
        manifest,
        tmp_path,
        {CORRUPT: sign_for_nothing, manifest.coordinator: order_everybody},
        overdue=lambda data: data.missing() == (THIRD,),
        silence=Silence((EVERYBODY.index(THIRD), 1)),
    ) as scene:
        state, run = await scene.run()

        assert state is runs.State.FAILED
        assert run.reason == tell_declined(HONEST, "signs", RejectReason.MISSING_RECEIPT)
        assert scene.refused()[HONEST] == {RejectReason.MISSING_RECEIPT: 1}
        assert scene.sums_sent(1, "signs") == []


# What nothing stops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["no-union", "sec-union", "partial-sec-union"])
async def test_a_sum_that_is_shifted_within_the_possible_is_believed_by_all_alike(
    tmp_path: Path, strategy: str
) -> None:
    """A client has given the aggregator what tags follow from: this is the limit that the threat model states."""
    manifest = draw_up(strategy=strategy, rounds=2)
    async with corrupt_federation(manifest, tmp_path, {CORRUPT: lambda scene: tell(scene, shift_factor)}) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 2, 0)
        assert scene.refused() == {}
        (model,) = set(scene.digests().values())
        assert model not in {scene.expect_model({1: EVERYBODY, 2: EVERYBODY}), manifest.initial_model_sha256}
    assert compare(scene.logs()) == ()
