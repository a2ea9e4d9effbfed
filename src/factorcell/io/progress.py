"""Display of the progress of long work: a bar that disappears at its end; in a log, a line every `INTERVAL` seconds.

    reading: 120k of 500k rows, 8.00krows/s, 00:47 left

It is displayed if the logger `factorcell` logs records of the level INFO, as in all commands.
"""

import logging
import sys
from collections.abc import Iterable, Sized
from typing import Any

from factorcell.io.findings import LOG

BAR_DELAY, INTERVAL = 0.5, 30.0  # seconds before a bar; seconds before a line in a log, and between lines


class LineStream:
    """A stream for tqdm that prints the text of a bar as a line on standard error."""

    def __init__(self) -> None:
        self.stream = sys.stderr

    def write(self, text: str) -> None:
        """Print the text of a bar without its carriage return and padding."""
        if line := text.strip("\r\n "):
            self.stream.write(line + "\n")

    def flush(self) -> None:
        """Flush standard error."""
        self.stream.flush()


def progress_bar(items: Iterable[Any] | None = None, *, desc: str, unit: str, show: bool = True, **options: Any) -> Any:
    """Return a tqdm bar over `items`; without items, the caller advances the bar with `update`.

    `desc` is the work, such as "reading", `unit` a plural, such as "rows"; `options` are those of tqdm. Nothing is
    displayed unless `show` is set and the level of the logger is INFO or lower.
    """
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # tqdm starts no monitor thread

    is_shown = show and LOG.isEnabledFor(logging.INFO)
    options |= {"desc": desc, "unit": unit, "miniters": 1, "leave": False, "disable": not is_shown}
    if sys.stderr.isatty():
        return Bar(items, dynamic_ncols=True, delay=BAR_DELAY, **options)
    has_total = options.get("total") is not None or isinstance(items, Sized)
    # tqdm fills the fields in braces.
    progress, time_left = ("{n_fmt} of {total_fmt}", ", {remaining} left") if has_total else ("{n_fmt}", "")
    options |= {"bar_format": "{desc}: " + progress + " {unit}, {rate_fmt}" + time_left + "{postfix}", "ncols": 1000}
    return Bar(items, file=LineStream(), delay=INTERVAL, mininterval=INTERVAL, **options)
