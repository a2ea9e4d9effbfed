"""The contribution of every text to the figures of a model, saved in its folder to compare runs later.

A figure is a ratio of sums over texts: perplexity is exp(sum of nats / sum of targets), accuracy is the number of
correct texts over that of judged ones. Two models are compared text by text if the keys of their figures are equal.

texts-4f0c2a91d37be865.safetensors   (in a run folder, one per table)

Shapes: N texts.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import UserError
from factorcell.data.corpus import Corpus, is_known_target, target_offsets

Floats = NDArray[np.float64]


class TextSums(NamedTuple):
    """The contributions of texts to both sums of a figure, `above` (N,) over `below` (N,); both NaN if it is omitted.

    `key` identifies the texts and how they are read. `originals` is a digest of the original texts if the figure does
    not depend on how they are read, else empty.
    """

    key: str
    numerator: Floats
    denominator: Floats
    originals: str = ""

    def select(self, rows: NDArray[np.int64]) -> "TextSums":
        originals = self.originals and f"{self.originals} some"
        return TextSums(f"{self.key} some", self.numerator[rows], self.denominator[rows], originals)

    @property
    def texts(self) -> str:
        """The digest that two models must share for the figure to be compared text by text."""
        return self.originals or self.key

    @property
    def is_included(self) -> NDArray[np.bool_]:
        """The texts that are not omitted (N,)."""
        return ~np.isnan(self.denominator)

    @property
    def ratio(self) -> float:
        """The figure of all texts, or its logarithm if it is a perplexity."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(self.numerator[self.is_included].sum() / self.denominator[self.is_included].sum())


Figures = dict[str, TextSums]


def texts_digest(corpus: Corpus, *question: str) -> str:
    """Return a digest of the texts of a corpus, its vocabulary, and the `question` that a figure answers."""
    digest = hashlib.sha256(json.dumps([corpus.tokenizer.tokens, question]).encode())
    for array in (corpus.tokens, corpus.offsets):
        digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def sum_per_text(values: NDArray[np.generic], corpus: Corpus) -> Floats:
    """Return the sums (N,) over each text of the `values` of its targets."""
    sums: Floats = np.add.reduceat(np.append(values.astype(np.float64), 0.0), target_offsets(corpus)[:-1])
    return sums


def figures_from_nats(nats: NDArray[np.generic], corpus: Corpus) -> Figures:
    """Return both perplexities and the bits per byte from the nats of all targets of `corpus`."""
    known, key, sums = is_known_target(corpus), texts_digest(corpus), sum_per_text(nats, corpus)
    figures = {
        "perplexity": TextSums(key, sums, corpus.lengths.astype(np.float64)),
        "perplexity_known": TextSums(
            key, sum_per_text(np.where(known, nats, 0.0), corpus), sum_per_text(known, corpus)
        ),
    }
    bits = bits_per_byte(key, sums, corpus)
    return figures if bits is None else {**figures, "bits_per_byte": bits}


def bits_per_byte(key: str, nats: Floats, corpus: Corpus) -> TextSums | None:
    """Return bits over bytes of the original texts from the `nats` (N,) of the texts; None without the originals.

    Texts that were cut are omitted, because the bytes of the part that was read are unknown.
    """
    if corpus.originals is None:
        return None
    cut = corpus.truncated
    bits, sizes = np.where(cut, math.nan, nats / math.log(2)), np.where(cut, math.nan, corpus.originals.sizes)
    return TextSums(key, bits, sizes, corpus.originals.key)


def has_lower_bound(corpus: Corpus) -> NDArray[np.bool_]:
    """Return for which texts (N,) of `corpus` the bits are only a lower bound: their tokens do not determine them."""
    unknown = sum_per_text(~is_known_target(corpus), corpus) > 0
    return unknown if corpus.originals is None else unknown | ~corpus.originals.restorable


def accuracy_sums(key: str, right: NDArray[np.bool_], judged: NDArray[np.bool_]) -> TextSums:
    """Return an accuracy from which texts (N,) were `judged`, and which are `right`."""
    return TextSums(key, (right & judged).astype(np.float64), judged.astype(np.float64))


def save(folder: Path, figures: Mapping[str, TextSums]) -> None:
    """Save figures in the `folder` of their model, next to others of the same texts."""
    for key in {sums.key for sums in figures.values()}:
        kept = {**load(folder, key), **{name: sums for name, sums in figures.items() if sums.key == key}}
        tensors = {
            f"{name} {part}": torch.tensor(getattr(sums, part))
            for name, sums in kept.items()
            for part in ("numerator", "denominator")
        }
        originals = {name: sums.originals for name, sums in kept.items() if sums.originals}
        files.save_tensors(_path(folder, key), tensors, {"key": key, "originals": originals})


def load(folder: Path, key: str | None) -> Figures:
    """Return the figures that `keep` saved of the texts of this key, if any."""
    if key is None or not key.isalnum() or not _path(folder, key).exists():
        return {}
    tensors, facts = files.load_tensors(_path(folder, key))
    names = dict.fromkeys(name.rpartition(" ")[0] for name in tensors)
    try:
        originals = facts["originals"]
        return {
            name: TextSums(
                key,
                numerator=tensors[f"{name} numerator"].double().numpy(),
                denominator=tensors[f"{name} denominator"].double().numpy(),
                originals=originals.get(name, ""),
            )
            for name in names
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{_path(folder, key)}: no figures of texts ({error!r})") from None


def _path(folder: Path, key: str) -> Path:
    return folder / f"texts-{key}.safetensors"
