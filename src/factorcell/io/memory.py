"""The memory and the processor cores that this process may use."""

import os
from pathlib import Path

from factorcell.errors import UserError
from factorcell.options import limits

LIMIT_VARIABLE = "FACTORCELL_MAX_MEMORY"  # a limit in GiB; `--max-memory` sets this environment variable
GIB = 1 << 30
CONTROL_GROUPS = Path("/sys/fs/cgroup")  # a folder for each control group of the system
CONTROL_GROUP_OF_PROCESS = Path("/proc/self/cgroup")
MEMORY_INFO = Path("/proc/meminfo")


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
    limits_in_bytes = [1 << 62]  # the result if the system reports no limit
    for line in _lines(MEMORY_INFO):
        if line.startswith("MemTotal:"):
            _, kib, *_ = line.split()
            limits_in_bytes.append(int(kib) << 10)
    for line in _lines(CONTROL_GROUP_OF_PROCESS):
        _, controllers, group = line.split(":", 2)
        is_version_2 = not controllers
        if is_version_2 or "memory" in controllers.split(","):
            root = CONTROL_GROUPS if is_version_2 else CONTROL_GROUPS / "memory"
            limit_file = "memory.max" if is_version_2 else "memory.limit_in_bytes"
            group_folder = root / group.strip("/")
            for folder in (group_folder, *group_folder.parents):
                limits_in_bytes += [int(text) for text in _lines(folder / limit_file) if text.isdecimal()]
                if folder == root:
                    break
    return min(limits_in_bytes)


def format_bytes(count: int) -> str:
    """Format a number of bytes in GiB, or in MiB if it is small."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB / 10 else f"{count / (1 << 20):,.0f} MiB"


def _lines(path: Path) -> list[str]:
    """Return the lines of a system file; no lines if the system does not have the file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def usable_cores() -> int:
    """Return the number of cores that the system allows this process to run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
