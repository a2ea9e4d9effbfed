"""Rescoring the n-best lists of a speech recogniser in context."""
