"""Views of rounds that are over, held: they never change, and whoever follows a run asks for them every time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hubbub.ids import RunId
from hubbub.machine.table import is_final
from hubbub_coordinator.api.heavy import Heavy
from hubbub_coordinator.api.views import RoundView, view_round
from hubbub_coordinator.archive import KnownRun
from hubbub_coordinator.phases import round as rounds

HELD = 512
FEW = 5
"""So many that are in memory are viewed at once; all others take their turn among the large views."""

_OVER = frozenset(state.value for state in rounds.State if is_final(rounds.KIND.table, state))


class RoundViews:
    """The views that were asked for last."""

    def __init__(self, heavy: Heavy, held: int = HELD) -> None:
        self._heavy = heavy
        self._held = held
        self._views: dict[tuple[RunId, int], RoundView] = {}

    async def view(self, known: KnownRun, *, after: int, limit: int) -> list[RoundView]:
        """View rounds of a run; those that are over once, as long as they are held."""
        numbers = range(after + 1, min(known.data.round, after + limit) + 1)
        views = {number: self._views.get((known.run, number)) for number in numbers}
        missing = [number for number, view in views.items() if view is None]
        work = partial(_view, known, missing)
        if set(missing) <= known.held.keys() and len(missing) <= FEW:
            fresh = work()
        else:
            fresh = await self._heavy.build(work)
        for view in fresh:
            views[view.round] = view
        found = [view for view in views.values() if view is not None]
        for view in found:
            if view.state in _OVER:
                self._hold((known.run, view.round), view)
        return found

    def _hold(self, key: tuple[RunId, int], view: RoundView) -> None:
        self._views.pop(key, None)
        self._views[key] = view
        if len(self._views) > self._held:
            del self._views[next(iter(self._views))]


def _view(known: KnownRun, numbers: Sequence[int]) -> list[RoundView]:
    if not numbers:
        return []
    found = known.find_rounds(after=numbers[0] - 1, limit=numbers[-1] - numbers[0] + 1)
    return [view_round(*each) for each in found if each[1].number in numbers]
