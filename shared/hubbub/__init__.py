"""Hubbub: federated training with sparse secure aggregation."""

__version__ = "0.1.0"
