"""Faults of ours in the log: what failed and where, never the message, which may have what somebody typed."""

import logging

LOG = logging.getLogger("factorcell.service")
LINES = 4  # of those that an error came through, the last


def log(error: BaseException) -> None:
    """A line about an error that nobody expected."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        lines.append(f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}")
        trace = trace.tb_next
    LOG.error("%s at %s", type(error).__name__, " > ".join(lines[-LINES:]))
