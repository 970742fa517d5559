"""The trainer's state machines: its enrolment in a run, a round of it, and catching up after a loss."""
