"""Texts from a model: drawn, searched for, or to fill a gap."""
