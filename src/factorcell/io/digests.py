"""The manifest of a folder, `digests.json`: SHA-256 digests of files that affect results and contain no checksum.

Before a file is replaced, the manifest is rewritten to accept both the old and the new content. Therefore the folder
stays valid if the process dies at any point. A file that is listed but not yet written has no digest.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factorcell.errors import UserError, check_format

FILE = "digests.json"
FORMAT = 1

Manifest = Mapping[str, tuple[str, ...]]  # the accepted digests of each file, by file name


def read(folder: Path) -> Manifest:
    """Return the manifest of `folder`, empty if there is none; raise `UserError` if it is damaged or altered."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
        check_format(content["format"], FORMAT, path)
        if content["sha256"] != _digest_of_manifest(content["files"]):
            raise UserError(f"{path}: altered since it was written (its digest does not match)")
        return {str(name): tuple(accepted) for name, accepted in content["files"].items()}
    except UserError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def encode(manifest: Manifest) -> bytes:
    """Return the content of `digests.json` for a manifest."""
    files = {name: list(accepted) for name, accepted in sorted(manifest.items())}
    content = {"format": FORMAT, "files": files, "sha256": _digest_of_manifest(files)}
    return (json.dumps(content, indent=1) + "\n").encode()


def sha256_of(content: bytes | memoryview) -> str:
    """Return the hexadecimal SHA-256 of `content`."""
    return hashlib.sha256(content).hexdigest()


def _digest_of_manifest(files: Any) -> str:
    return sha256_of(json.dumps(files, sort_keys=True).encode())
