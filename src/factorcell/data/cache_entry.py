"""An entry of the cache: a folder with the arrays of one table, which are mapped, not read.

It is opened only if its files are those that were written, by their checksums.
"""

import errno
import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.corpus import Corpus, context_fields
from factorcell.data.originals import OriginalTexts
from factorcell.data.schema import ContextSchema
from factorcell.data.tokenizer import load_tokenizer

COMPLETE = "complete"  # the checksums of all other files; written last
STALE = 24 * 60 * 60  # seconds after which nobody writes to an entry that is not complete


def load_or_create(folder: Path, make: Callable[[Path], Corpus], config: Config) -> Corpus:
    """Return the corpus in the entry `folder`; if there is none, `make` it, its tokens in the folder that it gets.

    `config` names the tokenizer.

    Raises:
        OSError: The entry cannot be written.
    """
    if (corpus := load(folder, config)) is not None:
        return corpus
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob("*.partial"):  # of processes that were killed
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.partial")
    partial.mkdir()
    try:
        save(make(partial), partial)
        if load(folder, config) is None:
            shutil.rmtree(folder, ignore_errors=True)  # damaged
            with suppress(OSError):  # another process was first, and its copy is as good
                partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if (corpus := load(folder, config)) is None:
        raise OSError(errno.EIO, "what was written cannot be read", str(folder))
    return corpus


def save(corpus: Corpus, folder: Path) -> None:
    """Write all but the tokens, which are there already."""
    arrays: dict[str, NDArray[Any]] = {"offsets": corpus.offsets, "users": corpus.users, **corpus.context_arrays()}
    if corpus.originals is not None:
        arrays |= {f"originals.{name}": array for name, array in corpus.originals._asdict().items()}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    for name, content in corpus.tokenizer.contents().items():
        (folder / name).write_bytes(content)
    (folder / "schema.json").write_text(json.dumps(corpus.schema.to_dict()), encoding="utf-8")
    checksums = {path.name: checksum(path) for path in sorted(folder.iterdir())}
    (folder / COMPLETE).write_text(json.dumps(checksums), encoding="utf-8")


def checksum(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def load(folder: Path, config: Config) -> Corpus | None:
    """Return the corpus in an entry, or None where there is none or it is damaged."""
    try:
        checksums = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
        if any(checksum(folder / name) != expected for name, expected in checksums.items()):
            return None
        arrays = {
            name.removesuffix(".npy"): np.load(
                folder / name, mmap_mode=None if "offsets" in name else "r", allow_pickle=False
            )
            for name in checksums
            if name.endswith(".npy")
        }
        schema = ContextSchema.from_dict(json.loads((folder / "schema.json").read_text(encoding="utf-8")))
        return Corpus(
            tokens=arrays["tokens"],
            offsets=arrays["offsets"],
            tokenizer=load_tokenizer(config, folder),
            users=arrays["users"],
            originals=OriginalTexts(*(arrays[f"originals.{name}"] for name in OriginalTexts._fields)),
            **context_fields(arrays, schema),
        )
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):  # an empty file is an EOFError
        return None
