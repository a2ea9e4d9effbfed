"""Replay of a log of texts: complete a prefix of each text, compare the suggestions with the text, then learn it."""
