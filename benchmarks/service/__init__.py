"""Load, kills, store failures and deletions of the service.

    python -m benchmarks.service WHAT ... --out service.jsonl

The tests of the service call the same functions with smaller numbers.
"""
