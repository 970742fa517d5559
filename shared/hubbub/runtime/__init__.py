"""What turns machines into running services."""
