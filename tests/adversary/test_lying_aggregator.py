"""Aggregators that release other sums than they computed: no client takes one, and refusing tells nothing.

Failures: a client takes a shifted sum; a refusal differs by what was summed; after a false sum the run goes on,
the round is void, or the model can be used again.
No failure: a server with a client's help chooses a sum, since that client has given it the coefficients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hubbub.errors import FalseSum, PeerError, RejectReason
from hubbub.ids import PartyId
from hubbub.messages.envelope import Envelope
from hubbub.messages.rounds import MaskedChunk, RoundApplied, SumChunk, VoidNotice
from hubbub.messages.runs import PartyFailed
from hubbub.parameters import Parameters
from hubbub.protocol.layout import DENSE, Vector, plan_chunks
from hubbub.protocol.packing import residue_type
from hubbub.protocol.ring import Residues
from hubbub.protocol.sharing import unmask
from hubbub.strategies.base import ClientRound, Release
from hubbub.strategies.registry import find_strategy
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_trainer.saved_model import ENDORSEMENT
from support import compact_words
from support.corrupt_party import Change, Rewrite, Scene, corrupt_federation, draw_up, is_said
from support.recorder import add_residues
from support.strategy_rounds import draw, fit_tags, make_input, setting

Words = NDArray[np.uint64]
SHIFTS = 360
"""Tried in every phase of every strategy on both wires: 10,000 in all."""


# What a phase adds up to, as the wire carries it ----------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A strategy, and the parameters that matter for its rings."""

    strategy: str
    wire: str
    q: int = 1
    block: int = 1
    number_bits: int = 32

    @property
    def parameters(self) -> Parameters:
        plain = setting(clients=3, q=self.q)
        plain = replace(plain, block=self.block, number_bits=self.number_bits)
        return replace(plain, wire=self.wire)  # type: ignore[arg-type]  # A literal, as text.

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that carry tags."""
        return tuple(phase.name for phase in find_strategy(self.strategy).phases if phase.tagged)

    def __str__(self) -> str:
        return f"{self.strategy}-{self.wire}-q{self.q}-b{self.block}-{self.number_bits}"


CASES = [
    Case(strategy, wire, q, block, number_bits)
    for wire in ("paper", "compact")
    for strategy, q, block, number_bits in [
        ("no-union", 1, 1, 32),
        ("sec-union", 1, 1, 32),
        ("sec-union", 3, 1, 32),
        ("sec-union", 32, 1, 32),
        ("sec-union", 2, 7, 32),
        ("partial-sec-union", 1, 1, 32),
        ("plaintext-union", 1, 1, 32),
        ("sum", 1, 1, 32),
        ("sparse-sum", 1, 1, 32),
        ("sum", 1, 1, 64),
        ("sparse-sum", 1, 1, 64),
    ]
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of a phase as words: residues on the paper's wire, dense words on the compact one."""

    vectors: tuple[Vector, ...]
    words: tuple[Words, ...]
    compact: bool

    def size(self, position: int) -> int:
        """Words of this vector are added mod this number."""
        modulus = self.vectors[position].modulus
        return compact_words.ring_of(modulus) + 1 if self.compact else modulus

    def shift(self, shift: Shift) -> Sum:
        words = [each.copy() for each in self.words]
        for position, place, by in shift:
            moved = (int(words[position][place]) + by) % self.size(position)
            words[position][place] = moved
        return replace(self, words=tuple(words))

    def release(self) -> Release:
        """What a client decodes of it."""
        if not self.compact:
            kinds = [residue_type(vector.modulus) for vector in self.vectors]
            return Release(
                self.vectors, tuple(each.astype(kind) for each, kind in zip(self.words, kinds, strict=True))
            )
        (chunk,) = plan_chunks(self.vectors, 2**20, DENSE)
        read = list(unmask(chunk, self.vectors, compact_words.pack(chunk, self.vectors, self.words), masks=[]))
        possible = all([could_be for _, _, could_be in read])  # noqa: C419  (As clients do: to the end.)
        return Release(self.vectors, tuple(values for _, values, _ in read), possible)


Shift = Sequence[tuple[int, int, int]]
"""Vector, place and by how much."""


def add_up(case: Case, clients: Sequence[ClientRound], phase: str) -> Sum:
    vectors, said = clients[0].vectors(phase), [each.contribute(phase) for each in clients]
    if case.wire == "compact" and phase in case.phases:
        total = compact_words.add(vectors, [compact_words.to_words(each, vectors) for each in said])
        return Sum(vectors, tuple(total), compact=True)
    columns = zip(*said, strict=True)
    sums = [add_residues(column, vector.modulus) for column, vector in zip(columns, vectors, strict=True)]
    return Sum(vectors, tuple(each.astype(np.uint64) for each in sums), compact=False)


def play(
    case: Case, parameters: Parameters | None = None, seeds: Sequence[int] = (0, 1, 2)
) -> Iterator[tuple[str, Sequence[ClientRound], Sum]]:
    """A round among three clients: each tagged phase, and its sum, before anybody has taken it."""
    strategy, theta = find_strategy(case.strategy), draw(99)
    clients = [strategy.begin(parameters or case.parameters, make_input(seed, theta=theta)) for seed in seeds]
    for phase in strategy.phases:
        total = add_up(case, clients, phase.name)
        if phase.tagged:
            yield phase.name, clients, total
        for client in clients:
            client.absorb(phase.name, or_of(clients, phase.name) or total.release(), len(clients))


def or_of(clients: Sequence[ClientRound], phase: str) -> Release | None:
    """What the first server releases of a plaintext union."""
    if phase != "union" or len(clients[0].vectors(phase)) > 1 or clients[0].vectors(phase)[0].modulus != 2:
        return None
    marks = np.bitwise_or.reduce([client.contribute(phase)[0] for client in clients])
    return Release(clients[0].vectors(phase), (marks,))


# Shifts -------------------------------------------------------------------------------------------------


def draw_shift(total: Sum, rng: np.random.Generator) -> Shift:
    """One that changes the sum: of one place or many, of values, tags and what pads the last word."""
    while True:
        position = int(rng.integers(len(total.words)))
        shift = _SHIFTS[int(rng.integers(len(_SHIFTS)))](total, position, rng)
        if any(by % total.size(position) for position, _, by in shift):
            return shift


def _place(total: Sum, position: int, rng: np.random.Generator) -> int:
    """The last place, which may be padded, as often as all others."""
    places = len(total.words[position])
    return places - 1 if rng.random() < 0.5 else int(rng.integers(places))


def _by(amount: Callable[[int], int]) -> Callable[[Sum, int, np.random.Generator], Shift]:
    def make(total: Sum, position: int, rng: np.random.Generator) -> Shift:
        if not len(total.words[position]):
            return []
        return [(position, _place(total, position, rng), amount(total.size(position)))]

    return make


def _at_random(total: Sum, position: int, rng: np.random.Generator) -> Shift:
    """Many places of one vector."""
    return [(position, place, int(rng.integers(2**63))) for place in range(len(total.words[position]))]


def _everywhere(total: Sum, position: int, rng: np.random.Generator) -> Shift:
    """One place of every vector, tags included."""
    del position
    return [
        (each, int(rng.integers(len(w))), int(rng.integers(2**63))) for each, w in enumerate(total.words) if len(w)
    ]


def _swap(total: Sum, position: int, rng: np.random.Generator) -> Shift:
    """Two pieces of one vector in each other's place, as chunks out of order."""
    words = total.words[position]
    if len(words) < 2:
        return []
    half = int(rng.integers(1, len(words) // 2 + 1))
    there = np.concatenate([words[half : 2 * half], words[:half], words[2 * half :]])
    return [
        (position, place, int(after) - int(before))
        for place, (before, after) in enumerate(zip(words, there, strict=True))
    ]


_SHIFTS = (
    _by(lambda _: 1),
    _by(lambda _: -1),
    _by(lambda _: 2**31),
    _by(lambda _: 2**32),
    _by(lambda _: 5 * 2**32),
    _by(lambda size: size // 2),
    _by(lambda size: size // 3 + 1),
    _at_random,
    _everywhere,
    _swap,
)


def refuse(client: ClientRound, phase: str, release: Release) -> bool:
    try:
        client.absorb(phase, release, 3)
    except FalseSum:
        return True
    return False


@every_case
def test_no_client_takes_a_shifted_sum(case: Case) -> None:
    """Of values, tags or padding, by 1, 2^31, half of the ring or at random. Then all take the true one."""
    rng = np.random.default_rng(CASES.index(case))
    for phase, clients, total in play(case):
        taken = [
            shift
            for number in range(SHIFTS)
            for shift in [draw_shift(total, rng)]
            if not refuse(clients[number % 3], phase, total.shift(shift).release())
        ]
        assert taken == [], phase


def test_ten_thousand_shifts_are_tried() -> None:
    assert sum(len(case.phases) for case in CASES) * SHIFTS >= 10_000


@every_case
def test_without_the_rule_a_small_shift_is_taken(case: Case) -> None:
    """By 1, at one place: what is possible is all that clients see then."""
    unverified, rng = replace(case.parameters, verified=False), np.random.default_rng(7)
    for phase, clients, total in play(case, unverified):
        places = [(position, place) for position, w in enumerate(total.words) for place in range(len(w))]
        shifts = [[(*places[int(each)], by)] for each in rng.permutation(len(places)) for by in (1, -1)]
        assert any(not refuse(clients[0], phase, total.shift(shift).release()) for shift in shifts), phase


@every_case
def test_different_sums_told_to_different_clients_are_refused_by_all_who_are_told_a_false_one(case: Case) -> None:
    for phase, clients, total in play(case):
        told = [[(0, len(total.words[0]) - 1, 1)], [(len(total.words) - 1, 0, 1)]]
        assert all(
            refuse(client, phase, total.shift(shift).release())
            for client, shift in zip(clients, told, strict=False)
        )


# What a refusal tells -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """All that can be seen of a refusal: the error to the byte, and every step of checking."""

    error: str
    steps: tuple[str, ...]


def watch_refusal(client: ClientRound, phase: str, release: Release) -> Refusal:
    steps: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if frame.f_globals.get("__name__", "").startswith("hubbub.strategies"):
            steps.append(f"{event} {frame.f_code.co_qualname} {frame.f_lineno}")

    sys.setprofile(note)
    try:
        client.absorb(phase, release, 3)
    except PeerError as error:
        return Refusal(f"{error!r} {error} {error.reason} {error.__dict__}", tuple(steps))
    finally:
        sys.setprofile(None)
    raise AssertionError("a shifted sum was taken")


SINGLE_INPUTS = ((0, 1, 2), (2, 0, 1), (1, 2, 0))
"""Of the same sum: who said what differs."""
OTHER_SUMS = ((3, 4, 5), (6, 7, 8))


@every_case
def test_a_refusal_is_the_same_whatever_was_summed(case: Case) -> None:
    worlds = [play(case, seeds=seeds) for seeds in (*SINGLE_INPUTS, *OTHER_SUMS)]
    for together in zip(*worlds, strict=True):
        seen = {
            watch_refusal(clients[0], phase, total.shift(shift).release())
            for phase, clients, total in together
            for shift in [
                [(0, 0, 1)],
                [(0, 0, total.size(0) // 2)],
                [(len(total.words) - 1, 0, 1)],
                [(position, 0, 5) for position in range(len(total.words))],
            ]
        }
        assert len(seen) == 1
        assert {each.error for each in seen} == {f"{FalseSum()!r} {FalseSum()} false-sum {FalseSum().__dict__}"}


# What tags cannot do ------------------------------------------------------------------------------------


def test_who_holds_the_coefficients_chooses_any_possible_sum() -> None:
    """A server with one client's help."""
    for phase, clients, total in play(Case("no-union", "paper")):
        shifted = total.shift([(1, 0, 2**20)]).release()
        fitting = fit_tags(phase, clients[0].vectors(phase), shifted.values[:-1])
        assert not refuse(clients[0], phase, replace(shifted, values=(*shifted.values[:-1], *fitting)))


def test_a_wrong_tag_of_one_client_is_refused_by_all_and_names_nobody() -> None:
    case = Case("sec-union", "paper", q=3)
    for liar in range(3):
        phase, clients, total = next(play(case))
        shift = [(len(total.words) - 1, 17, 1 + liar)]
        errors = {watch_refusal(each, phase, total.shift(shift).release()).error for each in clients}
        assert errors == {f"{FalseSum()!r} {FalseSum()} false-sum {FalseSum().__dict__}"}


# Among running parties ----------------------------------------------------------------------------------

EVERYBODY = draw_up().clients
FIRST, SECOND = draw_up().aggregators


def move(position: int, place: int, by: int) -> Change:
    def change(values: list[Residues]) -> None:
        values[position][place : place + 1] += values[position].dtype.type(by)

    return change


def mark_another(values: list[Residues]) -> None:
    values[0][np.flatnonzero(values[0] == 0)[0]] = 1


def lie(scene: Scene, phase: str, change: Change, to: PartyId | None = None) -> Rewrite:
    """Shift the sum on either wire, and leave the tags as they are unless the change is of them."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if is_said(envelope, SumChunk, phase=phase, to=to):
            return [scene.change_sum(envelope, change, forged=False)]
        if is_said(envelope, MaskedChunk, phase=phase, to=to):
            return [scene.change_masked(envelope, change, forged=False)]
        return [envelope]

    return rewrite


LIES = {
    "marks": ("union", mark_another),
    "factor": ("signs", move(1, 0, 1)),
    "tags": ("signs", move(2, 0, 1)),
}


def assert_model_is_used_up(scene: Scene, folder: Path) -> None:
    """No client endorses the run's model, and every client's ledger has the run, for ever."""
    assert not list(folder.rglob(ENDORSEMENT))
    for client in EVERYBODY:
        (entry,) = scene.trainer(client)._ledger.list_entries()
        assert ([each.counted for each in entry.runs], entry.voids) == ([True], 0)


@pytest.mark.parametrize("wire", ["paper", "compact"])
@pytest.mark.parametrize("what", LIES)
async def test_a_false_sum_ends_the_run_and_is_no_void_round(tmp_path: Path, wire: str, what: str) -> None:
    """Nothing of it is applied, noted or endorsed, and the model is used up."""
    manifest, (phase, change) = draw_up(wire=wire, rounds=3), LIES[what]
    # Whoever combines the sums of the phase lies.
    liars = dict.fromkeys((FIRST, SECOND), lambda scene: lie(scene, phase, change))
    async with corrupt_federation(manifest, tmp_path, liars) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.FAILED, 0, 0)
        assert rounds.State.VOID not in [state for state, _ in scene.rounds()]
        assert not [each for each in scene.sent if isinstance(each.body, VoidNotice | RoundApplied)]
        failures = [each for each in scene.sent if isinstance(each.body, PartyFailed)]
        assert {each.sender for each in failures} <= set(EVERYBODY)
        assert len({each.body.model_dump_json() for each in failures}) == 1
        assert scene.refused_by(failures[0].sender) == {RejectReason.FALSE_SUM: 1}
        assert scene.digests() == dict.fromkeys(EVERYBODY, manifest.initial_model_sha256)
        assert_model_is_used_up(scene, tmp_path)


@pytest.mark.parametrize("wire", ["paper", "compact"])
@pytest.mark.parametrize("verified", [True, False])
async def test_a_long_word_that_is_shifted_by_many_units_ends_the_run(
    tmp_path: Path, wire: str, *, verified: bool
) -> None:
    """By 5·2^32, which is within what numbers can have. Without the rule the sum is taken."""
    manifest = draw_up(strategy="sum", number_bits=64, wire=wire, rounds=1, verified=verified)
    liars = dict.fromkeys((FIRST, SECOND), lambda scene: lie(scene, "values", move(0, 0, 5 * 2**32)))
    async with corrupt_federation(manifest, tmp_path, liars) as scene:
        state, run = await scene.run()

        assert (state, run.void) == (runs.State.FAILED if verified else runs.State.COMPLETED, 0)
        refused = [scene.refused_by(client) for client in EVERYBODY]
        assert ({RejectReason.FALSE_SUM: 1} in refused) is verified


@pytest.mark.parametrize("wire", ["paper", "compact"])
async def test_without_the_rule_the_same_lie_is_applied(tmp_path: Path, wire: str) -> None:
    phase, change = LIES["factor"]
    manifest = draw_up(wire=wire, verified=False)
    liars = {FIRST: lambda scene: lie(scene, phase, change)}
    if wire == "compact":
        liars[SECOND] = liars[FIRST]
    async with corrupt_federation(manifest, tmp_path, liars) as scene:
        state, run = await scene.run()

        assert (state, run.released, run.void) == (runs.State.COMPLETED, 1, 0)
        assert scene.refused() == {}


async def test_who_alone_is_told_a_false_sum_ends_the_run_for_all(tmp_path: Path) -> None:
    manifest, (phase, change) = draw_up(), LIES["factor"]
    victim = EVERYBODY[1]
    async with corrupt_federation(
        manifest, tmp_path, {SECOND: lambda scene: lie(scene, phase, change, to=victim)}
    ) as scene:
        state, run = await scene.run()

        assert (state, run.void) == (runs.State.FAILED, 0)
        assert scene.refused_by(victim) == {RejectReason.FALSE_SUM: 1}
        assert [each.sender for each in scene.sent if isinstance(each.body, PartyFailed)] == [victim]
