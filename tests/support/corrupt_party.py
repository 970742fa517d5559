"""A real federation over memory in which some parties, or the broker, say other things than they should.

The services are the real ones. A corrupt party's messages are rewritten on their way out, by a test that holds its
keys: what is changed is signed and sealed again as the party itself would do it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hubbub.crypto.sealing import ChunkKey
from hubbub.errors import RejectReason
from hubbub.ids import PartyId, SetId
from hubbub.machine.effects import Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import MaskedChunk, SumChunk
from hubbub.messages.shares import ShareChunk
from hubbub.protocol.layout import pack_chunk, plan_chunks, unpack_chunk
from hubbub.protocol.ring import Residues
from hubbub.runtime.message_checks import role_of
from hubbub.runtime.runner import Transition
from hubbub.strategies.phase_plan import plan_phase
from hubbub.strategies.verified import VerifiedRound
from hubbub.transport.base import Address, Handler, Transport
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import Topology, dead_letter_queue, route
from hubbub.trust.audit import Log, read_log
from hubbub.trust.identity import Identity
from hubbub.trust.seals import Stage
from hubbub_aggregator.journal import PhaseOutcome
from hubbub_aggregator.service import Aggregator
from hubbub_coordinator.events import DeadlinePassed
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from hubbub_local.federation import Federation, Parties, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Task
from hubbub_trainer.service import Trainer
from hubbub_trainer.workspace import digest
from support import compact_words
from support.builders import make_manifest
from support.frames import decode, encode, know_roster, sign
from support.held_task import HeldTask, Silence
from support.parties import parties_of, sign_sum
from support.plain_run import run_plainly
from support.recorder import add_residues, inner_of
from support.sealed_shares import open_share, seal_share
from support.wrapping import WrappedTransport

# No vector ends with a whole byte, and each phase's set is one chunk.
TASK = SyntheticTask(103)
SEED = 7
DEMO_SEED = 11

Rewrite = Callable[[Envelope], Sequence[Envelope]]
"""What leaves instead of a message. An envelope without a signature is signed by the corrupt party."""
Change = Callable[[list[Residues]], None]
"""Changes what a client decodes, in place: the true sums of a phase."""
Intercept = Callable[[PartyId, Handler], Handler]
"""What takes a party's deliveries in place of its handler."""
Service = Coordinator | Aggregator | Trainer


def draw_up(**overrides: object) -> Manifest:
    """Three clients, of which two are enough, and two aggregators, in one round of two phases."""
    fields: dict[str, object] = {
        "parameters": TASK.count_parameters(),
        "task": TASK.name,
        "seed": SEED,
        "initial_model_sha256": digest(TASK.initial_model(SEED)),
        "min_clients": 2,
        "strategy": "sec-union",
        "q": 3,
        "rounds": 1,
        # So small a task takes large steps: clamped, a shifted sum of factors would make no difference.
        "first_factor_bound": 16.0,
    }
    return make_manifest(**{**fields, **overrides})  # type: ignore[arg-type]


def say(envelope: Envelope, **changes: object) -> Envelope:
    """Another message in place of this one, for the corrupt party to sign."""
    said: Envelope = replace(envelope, signature=b"", **changes)  # type: ignore[arg-type]
    return said


def is_said(
    envelope: Envelope, kind: type, *, number: int = 1, phase: str = "", to: PartyId | None = None
) -> bool:
    """Whether this is the message that a test is waiting for; no phase means any."""
    return (
        isinstance(envelope.body, kind)
        and envelope.round == number
        and phase in {"", envelope.phase}
        and to in {None, envelope.recipient}
    )


class RewritingTransport(WrappedTransport):
    """A party's transport, with somebody in between who may say something else."""

    def __init__(
        self,
        inner: Transport,
        identity: Identity,
        rewrite: Rewrite,
        find_address: Callable[[Envelope], Address],
        intercept: Intercept,
    ) -> None:
        super().__init__(inner)
        self._identity = identity
        self._rewrite = rewrite
        self._find_address = find_address
        self._intercept = intercept

    async def publish(self, address: Address, body: bytes) -> None:
        original = decode(body)
        for envelope in self._rewrite(original):
            signed = envelope if envelope.signature else sign(self._identity, self._claim(envelope))
            to = address if envelope.recipient == original.recipient else self._find_address(envelope)
            await super().publish(to, encode(signed))

    def _claim(self, envelope: Envelope) -> Envelope:
        """Put the party's own signature under the release that a sum is of, whatever was changed in it."""
        body = envelope.body
        if not isinstance(body, SumChunk):
            return envelope
        signed = sign_sum(self._identity, envelope.run, body, round_number=envelope.round, phase=envelope.phase)
        return replace(envelope, body=signed)

    async def subscribe(self, queue: str, handler: Handler, *, prefetch: int = 8) -> None:
        await super().subscribe(queue, self._intercept(self._identity.name, handler), prefetch=prefetch)


@dataclass(slots=True, eq=False)
class Scene:
    """A federation, whoever of it is corrupt, and what an onlooker finds afterwards."""

    manifest: Manifest
    folder: Path
    known: Parties
    """Who is in the roster, and their keys."""
    intercept: Intercept = lambda _, handler: handler
    corrupt: dict[PartyId, Rewrite] = field(default_factory=dict)
    sent: list[Envelope] = field(default_factory=list)
    """All that was published; what a corrupt party says is without its signature here."""
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    _federation: Federation | None = None
    _sums: dict[tuple[int, str], list[Residues]] = field(default_factory=dict)

    @property
    def federation(self) -> Federation:
        assert self._federation is not None
        return self._federation

    async def run(self) -> tuple[runs.State, runs.CoordinatorRun]:
        """Run to the end, which every party must come to."""
        return await self.federation.run(self.manifest)

    def begin_another(self, manifest: Manifest) -> None:
        """Look at another run of the same parties from now on."""
        self.manifest = manifest

    def connect(self, name: PartyId, topology: Topology) -> Transport:
        identity = self.known.identities[name]

        def rewrite(envelope: Envelope) -> Sequence[Envelope]:
            corrupt = self.corrupt.get(name)
            said = (envelope,) if corrupt is None else tuple(corrupt(envelope))
            self.sent.extend(said)
            return said

        def find_address(envelope: Envelope) -> Address:
            role = role_of(self.manifest, envelope.recipient)
            assert role is not None
            return route(identity.role, role, envelope.recipient)

        inner = MemoryTransport(self.broker, topology)
        return RewritingTransport(inner, identity, rewrite, find_address, self.intercept)

    # The parties ----------------------------------------------------------------------------------------

    def service(self, name: PartyId) -> Service:
        services: tuple[Service, ...] = (
            self.federation.coordinator,
            *self.federation.aggregators,
            *self.federation.trainers,
        )
        return next(each for each in services if each.runner.identity.name == name)

    def aggregator(self, name: PartyId) -> Aggregator:
        return next(each for each in self.federation.aggregators if each.runner.identity.name == name)

    def trainer(self, name: PartyId) -> Trainer:
        return next(each for each in self.federation.trainers if each.runner.identity.name == name)

    def true_sum(self, number: int, phase: str) -> list[Residues]:
        """What the values of all who took part add up to; first asked for when the first sum is on its way."""
        if (number, phase) not in self._sums:
            spaces = [trainer.context_of(self.manifest.run_id).open() for trainer in self.federation.trainers]
            mine = [space.rounds[number].client_round for space in spaces if number in space.rounds]
            columns = zip(*(each.contribute(phase) for each in mine), strict=True)
            self._sums[number, phase] = [
                add_residues(column, vector.modulus)
                for column, vector in zip(columns, mine[0].vectors(phase), strict=True)
            ]
        return self._sums[number, phase]

    def _change(
        self, envelope: Envelope, change: Change, *, forged: bool
    ) -> tuple[list[Residues], list[Residues]]:
        """The true sums, and the changed ones.

        Forged sums have tags that fit: a corrupt client has given the coefficients away.
        """
        true = self.true_sum(envelope.round, envelope.phase)
        wanted = [values.copy() for values in true]
        if not forged:
            change(wanted)
            return true, wanted
        mine = self._client_round(envelope.round)
        own = wanted[: len(inner_of(mine).vectors(envelope.phase))]
        change(own)
        return true, [*own, *mine._tag(envelope.phase, own)]

    def _client_round(self, number: int) -> VerifiedRound:
        """Somebody's side of a round: all clients have the same coefficients."""
        spaces = [trainer.context_of(self.manifest.run_id).open() for trainer in self.federation.trainers]
        mine = next(space.rounds[number].client_round for space in spaces if number in space.rounds)
        assert isinstance(mine, VerifiedRound)
        return mine

    # What a corrupt party seals anew --------------------------------------------------------------------

    def open_share(self, envelope: Envelope) -> bytes:
        """What a client dealt: it knows, and the test asks the aggregator."""
        body, theirs = envelope.body, self.aggregator(envelope.recipient)._seals[envelope.run]
        assert isinstance(body, ShareChunk)
        return open_share(theirs, _stage(envelope), envelope.sender, body.set_id, body.index, envelope.payload)

    def seal_share(self, envelope: Envelope, share: bytes, set_id: SetId | None = None) -> Envelope:
        """Send this aggregator another share, under the same set id or another."""
        body, ours = envelope.body, self.trainer(envelope.sender)._seals[envelope.run]
        assert isinstance(body, ShareChunk)
        body = body.model_copy(update={"set_id": set_id or body.set_id})
        sealed = seal_share(ours, _stage(envelope), envelope.recipient, body.set_id, body.index, share)
        return say(envelope, body=body, payload=sealed)

    def change_sum(self, envelope: Envelope, change: Change, *, forged: bool = True) -> Envelope:
        """Shift this aggregator's sum so that the client decodes another one, as a change of the true one."""
        body = envelope.body
        assert isinstance(body, SumChunk)
        vectors = tuple(claim.vector for claim in body.vectors)
        (chunk,) = plan_chunks(vectors, self.manifest.chunk_bytes)
        true, wanted = self._change(envelope, change, forged=forged)

        def shift(packed: bytes) -> bytes:
            shifted = [
                shift_residues(own, before, after, vectors[piece.vector].modulus)
                for (piece, own), before, after in zip(
                    unpack_chunk(chunk, vectors, packed), true, wanted, strict=True
                )
            ]
            return pack_chunk(chunk, vectors, shifted)

        return self.repack_sum(envelope, shift)

    def change_masked(self, envelope: Envelope, change: Change, *, forged: bool = True) -> Envelope:
        """Shift the masked sum so that the client decodes another one, as a change of the true one."""
        body = envelope.body
        assert isinstance(body, MaskedChunk)
        vectors = tuple(claim.vector for claim in body.vectors)
        (chunk,) = plan = plan_phase(self.manifest, envelope.phase).plan(vectors)
        true, wanted = self._change(envelope, change, forged=forged)
        before, after = (compact_words.to_words(each, vectors) for each in (true, wanted))
        masked = compact_words.unpack(plan, vectors, lambda _: envelope.payload)
        shifted = compact_words.add(vectors, [masked, compact_words.subtract(vectors, after, before)])
        return say(envelope, payload=compact_words.pack(chunk, vectors, shifted))

    def repack_sum(self, envelope: Envelope, change: Callable[[bytes], bytes]) -> Envelope:
        """Send this client other bytes as the aggregator's sum, under the same key."""
        body, stage, me = envelope.body, _stage(envelope), envelope.sender
        assert isinstance(body, SumChunk)
        theirs = self.trainer(envelope.recipient)._seals[envelope.run]
        key = theirs.unwrap_sum_key(stage, me, bytes.fromhex(body.wrapped_key))
        changed = change(bytes(theirs.decrypt_sum(stage, me, key, body.index, envelope.payload)))
        again = ChunkKey.from_bytes(key.to_bytes())
        sealed = self.aggregator(me)._seals[envelope.run].encrypt_sum(stage, again, body.index, changed)
        return say(envelope, payload=sealed)

    # What is found afterwards ---------------------------------------------------------------------------

    def refused(self) -> dict[PartyId, dict[RejectReason, int]]:
        """What every party refused, and how often; nothing for those who refused nothing."""
        found = {name: self.refused_by(name) for name in self.parties}
        return {name: refused for name, refused in found.items() if refused}

    def refused_by(self, name: PartyId) -> dict[RejectReason, int]:
        """What a party counted as refused; its audit log must tell the same."""
        counters, written = self.service(name).counters, self._written_refusals(name)
        counted = {reason: counters.rejections(reason) for reason in RejectReason if counters.rejections(reason)}
        assert written.keys() == counted.keys()
        assert all(written[reason] <= count < 2 * written[reason] for reason, count in counted.items())
        return counted

    def _written_refusals(self, name: PartyId) -> Counter[RejectReason]:
        """Every power of two of a tally is written down, so the largest is more than half of it."""
        largest: dict[tuple[object, ...], int] = {}
        for entry in self.log(name).entries:
            if entry.kind == "refused":
                what = tuple(entry.fields[each] for each in ("reason", "kind", "sender", "run"))
                largest[what] = int(str(entry.fields["count"]))
        written: Counter[RejectReason] = Counter()
        for (reason, *_), count in largest.items():
            written[RejectReason(str(reason))] += count
        return written

    @property
    def parties(self) -> tuple[PartyId, ...]:
        return (self.manifest.coordinator, *self.manifest.aggregators, *self.manifest.clients)

    def log(self, name: PartyId) -> Log:
        return read_log(self.folder / name / "audit.jsonl")

    def logs(self) -> list[Log]:
        return [self.log(name) for name in self.parties]

    def dead(self, name: PartyId) -> list[str]:
        return [letter.reason for letter in self.broker.dead_letters(dead_letter_queue(name))]

    def late(self, name: PartyId, kind: str) -> int:
        registry = self.service(name).counters.registry
        return int(registry.get_sample_value("hubbub_messages_late_total", {"kind": kind}) or 0)

    def verdicts(self, number: int, phase: str) -> list[PhaseOutcome | None]:
        """How every aggregator's journal ends a phase."""
        key = Key("phase", self.manifest.run_id, number, phase)
        return [aggregator.journal.find(key) for aggregator in self.federation.aggregators]

    def sums_sent(self, number: int, phase: str) -> list[Envelope]:
        return [each for each in self.sent if is_said(each, SumChunk, number=number, phase=phase)]

    def rounds(self) -> list[tuple[rounds.State, rounds.CoordinatorRound]]:
        return self.federation.coordinator.find_rounds(self.manifest.run_id)

    def digests(self) -> dict[PartyId, str]:
        return self.federation.model_digests(self.manifest)

    def expect_model(self, history: Mapping[int, Sequence[PartyId]]) -> str:
        """The digest that the plaintext algorithm ends with, if rounds are released over these members."""
        reference = run_plainly(self.manifest, TASK, demo_seed=DEMO_SEED)
        for number, members in history.items():
            reference.play_round(number, [self.manifest.clients.index(client) for client in members])
        return reference.digest()

    def has_models(self, history: Mapping[int, Sequence[PartyId]]) -> bool:
        """Whether every client, member or not, ended with the very model that it should."""
        return self.digests() == dict.fromkeys(self.manifest.clients, self.expect_model(history))


def shift_residues(own: Residues, before: Residues, after: Residues, modulus: int) -> Residues:
    """A share of a sum, shifted by as much as the sum is to be."""
    if modulus == 2**64:
        return own + (after - before)
    return ((own.astype(np.int64) + after - before) % modulus).astype(np.uint32)


def _stage(envelope: Envelope) -> Stage:
    return Stage(envelope.run, envelope.round, envelope.phase)


@asynccontextmanager
async def corrupt_federation(
    manifest: Manifest,
    folder: Path,
    corrupt: Mapping[PartyId, Callable[[Scene], Rewrite]] | None = None,
    *,
    overdue: Callable[[rounds.CoordinatorRound], bool] = lambda _: False,
    unheard: Mapping[int, PartyId] | None = None,
    silence: Silence | None = None,
    intercept: Intercept = lambda _, handler: handler,
    parties: Parties | None = None,
    task: Task = TASK,
) -> AsyncIterator[Scene]:
    """A federation in which these parties are corrupt; a phase's deadline passes as soon as it is `overdue`.

    In some rounds one client is `unheard`: when all others have acknowledged such a round, it is over.
    """
    scene = Scene(manifest, folder, parties or parties_of(manifest), intercept)
    know_roster(scene.known.roster)
    scene.corrupt.update({name: make(scene) for name, make in (corrupt or {}).items()})
    silence = silence or Silence()
    passed: set[tuple[int, int]] = set()

    def observe(moment: Transition) -> None:
        data = moment.data
        if not isinstance(data, rounds.CoordinatorRound):
            return
        here = (data.number, data.phase)
        if moment.after is rounds.State.COLLECTING and here not in passed and overdue(data):
            passed.add(here)
            scene.federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        absent = (unheard or {}).get(data.number)
        if moment.after is rounds.State.APPLYING and data.applied.keys() == {*manifest.clients} - {absent}:
            scene.federation.coordinator.runner.feed_soon(moment.key, DeadlinePassed(at_s=moment.at_s))
        if moment.after in {rounds.State.APPLYING, rounds.State.VOID}:
            silence.lift(data.number)

    async with start_federation(
        manifest,
        parties=scene.known,
        folder=folder,
        load_task=HeldTask(task, silence).load,
        demo_seed=DEMO_SEED,
        connect=scene.connect,
        observer=observe,
    ) as scene._federation:
        try:
            yield scene
        finally:
            silence.lift_all()  # Or their threads would outlive the test.
