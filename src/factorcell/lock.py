"""Locks that end with their process: one training per folder, and one writer of a manifest at a time."""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from factorcell.limits import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "training.lock"


@contextmanager
def writing(folder: Path, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Make this process the only one that trains in `folder`, which is made if need be and removed if it stays empty.

    `UserError` names another process that trains there. `say` takes a line where the file system has no locks.
    """
    made = not folder.exists()
    path = folder / FILE
    try:
        file = _claimed(path)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    if file is None and say is not None:
        say(f"{folder}: no locks here, so nothing refuses a second training in this folder")
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink()
            file.close()
        if made:
            with suppress(OSError):  # it holds something
                folder.rmdir()


def _claimed(path: Path) -> IO[str] | None:
    """Open and lock `path`, and write the name of this process into it; None where there are no locks."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return None
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                raise UserError(f"{path.parent}: {file.read(200) or 'another process'} is training there") from None
        except OSError:
            file.close()
            path.unlink(missing_ok=True)
            return None
        with suppress(FileNotFoundError):  # whoever had it before may have removed it between our two calls
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}")
                file.flush()
                return file
        file.close()


@contextmanager
def manifest(folder: Path) -> Iterator[None]:
    """Wait until no other process changes the manifest of `folder`, on file systems with locks."""
    handle = None
    with suppress(OSError):
        if fcntl is not None:
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)
