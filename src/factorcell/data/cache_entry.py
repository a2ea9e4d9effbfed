"""Entries of the cache: each is a folder with the arrays of one table and a checksum of every file."""

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
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Corpus, context_fields
from factorcell.data.originals import OriginalTexts
from factorcell.data.ragged import Ragged
from factorcell.data.tokenizers.tokenizer import load_tokenizer

CHECKSUMS_FILE = "complete"  # holds the checksums of all other files of an entry, and is written after them
MAX_PARTIAL_AGE = 24 * 60 * 60  # in seconds; older partial entries are removed


def load_or_create(folder: Path, make: Callable[[Path], Corpus], config: Config) -> Corpus:
    """Load the corpus of a cache entry, and first create the entry if it does not exist or is damaged.

    Args:
        folder: The folder of the entry.
        make: A function that receives a folder, writes the tokens of the corpus into it, and returns the corpus.
        config: A config with the options of the tokenizer.

    Raises:
        OSError: The entry cannot be written.
    """
    if (corpus := load(folder, config)) is not None:
        return corpus
    folder.parent.mkdir(parents=True, exist_ok=True)
    for partial_folder in folder.parent.glob("*.partial"):  # some may be of processes that were killed
        with suppress(FileNotFoundError):
            if time.time() - partial_folder.stat().st_mtime > MAX_PARTIAL_AGE:
                shutil.rmtree(partial_folder, ignore_errors=True)
    new_folder = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.partial")
    new_folder.mkdir()
    try:
        save(make(new_folder), new_folder)
        if load(folder, config) is None:
            shutil.rmtree(folder, ignore_errors=True)  # `load` returned None, so an existing entry is damaged
            with suppress(OSError):  # renaming fails if another process has created the same entry meanwhile
                new_folder.rename(folder)
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)
    if (corpus := load(folder, config)) is None:
        raise OSError(errno.EIO, "the new cache entry cannot be read", str(folder))
    return corpus


def save(corpus: Corpus, folder: Path) -> None:
    """Write a corpus into `folder`, which already contains the tokens of the corpus in `tokens.npy`."""
    arrays: dict[str, NDArray[Any]] = {"offsets": corpus.offsets, "users": corpus.users}
    arrays |= corpus.context_arrays()
    if corpus.originals is not None:
        arrays |= {f"originals.{name}": array for name, array in corpus.originals._asdict().items()}
    if corpus.spellings is not None:
        arrays |= {"spellings": corpus.spellings.values, "spellings.offsets": corpus.spellings.offsets}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    for name, content in corpus.tokenizer.contents().items():
        (folder / name).write_bytes(content)
    (folder / "schema.json").write_text(json.dumps(corpus.schema.to_dict()), encoding="utf-8")
    checksums = {path.name: checksum(path) for path in sorted(folder.iterdir())}
    (folder / CHECKSUMS_FILE).write_text(json.dumps(checksums), encoding="utf-8")


def checksum(path: Path) -> str:
    """Return the BLAKE2b digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def load(folder: Path, config: Config) -> Corpus | None:
    """Return the corpus of an entry, or None if the entry does not exist or is damaged."""
    try:
        checksums = json.loads((folder / CHECKSUMS_FILE).read_text(encoding="utf-8"))
        if any(checksum(folder / name) != expected_checksum for name, expected_checksum in checksums.items()):
            return None
        arrays = dict[str, NDArray[Any]]()
        for name in checksums:
            if name.endswith(".npy"):
                mmap_mode: Any = None if "offsets" in name else "r"  # offsets are small; other arrays are memory-mapped
                arrays[name.removesuffix(".npy")] = np.load(folder / name, mmap_mode=mmap_mode, allow_pickle=False)
        schema = ContextSchema.from_dict(json.loads((folder / "schema.json").read_text(encoding="utf-8")))
        originals = [arrays[name] for field in OriginalTexts._fields if (name := f"originals.{field}") in arrays]
        return Corpus(
            tokens=arrays["tokens"],
            offsets=arrays["offsets"],
            tokenizer=load_tokenizer(config, folder),
            users=arrays["users"],
            originals=OriginalTexts(*originals) if originals else None,
            spellings=Ragged(arrays["spellings"], arrays["spellings.offsets"]),
            **context_fields(arrays, schema),
        )
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):  # errors of damaged files
        return None
