"""A model in pieces, sealed for a peer; and a peer's model, which is ours only if it is the one vouched for."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, ClientSecret, GroupSecret
from hubbub.errors import PeerError, RejectReason
from hubbub.ids import PartyId, RunId
from hubbub.machine.effects import Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.snapshots import SnapshotChunk, Voucher, count_chunks
from hubbub.protocol.aggregate import NO_HISTORY, History
from hubbub.runtime.publisher import Post
from hubbub.runtime.spool import Spool
from hubbub.strategies.base import Theta
from hubbub.transport.base import Address, Transport
from hubbub_trainer import snapshots
from hubbub_trainer.events import SnapshotSent
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Learner
from hubbub_trainer.phases.participation import SendSnapshot
from hubbub_trainer.run_context import RunContext
from hubbub_trainer.workspace import Workspace, digest, model_hmac
from support.builders import make_manifest
from support.frames import decode, directory_of
from support.parties import identity_of, seals_of

N = 203
MANIFEST = make_manifest(parameters=N, chunk_bytes=256)
ME, GIVER, OTHER = MANIFEST.clients
SEALS = seals_of(MANIFEST)
TASK = SyntheticTask(N)
MODEL: Theta = np.linspace(-1, 1, N, dtype=np.float32)
OTHER_MODEL = np.nextafter(MODEL, np.float32(2))
NUMBER = 5
HISTORY = (0.1, 0.4, 0.3)
"""Round 2 of the five was void, and one moved nothing."""
PLACE = Key("catchup", MANIFEST.run_id, NUMBER, "catchup")


# Cutting and joining ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [1, 63, 64, 65, 128, N])
def test_a_model_is_what_its_chunks_make(parameters: int) -> None:
    manifest = make_manifest(parameters=parameters, chunk_bytes=256, rho=1.0)
    model = MODEL[:parameters]
    chunks = list(snapshots.cut(manifest, model, HISTORY, number=NUMBER))
    assert len(chunks) == count_chunks(manifest, NUMBER)
    assert [len(chunk) for chunk in chunks] == [
        snapshots.chunk_size(manifest, NUMBER, index) for index in range(len(chunks))
    ]
    joined, history, velocity = snapshots.join(manifest, chunks, number=NUMBER)
    assert (history, velocity) == (HISTORY, None)
    assert joined.dtype == np.float32
    assert joined.tobytes() == model.tobytes()
    joined += 1  # A model is worked with; a view of what arrived could not be.


def test_the_velocity_of_a_run_with_momentum_travels_but_for_the_first_round() -> None:
    manifest = make_manifest(parameters=N, chunk_bytes=256, server_momentum=0.5)
    for number, kept in ((NUMBER, OTHER_MODEL.tobytes()), (0, None)):
        chunks = list(snapshots.cut(manifest, MODEL, (), OTHER_MODEL, number=number))
        assert len(chunks) == count_chunks(manifest, number)
        joined, _, velocity = snapshots.join(manifest, chunks, number=number)
        assert joined.tobytes() == MODEL.tobytes()
        assert (None if velocity is None else velocity.tobytes()) == kept


def test_every_bit_of_a_model_travels() -> None:
    """Zeros of both signs and numbers too small to be normal too: digests are of bits."""
    strange = np.array([0.0, -0.0, 1e-45, -1e-40, np.finfo(np.float32).max], dtype=np.float32)
    manifest = make_manifest(parameters=strange.size, chunk_bytes=256, rho=1.0)
    history = (5e-324, 0.1 + 0.2)
    chunks = snapshots.cut(manifest, strange, history, number=NUMBER)
    joined = snapshots.join(manifest, chunks, number=NUMBER)
    assert (joined[0].tobytes(), joined[1]) == (strange.tobytes(), history)


def test_a_snapshot_is_as_long_whatever_its_history_holds() -> None:
    """Servers see its length, and may not learn from it whether a round moved the model."""
    for history in ((), HISTORY, (0.1,) * NUMBER):
        chunks = snapshots.cut(MANIFEST, MODEL, history, number=NUMBER)
        assert sum(map(len, chunks)) == 4 * N + 8 * NUMBER


def test_a_snapshot_has_no_chunk_after_its_last_and_is_of_this_model() -> None:
    assert count_chunks(MANIFEST, NUMBER) == 4
    assert snapshots.chunk_size(MANIFEST, NUMBER, 3) == 4 * N + 8 * NUMBER - 3 * 256
    with pytest.raises(PeerError) as caught:
        snapshots.chunk_size(MANIFEST, NUMBER, 4)
    assert caught.value.reason is RejectReason.WRONG_LENGTH
    with pytest.raises(PeerError, match="a snapshot has 848 bytes") as caught:
        snapshots.join(MANIFEST, snapshots.cut(MANIFEST, MODEL[:-1], HISTORY, number=NUMBER), number=NUMBER)
    assert caught.value.reason is RejectReason.WRONG_LENGTH


# On the way ---------------------------------------------------------------------------------------------


class Outbox:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []

    async def publish(self, address: Address, body: bytes) -> None:
        assert address.routing_key == ME
        self.sent.append(decode(body))


def run_of(
    client: PartyId, outbox: Outbox | None = None, space: object = None, spool: Spool | None = None
) -> RunContext:
    post = Post(cast("Transport", outbox), identity_of(MANIFEST, client), directory_of(MANIFEST.run_id))
    run = SimpleNamespace(
        run=MANIFEST.run_id,
        manifest=MANIFEST,
        seals=SEALS[client],
        runner=SimpleNamespace(post=post),
        spool=spool,
        open=lambda: space,
    )
    return cast("RunContext", run)


async def receive(spool: Spool, *, number: int = NUMBER) -> None:
    """Write the chunks that a giver sends to our disk."""
    outbox = Outbox()
    await snapshots.send(run_of(GIVER, outbox), MODEL, HISTORY, number=number, to=ME)
    for envelope in outbox.sent:
        assert isinstance(envelope.body, SnapshotChunk)
        assert (envelope.round, envelope.phase) == (number, "")
        assert MODEL.tobytes()[:32] not in envelope.payload
        spool.write(PLACE, snapshots.name_chunk(GIVER, number, envelope.body.index), envelope.payload)


async def test_a_model_arrives_as_it_was_sent(tmp_path: Path) -> None:
    """Also if its giver died, was asked again and sealed everything anew: the first copy of a chunk stays."""
    spool = Spool(tmp_path)
    for _ in range(2):
        await receive(spool)
        read = snapshots.read(run_of(ME, spool=spool), PLACE, client=GIVER, number=NUMBER)
        theta, history, _ = snapshots.join(MANIFEST, read, number=NUMBER)
        assert (theta.tobytes(), history) == (MODEL.tobytes(), HISTORY)


async def test_a_model_that_is_moved_to_another_round_does_not_open(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await receive(spool)
    for index in range(count_chunks(MANIFEST, NUMBER)):
        sealed = spool.read(PLACE, snapshots.name_chunk(GIVER, NUMBER, index))
        spool.write(PLACE, snapshots.name_chunk(GIVER, NUMBER + 1, index), sealed)
    with pytest.raises(PeerError) as caught:
        snapshots.read(run_of(ME, spool=spool), PLACE, client=GIVER, number=NUMBER + 1)
    assert caught.value.reason is RejectReason.BROKEN_SEAL


@pytest.mark.parametrize(
    ("applied", "again", "left"),
    [(NUMBER, False, True), (NUMBER + 1, False, False), (NUMBER + 1, True, True)],
    ids=["sent", "moved-on", "moved-on-after-a-crash"],
)
async def test_a_model_that_has_moved_on_is_not_sent_and_counts_only_if_some_of_it_may_have_left(
    *, applied: int, again: bool, left: bool
) -> None:
    outbox = Outbox()
    space = SimpleNamespace(theta=MODEL, history=NO_HISTORY, velocity=None, applied=applied)

    sent = await snapshots.send_snapshot(run_of(GIVER, outbox, space), SendSnapshot(ME, NUMBER, again=again))

    assert sent == SnapshotSent(client=ME, left=left)
    assert len(outbox.sent) == (count_chunks(MANIFEST, NUMBER) if applied == NUMBER else 0)


# Taking -------------------------------------------------------------------------------------------------


def agree() -> GroupSecret:
    parts = [client.encode().ljust(CONTRIBUTION_BYTES, b"\0") for client in MANIFEST.clients]
    return GroupSecret.agree(parts, run=RunId(MANIFEST.run_id), run_keys=[b"k" * 32] * 3)


def open_space(folder: Path) -> Workspace:
    """Of a client that has taken in two rounds, and has something left over of them."""
    group = agree()
    space = Workspace(
        folder=folder,
        learner=TASK.learner(index=0, clients=3, seed=7),
        secret=ClientSecret.for_demo(1, 0),
        theta=TASK.initial_model(7),
        accumulator=np.zeros(N, dtype=np.float32),
        group=group,
    )
    space.recall()
    group.advance_to(3)
    space.advance(
        2, OTHER_MODEL, np.full(N, 0.25, dtype=np.float32), np.full(N, 0.5, dtype=np.float32), HISTORY[:2]
    )
    return space


def vouch(model: Theta, number: int = NUMBER, history: History = HISTORY) -> Voucher:
    group = agree()
    group.advance_to(number)
    return Voucher(round=number, released=number, model_hmac=model_hmac(group, digest(model), history))


def test_the_model_that_was_vouched_for_is_ours_and_what_was_not_sent_yet_is_gone(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    snapshots.take(space, MODEL, HISTORY, vouch(MODEL))
    for each in (space, reopened(space)):
        assert (each.applied, each.memory) == (NUMBER, None)
        assert each.theta.tobytes() == MODEL.tobytes()
        assert each.history == HISTORY
        assert not each.accumulator.any()


class Buffered:
    """The first value of its memory is the model's own, the others are the optimiser's."""

    def buffers(self, memory: Theta | None) -> dict[str, Theta]:
        return {} if memory is None else {"mean": memory[:1]}

    def remember(self, buffers: dict[str, Theta]) -> Theta | None:
        return buffers.get("mean")


def test_who_takes_a_peers_model_keeps_its_own_buffers_and_begins_with_a_new_optimiser(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    space.learner = cast("Learner", Buffered())
    snapshots.take(space, MODEL, HISTORY, vouch(MODEL))
    for each in (space, reopened(space)):
        assert each.memory is not None
        assert each.memory.tolist() == [0.5]
        assert not each.accumulator.any()


def test_a_peers_velocity_is_taken_only_if_it_was_vouched_for(tmp_path: Path) -> None:
    group, space = agree(), open_space(tmp_path)
    group.advance_to(NUMBER)
    found = model_hmac(group, digest(MODEL), HISTORY, OTHER_MODEL)
    voucher = Voucher(round=NUMBER, released=NUMBER, model_hmac=found)
    for wrong in (None, MODEL):
        with pytest.raises(PeerError, match="not the model that was vouched for"):
            snapshots.take(space, MODEL, HISTORY, voucher, wrong)
    snapshots.take(space, MODEL, HISTORY, voucher, OTHER_MODEL)
    for each in (space, reopened(space)):
        assert each.velocity is not None
        assert each.velocity.tobytes() == OTHER_MODEL.tobytes()


def reopened(space: Workspace) -> Workspace:
    """As after a restart."""
    again = replace(
        space, theta=TASK.initial_model(7), accumulator=np.ones(N, dtype=np.float32), applied=0, history=()
    )
    again.recall()
    return again


@pytest.mark.parametrize(
    "voucher",
    [
        pytest.param(vouch(OTHER_MODEL), id="of another model"),
        pytest.param(vouch(MODEL, history=(*HISTORY[:-1], 12.0)), id="of another history"),
        pytest.param(vouch(MODEL, history=()), id="of no history"),
        pytest.param(vouch(MODEL).model_copy(update={"round": NUMBER + 1}), id="of another round"),
        pytest.param(vouch(MODEL).model_copy(update={"model_hmac": "00" * 32}), id="of nothing"),
    ],
)
def test_any_other_is_refused_and_changes_nothing(tmp_path: Path, voucher: Voucher) -> None:
    space = open_space(tmp_path)
    with pytest.raises(PeerError) as caught:
        snapshots.take(space, MODEL, HISTORY, voucher)
    assert caught.value.reason is RejectReason.DIFFERENT_MODEL
    for each in (space, reopened(space)):
        assert each.applied == 2
        assert each.theta.tobytes() == OTHER_MODEL.tobytes()
        assert each.history == HISTORY[:2]
        assert each.accumulator.all()
    assert space.group_secret.round == 3, "the keys of the rounds between may still be needed"
