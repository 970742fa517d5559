"""Who has no part in a run: changed, repeated and forged messages, one by one and in floods."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from hubbub.errors import RejectReason
from hubbub.ids import PartyId, Role
from hubbub.messages.codec import KINDS, PREFIX
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import MaskedChunk, PartialChunk, SumChunk
from hubbub.messages.shares import DenseShareChunk, ResendSet, SetReceived, ShareChunk, ShareSeed
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested
from hubbub.runtime.runner import Transition
from hubbub.transport.base import ACK, DeadLetter, Delivery, Handler, Transport, Verdict, reject
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import dead_letter_queue, merge, route, topology_for
from hubbub.trust.audit import read_log
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import start_federation
from support.broker import declared
from support.builders import SET_ID, TRANSCRIPT, make_bodies, make_claims, make_cohort, make_envelope
from support.corrupt_party import DEMO_SEED, TASK, Rewrite, Scene, corrupt_federation, draw_up, is_said
from support.frames import decode, encode, sign
from support.held_task import Silence
from support.parties import make_identity, make_parties, parties_of, sign_as
from support.plain_run import run_plainly

MANIFEST = draw_up(rounds=2)
FIRST, OTHER = MANIFEST.aggregators
ANNA, BERT, CARL = MANIFEST.clients
EVERYBODY = MANIFEST.clients


# Any bit of any field -------------------------------------------------------------------------------------

# What can be said of a message before it is known who sent it: no service has looked at any that fails here.
AT_THE_EDGE = {
    RejectReason.MALFORMED,
    RejectReason.UNKNOWN_VERSION,
    RejectReason.UNKNOWN_KIND,
    RejectReason.UNKNOWN_RUN,
    RejectReason.NOT_IN_ROSTER,
    RejectReason.WRONG_RECIPIENT,
    RejectReason.BAD_SIGNATURE,
}
PAYLOAD_SAMPLES = 16
# They are said only where something fails.
NEVER_SAID = {"run-refused", "party-failed", "order-refused", "set-refused"}
# They are said to a client, only where somebody has lost something.
AFTER_A_LOSS = {SnapshotRequested.kind, ModelVouched.kind, SnapshotChunk.kind, ResendSet.kind}
# Each wire has its own for shares and sums.
ON_THE_WIRE = {
    "paper": {ShareChunk.kind, SumChunk.kind},
    "compact": {DenseShareChunk.kind, ShareSeed.kind, PartialChunk.kind, MaskedChunk.kind},
}
SUMS = {SumChunk.kind, MaskedChunk.kind}


def flip_bits(frame: bytes) -> Iterator[bytes]:
    """A bit of every byte, another one in each, and of a payload in some places, its ends among them."""
    start, payload = PREFIX.size + PREFIX.unpack_from(frame)[-1], len(decode(frame).payload)
    step = max(1, (payload - 1) // PAYLOAD_SAMPLES)
    sampled = {*range(start, start + payload, step), start + payload - 1}
    for place in range(len(frame)):
        if start <= place < start + payload and place not in sampled:
            continue
        flipped = bytearray(frame)
        flipped[place] ^= 1 << (place % 8)
        yield bytes(flipped)


@dataclass(slots=True)
class Flipper:
    """Delivers, before the first message of each kind, that message with one bit flipped, for every bit.

    What is said only where something fails is made up for the coordinator, to whom it would be said; and what is
    said after a loss, for a client.
    """

    manifest: Manifest
    kinds: set[str] = field(default_factory=set)
    verdicts: set[Verdict] = field(default_factory=set)
    refused: dict[PartyId, Counter[str]] = field(default_factory=dict)

    def intercept(self, name: PartyId, handler: Handler) -> Handler:
        async def handle(delivery: Delivery) -> Verdict:
            kind = decode(delivery.body).kind
            if kind not in self.kinds:
                await self._deliver_flipped(name, handler, delivery.body)
            if kind == SetReceived.kind and not self.kinds & NEVER_SAID:
                for frame in self._make_complaints():
                    await self._deliver_flipped(name, handler, frame)
            if kind in SUMS and not self.kinds & AFTER_A_LOSS:
                for frame in self._make_talk_of_loss(name):
                    await self._deliver_flipped(name, handler, frame)
            return await handler(delivery)

        return handle

    async def _deliver_flipped(self, name: PartyId, handler: Handler, frame: bytes) -> None:
        self.kinds.add(decode(frame).kind)
        for flipped in flip_bits(frame):
            verdict = await handler(Delivery(flipped, redelivered=False, user="mallory"))
            self.verdicts.add(verdict)
            self.refused.setdefault(name, Counter())[verdict.reason] += 1

    def _make_complaints(self) -> Iterator[bytes]:
        for body in make_bodies(self.manifest):
            if body.kind in NEVER_SAID:
                envelope = make_envelope(
                    body, sender=FIRST, recipient=self.manifest.coordinator, manifest=self.manifest, phase="union"
                )
                yield encode(sign_as(self.manifest, envelope))

    def _make_talk_of_loss(self, recipient: PartyId) -> Iterator[bytes]:
        sender = next(client for client in self.manifest.clients if client != recipient)
        for body in make_bodies(self.manifest):
            if body.kind in AFTER_A_LOSS:
                envelope = make_envelope(body, sender=sender, recipient=recipient, manifest=self.manifest)
                yield encode(sign_as(self.manifest, envelope))


@pytest.mark.parametrize("wire", ON_THE_WIRE)
async def test_no_message_is_taken_with_any_bit_flipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wire: str
) -> None:
    """Every kind of message that a run has, at the moment when the true one is due: the first round is void."""
    caplog.set_level(logging.ERROR)
    metrics = tuple(MetricClaim.of(metric) for metric in TASK.metrics)
    manifest = draw_up(min_clients=3, wire=wire, metrics=metrics)
    flipper = Flipper(manifest)
    async with corrupt_federation(
        manifest,
        tmp_path,
        intercept=flipper.intercept,
        overdue=lambda data: data.number == 1 and data.missing() == (CARL,),
        silence=Silence((EVERYBODY.index(CARL), 1)),
    ) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 1, 1)
        (others,) = (kinds for name, kinds in ON_THE_WIRE.items() if name != wire)
        assert flipper.kinds == KINDS.keys() - others
        assert scene.refused() == flipper.refused
        assert flipper.verdicts == {reject(reason) for reason in AT_THE_EDGE}
        assert scene.has_models({2: EVERYBODY})


# Old messages ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Replayer:
    """Delivers all earlier shares to the first aggregator again, before the first of every new phase.

    As they were, and then with run, round and phase as they ought to be, which nobody but their sender can sign.
    """

    places: list[tuple[str, int, str]] = field(default_factory=list)
    shares: list[bytes] = field(default_factory=list)
    as_they_were: Counter[Verdict] = field(default_factory=Counter)
    relabelled: Counter[Verdict] = field(default_factory=Counter)

    def intercept(self, name: PartyId, handler: Handler) -> Handler:
        async def handle(delivery: Delivery) -> Verdict:
            envelope = decode(delivery.body)
            if name == FIRST and isinstance(envelope.body, ShareChunk):
                await self._replay(handler, envelope)
                self.shares.append(delivery.body)
            return await handler(delivery)

        return handle

    async def _replay(self, handler: Handler, envelope: Envelope) -> None:
        place = (envelope.run, envelope.round, envelope.phase)
        if place in self.places:
            return
        self.places.append(place)
        for old in self.shares:
            again = Delivery(old, redelivered=False, user="mallory")
            self.as_they_were[await handler(again)] += 1
            now = replace(decode(old), run=envelope.run, round=envelope.round, phase=envelope.phase)
            self.relabelled[await handler(replace(again, body=encode(now)))] += 1


async def test_shares_of_an_earlier_phase_round_or_run_are_not_taken_again(tmp_path: Path) -> None:
    """Two runs of two rounds of two phases, in each of which three clients deal."""
    replayer = Replayer()
    async with corrupt_federation(MANIFEST, tmp_path, intercept=replayer.intercept) as scene:
        await scene.run()
        scene.begin_another(draw_up(rounds=2, nonce="1" * 32))
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 2, 0)
        assert len(replayer.places) == 8
        replayed = 3 * sum(range(8))
        assert replayer.as_they_were == {ACK: replayed}
        assert scene.late(FIRST, ShareChunk.kind) == replayed
        assert replayer.relabelled == {reject(RejectReason.BAD_SIGNATURE): replayed}
        assert scene.refused() == {FIRST: {RejectReason.BAD_SIGNATURE: replayed}}
        assert scene.has_models({1: EVERYBODY, 2: EVERYBODY})


async def test_shares_of_a_run_that_an_aggregator_never_joined_are_refused(tmp_path: Path) -> None:
    async with corrupt_federation(draw_up(nonce="1" * 32), tmp_path / "elsewhere") as elsewhere:
        await elsewhere.run()
    old = [each for each in elsewhere.sent if is_said(each, ShareChunk, phase="union", to=FIRST)]

    def send_old(_: Scene) -> Rewrite:
        return lambda envelope: [*old, envelope] if is_share(envelope) else [envelope]

    async with corrupt_federation(draw_up(), tmp_path / "here", {ANNA: send_old}) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.refused() == {FIRST: {RejectReason.UNKNOWN_RUN: 3}}
        assert scene.has_models({1: EVERYBODY})


def is_share(envelope: Envelope) -> bool:
    return is_said(envelope, ShareChunk, phase="union", to=FIRST)


# Forged messages ------------------------------------------------------------------------------------------

MALLORY = PartyId("mallory")
DORA = PartyId("dora")
"""In the roster, with a key of her own, but in no run."""


def forge(envelope: Envelope, *, sender: PartyId, signer: PartyId) -> Envelope:
    """Anna's share as somebody else's, or anybody's as hers."""
    return sign(make_identity(signer, Role.CLIENT, signer), replace(envelope, sender=sender))


FORGERIES: dict[str, tuple[PartyId, PartyId, RejectReason]] = {
    "a stranger": (MALLORY, MALLORY, RejectReason.NOT_IN_ROSTER),
    "a stranger in a client's name": (ANNA, MALLORY, RejectReason.BAD_SIGNATURE),
    "a client in another's name": (ANNA, BERT, RejectReason.BAD_SIGNATURE),
    "an aggregator in a client's name": (ANNA, OTHER, RejectReason.BAD_SIGNATURE),
    "a client of other runs": (DORA, DORA, RejectReason.WRONG_SENDER),
}


async def test_a_forged_client_is_refused(tmp_path: Path) -> None:
    members = tuple((member.name, str(member.organisation)) for member in MANIFEST.cohort)
    parties = make_parties((*members, (DORA, "org-dora")), MANIFEST.aggregators)
    manifest = draw_up(roster_sha256=parties.roster.digest)

    def send_forgeries(_: Scene) -> Rewrite:
        def rewrite(envelope: Envelope) -> Sequence[Envelope]:
            if not is_share(envelope):
                return [envelope]
            forged = [forge(envelope, sender=sender, signer=signer) for sender, signer, _ in FORGERIES.values()]
            return [*forged, envelope]

        return rewrite

    async with corrupt_federation(manifest, tmp_path, {ANNA: send_forgeries}, parties=parties) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.dead(FIRST) == [reason.value for _, _, reason in FORGERIES.values()]
        assert scene.refused() == {FIRST: Counter(reason for _, _, reason in FORGERIES.values())}
        assert scene.has_models({1: EVERYBODY})


# A stranger at the broker ---------------------------------------------------------------------------------

FLOOD = 200


@pytest.mark.broker
async def test_a_stranger_with_a_login_at_the_broker_disturbs_nobody(tmp_path: Path, amqp_url: str) -> None:
    """It floods an aggregator with well-made messages under its own key while the first round goes on."""
    suffix = uuid4().hex[:12]
    stranger = PartyId(f"stranger-{suffix}")
    manifest = draw_up(
        cohort=make_cohort([PartyId(f"client-{number}-{suffix}") for number in range(3)]),
        aggregators=tuple(PartyId(f"aggregator-{number}-{suffix}") for number in range(2)),
        coordinator=PartyId(f"coordinator-{suffix}"),
    )
    target = manifest.aggregators[0]
    parties = parties_of(manifest)
    everything = merge(topology_for(each.name, each.role) for each in parties.identities.values())
    begun = asyncio.Event()

    def watch(moment: Transition) -> None:
        if isinstance(moment.data, rounds.CoordinatorRound):
            begun.set()

    async def flood(transport: Transport) -> None:
        await begun.wait()
        for frame in make_frames(manifest, stranger, target):
            await transport.publish(route(Role.CLIENT, Role.AGGREGATOR, target), frame)

    async with (
        declared(amqp_url, merge([everything, topology_for(stranger, Role.CLIENT)])),
        RabbitMqTransport(amqp_url, topology_for(stranger, Role.CLIENT)) as way_in,
        start_federation(
            manifest,
            parties=parties,
            folder=tmp_path,
            load_task=lambda _: TASK,
            demo_seed=DEMO_SEED,
            connect=lambda name, topology: RabbitMqTransport(amqp_url, topology, connection_name=name),
            observer=watch,
        ) as federation,
        RabbitMqTransport(amqp_url, topology_for(target, Role.AGGREGATOR)) as onlooker,
    ):
        (state, _), _ = await asyncio.gather(federation.run(manifest), flood(way_in))
        put_aside: list[DeadLetter] = []
        while len(put_aside) < FLOOD:
            put_aside = await onlooker.dead_letters(dead_letter_queue(target), FLOOD + 1)

        assert state is runs.State.COMPLETED
        assert {each.reason for each in put_aside} == {RejectReason.NOT_IN_ROSTER}
        assert len(put_aside) == FLOOD
        assert federation.aggregators[0].counters.rejections(RejectReason.NOT_IN_ROSTER) == FLOOD
        reference = run_plainly(manifest, TASK, demo_seed=DEMO_SEED)
        reference.play_round(1)
        assert federation.model_digests(manifest) == dict.fromkeys(manifest.clients, reference.digest())
    refused = [
        each.fields for each in read_log(tmp_path / target / "audit.jsonl").entries if each.kind == "refused"
    ]
    assert [each["count"] for each in refused] == [1, 2, 4, 8, 16, 32, 64, 128]
    # The roster has no name for it, so the log has the broker's.
    login = urlsplit(amqp_url).username or "guest"
    assert {(each["reason"], each["sender"]) for each in refused} == {(RejectReason.NOT_IN_ROSTER, login)}


def make_frames(manifest: Manifest, sender: PartyId, recipient: PartyId) -> Iterator[bytes]:
    """What a client would send, but for the key."""
    identity = make_identity(sender, Role.CLIENT, sender)
    body = ShareChunk(set_id=SET_ID, vectors=make_claims(manifest), transcript=TRANSCRIPT, index=0)
    for _ in range(FLOOD):
        envelope = make_envelope(
            body,
            sender=sender,
            recipient=recipient,
            manifest=manifest,
            phase="union",
            payload=bytes(87),
        )
        yield encode(sign(identity, envelope))
