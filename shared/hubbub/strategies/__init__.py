"""The ways to aggregate: which phases a round has and what each side does in them."""
