"""Rescoring of a speech recognizer's n-best lists with a language model that reads the context of each utterance."""
