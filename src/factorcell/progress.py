"""How far a long job is: a bar on a terminal, elsewhere a line now and then, so that a log stays short and readable.

The first line is due after five seconds, the next ones half a minute apart.

reading: 120,000 of 500,000 rows (24 %), 8,000 a second, 0:47 left
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TextIO

from factorcell.visible import visible

FIRST, SELDOM = 5.0, 30.0  # seconds before the first line, and between lines


def progress_bar(items: Iterable[Any] | None = None, *, desc: str, unit: str, show: bool = True, **more: Any) -> Any:
    """Show how far the iteration over `items` is, or the job that `update` counts: a bar of tqdm, or `Lines`.

    `unit` is a plural, `more` as tqdm has it: `total`, `initial`, `leave`, `unit_scale`.
    """
    if show and sys.stderr.isatty():
        return _bar()(items, desc=desc, unit=f" {unit}", dynamic_ncols=True, **more)
    return Lines(items, desc, unit, more.get("total"), more.get("initial", 0), sys.stderr if show else None)


@cache
def _bar() -> Any:
    """The bar of tqdm with names that cannot steer the terminal; tqdm is imported when a bar is needed."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        @property
        def format_dict(self) -> dict[str, Any]:
            drawn = super().format_dict
            return {**drawn, **{name: visible(drawn[name] or "") for name in ("prefix", "postfix", "unit")}}

    return Bar


class Lines:
    """Progress in lines to `stream`, if any; a job of a few seconds writes none."""

    def __init__(
        self,
        items: Iterable[Any] | None,
        desc: str,
        unit: str,
        total: int | None = None,
        initial: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.items, self.desc, self.unit, self.stream, self.clock = items, desc, unit, stream, clock
        self.total = len(items) if total is None and isinstance(items, Sized) else total
        self.n = self.initial = initial
        self.postfix, self.began = "", clock()
        self.due = self.began + FIRST

    def __iter__(self) -> Iterator[Any]:
        for item in self.items or ():
            yield item
            self.update()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        """Count steps; write a line if one is due."""
        self.n += count
        now = self.clock()
        if self.stream is not None and count and now >= self.due:
            self.due = now + SELDOM
            self.stream.write(visible(self.line(now - self.began)) + "\n")
            self.stream.flush()

    def line(self, seconds: float) -> str:
        """The line after these `seconds`."""
        rate = (self.n - self.initial) / max(seconds, 1e-9)
        done, left = f"{self.n:,} {self.unit}", ""
        if self.total:
            done = f"{self.n:,} of {self.total:,} {self.unit} ({self.n / self.total:.0%})"
            if self.n < self.total:
                left = f", {_clock((self.total - self.n) / rate)} left"
        pace = f"{rate:,.{0 if rate >= 100 else 2}f} a second"
        return f"{self.desc}: {done}, {pace}{left}" + (f", {self.postfix}" if self.postfix else "")

    def set_description(self, desc: str) -> None:
        """Rename the job."""
        self.desc = desc

    def set_postfix_str(self, postfix: str, refresh: bool = True) -> None:
        """Set the last part of the line."""
        self.postfix = postfix

    def external_write_mode(self) -> AbstractContextManager[None]:
        """A block that writes other lines."""
        return nullcontext()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
