"""The aggregator's machines: its part in a run, and the accumulation of one phase."""
