"""An aggregator: collects one share of each client, adds them, and releases one sum, once."""
