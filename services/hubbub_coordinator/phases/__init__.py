"""The coordinator's machines: a run, and a round of it."""
