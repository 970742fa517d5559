"""A corrupt coordinator among honest parties.

It holds its own identity key, knows everybody's messages and orders what it likes. Whatever it tries, it is
stopped for a reason that has a name, which the party it tried it on counts and records; and the run goes on once
the coordinator does what it should, or ends without anybody's update in the open.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from hubbub.crypto.sealing import SealingKey
from hubbub.errors import Code, PeerError, RejectReason
from hubbub.ids import PartyId, Role, RunId, SetId
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import OrderRefused, PhaseReleased, PhaseVoided, RoundApplied, RoundDropped, SumChunk
from hubbub.messages.runs import GroupContribution, PartyFailed, RunEnded, RunJoined, RunKey, RunReady, RunRefused
from hubbub.messages.shares import SetReceived, SetRefused, ShareChunk, SignedReceipt
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested
from hubbub.protocol.packing import residue_type
from hubbub.runtime.state_folder import STATE_FILE
from hubbub.trust.seals import RunSeals, Stage
from hubbub.trust.signed import sign_receipt, sign_run_key
from hubbub_aggregator.policy import AggregatorPolicy
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import ProgressCallback, Task, Theta, Training
from hubbub_trainer.phases import catchup
from hubbub_trainer.policy import Policy
from hubbub_trainer.workspace import digest
from support.aio import until
from support.builders import make_cohort, make_manifest, name_sets
from support.corrupt_coordinator import PlayedClient, Scene, enrolled_scene, scene_of
from support.frames import decode, encode, sign
from support.parties import make_identity, make_parties, parties_of
from support.sealed_shares import open_share
from support.wrapped_learner import WrappedLearner, WrappedTask

N = 203
TASK = SyntheticTask(N)
SEED = 7
FAILED = RunEnded(outcome="failed", reason="a party does not obey")


def draw_up(suffix: str = "", /, **changes: object) -> Manifest:
    """Four clients, of whom three are enough, and two aggregators."""
    fields: dict[str, object] = {
        "cohort": make_cohort([PartyId(f"client-{number}{suffix}") for number in range(1, 5)]),
        "aggregators": tuple(PartyId(f"aggregator-{number}{suffix}") for number in (1, 2)),
        "coordinator": PartyId(f"coordinator{suffix}"),
        "parameters": N,
        "task": TASK.name,
        "seed": SEED,
        "initial_model_sha256": digest(TASK.initial_model(SEED)),
        "chunk_bytes": 256,
    }
    return make_manifest(clients=4, servers=2, **{**fields, **changes})


NO_UNION = draw_up()
SEC_UNION = draw_up(strategy="sec-union", q=3)
CLIENTS, AGGREGATORS = NO_UNION.clients, NO_UNION.aggregators
VICTIM, ACCOMPLICE = CLIENTS[0], CLIENTS[-1]
FIRST, SECOND = AGGREGATORS
EVERYBODY = (*AGGREGATORS, *CLIENTS)
STRANGER = PartyId("mallory")
UNSEEN = SetId("f" * 32)


@pytest.fixture(
    params=[pytest.param("memory", id="memory"), pytest.param("rabbitmq", id="rabbitmq", marks=pytest.mark.broker)]
)
def url(request: pytest.FixtureRequest) -> str | None:
    """Where the broker is: nowhere, or a real one."""
    return None if request.param == "memory" else str(request.getfixturevalue("amqp_url"))


def run_between(url: str | None, **changes: object) -> Manifest:
    """A run of parties whose names nobody else at the broker has."""
    return draw_up(f"-{uuid4().hex[:12]}" if url else "", **changes)


@contextmanager
def refused_for(reason: RejectReason) -> Iterator[None]:
    with pytest.raises(PeerError) as caught:
        yield
    assert caught.value.reason is reason


# Keys ---------------------------------------------------------------------------------------------------


def key_of(party: PartyId, signer: PartyId, role: Role = Role.CLIENT) -> RunKey:
    """A key that the coordinator made itself, in somebody's name and under somebody's signature."""
    parties = parties_of(NO_UNION)
    made = RunSeals(
        make_identity(party, role, party), NO_UNION.run_id, SealingKey.generate(parties.roster.kem)
    ).claim
    signing = parties.identities.get(signer) or make_identity(signer, role, signer)
    forged = sign_run_key(signing, NO_UNION.run_id, parties.roster.kem, bytes.fromhex(made.public_key))
    return made.model_copy(update={"signature": forged.signature})


def replacing_the_last(key: RunKey) -> Callable[[Sequence[RunKey]], list[RunKey]]:
    """Put a key in the place of the accomplice's."""
    return lambda keys: [*(each for each in keys if each.party != ACCOMPLICE), key]


@pytest.mark.parametrize(
    ("garble", "reason"),
    [
        pytest.param(
            replacing_the_last(key_of(ACCOMPLICE, NO_UNION.coordinator)),
            RejectReason.BAD_SIGNATURE,
            id="signed-by-itself",
        ),
        pytest.param(
            replacing_the_last(key_of(ACCOMPLICE, STRANGER)), RejectReason.BAD_SIGNATURE, id="signed-by-a-stranger"
        ),
        pytest.param(
            replacing_the_last(key_of(ACCOMPLICE, FIRST)), RejectReason.BAD_SIGNATURE, id="signed-by-an-aggregator"
        ),
        pytest.param(
            replacing_the_last(key_of(STRANGER, STRANGER)), RejectReason.NOT_IN_ROSTER, id="of-a-stranger"
        ),
        pytest.param(
            replacing_the_last(key_of(NO_UNION.coordinator, NO_UNION.coordinator)),
            RejectReason.CONTRADICTION,
            id="its-own",
        ),
        pytest.param(lambda keys: [*keys][:-1], RejectReason.CONTRADICTION, id="one-left-out"),
        pytest.param(
            lambda keys: [*keys, key_of(ACCOMPLICE, ACCOMPLICE)], RejectReason.CONTRADICTION, id="one-party-twice"
        ),
    ],
)
async def test_run_keys_that_are_not_everybodys_own_are_refused(
    tmp_path: Path, garble: Callable[[Sequence[RunKey]], list[RunKey]], reason: RejectReason
) -> None:
    async with scene_of(NO_UNION, tmp_path, task=TASK) as scene:
        keys = await scene.coordinator.gather_keys()
        await scene.coordinator.pass_on(garble(keys), to=(FIRST, VICTIM))
        await scene.coordinator.pass_on(keys)
        await scene.coordinator.await_ready()
        await scene.coordinator.play_round(1)
        for name in EVERYBODY:
            expected = {reason: 1} if name in {FIRST, VICTIM} else {}
            assert scene.refusals(name) == expected
            assert scene.dead(name) == [each.value for each in expected]


async def test_a_party_has_one_key_in_a_run_even_if_it_signs_two(tmp_path: Path) -> None:
    async with scene_of(NO_UNION, tmp_path, task=TASK) as scene:
        keys = await scene.coordinator.enrol()
        await scene.coordinator.pass_on(keys)  # Old news.
        second = replacing_the_last(key_of(ACCOMPLICE, ACCOMPLICE))(keys)
        await scene.coordinator.pass_on(second)
        await scene.coordinator.play_round(1)
        for name in EVERYBODY:
            assert scene.refusals(name) == {RejectReason.SECOND_KEY: 1}
            assert scene.dead(name) == [RejectReason.SECOND_KEY.value]


# Manifests ----------------------------------------------------------------------------------------------


async def test_parties_that_are_told_different_manifests_are_in_different_runs(tmp_path: Path) -> None:
    here, there = (FIRST, *CLIENTS[:2]), (SECOND, *CLIENTS[2:])
    other = draw_up(nonce="1" * 32)
    async with scene_of(NO_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        ours = await coordinator.gather_keys(NO_UNION, here)
        theirs = await coordinator.gather_keys(other, there)
        await coordinator.pass_on((*ours, *theirs), to=here)
        # Nor do they listen to anything of the run that they are not in.
        await coordinator.pass_on((*ours, *theirs), to=there)
        for manifest, parties in ((NO_UNION, here), (other, there)):
            await coordinator.tell(FAILED, parties, manifest=manifest)
        coordinator.manifest = draw_up(nonce="2" * 32)
        await coordinator.enrol()
        for name in here:
            assert scene.refusals(name) == {RejectReason.BAD_SIGNATURE: 1}
        for name in there:
            assert scene.refusals(name) == {RejectReason.UNKNOWN_RUN: 1}
        for kind in (RunReady, GroupContribution, ShareChunk):
            assert {each.run for each in scene.sent(kind)} <= {coordinator.manifest.run_id}
        await coordinator.play_round(1)


FOREIGN_ROSTER = "f" * 64


@pytest.mark.parametrize(
    ("changes", "code", "refusing"),
    [
        pytest.param({"min_clients": 2}, Code.POLICY_MIN_CLIENTS, CLIENTS, id="lower-min-clients"),
        pytest.param({"strategy": "fedavg"}, Code.POLICY_STRATEGY, CLIENTS, id="plaintext"),
        pytest.param({"nonce": "1" * 32}, Code.POLICY_APPROVAL, CLIENTS, id="unapproved"),
        pytest.param({"max_void_rounds": 2**50}, Code.POLICY_VOID_ROUNDS, CLIENTS, id="void-rounds"),
        pytest.param({"local_steps": 2**50}, Code.POLICY_PARAMETERS, CLIENTS, id="local-steps"),
        pytest.param({"alpha_max": 2.0**20}, Code.POLICY_PARAMETERS, CLIENTS, id="alpha-max"),
        pytest.param({"q": 32}, Code.POLICY_PARAMETERS, CLIENTS, id="q"),
        pytest.param(
            {"roster_sha256": FOREIGN_ROSTER},
            Code.POLICY_ROSTER,
            EVERYBODY,
            id="foreign-roster",
        ),
    ],
)
async def test_what_the_data_owner_does_not_allow_is_refused_with_its_code(
    tmp_path: Path, changes: dict[str, object], code: Code, refusing: tuple[PartyId, ...]
) -> None:
    wished = draw_up(**changes)
    approved = () if code is Code.POLICY_APPROVAL else (wished.run_id,)
    digest = parties_of(NO_UNION).roster.digest
    policy, lenient = (
        Policy(roster_sha256=digest, approved=(NO_UNION.run_id, *approved)),
        AggregatorPolicy.for_demo(digest),
    )
    async with scene_of(NO_UNION, tmp_path, task=TASK, policy=policy, aggregator_policy=lenient) as scene:
        await scene.coordinator.propose(wished)
        refusals = await scene.coordinator.hear(RunRefused, len(refusing), manifest=wished)
        assert {envelope.sender for envelope, _ in refusals} == set(refusing)
        assert {body.code for _, body in refusals} == {code}
        await scene.coordinator.enrol()
        await scene.coordinator.play_round(1)
        for name in EVERYBODY:
            assert scene.refusals(name) == ({RejectReason.RUN_REFUSED: 1} if name in refusing else {})
        assert not [
            each for each in scene.sent(RunJoined) if each.run == wished.run_id and each.sender in refusing
        ]


@pytest.mark.parametrize(
    ("changes", "limits", "code"),
    [
        pytest.param({"strategy": "fedavg"}, {}, Code.POLICY_STRATEGY, id="strategy"),
        pytest.param({"parameters": N + 1}, {"max_parameters": N}, Code.POLICY_SIZE, id="size"),
        pytest.param({}, {"max_cohort": 3}, Code.POLICY_SIZE, id="cohort"),
        pytest.param({"rounds": 201}, {}, Code.POLICY_ROUNDS, id="rounds"),
        pytest.param({"max_void_rounds": 2**50}, {}, Code.POLICY_VOID_ROUNDS, id="void-rounds"),
        pytest.param({"min_clients": 2}, {}, Code.POLICY_MIN_CLIENTS, id="min-clients"),
    ],
)
async def test_what_an_aggregators_operator_does_not_allow_is_refused_with_its_code(
    tmp_path: Path, changes: dict[str, object], limits: dict[str, object], code: Code
) -> None:
    """With a policy that allows everything, the same aggregators join."""
    wished, digest = draw_up(**changes), parties_of(NO_UNION).roster.digest
    strict = AggregatorPolicy.model_validate({"roster_sha256": digest, **limits})
    async with scene_of(NO_UNION, tmp_path / "strict", task=TASK, aggregator_policy=strict) as scene:
        await scene.coordinator.propose(wished, AGGREGATORS)
        refusals = await scene.coordinator.hear(RunRefused, len(AGGREGATORS), manifest=wished)
        assert {envelope.sender for envelope, _ in refusals} == set(AGGREGATORS)
        assert {body.code for _, body in refusals} == {code}
        assert not scene.sent(RunJoined)
    lenient = AggregatorPolicy.for_demo(digest)
    async with scene_of(NO_UNION, tmp_path / "lenient", task=TASK, aggregator_policy=lenient) as scene:
        await scene.coordinator.propose(wished, AGGREGATORS)
        await scene.coordinator.hear(RunJoined, len(AGGREGATORS), manifest=wished)


async def test_a_run_is_joined_once_whatever_was_in_between(tmp_path: Path) -> None:
    async with enrolled_scene(NO_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.play_round(1)
        await coordinator.tell(FAILED, EVERYBODY)
        await coordinator.propose()
        await coordinator.sync(EVERYBODY)
        assert all(scene.late(name, "run-proposed") == 1 for name in EVERYBODY)
        for name in EVERYBODY:
            await scene.restart(name)
        await coordinator.propose()
        refusals = await coordinator.hear(RunRefused, len(EVERYBODY))
        assert {body.code for _, body in refusals} == {Code.PROTOCOL_JOINED_BEFORE}
        await coordinator.sync(EVERYBODY)
        for name in EVERYBODY:
            assert scene.refusals(name) == {RejectReason.RUN_REFUSED: 1}
            ours = [each for each in scene.sent(RunJoined, sender=name) if each.run == NO_UNION.run_id]
            assert len(ours) == 1, "nor is there a second key of anybody's"


@dataclass
class SeedLearner(WrappedLearner):
    """Writes down which batches it is told to take."""

    index: int
    seeds: list[tuple[int, int]]

    def train(
        self, theta: Theta, *, steps: int, seed: int, progress: ProgressCallback, memory: Theta | None = None
    ) -> Training:
        self.seeds.append((self.index, seed))
        return self.inner.train(theta, steps=steps, seed=seed, progress=progress, memory=memory)


@dataclass
class SeedTask(WrappedTask):
    """A task of which every learner tells its seeds."""

    inner: Task = TASK
    seeds: list[tuple[int, int]] = field(default_factory=list)

    def learner(self, *, index: int, clients: int, seed: int) -> SeedLearner:
        return SeedLearner(self.inner.learner(index=index, clients=clients, seed=seed), index, self.seeds)


async def test_the_same_seed_with_another_cohort_draws_nothing_twice(tmp_path: Path) -> None:
    """Or else the difference of two sums would be the difference of the two clients that only one of them has."""
    names = [*CLIENTS, PartyId("client-5")]
    everybody = make_parties(tuple((name, f"org-{number}") for number, name in enumerate(names, 1)), AGGREGATORS)
    cohort, digest_of_all = make_cohort(names), everybody.roster.digest
    manifests = [
        draw_up(cohort=members, roster_sha256=digest_of_all) for members in (cohort[:4], (*cohort[:3], cohort[4]))
    ]
    task, shares = SeedTask(), []
    async with scene_of(manifests[0], tmp_path, task=task, parties=everybody) as scene:
        for manifest in manifests:
            scene.coordinator.manifest = manifest
            await scene.coordinator.enrol()
            await scene.coordinator.play_round(1)
            shares.append(open_shares(scene, manifest, VICTIM))
        assert all(scene.refusals(name) == {} for name in (*names, *AGGREGATORS))
    assert len(task.seeds) == len({seed for _, seed in task.seeds}) == 8
    assert len([seed for index, seed in task.seeds if index == CLIENTS.index(VICTIM)]) == 2
    once, again = shares
    assert once.keys() == again.keys() == set(AGGREGATORS)
    for server in AGGREGATORS:
        equal = np.mean(np.frombuffer(once[server], np.uint8) == np.frombuffer(again[server], np.uint8))
        assert equal < 0.1, "bytes of two signs in Z_9, of which one in 81 agrees by chance"


def open_shares(scene: Scene, manifest: Manifest, client: PartyId) -> dict[PartyId, bytes]:
    """What a client sent in round 1, opened with the aggregators' own keys."""
    stage = Stage(manifest.run_id, 1, "signs")
    found: dict[PartyId, bytes] = {}
    for each in scene.sent(ShareChunk, sender=client):
        if each.run == manifest.run_id and isinstance(each.body, ShareChunk):
            seals = scene.aggregator(each.recipient)._seals[manifest.run_id]
            opened = open_share(seals, stage, client, each.body.set_id, each.body.index, each.payload)
            found[each.recipient] = opened
    return found


# Members ------------------------------------------------------------------------------------------------


async def test_different_members_at_different_aggregators_give_no_client_anything(
    tmp_path: Path, url: str | None
) -> None:
    manifest = run_between(url)
    clients, (first, second) = manifest.clients, manifest.aggregators
    async with enrolled_scene(manifest, tmp_path, task=TASK, url=url) as scene:
        coordinator = scene.coordinator
        await coordinator.open_round(1, clients[:3])
        fewer = await coordinator.gather_receipts(1, members=clients[:3])
        await coordinator.open_round(1, clients[3:])
        receipts = await coordinator.gather_receipts(1)
        await coordinator.close(1, clients, receipts=fewer, to=[second])
        ((_, refusal),) = await coordinator.hear(OrderRefused)
        assert refusal.reason is RejectReason.MISSING_RECEIPT, "it obeys only what its order proves"
        await coordinator.close(1, clients, receipts=receipts, to=[first])
        await coordinator.close(1, clients[:3], receipts=fewer, to=[second])
        failures = await coordinator.hear(PartyFailed, len(clients))
        assert {body.code for _, body in failures} == {Code.PROTOCOL_CONTRADICTION}
        await coordinator.hear(PhaseReleased, 2)
        # Now each is asked for what the other has given: two sums over one set would decode.
        await coordinator.close(1, clients[:3], receipts=fewer, to=[first])
        await coordinator.close(1, clients, receipts=receipts, to=[second])
        await coordinator.open_round(2)
        await coordinator.sync((first, second, *clients))
        assert scene.refusals(first) == {RejectReason.ALREADY_ENDED: 1}
        assert scene.refusals(second) == {RejectReason.MISSING_RECEIPT: 1, RejectReason.ALREADY_ENDED: 1}
        for client in clients:
            assert scene.refusals(client) == {RejectReason.CONTRADICTION: 1}
            assert (scene.models(client), scene.recorded(client, "released")) == (0, [])
            assert scene.state_of(client, 2) == "queued"
        assert coordinator.said(RoundApplied) == len(scene.sent(ShareChunk, number=2)) == 0
        assert len(scene.sent(SumChunk)) == 2 * len(clients), "one sum of each aggregator, to each client"


async def test_signs_over_fewer_members_than_the_union_are_refused(tmp_path: Path) -> None:
    async with enrolled_scene(SEC_UNION, tmp_path, task=TASK) as scene:
        await scene.coordinator.open_round(1)
        await scene.coordinator.release(1, phase="union")
        await scene.coordinator.close(1, CLIENTS[:3])
        refusals = await scene.coordinator.hear(OrderRefused, 2)
        assert {body.reason for _, body in refusals} == {RejectReason.DIFFERENT_MEMBERS}
        await scene.coordinator.finish_round(1)
        for server in AGGREGATORS:
            assert scene.refusals(server) == {RejectReason.DIFFERENT_MEMBERS: 1}
        assert all(scene.refusals(client) == {} for client in CLIENTS)


async def test_an_aggregator_that_crashed_after_the_union_gives_no_signs_over_fewer(tmp_path: Path) -> None:
    async with enrolled_scene(SEC_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.open_round(1)
        await coordinator.release(1, phase="union")
        receipts = await coordinator.gather_receipts(1)
        await scene.restart(FIRST)
        await coordinator.close(1, CLIENTS[:3], receipts=receipts, to=[FIRST])
        ((_, refusal),) = await coordinator.hear(OrderRefused)
        assert refusal.reason is RejectReason.DIFFERENT_MEMBERS
        await coordinator.finish_round(1)
        assert scene.refusals(FIRST) == {RejectReason.DIFFERENT_MEMBERS: 1}
        assert all(scene.models(client) == 1 for client in CLIENTS)


async def test_an_aggregator_that_lost_its_journal_ends_the_run_and_gives_no_sum(tmp_path: Path) -> None:
    async with enrolled_scene(SEC_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.open_round(1)
        await coordinator.release(1, phase="union")
        await coordinator.gather_receipts(1)
        await scene.stop(FIRST)
        for path in (tmp_path / FIRST).glob(f"{STATE_FILE}*"):
            path.unlink()
        await scene.start(FIRST, Role.AGGREGATOR)
        await coordinator.close(1)
        (*_, (envelope, failed)) = await coordinator.hear(PartyFailed, 2)  # When it started, and now.
        assert (envelope.sender, failed.code) == (FIRST, Code.DISK_LOST)
        await coordinator.propose(to=[FIRST])
        ((_, refusal),) = await coordinator.hear(RunRefused)
        assert refusal.code is Code.PROTOCOL_JOINED_BEFORE
        sums = scene.sent(SumChunk, sender=FIRST)
        assert {each.phase for each in sums} == {"union"}
        assert all(scene.models(client) == 0 for client in CLIENTS)


Receipts = Sequence[SignedReceipt]
Order = Callable[[Receipts], tuple[Sequence[PartyId], Receipts]]
"""Members and receipts, made of the receipts that there are: one or more of each aggregator, for all sets."""


def over(*members: PartyId) -> Order:
    """An order that shows every receipt there is."""
    return lambda receipts: (members, receipts)


def told_by(server: PartyId, receipts: Receipts) -> list[SignedReceipt]:
    return [each for each in receipts if each.receipt.aggregator == server]


def say_again(
    signer: PartyId, receipts: Receipts, *, run: RunId = NO_UNION.run_id, victims: SetId | None = None
) -> list[SignedReceipt]:
    """Receipts signed by somebody, for this run or another, with the victim's set or another."""
    named = [
        {client: victims if victims and client == VICTIM else own for client, own in each.receipt.set_of.items()}
        for each in receipts
    ]
    said = [
        each.receipt.model_copy(update={"sets": name_sets(sets)})
        for each, sets in zip(receipts, named, strict=True)
    ]
    return [sign_receipt(parties_of(NO_UNION).identities[signer], run, 1, "signs", each) for each in said]


def without_the_other(receipts: Receipts) -> tuple[Sequence[PartyId], Receipts]:
    return CLIENTS, told_by(FIRST, receipts)


def one_for_the_other(receipts: Receipts) -> tuple[Sequence[PartyId], Receipts]:
    """As many receipts as there should be, but some of them twice."""
    return CLIENTS, [*told_by(FIRST, receipts), *told_by(FIRST, receipts)]


def forged(receipts: Receipts) -> tuple[Sequence[PartyId], Receipts]:
    """The coordinator gives the other aggregator's word itself."""
    return CLIENTS, [*told_by(FIRST, receipts), *say_again(NO_UNION.coordinator, told_by(SECOND, receipts))]


def of_another_run(receipts: Receipts) -> tuple[Sequence[PartyId], Receipts]:
    """Every aggregator has signed the same for a run with another manifest."""
    other = draw_up(nonce="1" * 32).run_id
    return CLIENTS, [
        each for server in AGGREGATORS for each in say_again(server, told_by(server, receipts), run=other)
    ]


def of_another_set(receipts: Receipts) -> tuple[Sequence[PartyId], Receipts]:
    """The other aggregator is on its side, and signs for a set of the victim that the first has never seen."""
    lies = say_again(SECOND, told_by(SECOND, receipts), victims=UNSEEN)
    return CLIENTS, [*told_by(FIRST, receipts), *lies]


def of_two_sets(receipts: Receipts) -> tuple[Sequence[PartyId], Receipts]:
    """The other aggregator signs for the victim's set, and for one more."""
    return CLIENTS, [*receipts, *say_again(SECOND, told_by(SECOND, receipts), victims=UNSEEN)]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        pytest.param(over(VICTIM), RejectReason.TOO_FEW_MEMBERS, id="one-client"),
        pytest.param(over(*CLIENTS[:2]), RejectReason.TOO_FEW_MEMBERS, id="under-min-clients"),
        pytest.param(over(*CLIENTS[:3], VICTIM), RejectReason.NOT_IN_COHORT, id="a-member-twice"),
        pytest.param(over(VICTIM, VICTIM, VICTIM), RejectReason.NOT_IN_COHORT, id="one-client-thrice"),
        pytest.param(over(*CLIENTS[:2], STRANGER), RejectReason.NOT_IN_ROSTER, id="a-stranger"),
        pytest.param(over(*CLIENTS[:2], SECOND), RejectReason.NOT_IN_COHORT, id="an-aggregator"),
        pytest.param(without_the_other, RejectReason.MISSING_RECEIPT, id="receipts-of-one-aggregator"),
        pytest.param(one_for_the_other, RejectReason.MISSING_RECEIPT, id="receipts-twice"),
        pytest.param(of_another_set, RejectReason.MISSING_RECEIPT, id="receipt-of-another-set"),
        pytest.param(of_two_sets, RejectReason.MISSING_RECEIPT, id="receipts-of-two-sets"),
        pytest.param(of_another_run, RejectReason.BAD_SIGNATURE, id="receipts-of-another-run"),
        pytest.param(forged, RejectReason.BAD_SIGNATURE, id="forged-receipts"),
    ],
)
async def test_an_order_that_proves_too_little_is_refused_and_the_phase_stays_open(
    tmp_path: Path, order: Order, reason: RejectReason
) -> None:
    async with enrolled_scene(NO_UNION, tmp_path, task=TASK) as scene:
        await scene.coordinator.open_round(1)
        members, receipts = order(await scene.coordinator.gather_receipts(1))
        await scene.coordinator.close(1, members, receipts=receipts, to=[FIRST])
        await scene.coordinator.finish_round(1)
        assert scene.refusals(FIRST) == {reason: 1}
        # What is not even signed is put aside before anything looks at what it asks for.
        told = [body.reason for _, body in await scene.coordinator.hear(OrderRefused, 0)]
        assert [*told, *scene.dead(FIRST)] == [reason]
        assert scene.refusals(SECOND) == {}


async def test_receipts_are_for_one_phase_of_one_round(tmp_path: Path) -> None:
    async with enrolled_scene(SEC_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.open_round(1)
        await coordinator.release(1, phase="union")
        of_union = await coordinator.gather_receipts(1, "union")
        await coordinator.gather_receipts(1)
        await coordinator.close(1, receipts=of_union)
        await coordinator.finish_round(1)
        await coordinator.open_round(2)
        await coordinator.gather_receipts(2, "union")
        await coordinator.close(2, phase="union", receipts=of_union)
        await coordinator.finish_round(2)
        for server in AGGREGATORS:
            assert scene.refusals(server) == {RejectReason.BAD_SIGNATURE: 2}
            assert scene.dead(server) == [RejectReason.BAD_SIGNATURE.value] * 2


async def test_members_with_different_transcripts_are_never_added(tmp_path: Path, url: str | None) -> None:
    """One of them was told another V, or another model: who adds them reads what only one of them restricts."""
    manifest = run_between(url)
    *honest, misled = manifest.clients
    async with scene_of(manifest, tmp_path, task=TASK, url=url, played=[misled]) as scene:
        coordinator = scene.coordinator
        played = PlayedClient(scene.played[misled], manifest, parties_of(manifest))
        keys = (*await coordinator.gather_keys(of=(*manifest.aggregators, *honest)), played.seals.claim)
        await coordinator.pass_on(keys)
        await played.agree(keys)
        await coordinator.await_ready(len(coordinator.everybody) - 1)
        await coordinator.open_round(1)
        receipts = await coordinator.gather_receipts(1, members=honest)
        (transcript,) = {each.receipt.transcript for each in receipts}
        vectors = receipts[0].receipt.vectors
        zeros = [np.zeros(claim.length, residue_type(claim.modulus)) for claim in vectors]
        await played.send_set(1, vectors, zeros, transcript="7b" * 32)
        await coordinator.close(1)
        refusals = await coordinator.hear(OrderRefused, 2)
        assert {body.reason for _, body in refusals} == {RejectReason.DIFFERENT_TRANSCRIPT}
        await coordinator.finish_round(1, honest)
        for server in manifest.aggregators:
            assert scene.refusals(server) == {RejectReason.DIFFERENT_TRANSCRIPT: 1}
            (released,) = scene.recorded(server, "released")
            assert (released["members"], released["transcript"]) == (honest, transcript)


# One verdict a phase ------------------------------------------------------------------------------------

Attempt = Callable[[Scene], Awaitable[None]]


async def release_then_close_over_others(scene: Scene) -> None:
    await scene.coordinator.release(1)
    await scene.coordinator.close(1, CLIENTS[::-1])  # The same members again are old news.
    await scene.coordinator.close(1, CLIENTS[:3])


async def release_then_void(scene: Scene) -> None:
    await scene.coordinator.release(1)
    await scene.coordinator.void(1)


async def void_then_release(scene: Scene) -> None:
    await scene.coordinator.gather_receipts(1)
    await scene.coordinator.void(1)
    await scene.coordinator.hear(PhaseVoided, 2)
    await scene.coordinator.close(1)


@pytest.mark.parametrize(
    "attempt",
    [release_then_close_over_others, release_then_void, void_then_release],
    ids=lambda each: each.__name__,
)
async def test_a_phase_has_one_verdict(tmp_path: Path, attempt: Attempt) -> None:
    async with enrolled_scene(NO_UNION, tmp_path, task=TASK) as scene:
        await scene.coordinator.open_round(1)
        await attempt(scene)
        await scene.coordinator.play_round(2)
        for server in AGGREGATORS:
            assert scene.refusals(server) == {RejectReason.ALREADY_ENDED: 1}
            assert scene.dead(server) == [RejectReason.ALREADY_ENDED.value]
            sums = [each for each in scene.sent(SumChunk, sender=server) if each.round == 1]
            assert len(sums) == (0 if attempt is void_then_release else len(CLIENTS))
        for client in CLIENTS:
            assert scene.refusals(client) == {}
            assert scene.models(client) == (1 if attempt is void_then_release else 2)


async def test_a_union_that_is_released_is_not_void_and_one_that_is_void_has_no_signs(tmp_path: Path) -> None:
    async with enrolled_scene(SEC_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.open_round(1)
        await coordinator.release(1, phase="union")
        await coordinator.void(1, "union")
        await coordinator.finish_round(1)
        await coordinator.open_round(2)
        of_union = await coordinator.gather_receipts(2, "union")
        await coordinator.void(2, "union")
        await coordinator.hear(RoundDropped, len(CLIENTS))
        parties = parties_of(SEC_UNION)
        corrupt = [
            sign_receipt(parties.identities[each.receipt.aggregator], SEC_UNION.run_id, 2, "signs", each.receipt)
            for each in of_union
        ]
        await coordinator.close(2, receipts=corrupt)
        await coordinator.play_round(3)
        for server in AGGREGATORS:
            assert scene.refusals(server) == {RejectReason.ALREADY_ENDED: 1, RejectReason.DIFFERENT_MEMBERS: 1}
        for client in CLIENTS:
            assert (scene.models(client), scene.refusals(client)) == (2, {})


# Rounds in order ----------------------------------------------------------------------------------------


async def test_a_round_cannot_be_had_again_under_another_number(tmp_path: Path, url: str | None) -> None:
    manifest = run_between(url)
    *honest, accomplice = manifest.clients
    first = manifest.aggregators[0]
    async with enrolled_scene(manifest, tmp_path, task=TASK, url=url) as scene:
        coordinator = scene.coordinator
        await coordinator.open_round(1)
        await coordinator.gather_receipts(1)
        (shares, *_) = [each for each in scene.sent(ShareChunk, sender=honest[0]) if each.recipient == first]
        (own, *_) = [each for each in scene.sent(ShareChunk, sender=accomplice) if each.recipient == first]
        identities = parties_of(manifest).identities
        as_before = replace(shares, round=2)
        as_coordinator = sign(identities[manifest.coordinator], as_before)
        in_its_own_name = sign(
            identities[manifest.coordinator], replace(as_before, sender=manifest.coordinator, signature=b"")
        )
        for envelope in (as_before, as_coordinator, in_its_own_name):
            await coordinator.voice.shout(encode(envelope), to=first, role=Role.AGGREGATOR)
        await coordinator.finish_round(1)
        # The accomplice signs its old share for the new round: the seal still says the old one.
        replayed = sign(identities[accomplice], replace(own, round=2, signature=b""))
        await coordinator.voice.shout(encode(replayed), to=first, role=Role.AGGREGATOR)
        ((_, refusal),) = await coordinator.hear(SetRefused)
        assert (refusal.client, refusal.reason) == (accomplice, RejectReason.BROKEN_SEAL)
        await coordinator.open_round(2, honest)
        await coordinator.finish_round(2, honest)
        assert scene.refusals(first) == {
            RejectReason.BAD_SIGNATURE: 2,
            RejectReason.WRONG_SENDER: 1,
            RejectReason.BROKEN_SEAL: 1,
        }
        assert all(scene.models(client) == 2 for client in honest)


async def test_a_round_is_trained_for_once(tmp_path: Path) -> None:
    async with enrolled_scene(draw_up(rounds=3), tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.play_round(1)
        await coordinator.open_round(1)  # Old news.
        await coordinator.open_round(1)
        await coordinator.play_round(2)
        await coordinator.open_round(1)
        await coordinator.play_round(3)
        for client in CLIENTS:
            assert (scene.refusals(client), scene.dead(client)) == ({}, [])
            for number in (1, 2, 3):
                sets = scene.sent(ShareChunk, sender=client, number=number)
                assert [each.recipient for each in sets] == [*AGGREGATORS], "one set, of one chunk to each"


@pytest.mark.parametrize("attended", [2, 2**31 - 1])
async def test_who_says_that_a_client_has_come_further_than_it_has_gains_the_end_of_the_run(
    tmp_path: Path, attended: int
) -> None:
    """It could as well have cancelled it: the client sends nothing more, and keeps no key."""
    async with enrolled_scene(NO_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.play_round(1)
        before = len(scene.surroundings.recording)
        await coordinator.open_round(2, [VICTIM], attended=attended)
        ((envelope, failed),) = await coordinator.hear(PartyFailed)
        assert (envelope.sender, failed.code) == (VICTIM, Code.DISK_OLD)
        await coordinator.open_round(2, CLIENTS)
        await coordinator.gather_receipts(2, members=CLIENTS[1:])
        await coordinator.close(2, CLIENTS[1:])
        await coordinator.hear(RoundApplied, 3, number=2)
        await coordinator.sync([VICTIM])
        said = [decode(each.frame) for each in scene.surroundings.recording[before:]]
        of_run = [each for each in said if each.sender == VICTIM and each.run == NO_UNION.run_id]
        assert [type(each.body) for each in of_run] == [PartyFailed]
        assert scene.services[VICTIM]._vault.get(NO_UNION.run_id, "run key") is None
        await coordinator.propose(to=[VICTIM])
        await coordinator.sync([VICTIM])
        assert coordinator.said(RunJoined) == len(EVERYBODY), "it is not joined a second time"


async def test_who_says_that_a_client_has_come_less_far_than_it_has_gains_nothing(tmp_path: Path) -> None:
    async with enrolled_scene(NO_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.play_round(1)
        await coordinator.open_round(2, attended=0)
        await coordinator.finish_round(2)
        assert all(scene.models(client) == 2 for client in CLIENTS)
        assert coordinator.said(PartyFailed) == 0


async def test_who_skips_a_round_is_sent_nothing_of_the_next(tmp_path: Path) -> None:
    """No peer holds a model of the round that never was, so nobody takes one, and nobody begins the next."""
    async with enrolled_scene(draw_up(rounds=4), tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.play_round(1)
        await coordinator.open_round(3)
        await coordinator.open_round(2)  # The client was told of a later one: this comes too late to be believed.
        await coordinator.sync(CLIENTS)
        wanted = len(CLIENTS) * (len(CLIENTS) - 1)
        await until(lambda: len(scene.sent(SnapshotRequested)) >= wanted)
        await coordinator.sync(CLIENTS)
        for client in CLIENTS:
            assert scene.state_of(client, 3) == "queued"
            assert (scene.models(client), scene.recorded(client, "caught-up")) == (1, [])
        for number in (2, 3):
            assert scene.sent(ShareChunk, number=number) == []
        assert scene.sent(SnapshotChunk) == scene.sent(ModelVouched) == [], "nobody has anything newer to give"


async def test_who_skips_a_round_for_one_client_alone_has_it_take_the_others_model_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "ASK_AGAIN_S", 0.2)
    async with enrolled_scene(draw_up(rounds=4), tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        others = [client for client in CLIENTS if client != VICTIM]
        await coordinator.play_round(1)
        await coordinator.open_round(3, [VICTIM])
        await until(lambda: bool(scene.sent(SnapshotRequested)))
        assert scene.state_of(VICTIM, 3) == "queued"
        await coordinator.open_round(2, others)
        await coordinator.finish_round(2, others)
        await coordinator.open_round(3, others)
        await coordinator.finish_round(3)
        assert scene.sent(ShareChunk, sender=VICTIM, number=2) == []
        sets = scene.sent(ShareChunk, sender=VICTIM, number=3)
        assert [each.recipient for each in sets] == [*AGGREGATORS]
        assert [fields["up_to"] for fields in scene.recorded(VICTIM, "caught-up")] == [2]
        bodies = [each.body for each in scene.sent(ShareChunk, number=3)]
        transcripts = {body.transcript for body in bodies if isinstance(body, ShareChunk)}
        assert len(transcripts) == 1, "it holds what they hold"


async def test_nothing_of_a_round_is_sent_or_taken_before_the_verdict_on_the_last(tmp_path: Path) -> None:
    async with enrolled_scene(NO_UNION, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.open_round(1)
        receipts = await coordinator.gather_receipts(1)
        await coordinator.open_round(2)
        (own, *_) = [each for each in scene.sent(ShareChunk, sender=ACCOMPLICE) if each.recipient == FIRST]
        early = sign(parties_of(NO_UNION).identities[ACCOMPLICE], replace(own, round=2, signature=b""))
        await coordinator.voice.shout(encode(early), to=FIRST, role=Role.AGGREGATOR)
        moved = [
            sign_receipt(
                parties_of(NO_UNION).identities[each.receipt.aggregator], NO_UNION.run_id, 2, "signs", each.receipt
            )
            for each in receipts
        ]
        await coordinator.close(2, receipts=moved, to=[FIRST])
        await coordinator.void(2, to=[FIRST])
        await coordinator.sync((FIRST, *CLIENTS))
        assert all(scene.state_of(client, 2) == "queued" for client in CLIENTS)
        assert scene.sent(ShareChunk, number=2) == [early], "nothing but what was forged"
        assert scene.refusals(FIRST) == {RejectReason.TOO_EARLY: 3}
        assert scene.dead(FIRST) == [RejectReason.TOO_EARLY.value] * 3
        await coordinator.finish_round(1)
        await coordinator.finish_round(2)
        assert all(scene.refusals(client) == {} for client in CLIENTS)


@pytest.mark.parametrize("early", [False, True], ids=["after-the-last", "while-the-last-is-open"])
async def test_a_run_has_no_more_rounds_than_its_manifest_says(tmp_path: Path, *, early: bool) -> None:
    async with enrolled_scene(draw_up(rounds=1), tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        await coordinator.open_round(1)
        if early:
            await coordinator.open_round(2)
        await coordinator.finish_round(1)
        if not early:
            await coordinator.open_round(2)
        await coordinator.sync(CLIENTS)
        for client in CLIENTS:
            assert scene.refusals(client) == {RejectReason.OVER: 1}
            assert scene.dead(client) == ([] if early else [RejectReason.OVER.value])
        assert scene.sent(ShareChunk, number=2) == []
        await coordinator.tell(RunEnded(outcome="completed", reason="done"), EVERYBODY)
        await coordinator.sync(CLIENTS)


@pytest.mark.parametrize(
    "wasted", [pytest.param((1, 2), id="of-one-model"), pytest.param((1, 3, 5, 7), id="of-the-run")]
)
async def test_who_orders_unions_and_then_nothing_is_left_alone(tmp_path: Path, wasted: tuple[int, ...]) -> None:
    manifest = draw_up(strategy="sec-union", q=3, rounds=9, max_void_rounds=9)
    async with enrolled_scene(manifest, tmp_path, task=TASK) as scene:
        coordinator = scene.coordinator
        for number in range(1, wasted[-1] + 1):
            assert coordinator.said(PartyFailed) == 0
            await (coordinator.waste_round(number) if number in wasted else coordinator.play_round(number))
            await coordinator.hear(RoundDropped if number in wasted else RoundApplied, 4, number=number)
        failures = await coordinator.hear(PartyFailed, len(CLIENTS))
        assert {body.code for _, body in failures} == {Code.POLICY_VOID_ROUNDS}
        following = wasted[-1] + 1
        await coordinator.open_round(following)
        # Nor does anybody begin another run from a model that too many rounds were wasted on.
        await coordinator.sync(CLIENTS, RunRefused if wasted == (1, 2) else RunJoined)
        for client in CLIENTS:
            assert scene.recorded(client, "ended")[0]["outcome"] == "left"
            assert scene.late(client, "round-opened") == 1
        assert scene.sent(ShareChunk, number=following) == []
        assert coordinator.said(SetReceived, number=following) == 0
