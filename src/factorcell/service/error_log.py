"""The log of unexpected errors and damaged records.

It has the types and locations of errors, but no messages, as they may contain user texts, and no user ids.
"""

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


def log_damaged_record() -> None:
    """Log that the record of a user is damaged, without the id of the user."""
    LOG.error("the record of a user is damaged; `factorcell users export` names all users with damaged records")
