"""The trainer's machines: its enrolment in a run, and a round of it."""
