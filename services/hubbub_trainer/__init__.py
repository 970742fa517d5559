"""Trainer service: trains on its own organisation's data and sends shares of the updates."""
