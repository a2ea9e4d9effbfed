"""One writer per folder: a lock that dies with its process, and a file that says which process that is."""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from factorcell.config import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "training.lock"


@contextmanager
def writing(folder: Path, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Within it this process alone writes in `folder`, which is made where there is none, and kept if it is filled.

    `UserError` that names the process which writes there. `say` takes a line where the file system knows no locks.
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
    """The file `path`, locked and with this process in it; None where there are no locks."""
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
