"""The contribution of every text to the metrics of a model, saved in the run folder for later comparisons.

A figure (metric) is a ratio of sums over texts, or the exponential of such a ratio:

    perplexity = exp(sum of nats / sum of targets)        accuracy = correct texts / texts with a true value

The key of a figure is a digest of the texts as the model reads them, without their contexts. Two models can be compared
text by text if the keys of their figures are equal. The figures of an evaluation are saved in a file of the run folder,
`texts-<digest>.safetensors`, where the digest depends on the key and on the evaluated table. Tables with the same texts
but other contexts, such as an empty column, therefore have files of their own.

The figure `bits_per_byte_exact` omits the texts whose bits are only a lower bound.

Shapes: N texts.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from factorcell import files
from factorcell.config import UserError
from factorcell.data.corpus import Corpus, is_known_target, target_offsets
from factorcell.model.saved_results import EVALUATION_KEY
from factorcell.model.spelling import spelling_nats

Floats = NDArray[np.float64]
Row = Mapping[str, Any]

DEVELOPMENT = "development texts"  # the table that training evaluates


class TextSums(NamedTuple):
    """The contributions of N texts to the `numerator` (N,) and the `denominator` (N,) of a figure.

    Both arrays are NaN for an omitted text. `key` is a digest of the texts as the model reads them. `originals` is a
    digest of the original texts for bits per byte, which do not depend on the tokenizer; it is empty for other figures.
    """

    key: str
    numerator: Floats
    denominator: Floats
    originals: str = ""

    def select(self, rows: NDArray[np.int64]) -> "TextSums":
        """Return the contributions of the texts with the indices `rows`; the key differs from that of all texts."""
        originals = self.originals and f"{self.originals} some"
        return TextSums(f"{self.key} some", self.numerator[rows], self.denominator[rows], originals)

    def omit(self, is_omitted: NDArray[np.bool_]) -> "TextSums":
        """Return the contributions without those of the texts in the mask `is_omitted` (N,)."""
        numerator, denominator = (
            np.where(is_omitted, math.nan, values) for values in (self.numerator, self.denominator)
        )
        return self._replace(numerator=numerator, denominator=denominator)

    @property
    def texts(self) -> str:
        """The digest of the texts, which is equal for two models if these can be compared text by text."""
        return self.originals or self.key

    @property
    def is_included(self) -> NDArray[np.bool_]:
        """Whether each text (N,) is counted, i.e. not omitted."""
        return ~np.isnan(self.denominator)

    @property
    def ratio(self) -> float:
        """The figure over all counted texts; for a perplexity, its logarithm."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(self.numerator[self.is_included].sum() / self.denominator[self.is_included].sum())


Figures = dict[str, TextSums]


def texts_digest(corpus: Corpus, *task: str) -> str:
    """Return a digest of the texts and the vocabulary of `corpus`, and of a `task`.

    The task of a classification is the target and the candidates; an evaluation of perplexity has no task.
    """
    digest = hashlib.sha256(json.dumps([corpus.tokenizer.tokens, task]).encode())
    for array in (corpus.tokens, corpus.offsets):
        digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]


def sum_per_text(values: NDArray[np.generic], corpus: Corpus) -> Floats:
    """Return the sum of `values`, one per target, over each text (N,)."""
    sums: Floats = np.add.reduceat(np.append(values.astype(np.float64), 0.0), target_offsets(corpus)[:-1])
    return sums


def figures_from_nats(nats: NDArray[np.generic], corpus: Corpus) -> Figures:
    """Return the figures `perplexity`, `perplexity_known` and those of bits per byte from the nats of all targets."""
    is_known, key, nats_of_texts = is_known_target(corpus), texts_digest(corpus), sum_per_text(nats, corpus)
    figures = {
        "perplexity": TextSums(key, nats_of_texts, corpus.lengths.astype(np.float64)),
        "perplexity_known": TextSums(
            key, sum_per_text(np.where(is_known, nats, 0.0), corpus), sum_per_text(is_known, corpus)
        ),
    }
    bits = bits_per_byte(key, nats_of_texts, corpus)
    if bits is None:
        return figures
    return {**figures, "bits_per_byte": bits, "bits_per_byte_exact": bits.omit(has_lower_bound(corpus))}


def bits_per_byte(key: str, nats: Floats, corpus: Corpus) -> TextSums | None:
    """Return the figure `bits_per_byte` from the `nats` (N,) of the texts; None if the original texts are unknown.

    The bits include the spellings of out-of-vocabulary tokens. Truncated texts are omitted, because the number of bytes
    of the part that was read is unknown.
    """
    if corpus.originals is None:
        return None
    is_truncated = corpus.truncated
    bits = np.where(is_truncated, math.nan, (nats + spelling_nats(corpus)) / math.log(2))
    sizes = np.where(is_truncated, math.nan, corpus.originals.sizes)
    return TextSums(key, bits, sizes, corpus.originals.key)


def has_lower_bound(corpus: Corpus) -> NDArray[np.bool_]:
    """Return for each text (N,) whether its bits are only a lower bound.

    The bits are a lower bound if the tokens do not determine the original text, for example because of white space.
    """
    return np.zeros(len(corpus), np.bool_) if corpus.originals is None else ~corpus.originals.restorable


def accuracy_sums(key: str, correct: NDArray[np.bool_], is_labelled: NDArray[np.bool_]) -> TextSums:
    """Return the accuracy figure from masks of the correct texts (N,) and of the texts with a true value (N,)."""
    return TextSums(key, (correct & is_labelled).astype(np.float64), is_labelled.astype(np.float64))


def save(folder: Path, figures: Mapping[str, TextSums], result: Row) -> None:
    """Save the figures of a `result` in the `folder` of a model; keep other figures of the same texts and table.

    `result` has the name of the `table` and, for the predictions of an n-gram mixture, the `predictor`.
    """
    for key in {sums.key for sums in figures.values()}:
        keyed_result = {**result, "texts_key": key}
        merged = {**load(folder, keyed_result), **{name: sums for name, sums in figures.items() if sums.key == key}}
        tensors = {
            f"{name} {part}": torch.tensor(getattr(sums, part))
            for name, sums in merged.items()
            for part in ("numerator", "denominator")
        }
        originals = {name: sums.originals for name, sums in merged.items() if sums.originals}
        files.save_tensors(_path(folder, keyed_result), tensors, {"key": key, "originals": originals})


def load(folder: Path, result: Row) -> Figures:
    """Return the figures of each text that `folder` has for a `result`; an empty dict without such figures.

    `result` is as in `save`, with the key of its figures, `texts_key`.
    """
    key, path = result.get("texts_key"), _path(folder, result)
    if key is None or not path.exists():
        return {}
    tensors, metadata = files.load_tensors(path)
    names = dict.fromkeys(name.rpartition(" ")[0] for name in tensors)
    try:
        originals = metadata["originals"]
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
        raise UserError(f"{path}: expected a file of figures per text ({error!r})") from None


def _path(folder: Path, result: Row) -> Path:
    """Return the file of a result; the fields in its name are those by which a later result replaces an earlier one."""
    fields = [result.get(name) for name in EVALUATION_KEY]
    return folder / f"texts-{hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]}.safetensors"
