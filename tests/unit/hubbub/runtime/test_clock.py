"""A clock that somebody sets: time within a process, and after a restart."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest

from hubbub.machine.effects import SetTimer
from hubbub.runtime.clock import SystemClock
from support.forgetful_store import Disk, ForgetfulStore
from support.probe import KEY, Go, Note, Probe, ProbeShell, Rang, probe

DAY_S = 86_400.0
TIMEOUT_S = 600.0


@dataclass
class Machine:
    """A machine's two clocks: one that can be set, and one that only counts."""

    wall_s: float = 1_000_000.0
    monotonic_s: float = 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    def clock(self) -> SystemClock:
        """The clock of a process that starts now."""
        return SystemClock(wall=lambda: self.wall_s, monotonic=lambda: self.monotonic_s)


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_setting_the_clock_changes_nothing_and_is_logged_once(
    jump_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    clock = machine.clock()
    began_s = clock.now_s()
    machine.wall_s += 2.0
    assert (began_s, clock.now_s()) == (1_000_000.0, 1_000_000.0)
    assert not caplog.records, "a small correction"
    machine.wall_s += jump_s - 2.0
    jumped_s = clock.now_s()
    machine.pass_by(10.0)

    assert (jumped_s, clock.now_s()) == (began_s, began_s + 10.0)
    assert caplog.text.count(f"was set by {jump_s:+.0f} s") == 1


async def test_a_clock_that_was_set_is_in_the_metrics_until_the_next_start() -> None:
    machine = Machine()
    async with probe(clock=machine.clock()) as service:
        before_s = service.sample("clock_ahead_seconds")
        machine.wall_s -= DAY_S
        machine.pass_by(10.0)
        set_s = service.sample("clock_ahead_seconds")
    async with probe(clock=machine.clock()) as service:
        after_s = service.sample("clock_ahead_seconds")

    assert (before_s, set_s, after_s) == (0.0, -DAY_S, 0.0)


def test_time_goes_on_from_an_event_that_is_later_than_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()
    clock.go_on_from(1_000_000.0 - DAY_S)
    assert clock.now_s() == 1_000_000.0
    clock.go_on_from(1_000_000.0 + DAY_S)
    machine.pass_by(5.0)

    assert clock.now_s() == 1_000_000.0 + DAY_S + 5.0
    assert caplog.messages == [
        "the machine's clock is 86400 s behind the newest event in the store; time goes on from that event"
    ]


# A deadline in a run ------------------------------------------------------------------------------------


def start(machine: Machine, disk: Disk, *, fresh: bool = False) -> AbstractAsyncContextManager[Probe]:
    """A process of a party on this machine."""
    return probe(ProbeShell(), machine.clock(), store=ForgetfulStore(disk), fresh=fresh)


def left_s(service: Probe) -> float:
    """The time that the deadline still has, by the loop, which nobody can set."""
    return service.runner.effects.timers[KEY, "alarm"].when() - asyncio.get_running_loop().time()


async def set_deadline(service: Probe, machine: Machine) -> None:
    """Take an event of now, which sets a deadline."""
    await service.runner.feed(KEY, Go())
    await service.runner.feed(KEY, Rang(at_s=machine.wall_s))
    await service.runner.feed(KEY, Go((SetTimer("alarm", machine.wall_s + TIMEOUT_S, Rang),)))


@pytest.mark.parametrize("jump_s", [0.0, DAY_S, -DAY_S])
async def test_a_deadline_has_after_jumps_and_restarts_what_was_left_at_the_newest_event(jump_s: float) -> None:
    machine, disk = Machine(), Disk()
    async with start(machine, Disk(), fresh=True) as service:
        at_s = machine.wall_s + TIMEOUT_S
        machine.wall_s += jump_s
        await service.runner.feed(KEY, Go((SetTimer("alarm", at_s, Rang),)))
        assert left_s(service) == pytest.approx(TIMEOUT_S, abs=5.0), "a jump before the timer is set"
    machine.wall_s -= jump_s
    async with start(machine, disk, fresh=True) as service:
        await set_deadline(service, machine)
    machine.wall_s += jump_s
    async with start(machine, disk) as service:
        assert left_s(service) == pytest.approx(TIMEOUT_S, abs=5.0)
        await service.runner.feed(KEY, Go((Note("an event without a time"),)))
    # The clock is set right again.
    machine.wall_s -= jump_s
    async with start(machine, disk) as service:
        assert left_s(service) == pytest.approx(TIMEOUT_S, abs=5.0)


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
async def test_a_deadline_passes_after_its_real_time_though_the_clock_was_set(jump_s: float) -> None:
    machine, disk = Machine(), Disk()
    async with start(machine, disk, fresh=True) as service:
        await set_deadline(service, machine)
    machine.pass_by(TIMEOUT_S / 2)
    machine.wall_s += jump_s
    clock = machine.clock()
    async with probe(ProbeShell(), clock, store=ForgetfulStore(disk), fresh=False) as service:
        now_s = clock.now_s()
        machine.pass_by(TIMEOUT_S)
        # What sets a timer looks at the clock: the same deadline is over now.
        await service.runner.feed(KEY, Go((SetTimer("again", now_s + TIMEOUT_S, Rang),)))
        _, rang = await service.take_events(2)

    assert isinstance(rang, Rang)
    assert rang.at_s >= now_s + TIMEOUT_S


async def test_time_never_goes_back_when_the_clock_is_behind_the_store() -> None:
    machine, disk = Machine(), Disk()
    async with start(machine, disk, fresh=True) as service:
        await set_deadline(service, machine)
    newest_s = machine.wall_s
    machine.wall_s -= DAY_S
    async with start(machine, disk) as service:
        await service.runner.feed(KEY, Go())
        moment = await service.moments.get()

    assert moment.at_s >= newest_s
