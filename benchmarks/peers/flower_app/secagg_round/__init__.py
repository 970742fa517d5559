"""A Flower app whose clients send given vectors: what remains of a round is SecAgg+."""
