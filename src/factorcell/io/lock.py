"""A lock on a folder, so that only one process at a time trains in it.

The system releases the lock when the process ends, even after `kill -9`. Without locks, as on Windows and some network
file systems, each process gets the lock.
"""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from factorcell.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "training.lock"  # stays in the folder: if it were removed, two processes could lock different files
# `is_locked` holds the lock for an instant. A refused attempt to lock a folder is therefore repeated.
ATTEMPTS, SECONDS_BETWEEN_ATTEMPTS = 3, 0.05


@contextmanager
def training_lock(folder: Path) -> Iterator[None]:
    """Hold the lock on `folder`; raise a `UserError` if another process trains in it or it cannot be written."""
    is_new_folder, path = not folder.exists(), folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    with file:
        attempts = 1
        while not _lock(file, exclusively=True):
            if attempts == ATTEMPTS:
                file.seek(0)
                raise UserError(f"{folder}: {file.read(200) or 'another process'} is training there")
            attempts += 1
            time.sleep(SECONDS_BETWEEN_ATTEMPTS)
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


def is_locked(folder: Path) -> bool:
    """Return whether a process trains in `folder`."""
    try:
        with (folder / FILE).open("rb") as file:
            return not _lock(file, exclusively=False)
    except OSError:
        return False


def _lock(file: IO[Any], *, exclusively: bool) -> bool:
    """Lock a file; return whether no other process has locked it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:  # other errors: the file system has no locks
        return not isinstance(error, BlockingIOError)
    return True
