"""Tokenizers and their vocabularies."""
