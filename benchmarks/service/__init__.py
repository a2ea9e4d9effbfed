"""What the service shows under load, when it is killed, when its store fails, and when people ask to be forgotten.

    python -m benchmarks.service WHAT ... --out service.jsonl

The tests of the service call the same functions with smaller numbers.
"""
