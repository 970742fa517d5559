"""Aggregator service: collects one share of each client, adds them, and releases the sum once."""
