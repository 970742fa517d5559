"""Registry of strategies by name."""

from hubbub.errors import ConfigurationError
from hubbub.strategies import bonawitz, eastly, plaintext, secure, secure_fedavg, shared_mask, sums
from hubbub.strategies.verified import Verified

STRATEGIES: dict[str, Verified] = {
    strategy.name: Verified(strategy)
    for strategy in (
        *plaintext.STRATEGIES,
        *secure.STRATEGIES,
        *shared_mask.STRATEGIES,
        *secure_fedavg.STRATEGIES,
        *bonawitz.STRATEGIES,
        *eastly.STRATEGIES,
        *sums.STRATEGIES,
    )
}


def find_strategy(name: str) -> Verified:
    """Return a strategy; raise `ConfigurationError`, which lists all names, if there is none of this name."""
    if name not in STRATEGIES:
        raise ConfigurationError(f"there is no strategy {name!r}; choose one of: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
