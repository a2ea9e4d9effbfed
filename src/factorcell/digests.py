"""The manifest of a folder, `digests.json`: the SHA-256 of each file that decides results and has no own checksum.

The manifest is written before the file that it describes. If the file existed before, both its old and its new digest
are accepted, so the folder stays valid wherever the process dies. A file that was never written has no digest.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factorcell.limits import UserError, check_format

FILE = "digests.json"
FORMAT = 1

Listed = Mapping[str, tuple[str, ...]]  # the digests that are accepted, by the name of a file


def read(folder: Path) -> Listed:
    """Read the manifest of `folder`, empty if there is none; `UserError` if the manifest was altered."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
        check_format(content["format"], FORMAT, path)
        if content["sha256"] != _of_manifest(content["files"]):
            raise UserError(f"{path}: altered since it was written (its digest does not match)")
        return {str(name): tuple(accepted) for name, accepted in content["files"].items()}
    except UserError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def encoded(listed: Listed) -> bytes:
    """The manifest as the content of a file."""
    files = {name: list(accepted) for name, accepted in sorted(listed.items())}
    return (json.dumps({"format": FORMAT, "files": files, "sha256": _of_manifest(files)}, indent=1) + "\n").encode()


def replacing(listed: Listed, path: Path, digest: str) -> Listed:
    """The manifest for replacing the file `path` by content with this digest."""
    existing = sha256_of(path.read_bytes()) if path.exists() else ""
    valid = (existing,) if existing in listed[path.name] else ()
    return {**listed, path.name: tuple(dict.fromkeys((*valid, digest)))}


def accepts(path: Path, digest: str) -> bool:
    """Whether the manifest accepts content with this digest, or lists none, for the file `path`."""
    accepted = read(path.parent).get(path.name, ())
    return not accepted or digest in accepted


def sha256_of(content: bytes) -> str:
    """The digest of the content of a file."""
    return hashlib.sha256(content).hexdigest()


def _of_manifest(files: Any) -> str:
    return sha256_of(json.dumps(files, sort_keys=True).encode())
