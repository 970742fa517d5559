"""Everything that crosses the broker on the compact wire, in the hands of whoever runs all but one aggregator.

What they hold of a client, seeds expanded, is uniform, together with the masked sum; the masked sum says nothing
without the group's secret, not even to all aggregators; and with it, it says the sum. That the tools would find
more if there were more is shown each time, with one key more.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hubbub.ids import PartyId, RunId
from hubbub.messages.rounds import MaskedChunk, SumChunk
from hubbub.protocol.layout import DENSE, pack_chunk
from hubbub.protocol.ring import Residues
from hubbub.runtime.state_folder import STATE_FILE
from hubbub.strategies.phase_plan import plan_phase
from hubbub.trust.seals import SealContext as StreamPlace
from hubbub.trust.seals import Stage, mask_stream, share_stream
from hubbub_trainer.learning.synthetic import SyntheticTask
from support import compact_words
from support.aio import bounded
from support.compact_eavesdropper import CompactEavesdropper
from support.compact_words import Parts
from support.eavesdropper import Loot, Search
from support.frames import decode
from support.opposed_task import OpposedTask
from support.recorded_run import TASK, Recorded, Scenario, listen_to
from support.recorder import Place, Said
from support.statistics import against_each_other, against_uniform, bound, joint_counts
from support.thorough import part_of

SCENARIOS = part_of(
    [
        Scenario("sec-union", clients=3, servers=3, rounds=2),
        Scenario("sec-union", clients=3, servers=2, rounds=2, block=4),
        Scenario("no-union", clients=5, servers=2, rounds=1),
    ],
    *(0, 1),
)


def listen(scenario: Scenario, folder: Path, task: SyntheticTask = TASK, **changes: object) -> Recorded:
    manifest = scenario.draw_up(task, wire="compact", **changes)
    return asyncio.run(bounded(listen_to(manifest, folder, task=task)))


@pytest.fixture(scope="module", params=SCENARIOS, ids=str)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return listen(request.param, tmp_path_factory.mktemp("run"))


def attack(recorded: Recorded, *corrupt: PartyId) -> tuple[CompactEavesdropper, Loot]:
    keys = [recorded.witness.run_keys[name] for name in corrupt]
    eavesdropper = CompactEavesdropper(recorded.frames, keys)
    return eavesdropper, eavesdropper.open_all()


def to(parties: Sequence[PartyId], sent: dict[Place, bytes]) -> dict[Place, bytes]:
    return {place: content for place, content in sent.items() if place.recipient in parties}


def mask_key(recorded: Recorded, number: int) -> bytes:
    """What every client has, and nobody else."""
    return recorded.witness.secrets[f"group key for masks, round {number}"]


# What a recording can be opened to --------------------------------------------------------------------------


def test_all_but_one_aggregator_open_what_was_sent_to_them_and_nothing_else(recorded: Recorded) -> None:
    witness = recorded.witness
    for honest in recorded.manifest.aggregators:
        corrupt = recorded.all_but(honest)

        eavesdropper, loot = attack(recorded, *corrupt)

        assert loot == Loot(
            shares=to(corrupt, witness.shares),
            seeds=to(corrupt, witness.seeds),
            partials=to(corrupt, witness.partials),
        )
        for client, number, phase in witness.said:
            assert honest not in eavesdropper.read_shares(loot, client, number, phase)


def test_of_each_set_one_share_is_sent_in_full_and_no_sum_of_a_single_aggregator_to_clients(
    recorded: Recorded,
) -> None:
    manifest, witness = recorded.manifest, recorded.witness
    bodies = [decode(frame).body for frame in recorded.frames]

    assert not [body for body in bodies if isinstance(body, SumChunk)]
    assert [body for body in bodies if isinstance(body, MaskedChunk)]
    for client, number, phase in witness.said:
        full = {
            each.recipient
            for each in witness.shares
            if (each.sender, each.round, each.phase) == (client, number, phase)
        }
        seeded = {
            each.recipient
            for each in witness.seeds
            if (each.sender, each.round, each.phase) == (client, number, phase)
        }
        assert len(full) == 1
        assert full | seeded == set(manifest.aggregators)
        assert not full & seeded


def test_with_every_aggregators_key_inputs_are_still_masked_and_with_the_group_secret_they_are_read(
    recorded: Recorded,
) -> None:
    """The control: what all but one lack is a key, and what all of them lack is the clients' secret."""
    eavesdropper, loot = attack(recorded, *recorded.manifest.aggregators)

    for (client, number, phase), said in recorded.witness.said.items():
        shares = eavesdropper.read_shares(loot, client, number, phase)
        masked = eavesdropper.add(number, phase, list(shares.values()))
        spoken = compact_words.to_words(said.values, said.vectors)
        assert not any(map(np.array_equal, masked, spoken))
        mask = eavesdropper.mask(mask_key(recorded, number), client, number, phase)
        bare = eavesdropper.subtract(number, phase, masked, mask)
        assert all(map(np.array_equal, bare, spoken))


# The masked sum ---------------------------------------------------------------------------------------------


def test_the_masked_sum_is_not_the_sum_and_is_it_to_who_has_the_group_secret(recorded: Recorded) -> None:
    manifest = recorded.manifest
    eavesdropper, _ = attack(recorded)

    for number, phase in eavesdropper.vectors:
        sums = recorded.witness.add_up(manifest.clients, number, phase)
        total = compact_words.to_words(sums, eavesdropper.vectors[number, phase])
        masked = eavesdropper.read_masked(number, phase)
        assert not any(map(np.array_equal, masked, total))
        masks = [
            eavesdropper.mask(mask_key(recorded, number), client, number, phase) for client in manifest.clients
        ]
        bare = eavesdropper.subtract(number, phase, masked, eavesdropper.add(number, phase, masks))
        assert all(map(np.array_equal, bare, total))


def test_partial_sums_add_up_to_the_masked_sum_and_each_is_not_it(recorded: Recorded) -> None:
    manifest = recorded.manifest
    eavesdropper, loot = attack(recorded, *manifest.aggregators)

    for number, phase in eavesdropper.vectors:
        masked = eavesdropper.read_masked(number, phase)
        combiner = plan_phase(manifest, phase).combiner(number)
        others = [server for server in manifest.aggregators if server != combiner]
        parts = [eavesdropper.read_partial(loot, server, number, phase) for server in others]
        dealt = [eavesdropper.read_shares(loot, client, number, phase)[combiner] for client in manifest.clients]
        whole = eavesdropper.add(number, phase, [*parts, eavesdropper.add(number, phase, dealt)])
        assert all(map(np.array_equal, whole, masked))
        assert not any(map(np.array_equal, parts[0], masked))


def test_with_a_clients_key_a_combiner_reads_no_more_of_the_others_than_its_own_part(recorded: Recorded) -> None:
    """The client has the group's secret, so both of them know the sum; shares are sealed to aggregators alone."""
    manifest, witness = recorded.manifest, recorded.witness
    client, other = manifest.clients[:2]
    for combiner in manifest.aggregators:
        eavesdropper, loot = attack(recorded, combiner, client)

        assert loot.shares == to([combiner], witness.shares)
        assert loot.seeds == to([combiner], witness.seeds)
        assert loot.partials == to([combiner], witness.partials)
        assert loot.contributions == to([client], witness.contributions)
        assert loot.elsewhere == []
        for number, phase in eavesdropper.vectors:
            assert set(eavesdropper.read_shares(loot, other, number, phase)) == {combiner}


# Statistics -------------------------------------------------------------------------------------------------


class SwappedTask(OpposedTask):
    """The first two clients have each other's inputs."""

    up = 1


@dataclass(frozen=True, slots=True)
class World:
    """A run in which the first two clients chose the same half of all indices, with opposite signs."""

    recorded: Recorded
    modulus: int = 8

    def at(self, parts: Parts) -> Residues:
        """The lowest bits of the words of signs, to which every one of their digits contributes."""
        return (parts[0] % np.uint64(self.modulus)).astype(np.uint32)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    """Two runs whose sums are the same, in which two honest clients' inputs are swapped."""
    scenario = Scenario("no-union", clients=3, servers=3, rounds=1)
    found = []
    for task in (OpposedTask(100_001), SwappedTask(100_001)):
        recorded = listen(scenario, tmp_path_factory.mktemp("world"), task, rho=0.5, chunk_bytes=4_096)
        found.append(World(recorded))
    first, second = found
    clients = first.recorded.manifest.clients, second.recorded.manifest.clients
    sums = [each.recorded.witness.add_up(names, 1, "signs") for each, names in zip(found, clients, strict=True)]
    assert np.array_equal(sums[0][0], sums[1][0])
    inputs = [each.recorded.witness.said[names[0], 1, "signs"] for each, names in zip(found, clients, strict=True)]
    assert not np.array_equal(inputs[0].values[0], inputs[1].values[0])
    return first, second


def view(world: World, honest: int, client: int) -> list[Residues]:
    """All that everybody but one aggregator has of a client and of the sum, where the inputs differ most."""
    manifest = world.recorded.manifest
    corrupt = world.recorded.all_but(manifest.aggregators[honest])
    eavesdropper, loot = attack(world.recorded, *corrupt)
    shares = eavesdropper.read_shares(loot, manifest.clients[client], 1, "signs")
    assert len(shares) == len(corrupt)
    return [world.at(parts) for parts in (*shares.values(), eavesdropper.read_masked(1, "signs"))]


@pytest.mark.parametrize("honest", range(3))
def test_what_all_but_one_see_is_the_same_for_two_inputs_with_the_same_sum(
    worlds: tuple[World, World], honest: int
) -> None:
    """Their shares of a client and the masked sum, together, are uniform, whichever input was whose."""
    modulus = worlds[0].modulus
    limit = bound(modulus**3)

    counts = [joint_counts(view(world, honest, client), modulus) for world, client in product(worlds, (0, 1))]

    assert all(against_uniform(each) < limit for each in counts)
    assert all(against_each_other(counts[0], each) < limit for each in counts[1:])


def test_what_the_honest_aggregator_released_is_all_that_the_combiner_has_of_it(
    worlds: tuple[World, World],
) -> None:
    """Its partial sum, with the combiner's shares of a client, is uniform and the same for both inputs."""
    modulus = worlds[0].modulus
    counts = []
    for world in worlds:
        manifest = world.recorded.manifest
        combiner = plan_phase(manifest, "signs").combiner(1)
        honest = next(name for name in manifest.aggregators if name != combiner)
        eavesdropper, loot = attack(world.recorded, *world.recorded.all_but(honest))
        partial = world.at(eavesdropper.read_partial(loot, honest, 1, "signs"))
        shares = eavesdropper.read_shares(loot, manifest.clients[0], 1, "signs")
        counts.append(joint_counts([*map(world.at, shares.values()), partial], modulus))

    limit = bound(modulus**3)
    assert all(against_uniform(each) < limit for each in counts)
    assert against_each_other(*counts) < limit


def test_without_the_group_secret_the_masked_sum_and_every_masked_input_is_uniform(
    worlds: tuple[World, World],
) -> None:
    """Even to all aggregators; and with the secret nothing of the kind."""
    for world in worlds:
        manifest, modulus = world.recorded.manifest, world.modulus
        eavesdropper, loot = attack(world.recorded, *manifest.aggregators)
        masked = [
            eavesdropper.add(1, "signs", list(eavesdropper.read_shares(loot, client, 1, "signs").values()))
            for client in manifest.clients
        ]
        limit = bound(modulus**3)

        assert against_uniform(joint_counts([world.at(parts) for parts in masked], modulus)) < limit
        sums = joint_counts([world.at(eavesdropper.read_masked(1, "signs"))], modulus)
        assert against_uniform(sums) < bound(modulus)
        key = mask_key(world.recorded, 1)
        bare = [
            eavesdropper.subtract(1, "signs", parts, eavesdropper.mask(key, client, 1, "signs"))
            for client, parts in zip(manifest.clients, masked, strict=True)
        ]
        assert against_uniform(joint_counts([world.at(parts) for parts in bare], modulus)) > limit


@pytest.mark.parametrize("honest", range(3))
def test_with_a_clients_secret_all_but_one_learn_the_sum_and_nothing_else(
    worlds: tuple[World, World], honest: int
) -> None:
    """The last client is corrupt. A mask taken off the shares that are there leaves what is still uniform."""
    counts = []
    for world in worlds:
        manifest, witness = world.recorded.manifest, world.recorded.witness
        corrupt = world.recorded.all_but(manifest.aggregators[honest])
        eavesdropper, loot = attack(world.recorded, *corrupt, manifest.clients[2])
        key = mask_key(world.recorded, 1)
        masks = [eavesdropper.mask(key, client, 1, "signs") for client in manifest.clients]
        total = eavesdropper.subtract(
            1, "signs", eavesdropper.read_masked(1, "signs"), eavesdropper.add(1, "signs", masks)
        )
        sums = witness.add_up(manifest.clients, 1, "signs")
        assert np.array_equal(total[0], compact_words.to_words(sums, eavesdropper.vectors[1, "signs"])[0])

        shares = list(eavesdropper.read_shares(loot, manifest.clients[0], 1, "signs").values())
        unmasked = eavesdropper.subtract(1, "signs", eavesdropper.add(1, "signs", shares), masks[0])
        counts.append(joint_counts([*map(world.at, shares[1:]), world.at(unmasked)], world.modulus))

    limit = bound(worlds[0].modulus ** 2)
    assert all(against_uniform(each) < limit for each in counts)
    assert against_each_other(*counts) < limit


# What nobody else may find ----------------------------------------------------------------------------------


def look_for_compact(recorded: Recorded) -> Search:
    """Seeds, full shares, sums on their way, masks, and inputs and sums as this wire packs them."""
    search, witness, manifest = Search(), recorded.witness, recorded.manifest
    for what, sent in (("seed", witness.seeds), ("share", witness.shares), ("partial", witness.partials)):
        for place, content in sent.items():
            search.add_bytes(f"{what} at {place}", content)
    eavesdropper, _ = attack(recorded)
    for (client, number, phase), said in witness.said.items():
        add_packed(search, f"input of {client}", recorded, phase, said)
        mask = eavesdropper.mask(mask_key(recorded, number), client, number, phase)
        for chunk in plan_phase(manifest, phase).plan(said.vectors):
            search.add_bytes(f"mask of {client}, packed", compact_words.pack(chunk, said.vectors, mask))
    for number, phase in eavesdropper.vectors:
        total = witness.add_up(manifest.clients, number, phase)
        add_packed(search, f"sum of {phase}", recorded, phase, Said(eavesdropper.vectors[number, phase], total))
    return search


def add_packed(search: Search, name: str, recorded: Recorded, phase: str, said: Said) -> None:
    for vector, values in zip(said.vectors, said.values, strict=True):
        search.add_vector(f"{name}, {vector.name}", values, "u1", "i8")
    for chunk in plan_phase(recorded.manifest, phase).plan(said.vectors):
        pieces = [said.values[piece.vector][piece.elements] for piece in chunk]
        search.add_bytes(f"{name}, packed", pack_chunk(chunk, said.vectors, pieces, DENSE))


@pytest.fixture(scope="module")
def search(recorded: Recorded) -> Search:
    return look_for_compact(recorded)


def find(recorded: Recorded, search: Search, *haystacks: bytes) -> set[str]:
    return search.find(*haystacks) | recorded.inputs_and_sums.find(*haystacks)


def test_no_message_holds_a_seed_a_share_a_mask_a_key_or_a_plain_sum(recorded: Recorded, search: Search) -> None:
    eavesdropper, loot = attack(recorded, *recorded.manifest.aggregators)

    assert find(recorded, search, *recorded.frames) == set()
    assert len(search.find(*loot.everything())) > len(recorded.witness.seeds), "the search would know them"
    assert search.find(*eavesdropper.masked.values()) == set()


def test_logs_metrics_events_and_the_interface_tell_none_of_it(recorded: Recorded, search: Search) -> None:
    ears = recorded.ears
    told = {
        "logs": (ears.logs.getvalue(), f'"run": "{recorded.manifest.run_id}"'),
        "metrics": (ears.metrics, 'hubbub_messages_received_total{kind="masked-chunk"}'),
        "events": ("\n".join(ears.moments), "PartialArrived("),
    }

    for what, (text, known) in told.items():
        assert known in text, what
        assert find(recorded, search, text.encode()) == set(), what
    assert find(recorded, search, *recorded.api_reader.everything()) == set()


def test_no_disk_of_a_party_holds_what_it_must_not_have(recorded: Recorded, search: Search) -> None:
    """An aggregator keeps what it was sent sealed, and its run key in its state; the coordinator nothing."""
    manifest, past = recorded.manifest, recorded.ears.past

    assert find(recorded, search, *every_version(past[manifest.coordinator])) == set()
    for name in manifest.aggregators:
        in_state = [data for path, all_data in past[name].items() for data in all_data if is_state(path)]
        elsewhere = [data for path, all_data in past[name].items() for data in all_data if not is_state(path)]
        assert find(recorded, search, *in_state) == {f"run key of {name}"}
        assert find(recorded, search, *elsewhere) == set()


def test_no_client_writes_down_a_seed_a_share_or_a_key_of_masks(recorded: Recorded) -> None:
    """They follow from what it keeps for a restart."""
    secrets = Search()
    for place, content in {**recorded.witness.seeds, **recorded.witness.shares}.items():
        secrets.add_bytes(f"sent to {place.recipient}", content)
    for number in range(1, recorded.manifest.rounds + 1):
        secrets.add_bytes("key of masks", mask_key(recorded, number))

    for client in recorded.manifest.clients:
        assert secrets.find(*every_version(recorded.ears.past[client])) == set()


def test_an_aggregator_keeps_what_it_was_sent_as_it_came_sealed(recorded: Recorded) -> None:
    """Shares and sums in the spool; seeds in its events, of which those of an open phase are in the state file."""
    eavesdropper, _ = attack(recorded)
    sealed = eavesdropper.sealed
    past = [recorded.ears.past[name].items() for name in recorded.manifest.aggregators]

    spooled = recorded.ears.spooled_by(*recorded.manifest.aggregators)
    states = b"".join(data for files in past for path, all_data in files if is_state(path) for data in all_data)

    assert spooled == {each.ciphertext for kind in (sealed.shares, sealed.partials) for each in kind.values()}
    seeds = [base64.urlsafe_b64encode(each.ciphertext) for each in sealed.seeds.values()]
    assert seeds
    assert all(seed in states for seed in seeds)


def every_version(files: dict[Path, list[bytes]]) -> list[bytes]:
    return [data for all_data in files.values() for data in all_data]


def is_state(path: Path) -> bool:
    return path.name.startswith(STATE_FILE)


# Nothing twice ----------------------------------------------------------------------------------------------


def test_every_seed_is_drawn_for_one_client_aggregator_round_and_phase(recorded: Recorded) -> None:
    seeds = recorded.witness.seeds

    assert len(seeds) == len(recorded.witness.said) * (len(recorded.manifest.aggregators) - 1)
    assert len(set(seeds.values())) == len(seeds)


def test_every_mask_and_every_expanded_share_has_a_stream_of_its_own(recorded: Recorded) -> None:
    """For each client, round, phase, vector and chunk; of shares also for each aggregator."""
    manifest, witness = recorded.manifest, recorded.witness
    begun = []
    for client, number, phase in witness.said:
        stage = Stage(manifest.run_id, number, phase)
        for place in places(recorded, client, number, phase):
            begun.append(mask_stream(stage, mask_key(recorded, number), client, place))
            begun += [
                share_stream(stage, seed, client, each.recipient, place)
                for each, seed in witness.seeds.items()
                if (each.sender, each.round, each.phase) == (client, number, phase)
            ]
    blocks = set()
    for stream in begun:
        block = np.empty(16, dtype=np.uint8)
        stream.fill(block)
        blocks.add(block.tobytes())

    assert len(begun) > 2 * len(witness.said)
    assert len(blocks) == len(begun)


def places(recorded: Recorded, client: PartyId, number: int, phase: str) -> list[StreamPlace]:
    vectors = recorded.witness.said[client, number, phase].vectors
    return [
        StreamPlace(vectors[piece.vector].name, vectors[piece.vector].modulus, index)
        for index, chunk in enumerate(plan_phase(recorded.manifest, phase).plan(vectors))
        for piece in chunk
    ]


def test_every_part_of_a_place_gives_a_mask_another_stream() -> None:
    """Also those by which no two masks of a run differ alone, as its vectors are named now."""
    stage, place, key, client = (
        Stage(RunId("a" * 32), 1, "signs"),
        StreamPlace("signs", 7, 0),
        bytes(32),
        PartyId("a"),
    )
    streams = [
        mask_stream(stage, key, client, place),
        *(
            mask_stream(each, key, client, place)
            for each in (replace(stage, round=2), replace(stage, phase="union"))
        ),
        mask_stream(replace(stage, run=RunId("b" * 32)), key, client, place),
        mask_stream(stage, key, PartyId("b"), place),
        *(
            mask_stream(stage, key, client, each)
            for each in (replace(place, vector="union"), replace(place, modulus=8), replace(place, chunk=1))
        ),
    ]
    blocks = [np.empty(16, dtype=np.uint8) for _ in streams]
    for stream, block in zip(streams, blocks, strict=True):
        stream.fill(block)

    assert len({block.tobytes() for block in blocks}) == len(streams) == 8
