"""Backbones, which turn the tokens read so far into a vector: recurrent layers and models of `transformers`."""
