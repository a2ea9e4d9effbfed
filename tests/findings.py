"""Collection of the findings that code logs, so that tests assert on their names."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from factorcell.io.findings import LOG, Finding, format_fact, log_once


class _Collector(logging.Handler):
    def __init__(self, findings: list[Finding]) -> None:
        super().__init__()
        self.findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "finding"):
            self.findings.append(record.finding)


@contextmanager
def collected_findings() -> Iterator[list[Finding]]:
    """Yield a list to which the findings of this block are added, even if the process has logged them before.

    Lists of blocks around this one do not get them.
    """
    findings: list[Finding] = []
    outer, handler = [other for other in LOG.handlers if isinstance(other, _Collector)], _Collector(findings)
    log_once.cache_clear()
    for other in outer:
        LOG.removeHandler(other)
    LOG.addHandler(handler)
    try:
        yield findings
    finally:
        LOG.removeHandler(handler)
        for other in outer:
            LOG.addHandler(other)
        log_once.cache_clear()


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= logging.INFO:
            self.lines.append(record.getMessage())


@contextmanager
def logged_progress() -> Iterator[list[str]]:
    """Let the logger log progress and details in this block, and yield a list to which its lines are added."""
    lines: list[str] = []
    handler, level = _Lines(lines), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)


def parse_block(lines: Iterable[str]) -> dict[str, str]:
    """Return the texts of the lines that `log_fact` formats, by their labels; of equal labels, the last one."""
    width, block, label = len(format_fact("", "")), dict[str, str](), ""
    for line in lines:
        if line.startswith("  ") and line[width - 1 :][:1] == " ":
            if name := line[:width].strip():
                label, block[name] = name, line[width:]
            else:  # a further line of the same fact
                block[label] += f"\n{line[width:]}"
    return block


@contextmanager
def expected_finding(name: str, *texts: str) -> Iterator[None]:
    """Check that this block logs one finding called `name`, whose text contains all `texts`."""
    with collected_findings() as findings:
        yield
    (finding,) = (finding for finding in findings if finding.name == name)
    assert all(text in finding.text for text in texts), finding.text


@contextmanager
def no_findings() -> Iterator[None]:
    """Check that this block logs no finding."""
    with collected_findings() as findings:
        yield
    assert findings == []
