"""Benchmarks of the protocol: its steps relative to AES and numpy, its rounds over memory and RabbitMQ."""
