"""Runs in which everything goes wrong that can: each ends, and what it releases is right.

A seed that fails prints the history to paste here, as short as it can be made.
"""

import multiprocessing
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from hubbub.disk import sync_folder
from hubbub.ids import PartyId, Role, SetId, WireMode
from hubbub.machine.effects import Key
from hubbub.protocol.ring import Residues
from hubbub.runtime.spool import Spool
from hubbub.strategies.base import Phase
from hubbub.transport.topology import inbox, route, topology_for
from hubbub_trainer.run_secrets import RunSecrets
from support.simulation.network import WatchedBroker
from support.simulation.operations import (
    Crash,
    Damage,
    Delay,
    Duplicate,
    History,
    Kill,
    Operation,
    Overflow,
    Postpone,
    StopBroker,
    draw,
)
from support.simulation.play import explain, play

FIRST = int(os.environ.get("HUBBUB_FIRST_SIMULATION", "0"))
COUNT = int(os.environ.get("HUBBUB_SIMULATIONS", "200"))

UNDISTURBED = History(seed=1, strategy="sec-union", min_clients=3, operations=())


# Histories that once failed, each with why.
REGRESSIONS: dict[str, tuple[str, int, tuple[Operation, ...]]] = {
    "an aggregator that has remembered the run and not yet kept that it joined": (
        "no-union",
        3,
        (Crash("aggregator-1", "before", "commit", 11, down_s=1.0, power=False),),
    ),
    "a client that is a round behind when its share of a void round arrives": (
        "sec-union",
        2,
        (Delay("client-3", 10, for_s=64.63),),
    ),
    "the broker is gone for a moment": ("sec-union", 2, (StopBroker(1.04, for_s=0.0),)),
    "an order to train that is overtaken, and comes again when all is over": (
        "sec-union",
        2,
        (Postpone("client-1", 7, times=9), Duplicate("coordinator", 13, after_s=100.0)),
    ),
    "a client whose share is on its way to the broker until long after the end, with all sums in its hands": (
        "sec-union",
        2,
        (Delay("client-2", 13, for_s=92.45),),
    ),
    "a power cut over what a client erases at the end": (
        "sec-union",
        2,
        (Crash("client-2", "after", "commit", 57, down_s=40.82, power=True),),
    ),
    "a lost order to train, at a client that waits for scores until long after the end": (
        "partial-sec-union",
        2,
        (Overflow("client-1", 4.04, for_s=68.34, keeps=3),),
    ),
    "an order to train that could not be kept, and is slower than the sums of its round": (
        "sec-union",
        2,
        (
            Postpone("client-2", 12, times=1),
            Crash("client-2", "before", "commit", 30, down_s=43.21, power=False),
        ),
    ),
}


@pytest.mark.parametrize(
    ("strategy", "min_clients", "operations"), REGRESSIONS.values(), ids=[*map(str, REGRESSIONS)]
)
def test_what_once_failed_does_not_fail_again(
    strategy: str, min_clients: int, operations: tuple[Operation, ...]
) -> None:
    history = History(seed=1, strategy=strategy, min_clients=min_clients, operations=operations)
    assert play(history).violations == []


# Of an aggregator in a run without a union these are before its first chunk is in its place, and after its third.
SPOOLING = range(7, 21)


def die_twice(instant: int) -> History:
    """A process dies over a file, and the power fails over what its successor says."""
    died = Crash("aggregator-2", "before", "file", instant, down_s=0.5, power=False)
    cut_off = Crash("aggregator-2", "before", "publish", 6, down_s=0.5, power=True)
    return replace(UNDISTURBED, strategy="no-union", operations=(died, cut_off))


def test_what_a_process_did_not_live_to_sync_its_successor_syncs() -> None:
    """A folder of the spool that was made, or a new slot in it: it looks as if it were on disk."""
    assert [(instant, found) for instant in SPOOLING if (found := play(die_twice(instant)).violations)] == []


# From the first share of an undisturbed run to the last.
MOMENTS = [each / 5 for each in range(11, 38, 2)]


@pytest.mark.parametrize("wire", get_args(WireMode))
@pytest.mark.parametrize("dies", [False, True])
def test_shares_that_a_disk_damages_at_whatever_moment_come_again(wire: WireMode, *, dies: bool) -> None:
    """With a restart of the aggregator soon after, too."""
    asked = 0
    for at_s in MOMENTS:
        killed = (Kill("aggregator-1", at_s + 0.1, down_s=0.5, power=False),) if dies else ()
        damage = Damage("aggregator-1", at_s)
        ledger = play(replace(UNDISTURBED, wire=wire, operations=(damage, *killed)))
        assert ledger.violations == [], at_s
        assert list(ledger.released_rounds().values()) == [frozenset(ledger.manifest.clients)] * 2
        asked += sum("resend-set" in about for _, about in ledger.trace)
    assert asked


def find_fault(seed: int, strategy: str = "") -> str:
    history = draw(seed)
    history = replace(history, strategy=strategy or history.strategy)
    return explain(history) if play(history).violations else ""


@pytest.mark.parametrize(("strategy", "share"), [("", 1), ("bonawitz", 10)])
def test_nothing_that_must_hold_is_broken_by_any_history(strategy: str, share: int) -> None:
    """With bonawitz clients may be lost from phase to phase."""
    seeds, find = range(FIRST, FIRST + COUNT // share), partial(find_fault, strategy=strategy)
    # Processes of their own and not forks, because this one may have threads.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        faults = [fault for fault in pool.map(find, seeds, chunksize=10) if fault]
    assert not faults, "\n\n".join(faults)


def test_a_history_has_one_outcome() -> None:
    history = draw(4)
    assert history == draw(4)
    assert history.operations
    once, again = play(history), play(history)
    assert once.trace == again.trace
    assert once.models == again.models
    assert once.trace != play(replace(history, seed=5)).trace


def test_an_undisturbed_run_is_completed_with_all_members() -> None:
    ledger = play(UNDISTURBED)
    assert ledger.violations == []
    assert list(ledger.released_rounds().values()) == [frozenset(ledger.manifest.clients)] * 2


def test_a_history_prints_as_what_plays_it_again() -> None:
    history = draw(4)
    played: list[History] = []
    names = {each.__name__: each for each in Operation.__args__}
    exec(str(history), {"History": History, "play": played.append, **names})  # noqa: S102  (Our own text.)
    assert played == [history]


def test_an_inbox_that_overflows_keeps_the_newest_messages() -> None:
    client, broker = PartyId("client-1"), WatchedBroker(lambda _: None)
    broker.declare(topology_for(client, Role.CLIENT))
    address = route(Role.COORDINATOR, Role.CLIENT, client)

    broker.limit(inbox(client), 2)
    for body in (b"1", b"2", b"3"):
        assert broker.accept(address, body)
    broker.lift_limit(inbox(client))
    assert broker.accept(address, b"4")

    assert [each.body for each in broker._queues[inbox(client)].ready] == [b"2", b"3", b"4"]


# The simulation would notice ----------------------------------------------------------------------------


def test_a_client_that_draws_a_second_share_set_after_a_crash_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_anew(kept: RunSecrets, number: int, phase: str, content: bytes) -> tuple[SetId, bytes]:
        del kept, number, phase, content
        return SetId(secrets.token_hex(16)), secrets.token_bytes(32)

    monkeypatch.setattr(RunSecrets, "get_or_create_outbox", draw_anew)
    # The seventh is its first share.
    crash = Crash("client-1", "after", "publish", 7, down_s=1.0, power=True)
    ledger = play(replace(UNDISTURBED, strategy="no-union", operations=(crash,)))
    assert any(each.startswith("share set at ('client-1', 1, 'signs')") for each in ledger.violations)


def test_a_sum_that_is_not_that_of_its_members_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_first(phase: Phase, totals: Sequence[Residues], modulus: int) -> Residues:
        del phase, modulus
        return totals[0]

    monkeypatch.setattr(Phase, "recombine", take_first)
    ledger = play(replace(UNDISTURBED, strategy="no-union"))
    assert "the sum of round 1, signs, at client-1 is not what its members said" in ledger.violations


OPEN = Spool._open


@pytest.mark.parametrize("above", [True, False], ids=["the run's folder", "a slot in it"])
def test_a_successor_that_syncs_only_what_it_wrote_itself_is_found(
    monkeypatch: pytest.MonkeyPatch, *, above: bool
) -> None:
    taken_for_safe: list[Path] = []

    def open_carelessly(spool: Spool, key: Key) -> object:
        folder = spool._folder / key.run
        if folder.exists():
            taken_for_safe.append(folder.parent if above else folder)
        try:
            return OPEN(spool, key)
        finally:
            taken_for_safe.clear()

    def sync_carelessly(folder: Path) -> None:
        if folder not in taken_for_safe:
            sync_folder(folder)

    monkeypatch.setattr(Spool, "_open", open_carelessly)
    monkeypatch.setattr("hubbub.runtime.spool.sync_folder", sync_carelessly)
    assert any(play(die_twice(instant)).violations for instant in SPOOLING)


def test_what_is_not_synced_is_lost_and_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.disk.sync_folder", lambda _: None)
    ledger = play(UNDISTURBED)
    assert "client-1 was left without the last model" in ledger.violations
