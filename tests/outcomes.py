"""What came of hostile inputs and faults: tests count it with the fixture `outcome`, and a table shows all at the end.

    outcome["clear error"] += 1

An input that made its test fail is counted by how that failed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

RIGHT = ("clear error", "accepted", "killed, whole")  # whole: nothing was lost that had been acknowledged
WRONG = ("traceback", "hang", "crash", "wrong result")
PROPERTY = "outcomes"


def failure(told: str) -> str:
    """How a test failed that `told` this."""
    if "hangs" in told or "TimeoutExpired" in told:
        return "hang"
    if "worker" in told and "crashed" in told:
        return "crash"
    return "wrong result" if "AssertionError" in told or "DID NOT RAISE" in told else "traceback"


def counted(reports: Sequence[Any]) -> dict[str, Counter[str]]:
    """How often each outcome came, per file that counts them."""
    found: dict[str, Counter[str]] = {}
    for report in reports:
        if (said := dict(getattr(report, "user_properties", ())).get(PROPERTY)) is not None:
            found.setdefault(_file(report), Counter()).update(said)
    for report in reports:
        if report.failed and _file(report) in found:  # a test that crashes leaves no counts
            found[_file(report)][failure(_message(report))] += 1
    return found


def _file(report: Any) -> str:
    return str(report.nodeid.partition("::")[0])


def _message(report: Any) -> str:
    """What was raised, without the code that raised it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr if crash is None else crash.message)


def table(found: dict[str, Counter[str]]) -> Iterator[str]:
    """A line per file, and one of their sums; none where nothing was counted."""
    if not found:
        return
    rows = {**dict(sorted(found.items())), "all": sum(found.values(), Counter())}
    left = max(map(len, rows))
    yield " " * left + "  ".join(["", "tried", *RIGHT, *WRONG])
    for name, counts in rows.items():
        cells = [f"{counts[kind]:{len(kind)},}" for kind in (*RIGHT, *WRONG)]
        yield "  ".join([f"{name:{left}}", f"{sum(counts.values()):5,}", *cells])
