"""Display of the progress of long work: a bar that disappears at its end; in a log, a line every `INTERVAL` seconds.

    reading: 120k of 500k rows, 8.00k rows/s, 00:47 left

It is displayed if the logger `factorcell` logs records of the level INFO, as in all commands.
"""

import logging
import sys
import time
from collections.abc import Iterable, Sized
from functools import cache
from typing import Any

from factorcell.io.findings import LOG
from factorcell.io.output import escape_hidden

FIRST_DELAY, INTERVAL = 5.0, 30.0  # seconds before the first line, and between two lines
FIRST_BAR_DELAY = 0.5  # seconds before a bar


class LineStream:
    """A stream for tqdm that prints the bar as a line on standard error, at most once per interval."""

    def __init__(self) -> None:
        self.stream, self.next_line_time = sys.stderr, time.monotonic() + FIRST_DELAY

    def write(self, text: str) -> None:
        """Print the text of a bar without its carriage return if the interval is over; otherwise ignore the text."""
        now, line = time.monotonic(), text.strip("\r\n").rstrip()
        if line and now >= self.next_line_time:
            self.next_line_time = now + INTERVAL
            self.stream.write(line + "\n")

    def flush(self) -> None:
        """Flush standard error."""
        self.stream.flush()


def is_shown() -> bool:
    """Return whether progress is displayed."""
    return LOG.isEnabledFor(logging.INFO)


def progress_bar(items: Iterable[Any] | None = None, *, desc: str, unit: str, show: bool = True, **options: Any) -> Any:
    """Return a tqdm bar over `items`; without items, the caller advances the bar with `update`.

    `desc` is the work, such as "reading", `unit` a plural, such as "rows"; `options` are those of tqdm. Nothing is
    displayed unless `show` and `is_shown`.
    """
    options |= {"desc": f"{desc}: ", "unit": f" {unit}", "miniters": 1, "disable": not (show and is_shown())}
    if sys.stderr.isatty():
        return _bar_class()(items, dynamic_ncols=True, leave=False, delay=FIRST_BAR_DELAY, **options)
    has_total = options.get("total") is not None or isinstance(items, Sized)
    # tqdm fills the fields in braces.
    progress = "{n_fmt} of {total_fmt}" if has_total else "{n_fmt}"
    time_left = ", {remaining} left" if has_total else ""
    bar_format = "{desc}" + progress + "{unit}, {rate_fmt}" + time_left + "{postfix}"
    return _bar_class()(items, file=LineStream(), ncols=1000, bar_format=bar_format, **options)


@cache
def _bar_class() -> Any:
    """Import tqdm and return a subclass of its bar that escapes texts, so that they cannot control the terminal."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # tqdm starts no monitor thread

        @staticmethod
        def format_meter(*arguments: Any, unit: str = "it", **options: Any) -> str:
            # The unit begins with a space, for rates such as "3 steps/s"; tqdm writes rates below 1 as "2s/ steps".
            text = str(tqdm.format_meter(*arguments, unit=unit, **options))
            return text.replace(f"s/{unit}", f" s/{unit.lstrip()}")

        @property
        def format_dict(self) -> dict[str, Any]:
            values = super().format_dict
            escaped = {name: escape_hidden(values[name] or "") for name in ("prefix", "postfix", "unit")}
            values |= escaped
            # The time of the first item includes preparations, and items that are computed together end together.
            is_estimate_possible = values["n"] - values["initial"] > 1
            return values if sys.stderr.isatty() or is_estimate_possible else {**values, "elapsed": 0, "rate": None}

    return Bar
