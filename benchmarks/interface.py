"""Load on the coordinator's web interface: viewers while rounds run, a long list of runs, restarts.

All parties and the interface are in this process, on one core; the viewers are a process on another. Runs without
viewers, pinned to the same core, alternate with runs with them.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.crowd import Seen
from benchmarks.steps import CLIENTS, RHO, SERVERS
from hubbub.crypto.sealing import Kem, SealingKey
from hubbub.errors import UnexpectedEvent
from hubbub.ids import RunId, SetId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import RoundApplied
from hubbub.messages.shares import Receipt, ReceivedSet, SignedReceipt, Traffic, declare
from hubbub.protocol.layout import Vector
from hubbub.run_options import RunOptions
from hubbub.runtime.runner import BEGINNING, Transition
from hubbub.runtime.state_folder import STATE_FILE
from hubbub.runtime.web_server import listen
from hubbub.store.base import Draft
from hubbub.store.event_codec import EventCodec
from hubbub.store.sqlite import SqliteStore
from hubbub.strategies.registry import find_strategy
from hubbub.transport.base import Address
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import topology_for
from hubbub.trust.signed import sign_run_key
from hubbub_coordinator.accounts import Account, account
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import answering
from hubbub_coordinator.events import (
    Began,
    CancelRequested,
    Event,
    PartyJoined,
    PartyReady,
    ReceiptArrived,
    SumReleased,
    UpdateApplied,
)
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.service import Coordinator
from hubbub_local.demo_board import Stopwatch
from hubbub_local.federation import Connect, Federation, Parties, make_parties, start_federation
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.planning import draw_up_manifest

PROJECT = Path(__file__).resolve().parent.parent
ROUNDS_ALREADY_RUN = 5
"""Rounds of the run that viewers request first, so that its pages are not empty."""
OPTIONS = RunOptions(rho=RHO, local_steps=1, rounds=ROUNDS_ALREADY_RUN, seed=0)
KEPT_AT_ONCE = 500
PAGES = {
    "the newest": "",
    "the newest 200": "limit=200",
    "in the middle": "after={middle}",
    "the last": "after={late}",
    "by state": "state=cancelled&state=failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Number of viewers, and of rounds. The first round of each run is left out."""

    streams: int
    requests_per_s: float
    parameters: int
    pairs: int
    rounds_per_run: int
    rounds_read: int
    """Rounds of the run whose costs and export are read while others run."""
    runs_listed: int
    pages: int
    """Number of requests for each page of the list."""
    restarted_after: tuple[int, ...]
    """Numbers of rounds after which a coordinator is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimes:
    """Times of rounds with and without an audience; medians over `rounds` rounds of each.

    `ratios` are of the medians of consecutive runs. So is the baseline: a run without an audience over the
    previous one without, which is always 1 on a machine of constant speed.
    """

    parameters: int
    rounds: int
    alone_s: float
    watched_s: float
    ratios: list[float]
    null_ratios: list[float]
    seen: list[Seen]

    @property
    def ratio(self) -> float:
        """Protocol time with an audience over that without: the median of all pairs."""
        return statistics.median(self.ratios)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTime:
    """Time of a page of the list of runs; medians of `repeats`."""

    runs: int
    page: str
    repeats: int
    seconds: float
    slowest_s: float


# Rounds with an audience ----------------------------------------------------------------------------------


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    """Pin this thread, and all that it starts, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure_load(audience: Audience) -> LoadTimes:
    """Run with and without an audience in turn. A machine with one core gives it to both."""
    cores = sorted(os.sched_getaffinity(0))
    with _pinned(cores[0]):
        return asyncio.run(_measure_load(audience, cores[-1]))


async def _measure_load(audience: Audience, core: int) -> LoadTimes:
    stage = Stage(SyntheticTask(audience.parameters), make_parties(clients=CLIENTS, servers=SERVERS))
    alone: list[list[float]] = []
    watched: list[list[float]] = []
    seen: list[Seen] = []
    async with stage.open():
        known = await stage.run(ROUNDS_ALREADY_RUN)
        await stage.run(audience.rounds_per_run)
        alone.append(stage.protocol_s[1:])
        for _ in range(audience.pairs):
            async with _watching(stage, audience, core, known) as found:
                await stage.run(audience.rounds_per_run)
                watched.append(stage.protocol_s[1:])
            seen += found
            await stage.run(audience.rounds_per_run)
            alone.append(stage.protocol_s[1:])
    alone_s, watched_s = [*map(statistics.median, alone)], [*map(statistics.median, watched)]
    around = list(pairwise(alone_s))
    return LoadTimes(
        parameters=audience.parameters,
        rounds=sum(map(len, watched)),
        alone_s=statistics.median(chain.from_iterable(alone)),
        watched_s=statistics.median(chain.from_iterable(watched)),
        # Relative to the runs before and after, so that a machine that becomes slower does not count.
        ratios=[
            with_s / ((before + after) / 2) for with_s, (before, after) in zip(watched_s, around, strict=True)
        ],
        null_ratios=[after / before for before, after in around],
        seen=seen,
    )


@dataclass(slots=True)
class Stage:
    """Federation with its web interface."""

    task: SyntheticTask
    parties: Parties
    tokens: Tokens = field(
        default_factory=lambda: Tokens(read=secrets.token_urlsafe(32), change=secrets.token_urlsafe(32))
    )
    url: str = ""
    accounts: list[Account] = field(default_factory=list)
    """Accounts of the last run's rounds."""
    protocol_s: list[float] = field(default_factory=list)
    """Protocol times of the same rounds."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    connect: Connect | None = None
    _federation: Federation | None = None

    @property
    def federation(self) -> Federation:
        if self._federation is None:
            raise RuntimeError("the stage is not open")
        return self._federation

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hubbub-bench-")))
            self._federation = await stack.enter_async_context(
                start_federation(
                    self._draw_up(1),
                    parties=self.parties,
                    folder=folder,
                    load_task=lambda _: self.task,
                    demo_seed=0,
                    connect=self.connect,
                    observer=self._note,
                    trainer_observer=self.stopwatch.observe,
                )
            )
            listener = listen("127.0.0.1", 0, advice="")
            answered = answering(self._federation.coordinator, self.tokens, listener)
            self.url = await stack.enter_async_context(answered)
            yield

    async def run(self, count: int) -> RunId:
        """Run so many rounds, and record their accounts."""
        self.accounts = []
        manifest = self._draw_up(count)
        await self.federation.complete(manifest)
        run = manifest.run_id
        self.protocol_s = [self.stopwatch.split(run, each).protocol_s for each in self.accounts]
        return run

    def _draw_up(self, count: int) -> Manifest:
        return draw_up_manifest(self.task, replace(OPTIONS, rounds=count), roster=self.parties.roster)

    def _note(self, moment: Transition) -> None:
        ended = moment.after is rounds.State.RELEASED and moment.before is not moment.after
        if ended and isinstance(moment.data, rounds.CoordinatorRound):
            self.accounts.append(account(moment.data))


@asynccontextmanager
async def _watching(stage: Stage, audience: Audience, core: int, run: RunId) -> AsyncIterator[list[Seen]]:
    """Run an audience; its result is in the list after the block."""
    arguments = (stage.url, str(core), str(audience.streams), str(audience.requests_per_s), run)
    crowd = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.crowd", *arguments),
        cwd=PROJECT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    found: list[Seen] = []
    try:
        if crowd.stdin is None or crowd.stdout is None:
            raise RuntimeError("the crowd has no pipes")
        news = stage.federation.coordinator.event_feed
        began = news.newest
        crowd.stdin.write(f"{stage.tokens.read}\n".encode())
        if await crowd.stdout.readline() != b"ready\n":
            raise RuntimeError("the crowd could not open its streams")
        yield found
        ids = [item.id for item in news.since(began)]
        crowd.stdin.write(f"{json.dumps(ids)}\n".encode())
        found.append(Seen(**json.loads(await crowd.stdout.readline())))
        await crowd.wait()
    finally:
        if crowd.returncode is None:
            crowd.kill()
            await crowd.wait()


# The list of runs -----------------------------------------------------------------------------------------


def time_pages(count: int, repeats: int) -> list[PageTime]:
    """Store so many runs, start a coordinator on them, and time pages of the list over HTTP."""
    return asyncio.run(_time_pages(count, repeats))


async def _time_pages(count: int, repeats: int) -> list[PageTime]:
    parties = make_parties(clients=CLIENTS, servers=SERVERS)
    name = next(name for name in parties.identities if name == "coordinator")
    tokens = Tokens(read=secrets.token_urlsafe(32), change=secrets.token_urlsafe(32))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hubbub-bench-")))
        kept = _keep_runs(folder / "state.sqlite", parties, count)
        role = parties.identities[name].role
        transport = await stack.enter_async_context(MemoryTransport(MemoryBroker(), topology_for(name, role)))
        coordinator = Coordinator(
            identity=parties.identities[name], roster=parties.roster, transport=transport, folder=folder
        )
        stack.callback(coordinator.close)
        await coordinator.runner.start()
        stack.push_async_callback(coordinator.runner.stop)
        await settle(coordinator)
        url = await stack.enter_async_context(answering(coordinator, tokens, listen("127.0.0.1", 0, advice="")))
        places = {"middle": kept[count // 2], "late": kept[min(count - 1, 60)]}
        samples: dict[str, list[float]] = {page: [] for page in PAGES}
        for _ in range(repeats):
            for page, query in PAGES.items():
                path = f"/api/v1/runs?{query.format(**places)}"
                samples[page].append(await asyncio.to_thread(_time_request, url, path, tokens.read, count))
    return [
        PageTime(
            runs=count, page=page, repeats=repeats, seconds=statistics.median(taken_s), slowest_s=max(taken_s)
        )
        for page, taken_s in samples.items()
    ]


def _keep_runs(path: Path, parties: Parties, count: int) -> list[RunId]:
    """Write runs as a coordinator stores them, each begun and cancelled; oldest first."""
    shapes = EventCodec((runs.CoordinatorRun, *runs.KIND.events))
    first = draw_up_manifest(SyntheticTask(1_000), OPTIONS, roster=parties.roster)
    store = SqliteStore(path)
    kept: list[RunId] = []
    try:
        numbers = iter(range(count))
        while some := list(islice(numbers, KEPT_AT_ONCE)):
            drafts: list[Draft] = []
            for number in some:
                manifest = first.model_copy(update={"nonce": f"{number:032x}"})
                kept.append(manifest.run_id)
                drafts += _write_run(shapes, manifest, number)
            last = store.append(drafts)
            for sequence in range(last - len(drafts) + 1, last + 1):
                store.mark_done(sequence)
    finally:
        store.close()
    return kept


def _write_run(shapes: EventCodec, manifest: Manifest, place: int) -> Iterator[Draft]:
    key = Key("run", manifest.run_id)
    yield Draft(key, BEGINNING, shapes.dump(runs.CoordinatorRun(manifest=manifest, place=place)))
    for event in (Began(at_s=float(place)), CancelRequested(at_s=place + 1.0)):
        yield Draft(key, shapes.name_of(event), shapes.dump(event))


# A restart after many rounds -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart of a coordinator after so many rounds of one run; times are medians of `repeats`."""

    rounds: int
    repeats: int
    process_s: float
    """Time from the start of the process until it can answer."""
    replay_s: float
    """Part of that time in which the runs are replayed."""
    replayed: int
    """Entries in the store."""
    memory_bytes: int
    """Resident memory after the restart."""
    running_bytes: int
    """Resident memory of the process that ran the rounds, at their end."""


START_AGAIN = """
import asyncio, json, sys, time
from pathlib import Path
from hubbub.transport.memory import MemoryBroker, MemoryTransport
from hubbub.transport.topology import topology_for
from hubbub_coordinator.__main__ import Coordinator
from hubbub_coordinator.api.access import Tokens
from hubbub_coordinator.api.app import create_app
from hubbub_local.federation import make_parties

async def main(folder):
    parties = make_parties(clients=2, servers=2)
    identity = parties.identities["coordinator"]
    async with MemoryTransport(MemoryBroker(), topology_for(identity.name, identity.role)) as transport:
        began_s = time.monotonic()
        coordinator = Coordinator(identity=identity, roster=parties.roster, transport=transport, folder=folder)
        await coordinator.start()
        replay_s = time.monotonic() - began_s
        create_app(coordinator, Tokens(read="r" * 32, change="c" * 32))
        status = Path("/proc/self/status").read_text()
        memory = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))
        print(json.dumps([replay_s, memory]), flush=True)
        await coordinator.runner.stop()
        coordinator.close()

asyncio.run(main(Path(sys.argv[1])))
"""


def measure_restarts(counts: Sequence[int], repeats: int) -> list[Restart]:
    """Feed a coordinator the events of more and more rounds, and restart it after the given counts."""
    return asyncio.run(_measure_restarts(counts, repeats))


async def _measure_restarts(counts: Sequence[int], repeats: int) -> list[Restart]:
    parties = make_parties(clients=CLIENTS, servers=SERVERS)
    manifest = draw_up_feeding(parties, max(counts) + 1)
    found: list[Restart] = []
    with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as folder:
        for count in counts:
            async with _on_its_own(parties, Path(folder)) as coordinator:
                await feed_rounds(coordinator, manifest, parties, count)
                running_bytes = _read_memory()
            replayed = _count_entries(Path(folder) / STATE_FILE)
            starts = [await _start_again(Path(folder)) for _ in range(repeats)]
            found.append(
                Restart(
                    rounds=count,
                    repeats=repeats,
                    process_s=statistics.median(each[0] for each in starts),
                    replay_s=statistics.median(each[1] for each in starts),
                    replayed=replayed,
                    memory_bytes=int(statistics.median(each[2] for each in starts)),
                    running_bytes=running_bytes,
                )
            )
    return found


def _count_entries(path: Path) -> int:
    store = SqliteStore(path)
    try:
        return len(store.read())
    finally:
        store.close()


def _read_memory() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


async def _start_again(folder: Path) -> tuple[float, float, int]:
    began_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", START_AGAIN, str(folder)), cwd=PROJECT, stdout=asyncio.subprocess.PIPE
    )
    if process.stdout is None:
        raise RuntimeError("the coordinator has no pipe")
    line = await process.stdout.readline()
    process_s = time.monotonic() - began_s
    if await process.wait() or not line:
        raise RuntimeError("the coordinator could not be started again")
    replay_s, memory_bytes = json.loads(line)
    return process_s, replay_s, memory_bytes


class _Unheard(MemoryTransport):
    """Transport that drops messages: there are no other parties."""

    async def publish(self, address: Address, body: bytes) -> None:
        del address, body


@asynccontextmanager
async def _on_its_own(parties: Parties, folder: Path) -> AsyncIterator[Coordinator]:
    identity = next(each for name, each in parties.identities.items() if name == "coordinator")
    async with _Unheard(MemoryBroker(), topology_for(identity.name, identity.role)) as transport:
        coordinator = Coordinator(identity=identity, roster=parties.roster, transport=transport, folder=folder)
        try:
            await coordinator.start()
            yield coordinator
        finally:
            await coordinator.runner.stop()
            coordinator.close()


def draw_up_feeding(parties: Parties, count: int) -> Manifest:
    """Return the manifest of a run of so many rounds without scores."""
    manifest = draw_up_manifest(SyntheticTask(1_000), replace(OPTIONS, rounds=count), roster=parties.roster)
    return Manifest.model_validate({**manifest.model_dump(), "scores": "none"})


async def settle(coordinator: Coordinator) -> None:
    """Wait until all fed events are processed and all due archives are written."""
    with suppress(UnexpectedEvent):
        await coordinator.runner.feed(Key("run", RunId("")), Began(at_s=0.0))


async def feed_rounds(coordinator: Coordinator, manifest: Manifest, parties: Parties, count: int) -> None:
    """Start or continue a run with events of all parties, until so many of its rounds are over."""
    run = Key("run", manifest.run_id)
    await settle(coordinator)
    if run.run not in coordinator.list_runs():
        await coordinator.submit(manifest)
        everybody = (*manifest.aggregators, *manifest.clients)
        for name in everybody:
            public = SealingKey.generate(Kem.X25519).public
            key = sign_run_key(parties.identities[name], run.run, Kem.X25519, public)
            await coordinator.runner.feed(run, PartyJoined(at_s=coordinator.now_s(), party=name, run_key=key))
        for name in everybody:
            await coordinator.runner.feed(run, PartyReady(at_s=coordinator.now_s(), party=name))
    for number in range(coordinator.find_run(run.run)[1].ended + 1, count + 1):
        for event in list_events(manifest, coordinator.now_s()):
            await coordinator.runner.feed(Key("round", run.run, number), event)
    await settle(coordinator)


def list_events(manifest: Manifest, at_s: float) -> Iterator[Event]:
    """Yield the events of one round at a coordinator; signatures are checked before, so theirs are made up."""
    (phase,) = find_strategy(manifest.strategy).phases
    parameters = manifest.protocol_parameters
    vectors = (
        Vector("signs", parameters.model_size, parameters.signs_modulus),
        Vector("factors", 1, parameters.factors_modulus),
        Vector("tags", 3, 2**64),
    )
    claims = declare(vectors)
    up = Traffic(counts_as="signs", direction="up", payload_bits=8, wire_bytes=1)
    down = Traffic(counts_as="signs", direction="down", payload_bits=8, wire_bytes=1)
    sets = tuple(ReceivedSet(client=client, set_id=SetId("0" * 32)) for client in manifest.clients)
    for server in manifest.aggregators:
        receipt = Receipt(aggregator=server, sets=sets, vectors=claims, transcript="0" * 64)
        signed = SignedReceipt(receipt=receipt, signature="0" * 128)
        yield ReceiptArrived(at_s=at_s, phase=phase.name, receipt=signed)
    members = frozenset(manifest.clients)
    for server in manifest.aggregators:
        yield SumReleased(
            at_s=at_s, phase=phase.name, aggregator=server, members=members, vectors=claims, traffic=(down,)
        )
    for client in manifest.clients:
        report = RoundApplied(model_hmac="0" * 64, traffic=(up,))
        yield UpdateApplied(at_s=at_s, client=client, report=report)


def _time_request(url: str, path: str, token: str, total: int) -> float:
    """Time a request on a new connection, as for somebody who opens the page."""
    began_s = time.monotonic()
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    elapsed_s = time.monotonic() - began_s
    if answer.status != http.HTTPStatus.OK or json.loads(body)["total"] != total:
        raise RuntimeError(f"{path} was answered with {answer.status}: {body[:200]!r}")
    return elapsed_s
