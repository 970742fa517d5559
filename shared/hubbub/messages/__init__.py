"""Messages between parties, typed and validated."""
