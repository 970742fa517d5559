"""The paper's experiments again: every strategy to its target, and a report beside the printed numbers."""
