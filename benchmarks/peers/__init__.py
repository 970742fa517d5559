"""What a round of secure aggregation costs here and elsewhere, on the same vectors in the same run."""
