"""Flower app whose clients send given vectors, so that a round is SecAgg+ alone."""
