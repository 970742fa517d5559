"""State machines as data: the table, the engine that steps it, and its diagram."""
