"""The aggregator's state machines: its membership in a run, and the accumulation of one phase."""
