"""Aggregation strategies: the phases of a round, and what each side does in them."""
