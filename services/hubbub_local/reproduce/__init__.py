"""Reproduction of the paper's experiments: every strategy to its target, compared with the printed numbers."""
