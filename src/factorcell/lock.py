"""A lock on a folder: one process at a time trains in it. It ends with its process, also by `kill -9`."""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from factorcell.limits import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "training.lock"  # stays in the folder: two processes could lock different files if it was removed


@contextmanager
def training_lock(folder: Path, notify: Callable[[str], None] | None = None) -> Iterator[None]:
    """Make this process the only one that trains in `folder`, which is made if need be and removed if it stays empty.

    `UserError` names another process that trains there. `say` takes a line where the file system has no locks.
    """
    made, path = not folder.exists(), folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    with file:
        try:
            if fcntl is None:
                raise OSError
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(f"{folder}: {file.read(200) or 'another process'} is training there") from None
        except OSError:
            if notify is not None:
                notify(f"{folder}: no locks here, so nothing refuses a second training in this folder")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            if made and list(folder.iterdir()) == [path]:
                with suppress(OSError):
                    path.unlink()
                    folder.rmdir()
