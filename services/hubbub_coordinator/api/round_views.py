"""Views of rounds that are over, held: they never change, and whoever follows a run asks for them every time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hubbub.ids import RunId
from hubbub.machine.table import is_final
from hubbub_coordinator.api.heavy import Heavy
from hubbub_coordinator.api.views import RoundView, view_round
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases.round import Round

HELD = 512
FEW = 5
"""So many are viewed at once; more of them take their turn among the large views."""

_OVER = frozenset(state for state in rounds.State if is_final(rounds.KIND.table, state))


class RoundViews:
    """The views that were asked for last."""

    def __init__(self, heavy: Heavy, held: int = HELD) -> None:
        self._heavy = heavy
        self._held = held
        self._views: dict[tuple[RunId, int], RoundView] = {}

    async def view(self, found: Sequence[tuple[rounds.State, Round]]) -> list[RoundView]:
        """View rounds; those that are over once, as long as they are held."""
        known = [self._views.get((data.run.run, data.number)) for _, data in found]
        missing = [each for each, view in zip(found, known, strict=True) if view is None]
        fresh = iter(_view(missing) if len(missing) <= FEW else await self._heavy.build(partial(_view, missing)))
        views = [view or next(fresh) for view in known]
        for (state, data), view in zip(found, views, strict=True):
            if state in _OVER:
                self._hold((data.run.run, data.number), view)
        return views

    def _hold(self, key: tuple[RunId, int], view: RoundView) -> None:
        self._views.pop(key, None)
        self._views[key] = view
        if len(self._views) > self._held:
            del self._views[next(iter(self._views))]


def _view(found: Sequence[tuple[rounds.State, Round]]) -> list[RoundView]:
    return [view_round(*each) for each in found]
