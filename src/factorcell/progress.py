"""How far a long job is: a bar on a terminal, elsewhere a line now and then, so that a log stays short and readable.

A line is due after a tenth of the whole, at the latest every half minute, and when the job takes another name.

reading: 120,000 of 500,000 rows (24 %), 8,000 a second, 0:47 left
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TextIO

from factorcell.visible import visible

FIRST, OFTEN, SELDOM = 5.0, 5.0, 30.0  # seconds before the first line, and between lines at least and at most
SHARE = 0.1  # of the whole, after which a line is due before SELDOM


def progress_bar(items: Iterable[Any] | None = None, *, desc: str, unit: str, show: bool = True, **more: Any) -> Any:
    """A `tqdm` or `Lines`: shows how far the iteration over `items` is, or the job that `update` counts; `show` or not.

    `unit` is a plural, `more` as tqdm has it: `total`, `initial`, `leave`, `unit_scale`.
    """
    if show and sys.stderr.isatty():
        return _bar()(items, desc=desc, unit=f" {unit}", dynamic_ncols=True, **more)
    return Lines(items, desc, unit, more.get("total"), more.get("initial", 0), sys.stderr if show else None)


@cache
def _bar() -> Any:
    """The bar of tqdm with names that cannot steer the terminal; tqdm is imported when a bar is wanted."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        @property
        def format_dict(self) -> dict[str, Any]:
            drawn = super().format_dict
            return {**drawn, **{name: visible(drawn[name] or "") for name in ("prefix", "postfix", "unit")}}

    return Bar


class Lines:
    """Progress in lines to `stream`, if any, the first after a few seconds: a short job has none."""

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
        self.n = self.initial = self.told = initial
        self.postfix, self.renamed, self.began = "", False, clock()
        self.last = self.began + FIRST - OFTEN  # when a line was last written, or might have been

    def __iter__(self) -> Iterator[Any]:
        for item in self.items or ():
            yield item
            self.update()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        """Count steps; write a line if it is time."""
        self.n += count
        now = self.clock()
        if self.stream is None or not count or now - self.last < OFTEN:
            return
        further = bool(self.total) and self.n - self.told >= SHARE * (self.total or 0)
        if further or self.renamed or now - self.last >= SELDOM or self.told == self.initial:
            self.last, self.told, self.renamed = now, self.n, False
            self.stream.write(visible(self.line(now - self.began)) + "\n")
            self.stream.flush()

    def line(self, seconds: float) -> str:
        """How far it is after these `seconds`."""
        rate = (self.n - self.initial) / max(seconds, 1e-9)
        done, left = f"{self.n:,}", ""
        if self.total:
            done += f" of {self.total:,}"
        if self.total and self.n < self.total:
            left = f", {_clock((self.total - self.n) / rate)} left"
        share = f" ({self.n / self.total:.0%})" if self.total else ""
        pace = f"{rate:,.{0 if rate >= 100 else 2}f} a second"
        return f"{self.desc}: {done} {self.unit}{share}, {pace}{left}" + (f", {self.postfix}" if self.postfix else "")

    def set_description(self, desc: str) -> None:
        """Another name of the job."""
        self.desc, self.renamed = desc, True

    def set_postfix_str(self, postfix: str, refresh: bool = True) -> None:
        """What else the line says."""
        self.postfix = postfix

    def external_write_mode(self) -> AbstractContextManager[None]:
        """A block that writes lines of its own: nothing is in its way here."""
        return nullcontext()


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
