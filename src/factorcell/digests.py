"""The manifest of a folder, `digests.json`: for each file that decides results, the SHA-256 of what it must hold.

A file that is being replaced has two digests, of what it held and of what it will hold: wherever the process dies, what
lies there is one of the two. One that was never written has none, and may be put there or deleted by anybody.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell.config import UserError, check_format

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE = "digests.json"
FORMAT = 1

Accepted = tuple[str, ...]


@dataclass(frozen=True)
class Digests:
    """For each file that is `listed`, by its name: the digests that are accepted. Other files may hold anything."""

    listed: Mapping[str, Accepted]

    @classmethod
    def begin(cls, names: Iterable[str]) -> "Digests":
        """Of files that are not there yet."""
        return cls(dict.fromkeys(names, ()))

    @classmethod
    def read(cls, folder: Path) -> "Digests":
        """Those in `folder`; of no file where it has no manifest.

        `UserError` where the manifest itself has been altered: it has a digest of its own.
        """
        path = folder / FILE
        if not path.exists():
            return cls({})
        try:
            content = json.loads(path.read_bytes())
            check_format(content["format"], FORMAT, path)
            if content["sha256"] != _own(content["files"]):
                raise UserError(f"{path}: altered since it was written (its digest does not match)")
            return cls({str(name): tuple(accepted) for name, accepted in content["files"].items()})
        except UserError:
            raise
        except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None

    def content(self) -> bytes:
        """The manifest as a file."""
        files = {name: list(accepted) for name, accepted in sorted(self.listed.items())}
        return (json.dumps({"format": FORMAT, "files": files, "sha256": _own(files)}, indent=1) + "\n").encode()

    def replacing(self, name: str, digest: str) -> "Digests":
        """While `name` is being replaced by what has `digest`."""
        return Digests({**self.listed, name: tuple(dict.fromkeys((*self.listed[name], digest)))})

    def replaced(self, name: str, digest: str) -> "Digests":
        """When `name` has `digest`."""
        return Digests({**self.listed, name: (digest,)})

    def accepts(self, path: Path, found: str) -> bool:
        """Whether the digest that was `found` of the file `path` is one of its own, or the file has none."""
        accepted = self.listed.get(path.name, ())
        return not accepted or found in accepted

    def vouch(self, path: Path, found: str) -> None:
        """`UserError` unless that is so."""
        if not self.accepts(path, found):
            raise UserError(f"{path}: altered since it was written (its SHA-256 is not that in {FILE})")


def of(content: bytes) -> str:
    """The digest of what a file holds."""
    return hashlib.sha256(content).hexdigest()


def of_file(path: Path) -> str:
    """The digest of a file, which is not held in memory."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Within it no other process changes the manifest of `folder`, on file systems that know locks."""
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


def _own(files: Any) -> str:
    """The digest of the manifest itself."""
    return of(json.dumps(files, sort_keys=True).encode())
