"""How far a long job is: a bar on a terminal, elsewhere a line now and then, so that a log stays short and readable.

reading: 120k of 500k rows, 8.00k rows/s, 00:47 left
"""

import sys
import time
from collections.abc import Iterable, Sized
from functools import cache
from typing import Any

from factorcell.escapes import escape_hidden

FIRST, SELDOM = 5.0, 30.0  # seconds before the first line, and between lines


class Log:
    """A stream that writes the state of a bar to standard error as a line, if one is due."""

    def __init__(self) -> None:
        self.stream, self.due = sys.stderr, time.monotonic() + FIRST

    def write(self, text: str) -> None:
        """Write the text of a bar without its carriage return, and ignore it before a line is due."""
        now = time.monotonic()
        if (text := text.strip()) and now >= self.due:
            self.due = now + SELDOM
            self.stream.write(text + "\n")

    def flush(self) -> None:
        """Flush standard error."""
        self.stream.flush()


def progress_bar(items: Iterable[Any] | None = None, *, desc: str, unit: str, show: bool = True, **more: Any) -> Any:
    """A bar of tqdm over `items`, or of a job that `update` counts; silent unless `show`.

    `unit` is a plural, `more` as tqdm has it: `total`, `initial`, `leave`, `unit_scale`.
    """
    more |= {"desc": f"{desc}: ", "unit": f" {unit}", "miniters": 1, "disable": not show}
    if sys.stderr.isatty():
        return _bar()(items, dynamic_ncols=True, **more)
    known = more.get("total") is not None or isinstance(items, Sized)
    done, left = ("{n_fmt} of {total_fmt}", ", {remaining} left") if known else ("{n_fmt}", "")
    line = f"{{desc}}{done}{{unit}}, {{rate_fmt}}{left}{{postfix}}"
    return _bar()(items, file=Log(), ncols=1000, bar_format=line, **more)


@cache
def _bar() -> Any:
    """The bar of tqdm with names that cannot steer the terminal; tqdm is imported when a bar is needed."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread

        @property
        def format_dict(self) -> dict[str, Any]:
            drawn = super().format_dict
            return {**drawn, **{name: escape_hidden(drawn[name] or "") for name in ("prefix", "postfix", "unit")}}

    return Bar
