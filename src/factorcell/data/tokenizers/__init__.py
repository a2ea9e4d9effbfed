"""Tokenizers, their vocabularies, and the tokens of the texts of a table."""
