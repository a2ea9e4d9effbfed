"""The log of unexpected errors: their types and locations. Messages are omitted, as they may contain user texts."""

import logging

LOG = logging.getLogger("factorcell.service")
MAX_FRAMES = 4  # innermost frames of a traceback


def log_unexpected_error(error: BaseException) -> None:
    """Log the type of an error and the last frames of its traceback."""
    locations, traceback = [], error.__traceback__
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__")
        locations.append(f"{module}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    LOG.error("%s at %s", type(error).__name__, " > ".join(locations[-MAX_FRAMES:]))
