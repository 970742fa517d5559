"""All services in one process: `simulate` for scripts and notebooks, the demo, the experiments, the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubbub_local.experiment import Result, simulate

__all__ = ["Result", "simulate"]


def __getattr__(name: str) -> object:
    """Import what is offered here when it is first used: the commands' help should not wait for numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hubbub_local import experiment  # noqa: PLC0415

    return getattr(experiment, name)
