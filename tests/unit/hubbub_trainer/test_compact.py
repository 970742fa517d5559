"""A trainer on the compact wire: what it deals, what it takes from the combiner alone, and what it decodes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hubbub.crypto.sealing import CHUNK_OVERHEAD
from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import MaskedChunk, RoundApplied
from hubbub.messages.rounds import ReleaseClaim as Claim
from hubbub.messages.shares import DenseShareChunk, ShareSeed, declare
from hubbub.protocol import signs
from hubbub.protocol.dense import Digits
from hubbub.protocol.layout import Vector
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import Release
from hubbub.trust.signed import sign_release
from hubbub_trainer.events import SumArrived
from hubbub_trainer.intake import read_sum
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.phases.round import ClientRound
from hubbub_trainer.round_jobs import RoundJobs
from hubbub_trainer.workspace import OpenRound
from support import compact_round, compact_words
from support.builders import TRANSCRIPT, aggregator_names, make_envelope, make_sum_chunk
from support.parties import identity_of, roster_of
from support.plain_dense import word
from support.recorder import Said, add_residues
from support.trainer_scene import Scene, scene_of
from support.trainer_scene import draw_up as draw_up_for

TASK = SyntheticTask(1_003)


def draw_up(strategy: str = "no-union", wire: str = "compact", **changes: object) -> Manifest:
    servers = aggregator_names(3)
    return draw_up_for(TASK, aggregators=servers, strategy=strategy, wire=wire, **changes)


MANIFEST = draw_up()
UNION = draw_up("sec-union", q=3)
ME, SECOND, THIRD = MANIFEST.clients
FIRST, COMBINER, LAST = MANIFEST.aggregators
PARAMETERS = MANIFEST.protocol_parameters
VECTORS = (
    Vector("signs", PARAMETERS.model_size, PARAMETERS.signs_modulus),
    Vector("factors", 1, PARAMETERS.factors_modulus),
    Vector("tags", 3, 2**64),
)


# What is taken --------------------------------------------------------------------------------------------


def last_size() -> int:
    """Bytes of the second of two chunks, by the formula: whole bytes of words in the first."""
    digits, bits = word(VECTORS[0].modulus)
    fitting = 256 * 8 // bits // 8 * 8 * digits
    rest = -(-(VECTORS[0].length - fitting) // digits) * bits
    return -(-rest // 8) + 4 + 24


def signatures(
    *,
    run: RunId = MANIFEST.run_id,
    number: int = 1,
    phase: str = "signs",
    members: tuple[PartyId, ...] = MANIFEST.clients,
    transcript: str = TRANSCRIPT,
    vectors: tuple[Vector, ...] = VECTORS,
    signers: tuple[PartyId, ...] = MANIFEST.aggregators,
) -> tuple[str, ...]:
    """Each aggregator's word, or somebody's in its place."""
    return tuple(
        sign_release(
            identity_of(MANIFEST, signer),
            run,
            number,
            phase,
            Claim(aggregator=server, members=members, vectors=declare(vectors), transcript=transcript),
        )
        for server, signer in zip(MANIFEST.aggregators, signers, strict=False)
    )


GOOD = signatures()


def read(
    *,
    signed: tuple[str, ...] = GOOD,
    sender: PartyId = COMBINER,
    number: int = 1,
    manifest: Manifest = MANIFEST,
    size: int | None = None,
    members: tuple[PartyId, ...] = MANIFEST.clients,
    phase: str = "signs",
    index: int = 1,
) -> SumArrived:
    """Read the second chunk of a masked sum that is right, but for what a test says."""
    body = MaskedChunk(
        members=members, vectors=declare(VECTORS), transcript=TRANSCRIPT, signatures=signed, index=index
    )
    envelope = make_envelope(
        body,
        sender=sender,
        recipient=ME,
        run=MANIFEST.run_id,
        round_number=number,
        phase=phase,
        payload=bytes(last_size() if size is None else size),
    )
    return read_sum(roster_of(MANIFEST), manifest, envelope, body, 900, 0.0)


def test_a_masked_sum_of_the_combiner_that_all_have_signed_is_taken() -> None:
    arrived = read()

    assert (arrived.aggregator, arrived.members) == (COMBINER, frozenset(MANIFEST.clients))
    assert (arrived.index, arrived.chunks, arrived.vectors) == (1, 2, VECTORS)
    assert arrived.transcript == TRANSCRIPT
    assert arrived.wire_bytes == {"signs": 872, "factors": 4, "tags": 24}


@pytest.mark.parametrize(("number", "combiner"), [(1, COMBINER), (2, LAST), (3, FIRST), (4, COMBINER)], ids=str)
def test_the_combiner_goes_round_and_nobody_else_may_send_the_sum(number: int, combiner: PartyId) -> None:
    for sender in MANIFEST.aggregators:
        if sender == combiner:
            assert read(sender=sender, number=number, signed=signatures(number=number)).aggregator == combiner
            continue
        with pytest.raises(PeerError, match=f"{sender} sends no masked-chunk of signs") as caught:
            read(sender=sender, number=number, signed=signatures(number=number))
        assert caught.value.reason is RejectReason.WRONG_SENDER


OTHER_VECTORS = (Vector("signs", 1_002, VECTORS[0].modulus), *VECTORS[1:])


@pytest.mark.parametrize(
    "signed",
    [
        pytest.param(GOOD[:2], id="one-too-few"),
        pytest.param((*GOOD, GOOD[0]), id="one-too-many"),
        pytest.param((GOOD[1], GOOD[0], GOOD[2]), id="in-another-order"),
        pytest.param((GOOD[0], GOOD[0], GOOD[2]), id="one-twice"),
        pytest.param((*GOOD[:2], "00" * 64), id="no-signature"),
        pytest.param(signatures(signers=(FIRST, COMBINER, COMBINER)), id="the-combiner-for-another"),
        pytest.param(signatures(members=(ME, SECOND)), id="over-other-members"),
        pytest.param(signatures(members=MANIFEST.clients[::-1]), id="over-members-in-another-order"),
        pytest.param(signatures(transcript="7b" * 32), id="over-another-transcript"),
        pytest.param(signatures(vectors=OTHER_VECTORS), id="over-other-vectors"),
        pytest.param(signatures(phase="union"), id="of-another-phase"),
        pytest.param(signatures(number=2), id="of-another-round"),
        pytest.param(signatures(run=UNION.run_id), id="of-another-run"),
    ],
)
def test_without_every_aggregators_word_for_this_very_sum_it_is_refused(signed: tuple[str, ...]) -> None:
    with pytest.raises(PeerError) as caught:
        read(signed=signed)

    assert caught.value.reason is RejectReason.BAD_SIGNATURE


def test_one_good_signature_is_not_enough_whichever_it_is() -> None:
    for place in range(3):
        signed = list(signatures(transcript="7b" * 32))
        signed[place] = GOOD[place]
        with pytest.raises(PeerError):
            read(signed=tuple(signed))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        *(
            ({"size": size}, RejectReason.WRONG_LENGTH)
            for size in (0, last_size() - 1, last_size() + 1, last_size() + CHUNK_OVERHEAD)
        ),
        ({"index": 2}, RejectReason.WRONG_LENGTH),
        ({"members": (ME,), "signed": signatures(members=(ME,))}, RejectReason.TOO_FEW_MEMBERS),
        ({"phase": "union", "signed": signatures(phase="union")}, RejectReason.UNKNOWN_PHASE),
        ({"manifest": draw_up(wire="paper")}, RejectReason.WRONG_SENDER),
    ],
)
def test_another_length_member_set_phase_or_wire_is_refused_though_all_signed(
    wrong: dict[str, Any], reason: RejectReason
) -> None:
    with pytest.raises(PeerError) as caught:
        read(**wrong)

    assert caught.value.reason is reason


@pytest.mark.parametrize("sender", MANIFEST.aggregators)
def test_a_single_aggregators_sum_is_refused_on_the_compact_wire(sender: PartyId) -> None:
    body = make_sum_chunk(MANIFEST, vectors=declare(VECTORS), index=1)
    envelope = make_envelope(
        body, sender=sender, recipient=ME, manifest=MANIFEST, phase="signs", payload=bytes(last_size() + 16)
    )

    with pytest.raises(PeerError, match=f"{sender} sends no sum-chunk of signs") as caught:
        read_sum(roster_of(MANIFEST), MANIFEST, envelope, body, 900, 0.0)

    assert caught.value.reason is RejectReason.WRONG_SENDER


# A real trainer -------------------------------------------------------------------------------------------


joined = partial(scene_of, joined=True)


async def test_a_bad_sum_is_put_aside_and_the_round_completes(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.open_round(1)
        ((body, payload), *_) = await compact_round.masked_chunks(scene, 1, "signs", MANIFEST.clients)
        unsigned = body.model_copy(update={"signatures": body.signatures[:2]})
        await scene.say(scene.parties[COMBINER], unsigned, payload=payload)
        await scene.say(scene.parties[FIRST], body, payload=payload)
        of_the_papers_wire = make_sum_chunk(MANIFEST, vectors=declare(VECTORS), index=1)
        sealed = bytes(last_size() + CHUNK_OVERHEAD)
        await scene.say(scene.parties[COMBINER], of_the_papers_wire, payload=sealed)
        await compact_round.play_round(scene, 1, MANIFEST.clients)

        reasons = [RejectReason.BAD_SIGNATURE, RejectReason.WRONG_SENDER, RejectReason.WRONG_SENDER]
        assert scene.dead() == [reason.value for reason in reasons]
        assert scene.count(RejectReason.WRONG_SENDER) == 2


async def test_a_client_owes_one_aggregator_its_share_and_seeds_to_the_others(tmp_path: Path) -> None:
    async with joined(tmp_path, UNION, TASK, real=2) as scene:
        for number in (1, 2, 3):
            await compact_round.play_round(scene, number, MANIFEST.clients)
        kinds: dict[tuple[PartyId, int, str], dict[PartyId, set[str]]] = {}
        seeds = []
        for client in scene.real:
            for (server, number, phase, kind, _), copies in compact_round.sent_sets(scene, client).items():
                kinds.setdefault((client, number, phase), {}).setdefault(server, set()).add(kind)
                seeds += [inside for _, _, inside in copies] if kind == ShareSeed.kind else []

    for (client, number, _), by_server in kinds.items():
        full = MANIFEST.aggregators[(MANIFEST.clients.index(client) + number) % 3]
        assert by_server == {
            server: {DenseShareChunk.kind if server == full else ShareSeed.kind} for server in MANIFEST.aggregators
        }
    assert len(kinds) == 2 * 3 * 2
    assert len(set(seeds)) == len(seeds) == 2 * len(kinds), "a seed for each client, round, phase and aggregator"
    assert {len(seed) for seed in seeds} == {32}


async def test_the_shares_add_up_to_the_masked_input(tmp_path: Path) -> None:
    async with joined(tmp_path, MANIFEST, TASK) as scene:
        await scene.open_round(1)

        vectors, _, shares = await compact_round.hear_set(scene, ME, 1, "signs")

        total = compact_words.add(vectors, shares.values())
        mask = compact_round.mask_of(scene, ME, 1, "signs", vectors)
        mine = scene.trainer.context_of(MANIFEST.run_id).open().rounds[1].client_round.contribute("signs")
        bare = compact_words.subtract(vectors, total, mask)
        assert all(map(np.array_equal, bare, compact_words.to_words(mine, vectors)))
        assert np.count_nonzero(signs.from_digits(mine[0], 1)) == PARAMETERS.kept


Absorbed = list[tuple[PartyId, str, tuple[Digits, ...]]]


@pytest.fixture
def absorbed(monkeypatch: pytest.MonkeyPatch) -> Absorbed:
    """Every sum that any client takes in, as it decoded it."""
    found: Absorbed = []
    absorb = RoundJobs._absorb

    def absorb_watched(jobs: RoundJobs, data: ClientRound, mine: OpenRound, phase: str) -> None:
        take_in = mine.client_round.absorb

        def note(name: str, release: Release, members: int) -> None:
            found.append((jobs.me, name, release.values))
            take_in(name, release, members)

        with monkeypatch.context() as patch:
            patch.setattr(mine.client_round, "absorb", note)
            absorb(jobs, data, mine, phase)

    monkeypatch.setattr(RoundJobs, "_absorb", absorb_watched)
    return found


def contributed(scene: Scene, phase: str, members: tuple[PartyId, ...]) -> list[Residues]:
    """The sum over those members that are real: the others' inputs are zero."""
    rounds = [scene.trainers[client].context_of(scene.manifest.run_id).open().rounds[1] for client in scene.real]
    mine = [each.client_round for client, each in zip(scene.real, rounds, strict=True) if client in members]
    said = [Said.by(each, phase).values for each in mine]
    return [
        add_residues([values[place] for values in said], vector.modulus)
        for place, vector in enumerate(mine[0].vectors(phase))
    ]


@pytest.mark.parametrize(
    "members", [(ME, SECOND, THIRD), (ME, SECOND), (ME, THIRD), (SECOND, THIRD)], ids="+".join
)
async def test_with_dropouts_the_sum_over_the_members_is_decoded_by_everybody(
    tmp_path: Path, absorbed: Absorbed, members: tuple[PartyId, ...]
) -> None:
    async with joined(tmp_path, UNION, TASK, real=2) as scene:
        await scene.open_round(1)
        for client in scene.real:
            await compact_round.hear_set(scene, client, 1, "union")
        expected = {"union": contributed(scene, "union", members)}
        await compact_round.release(scene, 1, "union", members)
        for client in scene.real:
            if client in members:
                await compact_round.hear_set(scene, client, 1, "signs")
        expected["signs"] = contributed(scene, "signs", members)
        await compact_round.release(scene, 1, "signs", members)
        await scene.hear(scene.coordinator, RoundApplied, number=1)

        assert sorted((client, phase) for client, phase, _ in absorbed) == [
            (client, phase) for client in (ME, SECOND) for phase in ("signs", "union")
        ]
        for _, phase, sums in absorbed:
            assert all(map(np.array_equal, sums, expected[phase]))
            assert sums[0].any()
        digests = [json.loads(line)["model_sha256"] for each in scene.real for line in scene.digests(each)]
        assert len(digests) == 2
        assert len(set(digests)) == 1


async def test_a_sum_over_other_members_in_the_next_phase_ends_the_run(tmp_path: Path) -> None:
    async with joined(tmp_path, UNION, TASK) as scene:
        await scene.open_round(1)
        await compact_round.release(scene, 1, "union", (ME, SECOND))
        await compact_round.hear_set(scene, ME, 1, "signs")

        await compact_round.release(scene, 1, "signs", (ME, SECOND, THIRD), chunks=slice(1))

        assert await scene.failure() is Code.PROTOCOL_CONTRADICTION


# Restarts -------------------------------------------------------------------------------------------------


Story = Callable[[Scene], Awaitable[None]]


async def restart_between_phases(scene: Scene) -> None:
    await scene.open_round(1)
    await compact_round.release(scene, 1, "union", (ME, THIRD))
    await compact_round.hear_set(scene, ME, 1, "signs")
    await scene.restart()
    await compact_round.release(scene, 1, "signs", (ME, THIRD))
    await scene.hear(scene.coordinator, RoundApplied, number=1)
    await compact_round.play_round(scene, 2, (ME, THIRD))


async def restart_amid_a_sum(scene: Scene) -> None:
    """Of each sum the first chunk has come before."""
    for number in (1, 2):
        await scene.open_round(number)
        for phase in ("union", "signs"):
            await compact_round.release(scene, number, phase, (ME, THIRD), chunks=slice(1))
            await scene.settle()
            await scene.restart()
            await compact_round.release(scene, number, phase, (ME, THIRD), chunks=slice(1, None))
        await scene.hear(scene.coordinator, RoundApplied, number=number)


async def restart_between_rounds(scene: Scene) -> None:
    for number in (1, 2):
        await compact_round.play_round(scene, number, (ME, THIRD))
        await scene.restart()


async def test_a_restart_changes_nothing_of_what_is_sent_and_decoded(tmp_path: Path) -> None:
    stories: tuple[Story, ...] = (restart_between_phases, restart_amid_a_sum, restart_between_rounds)
    async with joined(tmp_path / "peace", UNION, TASK) as scene:
        for number in (1, 2):
            await compact_round.play_round(scene, number, (ME, THIRD))
        expected = scene.digests()

    for story in stories:
        async with joined(tmp_path / story.__name__, UNION, TASK) as scene:
            await story(scene)

            assert scene.digests() == expected
            assert scene.dead() == []
            check_sets(scene)


def check_sets(scene: Scene) -> None:
    """However often something was sent: it is of one set, has one seed or share in it, and one history."""
    sent = compact_round.sent_sets(scene, ME)
    assert sent
    for place, copies in sent.items():
        assert len(set(copies)) == 1, place


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
async def test_a_set_that_was_sent_in_part_is_sent_again_with_the_same_seeds_and_bytes_inside(
    tmp_path: Path, sent: int
) -> None:
    """Two seeds go first, and then two chunks; secrets are drawn as in earnest."""
    async with joined(tmp_path, MANIFEST, TASK, demo_seed=None) as scene:
        await scene.restart_while_sending(sent)
        await compact_round.play_round(scene, 1, MANIFEST.clients)

        check_sets(scene)
        copies = [len(each) for each in compact_round.sent_sets(scene, ME).values()]
        assert sorted(copies) == [1] * (4 - sent) + [2] * sent
        assert scene.dead() == []
