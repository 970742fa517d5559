"""Randomness, keys and seals: the only package that imports `cryptography`."""
