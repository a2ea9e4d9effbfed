"""Estimates of the worth of context columns, before any training."""
