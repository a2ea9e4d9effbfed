"""The memory and the processor cores that this process may use."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from factorcell.errors import UserError
from factorcell.options import limits

LIMIT_VARIABLE = "FACTORCELL_MAX_MEMORY"  # a limit in GiB; `--max-memory` sets this environment variable
# The number of processes that read a table, by default 1; the command line sets it to the number of threads.
PROCESSES_VARIABLE = "FACTORCELL_PROCESSES"
GIB = 1 << 30
CONTROL_GROUPS = Path("/sys/fs/cgroup")  # a folder for each control group of the system, version 2
CONTROL_GROUP_OF_PROCESS = Path("/proc/self/cgroup")


def check(required: int, what: str) -> None:
    """Raise `UserError` if `what` needs more bytes than this process may use."""
    available, introduction = memory_limit()
    if required > available:
        raise UserError(
            f"{what} would take about {format_bytes(required)} of memory; {introduction} {format_bytes(available)} "
            f"(--max-memory or {LIMIT_VARIABLE} sets another limit, in GiB)"
        )


def memory_limit() -> tuple[int, str]:
    """Return the number of bytes that this process may use, and the words that introduce it in error messages."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return machine_memory(), "this machine has"
    try:
        gib = float(text)
    except ValueError:
        raise UserError(f"{LIMIT_VARIABLE} is {text!r:.60}; it must be a number of GiB") from None
    limits.check(max_memory=gib)
    return int(gib * GIB), "the limit is"


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of the control group of this process if that has less."""
    has_size = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if has_size else 1 << 62
    return min([limit, *(int(text) for text in _control_group_limits("memory.max") if text.isdecimal())])


def _control_group_limits(file: str) -> Iterator[str]:
    """Yield the text of a file of limits of the control group of this process, and of each group around it."""
    with suppress(OSError, StopIteration):
        lines = CONTROL_GROUP_OF_PROCESS.read_text(encoding="utf-8").splitlines()
        group = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        for folder in (CONTROL_GROUPS / group, *(CONTROL_GROUPS / parent for parent in Path(group).parents)):
            with suppress(OSError):  # a group without a limit may have no file
                yield (folder / file).read_text(encoding="utf-8").strip()


def format_bytes(count: int) -> str:
    """Format a number of bytes in GiB, or in MiB if it is small."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB / 10 else f"{count / (1 << 20):,.0f} MiB"


def worker_count() -> int:
    """Return the number of worker processes that may share a task: `PROCESSES_VARIABLE`, or all cores if it is more."""
    text = os.environ.get(PROCESSES_VARIABLE, "1")
    if not text.isdecimal() or not int(text):
        raise UserError(f"{PROCESSES_VARIABLE}: expected a number of processes, got {text!r:.60}")
    return min(int(text), usable_cores())


def usable_cores() -> int:
    """Return the number of cores that this process may use; torchrun's processes share them.

    The system may allow fewer cores than the machine has, and the control group of a container less time on them.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for text in _control_group_limits("cpu.max"):  # such as "150000 100000", for 1.5 cores, or "max 100000"
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal():
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
