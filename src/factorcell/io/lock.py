"""A lock on a folder, so that only one process at a time trains in it.

The system releases the lock when the process ends, even after `kill -9`.
"""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from factorcell.errors import UserError
from factorcell.io.findings import Finding, report

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "training.lock"  # stays in the folder: if it were removed, two processes could lock different files
# `is_locked` holds the lock for an instant. A refused attempt to lock a folder is therefore repeated.
ATTEMPTS, SECONDS_BETWEEN_ATTEMPTS = 3, 0.05


@contextmanager
def training_lock(folder: Path) -> Iterator[None]:
    """Hold the lock on `folder`; raise `UserError` if another process trains in it or it cannot be written.

    A folder that did not exist is created, and removed at the end if it is still empty.
    """
    is_new_folder, path = not folder.exists(), folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    with file:
        for attempt in range(ATTEMPTS):
            try:
                _lock(file, exclusively=True)
                break
            except BlockingIOError:
                if attempt == ATTEMPTS - 1:
                    file.seek(0)
                    raise UserError(f"{folder}: {file.read(200) or 'another process'} is training there") from None
                time.sleep(SECONDS_BETWEEN_ATTEMPTS)
            except OSError:
                text = f"{folder}: the file system has no locks; do not start a second training in this folder"
                report(Finding("no locks", text))
                break
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            if is_new_folder and list(folder.iterdir()) == [path]:
                with suppress(OSError):
                    path.unlink()
                    folder.rmdir()


def is_locked(folder: Path) -> bool | None:
    """Return whether a process trains in `folder`; None if the system or the file system has no locks."""
    try:
        with (folder / FILE).open("rb") as file:
            _lock(file, exclusively=False)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _lock(file: IO[Any], *, exclusively: bool) -> None:
    """Lock a file; raise `BlockingIOError` if another process has locked it, and `OSError` if there are no locks."""
    if fcntl is None:
        raise OSError
    fcntl.flock(file, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
