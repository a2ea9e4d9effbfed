"""Replay of a log: complete a prefix of each text, compare the suggestions with the text, and then learn the text."""
