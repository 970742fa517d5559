"""Cost of a round of secure aggregation in Hubbub and in other systems, on the same vectors in the same run."""
