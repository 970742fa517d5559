"""Strategies by name."""

from hubbub.errors import ConfigurationError
from hubbub.strategies import plaintext, secure
from hubbub.strategies.base import Strategy

STRATEGIES: dict[str, Strategy] = {
    **{strategy.name: strategy for strategy in plaintext.STRATEGIES},
    **{strategy.name: strategy for strategy in secure.STRATEGIES},
}


def find_strategy(name: str) -> Strategy:
    """Look a strategy up, or list those that there are."""
    if name not in STRATEGIES:
        raise ConfigurationError(f"there is no strategy {name!r}; choose one of: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
