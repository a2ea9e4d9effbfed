"""Collection of the findings that code logs, so that tests assert on their names."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from factorcell.findings import LOG, Finding, log_once


class _Collector(logging.Handler):
    def __init__(self, findings: list[Finding]) -> None:
        super().__init__()
        self.findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "finding"):
            self.findings.append(record.finding)


@contextmanager
def collected_findings() -> Iterator[list[Finding]]:
    """Yield a list to which the findings of this block are added, even if the process has logged them before."""
    findings: list[Finding] = []
    handler = _Collector(findings)
    log_once.cache_clear()
    LOG.addHandler(handler)
    try:
        yield findings
    finally:
        LOG.removeHandler(handler)
        log_once.cache_clear()


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
