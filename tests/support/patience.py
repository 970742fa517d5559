"""The one bound on waiting in tests. It ends a hang; no test is timed by it."""

HANG_S = 600.0
