"""Measurements of the service: load, kills, store failures and deletions.

    python -m benchmarks.service WHAT ... --out service.jsonl

The tests of the service call the same functions with smaller numbers.
"""
