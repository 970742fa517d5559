"""Strategies by name."""

from hubbub.errors import ConfigurationError
from hubbub.strategies.base import Strategy
from hubbub.strategies.secure import NoUnion

STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in (NoUnion(),)}


def find_strategy(name: str) -> Strategy:
    """Look a strategy up, or list those that there are."""
    if name not in STRATEGIES:
        raise ConfigurationError(f"there is no strategy {name!r}; choose one of: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
