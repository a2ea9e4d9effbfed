"""Rescoring of the n-best lists of a speech recognizer in context."""
