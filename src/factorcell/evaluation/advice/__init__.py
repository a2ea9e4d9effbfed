"""What a context column is worth, before any training."""
