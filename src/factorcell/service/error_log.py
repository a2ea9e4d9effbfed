"""Unexpected errors in the log: their type and place, never the message, which may contain what a user typed."""

import logging

LOG = logging.getLogger("factorcell.service")
LINES = 4  # the last frames of the traceback


def log_unexpected_error(error: BaseException) -> None:
    lines, trace = [], error.__traceback__
    while trace is not None:
        lines.append(f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}")
        trace = trace.tb_next
    LOG.error("%s at %s", type(error).__name__, " > ".join(lines[-LINES:]))
