"""The mathematics of the protocol: numpy and the standard library, no I/O, randomness as an argument."""
