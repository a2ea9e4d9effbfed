"""Evaluation of models: perplexity, classification, comparison, and inspection of what a model has learned."""
