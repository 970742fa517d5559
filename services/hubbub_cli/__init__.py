"""The `hubbub` command."""
