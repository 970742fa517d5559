"""What travels between parties, as typed and validated messages."""
