"""An entry of the cache: a folder with the arrays of one table, which are mapped, not read.

It is opened only if its files are those that were written, by their checksums, and if every id and offset is in range:
compiled code trusts them.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorcell.config import Config
from factorcell.data.columns import Ragged
from factorcell.data.corpus import Corpus
from factorcell.data.counts import FrequentTexts
from factorcell.data.originals import OriginalTexts
from factorcell.data.schema import MISSING, ContextSchema
from factorcell.data.tokenizer import load_tokenizer

COMPLETE = "complete"  # the checksums of all other files; written last
FREQUENT = "frequent.json"  # texts; only with users, and of units that are completed


def save(corpus: Corpus, folder: Path) -> None:
    """Write all but the tokens, which are there already."""
    arrays: dict[str, Any] = {name: getattr(corpus, name) for name in ("offsets", "categories", "numbers", "users")}
    arrays |= {f"vectors.{index}": vectors for index, vectors in enumerate(corpus.vectors)}
    arrays |= {f"bags.{index}": bags.values for index, bags in enumerate(corpus.bags)}
    arrays |= {f"bags.{index}.offsets": bags.offsets for index, bags in enumerate(corpus.bags)}
    if corpus.originals is not None:
        arrays |= {f"originals.{name}": array for name, array in corpus.originals._asdict().items()}
    if corpus.frequent is not None:
        arrays["frequent"] = corpus.frequent.which
        (folder / FREQUENT).write_text(json.dumps(corpus.frequent.texts), encoding="utf-8")
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    for name, content in corpus.tokenizer.contents().items():
        (folder / name).write_bytes(content)
    (folder / "schema.json").write_text(json.dumps(corpus.schema.to_dict()), encoding="utf-8")
    checksums = {path.name: checksum(path) for path in sorted(folder.iterdir())}
    (folder / COMPLETE).write_text(json.dumps(checksums), encoding="utf-8")


def checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            found = zlib.crc32(block, found)
    return found


def load(folder: Path, config: Config) -> Corpus | None:
    """The corpus in an entry; None where there is none or it is damaged."""
    try:
        checksums = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
        if any(checksum(folder / name) != expected for name, expected in checksums.items()):
            return None
        corpus = _mapped(folder, config)
        return corpus if _in_range(corpus) else None
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):  # an empty file is an EOFError
        return None


def _mapped(folder: Path, config: Config) -> Corpus:
    def mapped(name: str) -> NDArray[Any]:
        array: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return array

    def offsets(name: str) -> NDArray[np.int64]:
        array: NDArray[np.int64] = np.load(folder / f"{name}.npy", allow_pickle=False)
        return array

    schema = ContextSchema.from_dict(json.loads((folder / "schema.json").read_text(encoding="utf-8")))
    frequent, users = None, mapped("users")
    if (folder / FREQUENT).exists():
        texts = tuple(json.loads((folder / FREQUENT).read_text(encoding="utf-8")))
        frequent = FrequentTexts(texts, mapped("frequent"), users)
    originals = None
    if (folder / "originals.sizes.npy").exists():
        originals = OriginalTexts(*(mapped(f"originals.{name}") for name in OriginalTexts._fields))
    return Corpus(
        mapped("tokens"),
        offsets("offsets"),
        mapped("categories"),
        mapped("numbers"),
        load_tokenizer(config, folder),
        schema,
        tuple(mapped(f"vectors.{index}") for index in range(len(schema.vectors))),
        tuple(Ragged(mapped(f"bags.{n}"), offsets(f"bags.{n}.offsets")) for n in range(len(schema.texts))),
        frequent,
        users,
        originals,
    )


def _in_range(corpus: Corpus) -> bool:
    """Whether arrays fit together, offsets rise, ids are those of something, and no number is infinite."""
    rows, schema = len(corpus), corpus.schema
    dense = [(corpus.numbers, len(schema.numbers))]
    dense += [(vectors, len(variable.means)) for vectors, variable in zip(corpus.vectors, schema.vectors, strict=True)]
    sound = all(array.shape == (rows, width) and not np.isinf(array).any() for array, width in dense)
    sound &= corpus.categories.shape == (rows, len(schema.categories))
    for column, variable in zip(corpus.categories.T, schema.categories, strict=True):
        sound &= _ids_within(column, MISSING, len(variable.values))
    sound &= _lists_within(Ragged(corpus.tokens, corpus.offsets), rows, len(corpus.tokenizer), 1)
    for bags, variable in zip(corpus.bags, schema.texts, strict=True):
        sound &= _lists_within(bags, rows, len(variable.values), 0)
    sound &= len(corpus.users) in (0, rows) and _ids_within(corpus.users, 0, rows + 1)
    if corpus.frequent is not None:
        sound &= len(corpus.frequent.which) == len(corpus.users) == rows
        sound &= _ids_within(corpus.frequent.which, -1, len(corpus.frequent.texts))
    if corpus.originals is not None:
        sizes, digests, restorable = corpus.originals
        sound &= sizes.shape == digests.shape == restorable.shape == (rows,)
        sound &= sizes.dtype == np.int64 and digests.dtype == np.uint64 and restorable.dtype == np.bool_
        sound &= bool((sizes >= 0).all())
    return bool(sound)


def _ids_within(ids: NDArray[Any], low: int, high: int) -> bool:
    """Whether whole numbers lie in [low, high)."""
    return ids.dtype.kind in "iu" and (not len(ids) or bool(ids.min() >= low and ids.max() < high))


def _lists_within(lists: Ragged, rows: int, high: int, least: int) -> bool:
    """Whether there is a list of at least so many ids in [0, high) for each row, and nothing besides."""
    offsets = lists.offsets
    return (
        offsets.shape == (rows + 1,)
        and offsets.dtype == np.int64
        and offsets[0] == 0
        and bool((np.diff(offsets) >= least).all())
        and lists.values.shape == (offsets[-1],)
        and _ids_within(lists.values, 0, high)
    )
