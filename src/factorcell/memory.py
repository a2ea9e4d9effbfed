"""The memory and the processor cores that this process may use."""

import os
from pathlib import Path

from factorcell import limits
from factorcell.limits import UserError

LIMIT_VARIABLE = "FACTORCELL_MAX_MEMORY"  # of the environment, in GiB; `--max-memory` sets it for one command
GIB = 1 << 30
GROUPS, OWN_GROUP, INFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")


def check(wanted: int, what: str) -> None:
    """`UserError` if `what` takes more bytes than there are: it says both, and what raises the limit."""
    most, whose = limit()
    if wanted > most:
        raise UserError(
            f"{what} would take about {shown(wanted)} of memory; {whose} {shown(most)} "
            f"(--max-memory or {LIMIT_VARIABLE} sets another limit, in GiB)"
        )


def limit() -> tuple[int, str]:
    """The most bytes to take, and whose limit it is: the user's, or that of the control group and the machine."""
    given = os.environ.get(LIMIT_VARIABLE, "")
    if given:
        try:
            number = float(given)
        except ValueError:
            raise UserError(f"{LIMIT_VARIABLE} is {given!r:.60}; it must be a number of GiB") from None
        limits.check(max_memory=number)
        return int(number * GIB), "the limit is"
    return machine_memory(), "this machine has"


def machine_memory() -> int:
    """The bytes of memory of this machine, or of its control group where that has fewer."""
    found = [1 << 62]
    for line in _lines(INFO):
        if line.startswith("MemTotal:"):
            found.append(int(line.split()[1]) << 10)
    for line in _lines(OWN_GROUP):
        _, controllers, own = line.split(":", 2)
        second = not controllers  # of the two versions of control groups
        if second or "memory" in controllers.split(","):
            root, name = (GROUPS, "memory.max") if second else (GROUPS / "memory", "memory.limit_in_bytes")
            inner = root / own.strip("/")
            for folder in (inner, *inner.parents):
                found += [int(text) for text in _lines(folder / name) if text.isdecimal()]
                if folder == root:
                    break
    return min(found)


def shown(count: int) -> str:
    """Bytes in a unit that people read."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB / 10 else f"{count / (1 << 20):,.0f} MiB"


def _lines(path: Path) -> list[str]:
    """The lines of a file of the system; none where it has no such file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def usable_cores() -> int:
    """The cores that the system lets this process run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
