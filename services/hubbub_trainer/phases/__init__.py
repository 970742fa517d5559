"""The trainer's state machines: its admission to a run, its part in it, a round, and catching up after a loss."""
