"""Randomness, keys, signatures and encryption: the only package that imports `cryptography`."""
