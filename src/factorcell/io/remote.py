"""Folders at addresses of fsspec, such as s3://bucket/runs/reviews, which are copied to this machine."""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from factorcell.errors import UserError

SEPARATOR = "://"  # addresses have it, and paths do not


@contextmanager
def copied_folder(address: str, *, leave_out: Collection[str] = ()) -> Iterator[Path]:
    """Yield a copy of the files of the folder at an `address`, without those that are left out.

    The copy is alone in a temporary folder, which the caller deletes; after an error it is deleted here.

    Raises:
        UserError: The protocol is unknown or its package is not installed, or the folder cannot be read.
    """
    parent = Path(mkdtemp(prefix="factorcell-"))
    try:
        yield _copy(address, parent, leave_out)
    except UserError as error:
        shutil.rmtree(parent, ignore_errors=True)
        raise error.with_message(error.message.replace(str(parent), address.rstrip("/").rpartition("/")[0])) from None
    except BaseException:
        shutil.rmtree(parent, ignore_errors=True)
        raise


def _copy(address: str, parent: Path, leave_out: Collection[str]) -> Path:
    import fsspec

    copy = parent / address.rstrip("/").rpartition("/")[2]
    try:
        system, root = fsspec.core.url_to_fs(address)
        paths = [entry["name"] for entry in system.ls(root, detail=True) if entry["type"] == "file"]
        copy.mkdir()
        for path in paths:
            if (name := path.rpartition("/")[2]) not in leave_out:
                system.get_file(path, str(copy / name))
    except FileNotFoundError:
        raise UserError(f"{address}: expected a run folder, got an address that does not exist") from None
    except Exception as error:  # each storage has exceptions of its own
        raise UserError(f"{address}: cannot be read ({' '.join(str(error).split()) or type(error).__name__})") from None
    return copy
