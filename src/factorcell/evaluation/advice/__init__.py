"""Estimates of how much each context column can lower the perplexity, without training a model."""
