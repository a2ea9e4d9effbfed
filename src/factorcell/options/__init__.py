"""Limits and choices of options, context columns, and what other packages add to options. Imports `errors` only."""
