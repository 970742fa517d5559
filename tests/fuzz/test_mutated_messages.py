"""Messages that were tampered with, thrown at every service in the middle of a run.

Ten thousand of each kind here; `make soak` throws a million.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hubbub.crypto.sealing import Kem, seal_overhead
from hubbub.errors import PeerError
from hubbub.messages import codec
from hubbub.messages.envelope import Message
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import PartyFailed, RunEnded, RunRefused
from hubbub.messages.snapshots import ModelVouched, SnapshotChunk, SnapshotRequested, Voucher
from hubbub.runtime.runner import Runner, Transition
from hubbub.transport.base import Delivery, Outcome, Verdict
from hubbub_aggregator.service import Aggregator
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from hubbub_local.federation import Federation, Parties, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.service import Trainer
from hubbub_trainer.workspace import digest
from support.builders import make_bodies, make_envelope, make_manifest
from support.frames import decode, directory_of, encode
from support.held_task import HeldTask, Silence
from support.mutations import Mutator
from support.parties import parties_of
from support.recorder import Recording, connect_recorded

MESSAGES = int(os.environ.get("HUBBUB_FUZZ_MESSAGES", "10000"))
A_SCENE = 1500
"""Messages that are thrown before everything is set up anew."""
HOLD_S = 3600.0
"""The run is held for as long as it takes to throw everything."""
PARAMETERS = 40
TASK = SyntheticTask(PARAMETERS)
COMPACT, PAPER = (
    make_manifest(
        clients=3,
        servers=2,
        strategy="sec-union",
        wire=wire,
        parameters=PARAMETERS,
        rho=0.5,
        rounds=2,
        task=TASK.name,
        initial_model_sha256=digest(TASK.initial_model(7)),
    )
    for wire in ("compact", "paper")
)
Service = Coordinator | Aggregator | Trainer


@dataclass(frozen=True)
class Scene:
    """A federation in its second round, which cannot end because one client is held; and all that was said."""

    federation: Federation
    parties: Parties
    recording: Recording
    silence: Silence

    @property
    def services(self) -> dict[str, Service]:
        return {
            "coordinator": self.federation.coordinator,
            "aggregator": self.federation.aggregators[0],
            "trainer": self.federation.trainers[1],
        }

    def frames_to(self, service: Service) -> list[bytes]:
        name = service.runner.identity.name
        return [each.frame for each in self.recording if each.address.routing_key.partition(".")[0] == name]


@asynccontextmanager
async def held_run(
    folder: Path, manifest: Manifest
) -> AsyncIterator[tuple[Scene, asyncio.Task[tuple[runs.State, runs.CoordinatorRun]]]]:
    silence, parties = Silence((0, 2), patience_s=HOLD_S), parties_of(manifest)
    recording: Recording = []
    waiting = asyncio.Event()

    def watch(moment: Transition) -> None:
        data = moment.data
        if (
            isinstance(data, rounds.CoordinatorRound)
            and data.number == 2
            and data.records
            and len(data.delivered()) == 2
        ):
            waiting.set()

    async with start_federation(
        manifest,
        parties=parties,
        folder=folder,
        load_task=HeldTask(TASK, silence).load,
        demo_seed=0,
        connect=connect_recorded(recording),
        observer=watch,
    ) as federation:
        running = asyncio.create_task(federation.run(manifest))
        await waiting.wait()
        try:
            yield Scene(federation, parties, recording, silence), running
        finally:
            silence.lift_all()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def is_last_word(frame: bytes) -> bool:
    return isinstance(decode(frame).body, RunEnded | RunRefused | PartyFailed)


def frames_of_loss(manifest: Manifest) -> list[bytes]:
    """What clients say to each other when one of them has lost something, which nobody has in this run."""
    sender, recipient, _ = manifest.clients
    said: dict[Message, bytes] = {
        SnapshotRequested(after=0, giver=recipient): b"",
        ModelVouched(vouchers=(Voucher(round=2, released=2, model_hmac="4d" * 32),)): b"",
        SnapshotChunk(index=0): bytes(4 * PARAMETERS + seal_overhead(Kem.X25519)),
    }
    return [
        encode(make_envelope(body, sender=sender, recipient=recipient, manifest=manifest, payload=payload))
        for body, payload in said.items()
    ]


async def throw(runner: Runner, frame: bytes) -> Verdict:
    return await runner._handle(Delivery(frame, redelivered=False, user="mallory"))


def internal_errors(service: Service) -> float:
    return service.counters.registry.get_sample_value("hubbub_internal_errors_total") or 0.0


def snapshot(service: Service) -> dict[object, tuple[object, object]]:
    return {key: (live.state, live.data) for key, live in service.runner.machines.items()}


def is_alive(service: Service) -> bool:
    driver = service.runner._driver
    return driver is not None and not driver.done()


def test_a_damaged_frame_is_refused_by_every_service_and_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with held_run(tmp_path, COMPACT) as (scene, running):
            for number, (name, service) in enumerate(scene.services.items()):
                before = snapshot(service)
                mutator = Mutator(number, scene.frames_to(service))
                for _ in range(MESSAGES // 3 + 1):
                    verdict = await throw(service.runner, mutator.damage(mutator.pick()))
                    assert verdict.outcome is Outcome.REJECT, name
                assert snapshot(service) == before, name
                assert internal_errors(service) == 0, name
            scene.silence.lift_all()
            state, _ = await running
            assert state is runs.State.COMPLETED
            assert len(set(scene.federation.model_digests(COMPACT).values())) == 1

    asyncio.run(run())


def test_whatever_a_party_signs_no_service_breaks(tmp_path: Path) -> None:
    """These may be obeyed where the party has the right to say them, and so a scene does not last."""

    async def act(number: int) -> None:
        manifest = (COMPACT, PAPER)[number % 2]
        async with held_run(tmp_path / str(number), manifest) as (scene, _):
            for name, service in scene.services.items():
                corpus = [frame for frame in scene.frames_to(service) if not is_last_word(frame)]
                mutator = Mutator(number, [*corpus, *(frames_of_loss(manifest) if name == "trainer" else ())])
                for _ in range(A_SCENE // 3 + 1):
                    frame = mutator.rephrase(mutator.pick(), scene.parties)
                    verdict = await throw(service.runner, frame)
                    assert verdict.reason != "internal-error", (name, frame)
                assert is_alive(service), name

    for number in range(MESSAGES // A_SCENE + 1):
        asyncio.run(act(number))


def test_the_codec_reads_a_damaged_frame_or_says_what_is_wrong_with_it() -> None:
    manifest = make_manifest()
    frames = [
        encode(
            make_envelope(body, sender=manifest.clients[0], recipient=manifest.clients[1], payload=b"\x07" * 90)
        )
        for body in make_bodies(manifest)
    ]
    mutator, directory = Mutator(0, frames), directory_of(manifest.run_id)
    read = 0
    for _ in range(MESSAGES):
        try:
            codec.decode(mutator.damage(mutator.pick()), directory)
            read += 1
        except PeerError:
            pass
    assert 0 < read < MESSAGES, "some damage is in the payload, where the codec does not look; most is not"
