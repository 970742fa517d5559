"""Times of a phase's steps on the compact wire, relative to the raw AES-CTR stream and copies that each needs.

*The same bytes* of a step are two numbers. Its stream is what it draws from AES-CTR, counted while it runs. Its
copies are its input and its output, each byte once, as they are in memory: a client's residues in the narrowest
type, words in theirs, what travels packed. The raw time is that of filling as many bytes with AES-CTR and of
copying as many with numpy, both into preallocated memory, measured right before or after the step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.steps import CLIENTS, FACTORS_MODULUS, SERVERS
from benchmarks.timing import make_sampler
from hubbub.crypto.stream import KEY_BYTES, AesCtrStream
from hubbub.ids import PartyId, RunId
from hubbub.messages.manifest import CHUNK_BYTES
from hubbub.protocol import ring, signs
from hubbub.protocol.dense import Digits, from_words, pack_dense, pack_words, to_words
from hubbub.protocol.layout import DENSE, Chunk, Vector, plan_chunks
from hubbub.protocol.sharing import accumulate_chunk, begin_total
from hubbub.strategies.base import Phase
from hubbub.strategies.phase_plan import PhasePlan
from hubbub.trust.seals import Stage
from hubbub_aggregator.spooled_shares import Adding, check_chunk
from hubbub_trainer.round_jobs import Compact

SHARE_AND_ADD = "sharing plus adding, everybody"
"""The row for the whole phase: every client deals, every aggregator adds, one of them combines."""

ROUND = 1


@dataclass(frozen=True, slots=True)
class CompactStep:
    """Step to time, over `elements` elements, with `copied_bytes` of input and output."""

    name: str
    elements: int
    copied_bytes: int
    run: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactTiming:
    """Time of a step, and its ratio to the raw stream and copies of the same bytes."""

    name: str
    elements: int
    stream_bytes: int
    copied_bytes: int
    seconds: float
    stream_s: float
    copy_s: float
    ratio: float


def time_compact(parameters: int, repeats: int) -> list[CompactTiming]:
    """Time all steps in turn, each with its own raw stream and copies."""
    steps = list_steps(parameters)
    drawn = [_count_stream(step.run) for step in steps]
    raws = [_Raw(stream_bytes, step.copied_bytes) for stream_bytes, step in zip(drawn, steps, strict=True)]
    trios = [
        [make_sampler(run) for run in (step.run, raw.stream, raw.copy)]
        for step, raw in zip(steps, raws, strict=True)
    ]
    samples: list[list[tuple[float, ...]]] = [[] for _ in steps]
    for _ in range(repeats):
        for trio, taken in zip(trios, samples, strict=True):
            taken.append(tuple(sample() for sample in trio))
    return [
        _summarise(step, stream_bytes, taken)
        for step, stream_bytes, taken in zip(steps, drawn, samples, strict=True)
    ]


def _summarise(step: CompactStep, stream_bytes: int, taken: Sequence[tuple[float, ...]]) -> CompactTiming:
    return CompactTiming(
        name=step.name,
        elements=step.elements,
        stream_bytes=stream_bytes,
        copied_bytes=step.copied_bytes,
        seconds=statistics.median(own for own, _, _ in taken),
        stream_s=statistics.median(stream for _, stream, _ in taken),
        copy_s=statistics.median(copy for _, _, copy in taken),
        ratio=statistics.median(own / (stream + copy) for own, stream, copy in taken),
    )


class _Raw:
    """Key stream and copy of so many bytes, both into preallocated memory."""

    def __init__(self, stream_bytes: int, copied_bytes: int) -> None:
        self._stream = AesCtrStream.from_os()
        self._streamed = np.zeros(stream_bytes, dtype=np.uint8)
        self._source, self._target = (np.ones(copied_bytes, dtype=np.uint8) for _ in range(2))

    def stream(self) -> None:
        self._stream.fill(self._streamed)

    def copy(self) -> None:
        np.copyto(self._target, self._source)


def _count_stream(run: Callable[[], object]) -> int:
    """Return the number of AES-CTR bytes that a step draws."""
    with _counted_stream() as drawn:
        run()
    return sum(drawn)


@contextmanager
def _counted_stream() -> Iterator[list[int]]:
    drawn: list[int] = []
    original = AesCtrStream.fill

    def fill(stream: AesCtrStream, out: NDArray[np.uint8]) -> None:
        drawn.append(out.nbytes)
        original(stream, out)

    with patch.object(AesCtrStream, "fill", fill):
        yield drawn


def list_steps(n: int) -> list[CompactStep]:
    """Return the steps to time: functions on a whole vector, then the services' work on chunks."""
    return [*_function_steps(n, signs.modulus(CLIENTS)), *PhaseSteps(n).list_all()]


def _function_steps(n: int, m: int) -> list[CompactStep]:
    stream = AesCtrStream.from_os()
    x = ring.sample(stream, n, m).astype(ring.word_type(m))
    total, words, packed = begin_total(n, m), to_words(x, m), pack_dense(x, m)
    return [
        CompactStep("make words of digits", n, x.nbytes + words.nbytes, partial(to_words, x, m)),
        CompactStep("make digits of words", n, x.nbytes + words.nbytes, partial(from_words, words, n, m)),
        CompactStep("add a mask", n, words.nbytes, partial(total.add_expanded, stream)),
        CompactStep("pack words", n, words.nbytes + len(packed), partial(pack_words, words, m)),
        CompactStep("unpack and add", n, words.nbytes + len(packed), partial(total.add_packed, packed)),
    ]


class PhaseSteps:
    """Phase of all clients and aggregators as the services compute it, without messages, seals and disks."""

    def __init__(self, n: int, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._n = n
        self._clients = tuple(PartyId(f"client-{place}") for place in range(CLIENTS))
        servers = tuple(PartyId(f"aggregator-{place}") for place in range(SERVERS))
        self.vectors = (Vector("signs", n, signs.modulus(CLIENTS)), Vector("factors", 1, FACTORS_MODULUS))
        self.plan = plan_chunks(self.vectors, chunk_bytes, DENSE)
        self._wire = PhasePlan(Phase("signs"), 0, self._clients, servers, "compact", chunk_bytes)
        stream = AesCtrStream.from_os()
        self._stage = Stage(RunId("0" * 64), ROUND, "signs")
        self._compact = Compact(self._stage, bytes(KEY_BYTES))
        self._secrets = {client: bytes([place]) * KEY_BYTES for place, client in enumerate(self._clients)}
        self.values = tuple(_draw(stream, vector) for vector in self.vectors)
        self._dealt = {client: self.deal(client) for client in self._clients}
        self._partials: dict[PartyId, list[bytes]] = {}
        for server in self._others:
            self._partials[server] = self.add(server)
        self.combined = self.add(self._combiner)

    @property
    def _combiner(self) -> PartyId:
        return self._wire.combiner(ROUND)

    @property
    def _others(self) -> list[PartyId]:
        return [server for server in self._wire.servers if server != self._combiner]

    def deal(self, client: PartyId) -> list[bytes]:
        """Return a client's full share, chunk by chunk."""
        holder = self._wire.full_share_holder(client, ROUND)
        seeded = [server for server in self._wire.servers if server != holder]
        return [
            self._compact.deal_chunk(
                index, chunk, self.vectors, self.values, me=client, secret=self._secrets[client], seeded=seeded
            )
            for index, chunk in enumerate(self.plan)
        ]

    def add(self, server: PartyId) -> list[bytes]:
        """Return an aggregator's sum; the combiner adds the others' sums in the same pass."""
        adding = self._begin_adding(server)
        return [adding.add(index, chunk) for index, chunk in enumerate(self.plan)]

    def begin_adding(self) -> Adding:
        """Start the addition of an aggregator that does not combine."""
        return self._begin_adding(self._others[0])

    def unmask(self) -> list[Digits]:
        """Return the values that a client gets from the combined sum."""
        sums, _ = self._compact.decode_chunks(self.plan, self.vectors, self._clients, self.combined.__getitem__)
        return sums

    def list_all(self) -> list[CompactStep]:
        n, share = self._n, sum(map(len, self._dealt[self._clients[0]]))
        values = sum(each.nbytes for each in self.values)
        full = sum(map(len, self._dealt[self._clients[0]]))
        everything = CLIENTS * (values + share) + CLIENTS * share + (2 * SERVERS - 1) * share
        return [
            CompactStep("deal, one client", n, values + full, partial(self.deal, self._clients[0])),
            CompactStep("check a full share", n, share, self._check),
            CompactStep("add a full share", n, 2 * share, partial(self._add_alone, full=1, seeded=0)),
            CompactStep("add a seeded share", n, share, partial(self._add_alone, full=0, seeded=1)),
            CompactStep("combine the sums", n, (SERVERS + 1) * share, self._combine),
            CompactStep("unmask", n, share + values, self.unmask),
            CompactStep(SHARE_AND_ADD, n, everything, self._share_and_add),
        ]

    def _begin_adding(self, server: PartyId) -> Adding:
        holders = {client: self._wire.full_share_holder(client, ROUND) for client in self._clients}
        shares = [self._dealt[client] for client in self._clients if holders[client] == server]
        sums = self._partials.values() if server == self._combiner else ()
        seeds = {
            client: self._compact.seed_for(self._secrets[client], server)
            for client in self._clients
            if holders[client] != server
        }
        full = [chunks.__getitem__ for chunks in (*shares, *sums)]
        return Adding(stage=self._stage, server=server, vectors=self.vectors, full=full, seeds=seeds)

    def _check(self) -> None:
        for chunk, payload in zip(self.plan, self._dealt[self._clients[0]], strict=True):
            check_chunk(chunk, self.vectors, payload, DENSE)

    def _add_alone(self, *, full: int, seeded: int) -> list[bytes]:
        whole = self._begin_adding(self._combiner)
        seeds = dict(list(whole.seeds.items())[:seeded])
        some = Adding(whole.stage, whole.server, whole.vectors, whole.full[:full], seeds)
        return [some.add(index, chunk) for index, chunk in enumerate(self.plan)]

    def _combine(self) -> list[bytes]:
        sums = [*self._partials.values(), self.combined]
        return [self._combine_chunk(index, chunk, sums) for index, chunk in enumerate(self.plan)]

    def _combine_chunk(self, index: int, chunk: Chunk, sums: Sequence[Sequence[bytes]]) -> bytes:
        return accumulate_chunk(
            chunk, self.vectors, full=[partial(each.__getitem__, index) for each in sums], seeded=[]
        )

    def _share_and_add(self) -> None:
        for client in self._clients:
            self.deal(client)
        for server in (*self._others, self._combiner):
            self.add(server)


def _draw(stream: AesCtrStream, vector: Vector) -> Digits:
    """Draw a client's values, bounded so that the sum over all clients does not wrap."""
    values = (vector.modulus - 1) // CLIENTS + 1
    return ring.sample(stream, vector.length, values).astype(ring.word_type(vector.modulus))
