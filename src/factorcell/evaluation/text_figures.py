"""What every text adds to the figures of a model, kept in its folder, so that runs are compared without reading again.

A figure is a ratio of sums over texts: perplexity is exp(sum of nats / sum of targets), accuracy is sum of right ones /
sum of judged ones. Two models are compared text by text where the key of their figures is the same.

texts-4f0c2a91d37be865.safetensors   (in a run folder, one for each table)
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import UserError
from factorcell.data.corpus import Corpus, known_targets, target_offsets

Floats = NDArray[np.float64]


class TextSums(NamedTuple):
    """What each of N texts adds to both sums of a figure, `above` (N,) over `below` (N,).

    `key` tells the texts, and how they are read, from others.
    """

    key: str
    above: Floats
    below: Floats

    def select(self, rows: NDArray[np.int64]) -> "TextSums":
        """Those of the texts `rows` alone."""
        return TextSums(f"{self.key} some", self.above[rows], self.below[rows])

    @property
    def ratio(self) -> float:
        """The figure of all texts, or its logarithm where that is a perplexity."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(self.above.sum() / self.below.sum())


Figures = dict[str, TextSums]


def key_of(corpus: Corpus, *asked: str) -> str:
    """What tells the texts of a corpus, as its vocabulary reads them, and what was `asked` of them, from others."""
    digest = hashlib.sha256(json.dumps([corpus.vocabulary.tokens, asked]).encode())
    for array in (corpus.tokens, corpus.offsets):
        digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def per_text(values: NDArray[np.generic], corpus: Corpus) -> Floats:
    """Sums (N,) over the texts of `corpus` of the `values` of its targets."""
    sums: Floats = np.add.reduceat(np.append(values.astype(np.float64), 0.0), target_offsets(corpus)[:-1])
    return sums


def of_nats(nats: NDArray[np.generic], corpus: Corpus) -> Figures:
    """Both perplexities from the nats of all targets of `corpus`."""
    known = np.where(known_targets(corpus), nats, 0.0)
    return of_sums(key_of(corpus), per_text(nats, corpus), per_text(known, corpus), corpus)


def of_sums(key: str, nats: Floats, known: Floats, corpus: Corpus) -> Figures:
    """Both perplexities from the nats (N,) of the texts of `corpus`, and those of their `known` targets."""
    targets, counted = corpus.lengths.astype(np.float64), per_text(known_targets(corpus), corpus)
    return {"perplexity": TextSums(key, nats, targets), "perplexity_known": TextSums(key, known, counted)}


def of_right(key: str, right: NDArray[np.bool_], judged: NDArray[np.bool_]) -> TextSums:
    """An accuracy, from which texts (N,) were `judged`, and which of them `right`."""
    return TextSums(key, (right & judged).astype(np.float64), judged.astype(np.float64))


def keep(folder: Path, figures: Mapping[str, TextSums]) -> None:
    """Keep figures in the `folder` of their model, beside others of the same texts. `UserError` where it is closed."""
    for key in {sums.key for sums in figures.values()}:
        kept = {**read(folder, key), **{name: sums for name, sums in figures.items() if sums.key == key}}
        tensors = {
            f"{name} {part}": torch.tensor(getattr(sums, part))
            for name, sums in kept.items()
            for part in ("above", "below")
        }
        files.save_tensors(_path(folder, key), tensors, {"key": key})


def read(folder: Path, key: str | None) -> Figures:
    """What `keep` kept of the texts of this key; nothing where there is none."""
    if key is None or not key.isalnum() or not _path(folder, key).exists():
        return {}
    tensors, _ = files.load_tensors(_path(folder, key))
    names = dict.fromkeys(name.rpartition(" ")[0] for name in tensors)
    try:
        return {
            n: TextSums(key, *(tensors[f"{n} {part}"].double().numpy() for part in ("above", "below"))) for n in names
        }
    except KeyError as error:
        raise UserError(f"{_path(folder, key)}: no figures of texts ({error} is missing)") from None


def _path(folder: Path, key: str) -> Path:
    return folder / f"texts-{key}.safetensors"
