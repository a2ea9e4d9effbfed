"""The table of what came of hostile inputs and faults: nothing that went wrong is missing from it."""

from pathlib import Path

import pytest

from tests import outcomes

OUTCOMES = """
import os, time
import pytest

def late():
    raise AssertionError("[] hangs")

@pytest.mark.parametrize("work", [dict, late, {}.popitem, lambda: pytest.fail("AssertionError")])
def test_inputs(work, outcome):
    outcome["accepted"] += 2
    work()
    outcome["clear error"] += 1

def test_without(): ...
"""
pytest_plugins = "pytester"


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_table_counts_each_outcome(
    workers: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was right before a test failed, and in processes of their own."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # a run of its own finds `tests` too
    pytester.makeconftest("from tests.conftest import outcome, pytest_terminal_summary")
    pytester.makepyfile(OUTCOMES)
    more = ["-n", str(workers)] if workers else ["-p", "no:xdist"]
    run = pytester.runpytest_subprocess if workers else pytester.runpytest_inprocess
    lines = run(*more, "-p", "no:cacheprovider").outlines
    head = next(line.split("  ") for line in lines if "tried  clear error" in line)
    assert [word.strip() for word in head if word.strip()] == ["tried", *outcomes.RIGHT, *outcomes.WRONG]
    sums = next(line.split() for line in lines if line.startswith("all "))
    assert sums == ["all", "12", "1", "8", "0", "1", "1", "0", "1"]


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("worker 'gw0' crashed while running 'tests/test_a.py::test_b'", "crash"),
        ("subprocess.TimeoutExpired: timed out", "hang"),
        ("Failed: DID NOT RAISE <class 'UserError'>", "wrong result"),
        ("KeyError: 3", "traceback"),
    ],
)
def test_failures_have_a_kind(told: str, kind: str) -> None:
    assert outcomes.failure(told) == kind
