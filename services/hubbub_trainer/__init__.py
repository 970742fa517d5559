"""A trainer: trains on its own organisation's data and takes part with shares of what it learnt."""
