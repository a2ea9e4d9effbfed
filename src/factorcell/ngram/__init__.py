"""N-gram models, counts by value, and the mixture of a neural model with counts."""
