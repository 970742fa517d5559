"""Runs of every strategy through the services, checked against the plaintext algorithm and Table 2.

After every round all clients hold the plaintext algorithm's model. And the bits that every party counted, for each
kind of traffic and each direction, are its share of the formula, which is written out here a second time.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import numpy as np

from hubbub.ids import PartyId, WireMode
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.runtime.runner import Transition
from hubbub.strategies.base import Theta
from hubbub.transport.base import Transport
from hubbub.transport.rabbitmq import RabbitMqTransport
from hubbub.transport.topology import Topology, merge, topology_for
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_local.federation import Connect, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.workspace import digest
from support.broker import declared
from support.builders import make_cohort, make_manifest
from support.parties import parties_of
from support.plain_run import run_plainly

N, KEPT = 203, 20
TASK = SyntheticTask(N)
SEED, DEMO_SEED = 7, 11
SIZES = [(c, s) for c in (2, 5, 8) for s in (2, 3, 5)]
SECURE = ("no-union", "sec-union", "partial-sec-union", "plaintext-union", "shared-mask", "secure-fedavg")
BASELINES = ("fedavg", "topbinary-direct", "topbinary-sep")
UNTAGGED = ("bonawitz", "eastly-tss", "eastly-he")
"""Prior systems, which have one wire and no tags."""
Q = 3

Share = tuple[PartyId, str, str]
"""Who, in which direction, and what it counts as."""


def count_rounds(servers: int) -> int:
    """Accumulators matter from the second round on; it is enough to see that at the smallest sizes."""
    return 2 if servers == 2 else 1


def draw_up(
    strategies: Sequence[str],
    clients: int,
    servers: int,
    wires: Sequence[WireMode] = ("paper", "compact"),
    block: int = 1,
) -> list[Manifest]:
    """A run for each strategy and wire, all of the same parties, whose names nobody else on the broker has."""
    suffix = uuid4().hex[:12]
    drawn = [draw_up_one(strategy, clients, servers, suffix, wire) for strategy in strategies for wire in wires]
    return [Manifest.model_validate({**dict(each), "block": block}) for each in drawn]


def draw_up_one(strategy: str, clients: int, servers: int, suffix: str, wire: WireMode) -> Manifest:
    return make_manifest(
        clients=clients,
        servers=servers,
        cohort=make_cohort([PartyId(f"client-{number}-{suffix}") for number in range(clients)]),
        aggregators=tuple(PartyId(f"aggregator-{number}-{suffix}") for number in range(servers)),
        coordinator=PartyId(f"coordinator-{suffix}"),
        strategy=strategy,
        wire=wire,
        q=Q,
        parameters=N,
        task=TASK.name,
        local_steps=1,
        rounds=count_rounds(servers),
        seed=SEED,
        initial_model_sha256=digest(TASK.initial_model(SEED)),
        chunk_bytes=256,
        metrics=tuple(MetricClaim.of(metric) for metric in TASK.metrics),
    )


INTEGER_TAGS = 3 * 64
MARK_TAGS = {"sec-union": 128 * Q, "partial-sec-union": INTEGER_TAGS}
"""Bits of the tags of the signs and of the union: they count as one."""


# Table 2, by party --------------------------------------------------------------------------------------


def bits_by_kind(manifest: Manifest, union_size: int) -> tuple[dict[str, int], dict[str, int], bool]:
    """Bits that a client sends one server and a server sends one client, and whether one server has it all."""
    signs_bits = (2 * len(manifest.cohort)).bit_length()  # ⌈log2(2C + 1)⌉
    counts_bits = len(manifest.cohort).bit_length()  # ⌈log2(C + 1)⌉
    coded, clients = 32 + N + KEPT, len(manifest.cohort)
    keys, seals = 2 * 256, 2 * 256 + 128
    baselines = {
        "fedavg": ({"update": 32 * N}, {"update": 32 * N}),
        "topbinary-direct": ({"update": coded}, {"update": N + 32 * union_size}),
        "topbinary-sep": ({"update": coded}, {"update": 32 + N + signs_bits * union_size}),
        # Two keys and a seal for every other client, N numbers, a share of every client's secret.
        "bonawitz": (
            {"advertise": keys, "share-keys": (clients - 1) * seals, "masked": 32 * N, "unmask": clients * 256},
            {"advertise": (clients - 1) * keys, "share-keys": (clients - 1) * seals, "update": 32 * N},
        ),
        # Four ciphertexts: 203 parameters are three times 64, and eleven.
        "eastly-he": ({"update": 4 * 4096, "modulus": 2048}, {"update": 4 * 4096}),
    }
    if manifest.strategy in baselines:
        return *baselines[manifest.strategy], True
    if manifest.strategy == "eastly-tss":
        return {"update": signs_bits * N}, {"update": signs_bits * N}, False  # 2C + 1 is a prime at all sizes.
    tags = INTEGER_TAGS + MARK_TAGS.get(manifest.strategy, 0)
    if manifest.strategy == "shared-mask":
        levels_bits = (3 * len(manifest.cohort)).bit_length()  # ⌈log2(3C + 1)⌉
        masked = {"levels": levels_bits * KEPT, "factors": 32, "tags": tags}
        return masked, masked, False
    if manifest.strategy == "secure-fedavg":
        numbers = {"update": 32 * N, "tags": tags}
        return numbers, numbers, False
    sums = {"signs": signs_bits * union_size, "factors": 32, "tags": tags}
    if manifest.block > 1:
        sums["signs"] = counts_bits * union_size
    marks = {"sec-union": Q * count_marks(manifest), "partial-sec-union": counts_bits * N}
    if manifest.strategy in marks:
        sums["union"] = marks[manifest.strategy]
    return sums, sums, False


def count_marks(manifest: Manifest) -> int:
    return math.ceil(N / manifest.block)


def expected_shares(manifest: Manifest, union_size: int) -> dict[Share, int]:
    """The strategy's own phases, and the scores, which are the same for all."""
    shares = Counter(expected_learning(manifest, union_size))
    for share, bits in expected_scores(manifest).items():
        shares[share] += bits
    return dict(shares)


SCORES = {"scores": 2 * 32, "tags": INTEGER_TAGS}
"""Bits of a client's accuracy and loss, and of their tags."""


def expected_scores(manifest: Manifest) -> dict[Share, int]:
    clients, servers = manifest.clients, manifest.aggregators
    shares: dict[Share, int] = {}
    for kind, bits in SCORES.items():
        if manifest.wire == "compact":
            seeds = 256 * (len(servers) - 1) if kind == "scores" else 0
            shares |= {(client, "up", kind): bits + seeds for client in clients}
            shares[PartyId("combiner"), "down", kind] = len(clients) * bits
            shares[PartyId("others"), "across", kind] = (len(servers) - 1) * bits
        else:
            shares |= {(client, "up", kind): len(servers) * bits for client in clients}
            shares |= {(server, "down", kind): len(clients) * bits for server in servers}
    return shares


def expected_learning(manifest: Manifest, union_size: int) -> dict[Share, int]:
    up, down, one_server = bits_by_kind(manifest, union_size)
    servers = manifest.aggregators[:1] if one_server else manifest.aggregators
    if manifest.wire == "compact" and not one_server and manifest.strategy not in UNTAGGED:
        return expected_compact(manifest, union_size)
    shares = {(client, "up", kind): len(servers) * up[kind] for client in manifest.clients for kind in up}
    shares |= {(server, "down", kind): len(manifest.cohort) * down[kind] for server in servers for kind in down}
    if manifest.strategy == "plaintext-union":
        shares |= {(client, "up", "union"): N for client in manifest.clients}
        shares[manifest.aggregators[0], "down", "union"] = len(manifest.cohort) * N
    return shares


DENSE_WORDS = {
    2: (1, 1),
    3: (40, 64),
    5: (24, 56),
    6: (17, 44),
    7: (17, 48),
    8: (1, 3),
    9: (20, 64),
    11: (16, 56),
    16: (1, 4),
    17: (15, 62),
    25: (12, 56),
    2**32: (1, 32),
}
"""How many residues make a number of how many bits, written out a second time."""


def dense_bits(n: int, m: int) -> int:
    digits, bits = DENSE_WORDS[m]
    return math.ceil(n / digits) * bits


def expected_compact(manifest: Manifest, union_size: int) -> dict[Share, int]:
    """One full share, seeds that count as the phase's first vector, S - 1 sums across, one sum to each client."""
    clients, servers = manifest.clients, manifest.aggregators
    signs_modulus = len(clients) + 1 if manifest.block > 1 else 2 * len(clients) + 1
    values = {"signs": dense_bits(union_size, signs_modulus)}
    if manifest.strategy == "shared-mask":
        values = {"levels": dense_bits(KEPT, 3 * len(clients) + 1)}
    signs = {**values, "factors": 32, "tags": INTEGER_TAGS}
    if manifest.strategy == "secure-fedavg":
        signs = {"update": 32 * N, "tags": INTEGER_TAGS}
    marks = {
        "sec-union": dense_bits(count_marks(manifest), 2**Q),
        "partial-sec-union": dense_bits(N, len(clients) + 1),
    }
    tags = MARK_TAGS.get(manifest.strategy, 0)
    phases = [{"union": marks[manifest.strategy], "tags": tags}] if manifest.strategy in marks else []
    shares = Counter[Share]()
    for phase in [*phases, signs]:
        # Which server combines goes round with round and phase; over all servers it is what one of them sends.
        for kind, bits in phase.items():
            seeds = 256 * (len(servers) - 1) if kind in {"union", "signs", "levels", "update"} else 0
            shares.update({(client, "up", kind): bits + seeds for client in clients})
            shares[PartyId("combiner"), "down", kind] += len(clients) * bits
            shares[PartyId("others"), "across", kind] += (len(servers) - 1) * bits
    if manifest.strategy == "plaintext-union":
        shares.update({(client, "up", "union"): N for client in clients})
        shares[PartyId("combiner"), "down", "union"] = len(clients) * N
    return dict(shares)


def by_part(manifest: Manifest, counted: Mapping[Share, int]) -> dict[Share, int]:
    """On the compact wire aggregators take turns: one sends down, all others across."""
    if manifest.wire != "compact":
        return dict(counted)
    found = Counter[Share]()
    parts = {"down": "combiner", "across": "others"}
    for (party, direction, kind), bits in counted.items():
        alone = manifest.strategy in (*BASELINES, *UNTAGGED) and kind not in SCORES
        found[party if alone else PartyId(parts.get(direction, party)), direction, kind] += bits
    return dict(found)


def check_bits(manifest: Manifest, data: rounds.CoordinatorRound, result: Account) -> None:
    measured = Counter[Share]()
    for party, row in data.traffic:
        measured[party, row.direction, row.counts_as] += row.payload_bits
    # A party that counts arriving wire bytes reports no payload in that direction.
    counted = {share: bits for share, bits in measured.items() if bits}
    assert by_part(manifest, counted) == expected_shares(manifest, result.union_size)
    by_kind = Counter[str]()
    for (_, _, kind), bits in counted.items():
        by_kind[kind] += bits
    assert set(result.costs) == set(by_kind)
    for kind, cost in result.costs.items():
        assert cost.payload_bits == cost.predicted_bits == by_kind[kind], kind
        assert cost.wire_bytes * 8 >= cost.payload_bits, kind


# The runs -----------------------------------------------------------------------------------------------


async def check_runs(manifests: Sequence[Manifest], folder: Path, connect: Connect | None) -> None:
    """One run after the other, with the same services: starting them takes longer than a run."""
    over = {manifest.run_id: asyncio.Event() for manifest in manifests}

    def note(moment: Transition) -> None:
        if moment.key.kind == "run" and moment.after in runs.OUTCOMES:
            over[moment.key.run].set()

    async with start_federation(
        manifests[0],
        parties=parties_of(manifests[0]),
        folder=folder,
        load_task=lambda _: TASK,
        demo_seed=DEMO_SEED,
        connect=connect,
        observer=note,
    ) as federation:
        for manifest in manifests:
            await federation.coordinator.submit(manifest)
            await over[manifest.run_id].wait()
            state, run = federation.coordinator.find_run(manifest.run_id)
            assert state is runs.State.COMPLETED, (manifest.strategy, run.reason)
            found = federation.coordinator.find_rounds(manifest.run_id)
            check_run(manifest, folder, [data for _, data in found])


def check_run(manifest: Manifest, folder: Path, played: Sequence[rounds.CoordinatorRound]) -> None:
    reference, expected = run_plainly(manifest, TASK, demo_seed=DEMO_SEED), []
    for data in played:
        reference.play_round(data.number)
        expected.append(reference.digests())
        result = account(data)
        assert result.members == manifest.clients
        # FedAvg has no V: everything is sent.
        assert result.union_size == (N if manifest.strategy == "fedavg" else reference.union.size)
        check_bits(manifest, data, result)
        assert data.metrics == score(manifest, reference.models)
    assert len({digests[0] for digests in expected}) == manifest.rounds
    for place, client in enumerate(manifest.clients):
        lines = (folder / client / "runs" / manifest.run_id / "rounds.jsonl").read_text("utf-8").splitlines()
        own = [digests[place] for digests in expected]
        assert [json.loads(line)["model_sha256"] for line in lines] == own, (manifest.strategy, client)


def score(manifest: Manifest, models: Sequence[Theta]) -> dict[str, float]:
    """What the clients' scores of their models come to, added up in the open."""
    sheet, clients = manifest.score_sheet, len(manifest.clients)
    learners = [TASK.learner(index=index, clients=clients, seed=SEED) for index in range(clients)]
    encoded = [
        sheet.encode(learner.evaluate(theta), learner.examples)
        for learner, theta in zip(learners, models, strict=True)
    ]
    return sheet.decode(np.sum(encoded, axis=0, dtype=np.uint32), clients)


@asynccontextmanager
async def connections(url: str, manifest: Manifest) -> AsyncIterator[Connect]:
    """A connection for every party; their queues are there before they come, and removed at the end."""
    roster = parties_of(manifest).roster
    everything = merge(topology_for(party.name, party.role) for party in roster.parties)

    def connect(name: PartyId, topology: Topology) -> Transport:
        return RabbitMqTransport(url, topology, connection_name=name)

    async with declared(url, everything):
        yield connect
